"""Traces of what training asks of the network, recorded, and done again in the network and by gloo."""
