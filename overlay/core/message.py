"""Messages between agents: a header of 64 bytes, then float32 values in the hosts' byte order (little-endian).

    magic 4 | version 1 | kind 1 | tree 2 | epoch 8 | task 4 | chunk 4 | values 4 | contributors 8 | stamp 8 |
    hop 1 | hops 1 | path 9 x 2

`contributors` has a bit for each contributor of the tree whose values are in the sum. `stamp` is when the sender began
to send the message, in seconds of the coordinator's clock (nan where the sender does not know that clock's offset yet).
`path` lists the agents from the sender to the receiver, by number, and `hop` is the position in it of the agent to
which the message is going now: an agent that is not the last one passes the message on.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from controlplane.planner.plan.task import MOST_VIA
from overlay.core.errors import MessageError

Values = NDArray[np.float32]
MAGIC = b"INOV"
VERSION = 7
MOST_VALUES = 1 << 24
_PATH = MOST_VIA + 2
_FORMAT = struct.Struct(f"<4sBBHQIIIQdBB{_PATH}H")
HEADER_BYTES = _FORMAT.size


class Kind(IntEnum):
    """The kind of a message."""

    HELLO = 0  # first message on a connection; path[0] is the agent that opened it
    UP = 1  # a partial sum, on its way to the root
    DOWN = 2  # a result, on its way from the root
    EAGER = 5  # a chunk of a submission whose task is not known yet; the field `task` has its turn: core/scatter.py
    DISCARD = 4  # no values: the sender has given the task up, and its receivers are to do so, too
    SENT = 6  # no values: the root has sent all of a tree that switches copy; a receiver answers with MISSING
    MISSING = 7  # the numbers (32 bits each) of the chunks of such a tree that have not arrived
    PROBE = 8  # values without a meaning, to measure a rate; `task` is the measurement
    FETCH = 9  # no values: the receiver is to send its state, in pieces; `task` is the sender's number for that
    REVERSED = 11  # first message on a connection over which others send to path[0], which opened it: it is hidden
    THROUGH = 12  # no values: a chunk of this task and tree has come to the end of its detour, which has room again
    PIECE = 10  # a part of a state, as bytes; `chunk` is its position, `contributors` the number of pieces


_KINDS = {int(kind): kind for kind in Kind}


class Header(NamedTuple):
    """A message without its values.

    Attributes:
        path: numbers of the agents from the sender to the final receiver.
        hop: position in `path` of the agent to which the message is going now.
    """

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
        """Whether the agent to which the message is going now is the final receiver."""
        return self.hop == len(self.path) - 1

    def onward(self) -> Header:
        """Return the header for the next agent of the path."""
        return self._replace(hop=self.hop + 1)

    def stamped(self, stamp: float) -> Header:
        """Return the same header with this stamp, in seconds."""
        return self._replace(stamp=stamp)

    def pack(self) -> bytes:
        """Return the HEADER_BYTES bytes that go over the connection."""
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
    """Return the header in these HEADER_BYTES bytes. Raise MessageError when they are of another protocol or version,
    or a field is out of range.
    """
    magic, version, kind, tree, epoch, task, chunk, values, contributors, stamp, hop, hops, *path = _FORMAT.unpack(data)
    if magic != MAGIC:
        raise MessageError(f"it does not speak the overlay's protocol: its first bytes are {bytes(magic)!r}")
    if version != VERSION:
        raise MessageError(
            f"it speaks version {version} of the overlay's protocol, and this agent version {VERSION}: "
            "install the same release on both"
        )
    if kind not in _KINDS or values > MOST_VALUES or not 0 < hops <= _PATH or hop >= hops:
        raise MessageError(f"a header out of range: kind {kind}, {values} values, hop {hop} of {hops}")
    return Header(_KINDS[kind], epoch, task, tuple(path[:hops]), hop, tree, chunk, values, contributors, stamp)
