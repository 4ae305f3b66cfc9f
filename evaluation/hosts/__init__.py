"""Benchmarks of the hosts' data path, and the small network that they (and its tests) run on."""
