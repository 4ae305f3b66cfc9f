"""A job beside foreign TCP over one link: who gets how much, and how long the queue is."""
