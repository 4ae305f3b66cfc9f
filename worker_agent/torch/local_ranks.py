"""Lets a node's ranks work together before and after the network: each rank carries one part of the node's data."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from worker_agent.torch.control import Control
from worker_agent.torch.groups import make_group


class LocalRanks:
    """The ranks of this node in a process group.

    Args:
        name: prefix of the groups that are made, the same on the ranks of this node and on no other node.
        rank, size: this rank among them, and their number, which is 2 or more.
        workers: number of nodes of the process group, each of which is a worker of the job.

    Attributes:
        worker: the number of this node's worker; -1: not known, and only broadcasts need it.
        stream: returns a device's CUDA stream for work beside the computation.
    """

    def __init__(self, name: str, store: Any, rank: int, size: int, workers: int) -> None:
        self.rank = rank
        self.size = size
        self.workers = workers
        self.worker = -1
        self._name = name
        self._store = store
        self._groups: dict[str, tuple[Control, Control]] = {}
        self._error: Exception | None = None
        self.stream = cache(torch.cuda.Stream)

    def groups(self, device: str) -> tuple[Control, Control]:
        """Return the groups for scattering and for gathering; different threads use them, each in its own order."""
        if device not in self._groups:
            backend = "nccl" if device == "cuda" else "gloo"
            self._groups[device] = tuple(  # type: ignore[assignment]
                Control(make_group(f"{self._name}/{device}/{use}", self._store, self.rank, self.size, backend=backend))
                for use in ("scatter", "gather")
            )
            if self._error is not None:
                self.end(self._error)
        return self._groups[device]

    def end(self, error: Exception) -> None:
        """End the waits of all threads for other ranks with this error."""
        self._error = error
        for controls in list(self._groups.values()):
            for control in controls:
                control.end(error)
