"""A job beside foreign TCP over one link: what each of them gets, and how long the queue is."""
