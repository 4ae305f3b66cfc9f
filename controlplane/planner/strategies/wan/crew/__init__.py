"""CREW: partial reduce (docs/wan.md)."""
