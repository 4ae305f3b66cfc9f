"""Measures training with ranks that are slowed at random, with a deadline (worker_agent/torch/deadline.py) or none."""
