"""Measures how fast softswitch is, beside bmv2 if it is installed: ``python -m evaluation.softswitch``."""
