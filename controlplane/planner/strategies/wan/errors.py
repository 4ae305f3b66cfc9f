"""The error that all algorithms of this package raise."""

from __future__ import annotations


class WanError(ValueError):
    """Error of an instance that is not well formed, or has no solution (unreachable nodes, no bandwidth); the message
    names the nodes.
    """
