"""How fast the softswitch is, beside bmv2 where that is installed: ``python -m evaluation.softswitch``."""
