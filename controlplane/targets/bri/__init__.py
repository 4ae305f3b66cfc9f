"""Tofino switches over the Barefoot Runtime Interface (docs/tofino.md)."""
