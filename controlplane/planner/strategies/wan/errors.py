"""The error that all algorithms of this package raise."""

from __future__ import annotations


class WanError(ValueError):
    """The instance is not well formed, or has no solution (unreachable nodes, no bandwidth). The message names the
    nodes."""
