"""Benchmarks of the hosts' data path, and the small network on which they and its tests run."""
