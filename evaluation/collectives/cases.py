"""Cases of a measurement: an operation on so many bytes of a dtype, and the least time that it can take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from p4src.protocol import data_values, frame_bytes
from worker_agent.collectives import GATHER, SCATTER_SUM, SUM, Collective, broadcast
from worker_agent.fields import FIELDS, OWN_BITS, bits_of
from worker_agent.operands import ITEM_BYTES

OPS = {"allreduce": SUM, "reduce_scatter": SCATTER_SUM, "all_gather": GATHER, "broadcast": broadcast(0)}
"""The agents' operations, by their names in nccl-tests."""


@dataclass(frozen=True)
class Case:
    """One case of a measurement.

    Attributes:
        bits: bits in which each value travels.
        nbytes: bytes of the whole tensor (of a reduce-scatter and an all-gather those of all parts together): a
            whole number of elements for each worker where it is cut into parts.
    """

    op: str
    dtype: str
    bits: int
    nbytes: int
    workers: int
    mbps: float

    @property
    def elements(self) -> int:
        return self.nbytes // ITEM_BYTES[self.dtype]

    def operation(self, seed: int) -> Collective:
        """Return the operation as an agent takes it."""
        op = OPS[self.op]
        if op.raw or self.bits == bits_of(self.dtype, None, self.workers):
            return op  # without a request for bits small tensors are gathered (gathered.py)
        return op.encoded(self.bits, seed)

    def at_most(self, nbytes: int) -> Case:
        """Return this case with at most so many bytes."""
        unit = ITEM_BYTES[self.dtype] * self.workers
        return self if self.nbytes <= nbytes else replace(self, nbytes=nbytes // unit * unit)

    def packets(self, values: int) -> int:
        """Return the number of packets of values alone, from each worker or to each worker, whichever is more."""
        words = -(-self.elements * self.bits // 32) if self.is_raw else -(-self.elements // FIELDS[self.bits])
        return -(-words // data_values(values))

    @property
    def is_raw(self) -> bool:
        """Whether bytes travel as they are."""
        return OPS[self.op].raw

    def link_seconds(self, values: int) -> tuple[float, float]:
        """Return the seconds in which a link carries a worker's packets to the network, and those to the worker, with
        headers.
        """
        whole = 8 * frame_bytes(values) * self.packets(values) / (self.mbps * 1e6)
        part = whole / self.workers
        return {"all_gather": (part, whole - part), "reduce_scatter": (whole, part)}.get(self.op, (whole, whole))

    def bound_seconds(self, values: int) -> float:
        """Return the least time that the operation can take by itself, in seconds."""
        return max(self.link_seconds(values))


def bus_factor(op: str, workers: int) -> float:
    """Return the ratio of nccl-tests' busbw to its algbw: the bytes on a link for each byte of the tensor in a ring."""
    ring = (workers - 1) / workers
    return {"allreduce": 2 * ring, "broadcast": 1.0}.get(op, ring)


def cases(
    ops: Sequence[str],
    dtypes: Sequence[str],
    bits: Sequence[int | None],
    sizes: Sequence[int],
    *,
    workers: int,
    mbps: float,
) -> Iterator[Case]:
    """Yield the cases that make sense. In `bits`, None stands for the dtype's own bits, of which a case never has more.
    Raise ValueError for a number of bits that is not supported.
    """
    for op, dtype, asked, size in product(ops, dtypes, bits, sizes):
        raw = OPS[op].raw
        if asked is not None and (raw or asked > OWN_BITS[dtype]):
            continue
        parts = workers if OPS[op].in_parts else 1
        unit = ITEM_BYTES[dtype] * parts
        width = OWN_BITS[dtype] if raw else bits_of(dtype, asked, workers)
        yield Case(op, dtype, width, max(unit, size // unit * unit), workers, mbps)


def data(case: Case, worker: int, seed: int) -> NDArray[np.generic]:
    """Return a worker's tensor; bfloat16 as its bits."""
    wide = np.random.default_rng([seed, worker]).standard_normal(case.elements, dtype=np.float32)
    if case.dtype == "bfloat16":
        return (wide.view(np.uint32) >> 16).astype(np.uint16)
    return wide.astype(case.dtype)
