"""The InArt paper's figures, from plans: one command per figure, python -m evaluation.inart."""
