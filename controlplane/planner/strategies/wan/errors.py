"""What every algorithm here raises."""

from __future__ import annotations


class WanError(ValueError):
    """The instance is wrong, or has no solution (unreachable nodes, no bandwidth); names the nodes."""
