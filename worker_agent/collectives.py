"""The operations that an agent takes, by name; all work in place on one array.

"sum", "mean": all-reduce.
"scatter sum", "scatter mean": reduce-scatter. The array is W parts of the same size; part i becomes the sum over the
    workers at worker i, and is left as it was at the others.
"gather": all-gather. The array is W parts of the same size; part i of worker i goes to all.
"broadcast N": the array of worker N goes to all.

Sums and means may say in how many bits each value travels, and what chance is drawn from (fields.py):
"mean bits=8 seed=3"; without, as the array's type has it. With " feedback" behind it the array is float32 and twice as
long: its first half is reduced, and its second half gets what of this worker's values did not travel.

docs/protocol.md, "Beyond all-reduce".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import IntEnum

Operation = str


class Kind(IntEnum):
    """As worker_agent/native/collectives.h has it."""

    ALL_REDUCE = 0
    REDUCE_SCATTER = 1
    GATHER = 2


@dataclass(frozen=True)
class Collective:
    """source: of a broadcast; -1: none. bits: that each value travels in; None: as its type has it. seed: of the
    numbers by which values are rounded. feedback: the array's second half gets what did not travel."""

    kind: Kind
    mean: bool = False
    source: int = -1
    bits: int | None = None
    seed: int = 0
    feedback: bool = False

    @property
    def raw(self) -> bool:
        """Whether bytes travel as they are: any dtype."""
        return self.kind is Kind.GATHER

    @property
    def in_parts(self) -> bool:
        """Whether the array is one part a worker."""
        return self.kind is not Kind.ALL_REDUCE and self.source < 0


_NAMED = {
    "sum": Collective(Kind.ALL_REDUCE),
    "mean": Collective(Kind.ALL_REDUCE, mean=True),
    "scatter sum": Collective(Kind.REDUCE_SCATTER),
    "scatter mean": Collective(Kind.REDUCE_SCATTER, mean=True),
    "gather": Collective(Kind.GATHER),
}
_ENCODED = re.compile(r"((?:scatter )?(?:sum|mean)) bits=(\d{1,2})(?: seed=(\d{1,18}))?( feedback)?", re.ASCII)


def with_bits(op: Operation, bits: int | None, seed: int = 0, *, feedback: bool = False) -> Operation:
    """The operation with values of so many bits (None: as it is)."""
    return op if bits is None else f"{op} bits={bits} seed={seed}{' feedback' if feedback else ''}"


def plain(op: Operation) -> Operation:
    """The operation without what follows its name."""
    return op.partition(" bits=")[0]


def parse(op: Operation) -> Collective:
    """Raises ValueError with the operations that there are."""
    found = _NAMED.get(op) if isinstance(op, str) else None
    if found is not None:
        return found
    if isinstance(op, str) and (encoded := _ENCODED.fullmatch(op)):
        name, bits, seed, feedback = encoded.groups()
        if not feedback or _NAMED[name].kind is Kind.ALL_REDUCE:
            return replace(_NAMED[name], bits=int(bits), seed=int(seed or 0), feedback=bool(feedback))
    name, _, source = op.partition(" ") if isinstance(op, str) else ("", "", "")
    if name == "broadcast" and source.isdecimal():
        return Collective(Kind.GATHER, source=int(source))
    names = ", ".join(f'"{name}"' for name in _NAMED)
    raise ValueError(f'op must be one of {names}, "broadcast N", not {op!r}')
