"""Measures fully sharded training and its collectives, through the switches and over gloo, in one emulated network."""
