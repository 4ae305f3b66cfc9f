"""The operations of an agent, all of which work in place on one array.

SUM, MEAN: all-reduce. For a few values, `Collective.merge` also has the largest, the smallest, the product, and, or and
    exclusive or.
SCATTER_SUM, SCATTER_MEAN: reduce-scatter. The array is W parts of the same size; part i becomes the sum over the
    workers at worker i, and stays unchanged at the others.
GATHER: all-gather. The array is W parts of the same size; part i of worker i goes to all.
broadcast(N): the array of worker N goes to all.

Each has a name ("sum", "mean", "scatter sum", "scatter mean", "gather", "broadcast N", "max"), which users may give in
its place and which is sent over sockets: `str()` of a collective is its name, and `collective()` reads a name. A sum or
mean may also have the number of bits per value and a random seed ("mean bits=8 seed=3", fields.py); otherwise the
array's type determines the bits. With " feedback" after them the array is float32 and twice as long: its first half is
reduced, and its second half gets the residuals, the parts of this worker's values that were rounded off.

docs/protocol.md describes them in "Beyond all-reduce".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import IntEnum


class Kind(IntEnum):
    """The kinds of operations, with the numbers of worker_agent/native/collectives.h."""

    ALL_REDUCE = 0
    REDUCE_SCATTER = 1
    GATHER = 2


@dataclass(frozen=True)
class Collective:
    """A collective operation.

    Attributes:
        kind: all-reduce, reduce-scatter or gather (a broadcast is a gather with a source).
        mean: whether the sum is divided by the number of workers.
        source: the worker whose array is broadcast; -1: it is no broadcast.
        bits: bits per value; None: as many as the array's type has.
        seed: seed of the random numbers by which values are rounded.
        feedback: whether the array's second half gets the residuals.
        merge: one of MERGES instead of a sum or mean, which only small operations can do (gathered.py).
    """

    kind: Kind
    mean: bool = False
    source: int = -1
    bits: int | None = None
    seed: int = 0
    feedback: bool = False
    merge: str = ""

    @property
    def raw(self) -> bool:
        """Whether bytes travel unchanged, with any dtype."""
        return self.kind is Kind.GATHER

    @property
    def in_parts(self) -> bool:
        """Whether the array has one part per worker."""
        return self.kind is not Kind.ALL_REDUCE and self.source < 0

    @property
    def plain(self) -> Collective:
        """The same operation without an encoding of its values."""
        return Collective(self.kind, self.mean, self.source, merge=self.merge)

    @property
    def reduction(self) -> int:
        """The operation's number in native/gathered.h."""
        if self.raw:
            return 2 + len(MERGES)
        return 2 + MERGES.index(self.merge) if self.merge else int(self.mean)

    @property
    def scattered(self) -> Collective:
        """The reduce-scatter with the same operator as this all-reduce."""
        return replace(self, kind=Kind.REDUCE_SCATTER)

    def encoded(self, bits: int | None, seed: int = 0, *, feedback: bool = False) -> Collective:
        """Return the operation with this many bits per value (None: unchanged)."""
        return self if bits is None else replace(self, bits=bits, seed=seed, feedback=feedback)

    def __str__(self) -> str:
        if self.source >= 0:
            return f"broadcast {self.source}"
        name = NAMES[self.plain]
        if self.bits is None:
            return name
        return f"{name} bits={self.bits} seed={self.seed}{' feedback' if self.feedback else ''}"


SUM = Collective(Kind.ALL_REDUCE)
MEAN = Collective(Kind.ALL_REDUCE, mean=True)
SCATTER_SUM = SUM.scattered
SCATTER_MEAN = MEAN.scattered
GATHER = Collective(Kind.GATHER)
MERGES = ("max", "min", "product", "and", "or", "xor")
"""The operators in the order of their numbers in native/gathered.h."""
NAMES = {SUM: "sum", MEAN: "mean", SCATTER_SUM: "scatter sum", SCATTER_MEAN: "scatter mean", GATHER: "gather"}
NAMES |= {Collective(Kind.ALL_REDUCE, merge=merge): merge for merge in MERGES}
NAMES |= {Collective(Kind.REDUCE_SCATTER, merge=merge): f"scatter {merge}" for merge in MERGES}

Operation = Collective | str
"""The argument type of users: a collective or its name."""

_NAMED = {name: found for found, name in NAMES.items()}
_ENCODED = re.compile(r"((?:scatter )?(?:sum|mean)) bits=(\d{1,2})(?: seed=(\d{1,18}))?( feedback)?", re.ASCII)


def broadcast(source: int) -> Collective:
    """Return the broadcast of this worker's array to all."""
    return Collective(Kind.GATHER, source=source)


def collective(op: Operation) -> Collective:
    """Return the collective with this name. Raise ValueError, which lists the names, where there is none."""
    if isinstance(op, Collective):
        return op
    found = _NAMED.get(op) if isinstance(op, str) else None
    if found is not None:
        return found
    if isinstance(op, str) and (encoded := _ENCODED.fullmatch(op)):
        name, bits, seed, feedback = encoded.groups()
        if not feedback or _NAMED[name].kind is Kind.ALL_REDUCE:
            return _NAMED[name].encoded(int(bits), int(seed or 0), feedback=bool(feedback))
    name, _, source = op.partition(" ") if isinstance(op, str) else ("", "", "")
    if name == "broadcast" and source.isdecimal():
        return broadcast(int(source))
    names = ", ".join(f'"{name}"' for name in _NAMED)
    raise ValueError(f'op must be one of {names}, "broadcast N", not {op!r}')
