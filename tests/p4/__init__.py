"""Behaviour of the P4 program on every target that can run here, compared with the reference model."""
