"""Strategies for a fabric: InArt, ours, the paper's, and its baselines. One file each."""
