"""Example training scripts."""
