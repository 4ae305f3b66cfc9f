"""Compares the cost model with the emulation: seconds of all-reduces of 10 KB to 100 MB (docs/planner.md)."""
