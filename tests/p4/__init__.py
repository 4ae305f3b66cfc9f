"""Behaviour of the P4 program on every target that can run here, held to the reference model."""
