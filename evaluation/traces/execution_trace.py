"""Reads the collectives out of an execution trace, as PyTorch's ExecutionTraceObserver writes it (schema "-chakra").

Others publish such traces of their training (MLCommons' Chakra, PARAM). Of each rank's operators only those named
record_param_comms matter here: the operations of a process group. NCCL runs the operations of a group one after the
other on its stream, so that is how they are replayed.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evaluation.traces.chakra import read_chakra
from evaluation.traces.trace import Operation, Trace

COMMUNICATION = "record_param_comms"
OPS = {
    "allreduce": "allreduce",
    "allreduce_coalesced": "allreduce",
    "all_gather": "all_gather",
    "_allgather_base": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "broadcast": "broadcast",
}
"""The operations of our traces, by PyTorch's names of a group's operations."""
NOTHING = {"wait", "init", "barrier"}
"""Operations that move no data of the training."""
DTYPES = {"float": "float32", "c10::BFloat16": "bfloat16", "c10::Half": "float16"}
WORD = 4
"""Bytes of a word: values that are only passed on are replayed in words of float32, which are not added up."""


def read(path: Path, workers: int = 4) -> Trace:
    """Read a trace of ours, or an execution trace: as JSON, which may be compressed (.gz), or Chakra's (.et). `workers`
    is the number of ranks of one of Chakra's traces without files of other ranks. Raise ValueError, OSError.
    """
    if path.suffix == ".et":
        return read_chakra(path, workers)
    content = path.read_bytes()
    try:
        known = json.loads(gzip.decompress(content) if path.suffix == ".gz" else content)
    except (json.JSONDecodeError, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: no trace: {error}") from None
    if not isinstance(known, dict) or "nodes" not in known:
        return Trace.from_json(known)
    return from_execution_trace(known, path.name.partition(".json")[0])


def from_execution_trace(known: dict[str, Any], name: str) -> Trace:
    """Return the collectives of all ranks of the trace's training.

    Raise ValueError for a trace without any, of several group sizes, of one rank alone, or with an operation that our
    traces do not have.
    """
    try:
        found = list(_operations(known))
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError(f"no execution trace: {error!r}") from None
    sizes = {size for size, _ in found}
    if len(sizes) != 1:
        raise ValueError(f"{name}: collectives of groups of {sorted(sizes) or 'nobody'}; one size is replayed")
    (workers,) = sizes
    if workers < 2:
        raise ValueError(f"{name}: a trace of one rank alone")
    return Trace(name, workers, tuple(operation for _, operation in found))


def _operations(known: dict[str, Any]) -> Iterator[tuple[int, Operation]]:
    """Yield each collective, with the number of ranks of its group."""
    for node in known["nodes"]:
        if node["name"] != COMMUNICATION:
            continue
        values, types = node["inputs"]["values"], node["inputs"]["types"]
        what = next(value for value in values if isinstance(value, str))  # the only value that is a text
        if what in NOTHING:
            continue
        if what not in OPS:
            raise ValueError(f"{what!r} is none of the operations that go in the network: {', '.join(OPS)}")
        tensors = list(_tensors(values[0]))
        nbytes, size = sum(elements * width for elements, width in tensors), int(values[-1])
        if OPS[what] == "all_gather":
            nbytes *= size
        dtype = types[0].partition("Tensor(")[2].partition(")")[0]
        if OPS[what] in ("all_gather", "broadcast") and dtype not in DTYPES:
            yield size, Operation(OPS[what], "float32", -(-nbytes // WORD) * WORD)
        else:
            yield size, Operation(OPS[what], DTYPES.get(dtype, dtype), nbytes)


def _tensors(value: Any) -> Iterator[tuple[int, int]]:
    """Yield elements and bytes of an element of each tensor: [id, storage, offset, elements, bytes, device]."""
    if len(value) == 6 and isinstance(value[5], str):
        yield int(value[3]), int(value[4])
        return
    for one in value:
        yield from _tensors(one)
