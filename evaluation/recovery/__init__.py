"""Measures how long agents take back to the planned rate after disturbances: `python -m evaluation.recovery --help`."""
