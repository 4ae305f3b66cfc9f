"""The operations that an agent takes; all work in place on one array.

SUM, MEAN: all-reduce. Of a few values also their largest, smallest, product, and, or, xor (`Collective.merge`).
SCATTER_SUM, SCATTER_MEAN: reduce-scatter. The array is W parts of the same size; part i becomes the sum over the
    workers at worker i, and is left as it was at the others.
GATHER: all-gather. The array is W parts of the same size; part i of worker i goes to all.
broadcast(N): the array of worker N goes to all.

Each has a name ("sum", "mean", "scatter sum", "scatter mean", "gather", "broadcast N", "max"), which users may give in
its place and which travels over sockets: `str()` of a collective is its name, `collective()` reads one. A sum or mean
may also say in how many bits each value travels and what chance is drawn from ("mean bits=8 seed=3", fields.py);
without, as the array's type has it. With " feedback" behind it the array is float32 and twice as long: its first half
is reduced, and its second half gets what of this worker's values did not travel.

docs/protocol.md, "Beyond all-reduce".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import IntEnum


class Kind(IntEnum):
    """As worker_agent/native/collectives.h has it."""

    ALL_REDUCE = 0
    REDUCE_SCATTER = 1
    GATHER = 2


@dataclass(frozen=True)
class Collective:
    """source: of a broadcast; -1: none. bits: that each value travels in; None: as its type has it. seed: of the
    numbers by which values are rounded. feedback: the array's second half gets what did not travel. merge: one of
    MERGES instead of a sum or mean, which only small operations can do (gathered.py)."""

    kind: Kind
    mean: bool = False
    source: int = -1
    bits: int | None = None
    seed: int = 0
    feedback: bool = False
    merge: str = ""

    @property
    def raw(self) -> bool:
        """Whether bytes travel as they are: any dtype."""
        return self.kind is Kind.GATHER

    @property
    def in_parts(self) -> bool:
        """Whether the array is one part a worker."""
        return self.kind is not Kind.ALL_REDUCE and self.source < 0

    @property
    def plain(self) -> Collective:
        """The same operation, whatever its values travel in."""
        return Collective(self.kind, self.mean, self.source, merge=self.merge)

    @property
    def reduction(self) -> int:
        """Its number in native/gathered.h."""
        if self.raw:
            return 2 + len(MERGES)
        return 2 + MERGES.index(self.merge) if self.merge else int(self.mean)

    @property
    def scattered(self) -> Collective:
        """Of an all-reduce, the reduce-scatter with the same operator."""
        return replace(self, kind=Kind.REDUCE_SCATTER)

    def encoded(self, bits: int | None, seed: int = 0, *, feedback: bool = False) -> Collective:
        """The operation with values of so many bits (None: as it is)."""
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
"""As native/gathered.h numbers them."""
NAMES = {SUM: "sum", MEAN: "mean", SCATTER_SUM: "scatter sum", SCATTER_MEAN: "scatter mean", GATHER: "gather"}
NAMES |= {Collective(Kind.ALL_REDUCE, merge=merge): merge for merge in MERGES}
NAMES |= {Collective(Kind.REDUCE_SCATTER, merge=merge): f"scatter {merge}" for merge in MERGES}

Operation = Collective | str
"""What users may give: a collective or its name."""

_NAMED = {name: found for found, name in NAMES.items()}
_ENCODED = re.compile(r"((?:scatter )?(?:sum|mean)) bits=(\d{1,2})(?: seed=(\d{1,18}))?( feedback)?", re.ASCII)


def broadcast(source: int) -> Collective:
    """The array of this worker goes to all."""
    return Collective(Kind.GATHER, source=source)


def collective(op: Operation) -> Collective:
    """The collective of this name. Raises ValueError with the names that there are."""
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
