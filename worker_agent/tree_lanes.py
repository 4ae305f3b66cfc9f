"""Divides a tree into lanes: windows of its chunks with a UDP port each, so that several threads share one tree's work.

The engines see each lane as a tree with its part of the share, of the rate and of the slots (native/direction.h);
switches see one tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from p4src.protocol import PROTOCOL

PORTS = PROTOCOL.ports_per_job
_SHIFT = 27  # native/direction.h, INART_LANE_SHIFT


class _Tree(Protocol):
    @property
    def tree(self) -> int: ...
    @property
    def port(self) -> int: ...
    @property
    def lanes(self) -> int: ...


@dataclass(frozen=True)
class TreeLane:
    """A lane of a tree.

    Attributes:
        place: the place of its tree among all of a configuration.
        lane: its place among the tree's lanes.
        number: the number by which the engine knows it.
        port: its UDP port; the first lane has the tree's, and the others those that follow it among the job's ports.
    """

    place: int
    lane: int
    number: int
    port: int


def lanes_of(trees: Sequence[_Tree]) -> list[TreeLane]:
    """Return the lanes of all trees, those of one tree one after the other. Raise ValueError for a number of lanes that
    is not a power of two, or too large.
    """
    found = []
    for place, tree in enumerate(trees):
        if not 1 <= tree.lanes <= PORTS or tree.lanes & (tree.lanes - 1):
            raise ValueError(f"tree {tree.tree} has {tree.lanes} lanes: 1, 2, 4, 8 or {PORTS}")
        first = tree.port - tree.port % PORTS
        found += [
            TreeLane(place, lane, tree.tree | lane << _SHIFT, first + (tree.port + lane) % PORTS)
            for lane in range(tree.lanes)
        ]
    return found
