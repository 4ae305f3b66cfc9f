"""An all-reduce over torch.distributed that gives the same bits as the network would, for steps that fall back.

The ranks exchange the integers that workers would have sent (fixedpoint.py, fields.py), with the exponents on which
they would have agreed; sums of integers are the same whoever adds them. It takes longer than torch.distributed's own
all-reduce, so only jobs that ask for the same bits again (`reproducible`) use it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from p4src.protocol import data_values
from worker_agent import fixedpoint
from worker_agent.collectives import Collective, Kind
from worker_agent.fields import Fields, bits_of, is_stochastic
from worker_agent.fixedpoint import NONFINITE
from worker_agent.gathered import gathered_words
from worker_agent.operands import DTYPES
from worker_agent.torch.control import Control

GROUP = 8
"""Number of chunks in a group whose finite values have fewer bits when one of them holds a NaN or an infinity
(native/numbering.h).
"""
_NUMPY: dict[str, Any] = {"max": np.maximum, "min": np.minimum, "product": np.multiply}
_NUMPY |= {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}

TORCH_OPS = {
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
    "product": dist.ReduceOp.PRODUCT,
    "and": dist.ReduceOp.BAND,
    "or": dist.ReduceOp.BOR,
    "xor": dist.ReduceOp.BXOR,
}
"""torch.distributed's operators by the names that collectives have for them (MERGES in worker_agent/collectives.py)."""


def can_be_alike(buffer: torch.Tensor, op: Collective) -> bool:
    """Return whether this is an all-reduce on the CPU without error feedback."""
    return op.kind is Kind.ALL_REDUCE and not op.feedback and buffer.device.type == "cpu"


def reduce_alike(
    control: Control, buffer: torch.Tensor, op: Collective, order: list[int], values_per_packet: int
) -> None:
    """Reduce `buffer` in place; all ranks call this. `order` has the worker's number of each rank."""
    group = control.group
    name, elements = str(buffer.dtype).removeprefix("torch."), buffer.numel()
    data, worker = data_values(values_per_packet), order[group.rank()]
    if gathered_words(op, name, elements, group.size(), data) or name not in DTYPES:
        rows = [torch.empty_like(buffer) for _ in order]
        control.wait(group.allgather([rows], [buffer.contiguous()]))
        buffer.copy_(_merged([rows[order.index(number)] for number in range(len(order))], op))
        return
    bits = bits_of(name, op.bits, len(order))
    fields = Fields(bits, len(order), data, is_stochastic(name, bits), op.seed, worker) if bits < 32 else None
    each = fields.values if fields is not None else data
    own = np.ascontiguousarray(buffer.detach().float().numpy().reshape(-1))
    chunks = [own[first : first + each] for first in range(0, elements, each)]
    own_exponents = [fixedpoint.exponent(chunk) if fields is None else fields.exponent(chunk) for chunk in chunks]
    agreed = _agreed(control, own_exponents)
    if fields is None:
        sent = [fixedpoint.quantise(chunk, e, len(order)) for chunk, e in zip(chunks, agreed, strict=True)]
    else:
        sent = [fields.quantise(chunk, e, i * each) for i, (chunk, e) in enumerate(zip(chunks, agreed, strict=True))]
    words = torch.from_numpy(np.concatenate(sent))
    control.wait(group.allreduce([words], dist.ReduceOp.SUM))
    sums = np.split(words.numpy(), np.cumsum([len(one) for one in sent])[:-1])
    if fields is None:
        found = [fixedpoint.dequantise(one, e, len(order), op.mean) for one, e in zip(sums, agreed, strict=True)]
    else:
        found = [
            fields.dequantise(one, chunk.size, e, op.mean) for one, chunk, e in zip(sums, chunks, agreed, strict=True)
        ]
    if op.mean or len(order) == 1:
        found = [fixedpoint.limited(one, e, name) for one, e in zip(found, agreed, strict=True)]
    buffer.copy_(torch.from_numpy(np.concatenate(found)).view(buffer.shape))


def _agreed(control: Control, exponents: list[int]) -> list[int]:
    """Return the biased exponents that all workers use, one per chunk, from those that this worker needs."""
    own = np.array(exponents, np.int32)
    flags = np.pad(own >= NONFINITE, (0, -len(own) % GROUP)).reshape(-1, GROUP).any(axis=1)
    most = torch.from_numpy(np.concatenate([own % NONFINITE, flags.astype(np.int32)]).astype(np.int32))
    control.wait(control.group.allreduce([most], dist.ReduceOp.MAX))
    finite, flags = most.numpy()[: len(own)], most.numpy()[len(own) :]
    return [int(e) + NONFINITE * int(flags[i // GROUP]) for i, e in enumerate(finite)]


def _merged(rows: list[torch.Tensor], op: Collective) -> torch.Tensor:
    """Return the values of all workers merged as native/gathered.h does it: in the order of the workers, floating-point
    sums in double precision.
    """
    if not rows[0].is_floating_point():
        whole = [row.numpy() for row in rows]
        merged: NDArray[Any] = whole[0].copy()
        for row in whole[1:]:
            merged = _NUMPY[op.merge](merged, row) if op.merge else merged + row
        return torch.from_numpy(merged)
    wide = [row.double().numpy() for row in rows]
    total = wide[0].copy()
    with np.errstate(over="ignore", invalid="ignore"):
        for one in wide[1:]:
            total = _NUMPY[op.merge](total, one) if op.merge else total + one
        if op.mean:
            total = _mean(wide, total)
    result = torch.from_numpy(total)
    return result if rows[0].dtype == torch.float64 else result.float().to(rows[0].dtype)


def _mean(rows: list[NDArray[np.float64]], total: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean of all workers' values, of which `total` is the sum. A sum beyond float64 is computed at a
    smaller scale: the mean of finite values is finite.
    """
    if np.isfinite(total).all():
        return total / len(rows)
    scaled = rows[0] * 2.0**-10
    for one in rows[1:]:
        scaled = scaled + one * 2.0**-10
    largest = np.finfo(np.float64).max
    limited = np.clip(scaled / len(rows) * 2.0**10, -largest, largest)
    return np.where(np.isfinite(total), total / len(rows), np.where(np.isfinite(scaled), limited, scaled))
