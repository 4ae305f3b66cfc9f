"""Real all-reduces while everything fails, on any emulated network: `python -m evaluation.chaos`."""
