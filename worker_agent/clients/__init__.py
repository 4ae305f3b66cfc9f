"""Programs that are not Python's: a client of the node's agent in C, and what brings MPI and NCCL to it."""
