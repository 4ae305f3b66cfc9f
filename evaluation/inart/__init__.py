"""The InArt paper's figures, computed from plans: python -m evaluation.inart."""
