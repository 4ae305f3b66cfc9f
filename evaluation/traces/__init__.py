"""Traces of the collectives of training: recorded, and replayed in the network and by gloo."""
