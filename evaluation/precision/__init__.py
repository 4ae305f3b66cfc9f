"""Measures the effects of fewer bits on gradients of real training, and on the training itself, beside common ways."""
