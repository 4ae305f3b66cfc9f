"""What an agent of the overlay decides and how sums come about: no sockets, no threads."""
