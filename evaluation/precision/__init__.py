"""What fewer bits do to gradients of real training, and to the training itself, beside what users have."""
