"""Reads the arguments of a process group's methods, whose forms differ between versions of torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import OpType  # type: ignore[attr-defined]

_OPERATORS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
_SAME_SIZE = {"ALLREDUCE", "ALLREDUCE_COALESCED", "BROADCAST", "REDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE"}
"""The kinds of operations whose tensors have the same number of elements on all ranks."""


def timeout_in(given: tuple[Any, ...]) -> timedelta | None:
    """Return the timeout that the arguments of an operation set; None if they set none."""
    for one in given:
        timeout = one if isinstance(one, timedelta) else getattr(one, "timeout", None)
        if isinstance(timeout, timedelta) and timeout > timedelta(0):
            return timeout
    return None


def on_host(given: tuple[Any, ...]) -> bool:
    """Return whether an operation is on tensors of the CPU; a barrier is where there is no device."""
    tensor = next(_tensors(given), None)
    return tensor.device.type == "cpu" if tensor is not None else not torch.cuda.is_available()


def described(kind: OpType, given: tuple[Any, ...]) -> Callable[[], str]:
    """Return a function that returns the operation in words, which are the same on all ranks."""
    tensor = next(_tensors(given), None)
    elements = -1
    if kind.name in _SAME_SIZE and given and tensor is not None and tensor.layout == torch.strided:
        elements = sum(one.numel() for one in _tensors(given[:1]))
    dtype = None if tensor is None else tensor.dtype
    options = next((one for one in given if hasattr(one, "reduceOp") or hasattr(one, "rootRank")), None)
    return lambda: _in_words(kind, options, elements, dtype)


def _in_words(kind: OpType, options: Any, elements: int, dtype: torch.dtype | None) -> str:
    words = kind.name.strip("_").lower()
    if (op := getattr(options, "reduceOp", None)) is not None:
        words += " " + next((name for name in _OPERATORS if op == getattr(dist.ReduceOp, name)), str(op))
    if (root := getattr(options, "rootRank", None)) is not None:
        words += f" of rank {root}"
    size = "" if elements < 0 else f"{elements} "
    return words if dtype is None else f"{words} of {size}{str(dtype).removeprefix('torch.')}"


def _tensors(given: Any) -> Iterator[torch.Tensor]:
    for one in given:
        if isinstance(one, torch.Tensor):
            yield one
        elif isinstance(one, (list, tuple)):
            yield from _tensors(one)
