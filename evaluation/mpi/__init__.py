"""Measures MPI's collectives through the switches beside Open MPI's own."""
