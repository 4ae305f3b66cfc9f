"""Measures every collective, from 4 bytes to 100 MB, in every dtype and number of bits: in the network and by gloo."""
