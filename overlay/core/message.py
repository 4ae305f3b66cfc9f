"""Messages between agents: a header of 64 bytes, then float32 values in the hosts' byte order (little-endian).

    magic 4 | version 1 | kind 1 | tree 2 | epoch 8 | task 4 | chunk 4 | values 4 | contributors 8 | stamp 8 |
    hop 1 | hops 1 | path 9 x 2

`contributors`: whose values are in the sum, by position in the tree. `stamp`: when the sender began to send, seconds
of its clock. `path`: the agents from the sender to the receiver, by number; `hop`: which of them the message is for
now, so that those on the way pass it on.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from enum import IntEnum

from controlplane.planner.plan.task import MOST_VIA
from overlay.core.errors import MessageError

MAGIC = b"INOV"
VERSION = 4
MOST_VALUES = 1 << 24
_PATH = MOST_VIA + 2
_FORMAT = struct.Struct(f"<4sBBHQIIIQdBB{_PATH}H")
HEADER_BYTES = _FORMAT.size


class Kind(IntEnum):
    """What a message is."""

    HELLO = 0  # the first on a connection: path[0] is who speaks
    UP = 1  # a partial sum
    DOWN = 2  # a result
    STATE = 3  # what a root kept, for the next root
    EARLY = 5  # a chunk of a turn (in the field `task`) whose task is not known yet: overlay/core/scatter.py
    DISCARD = 4  # no values: the sender has given the task up, and so should everybody
    SENT = 6  # no values: the root has sent all of a tree that switches copy; who has not got all of it says so
    MISSING = 7  # the numbers (32 bits) of chunks of such a tree that have not come


@dataclass(frozen=True)
class Header:
    """A message without its values. path: numbers of agents; hop: index in it of whom it is for."""

    kind: Kind
    epoch: int
    task: int
    path: tuple[int, ...]
    hop: int = 0
    tree: int = 0
    chunk: int = 0
    values: int = 0
    contributors: int = 0
    stamp: float = 0.0

    @property
    def last(self) -> bool:
        """Whether whom it is for now is whom it is for in the end."""
        return self.hop == len(self.path) - 1

    def onward(self) -> Header:
        return replace(self, hop=self.hop + 1)

    def stamped(self, stamp: float) -> Header:
        return replace(self, stamp=stamp)

    def pack(self) -> bytes:
        padded = (*self.path, *(0,) * (_PATH - len(self.path)))
        return _FORMAT.pack(
            MAGIC,
            VERSION,
            self.kind,
            self.tree,
            self.epoch,
            self.task,
            self.chunk,
            self.values,
            self.contributors,
            self.stamp,
            self.hop,
            len(self.path),
            *padded,
        )


def unpack(data: bytes | bytearray | memoryview) -> Header:
    """Raises MessageError: another protocol or version, or fields out of range."""
    magic, version, kind, tree, epoch, task, chunk, values, contributors, stamp, hop, hops, *path = _FORMAT.unpack(data)
    if magic != MAGIC:
        raise MessageError(f"it does not speak our protocol (first bytes {bytes(magic)!r})")
    if version != VERSION:
        raise MessageError(f"it speaks version {version} of our protocol, this agent {VERSION}")
    if kind not in Kind.__members__.values() or values > MOST_VALUES or not 0 < hops <= _PATH or hop >= hops:
        raise MessageError(f"a header out of range: kind {kind}, {values} values, hop {hop} of {hops}")
    return Header(Kind(kind), epoch, task, tuple(path[:hops]), hop, tree, chunk, values, contributors, stamp)
