"""Lets a node's ranks work together before and after the network: each rank carries one part of the node's data."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from worker_agent.errors import AgentError
from worker_agent.torch.control import Control
from worker_agent.torch.groups import make_group


def node_key(agent: str | None, node: str | None, size: int) -> str:
    """Return a text that all ranks of one node share and no other node has; `size` is the number of these ranks."""
    if size == 1:
        return f"process {os.getpid()} {agent or node or ''} on {_machine()}"  # Threads may be ranks of several nodes.
    if "GROUP_RANK" in os.environ:  # This is torchrun's number of the node.
        return f"node {os.environ['GROUP_RANK']}"
    return f"{agent or node or ''} on {_machine()}"


def _machine() -> str:
    """Return a name of this network namespace of this boot: processes with the same name share abstract sockets."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = os.uname().nodename
    return f"{boot} {os.stat('/proc/self/ns/net').st_ino}"


@dataclass(frozen=True)
class Place:
    """The place of a rank of a process group: a key that identifies its node, and its rank on the node."""

    key: str
    rank: int


def arrange(places: Sequence[Place], rank: int) -> tuple[list[int], int]:
    """Return the group's ranks on `rank`'s node, ordered by their rank on the node, and the number of nodes.

    Raise AgentError when the nodes do not have the same number of ranks.
    """
    nodes: dict[str, list[tuple[int, int]]] = {}
    for number, place in enumerate(places):
        nodes.setdefault(place.key, []).append((place.rank, number))
    sizes = {len(members) for members in nodes.values()}
    if len(sizes) > 1:
        raise AgentError(
            f"the nodes have {', '.join(map(str, sorted(sizes)))} ranks of this process group: in the network every "
            "node takes part with the same number"
        )
    # The same part of a bucket must meet the corresponding parts of the other nodes.
    kinds = {tuple(sorted(local for local, _ in members)) for members in nodes.values()}
    if len(kinds) > 1:
        raise AgentError("the nodes take part in this process group with different local ranks: use the same on each")
    return [number for _, number in sorted(nodes[places[rank].key])], len(nodes)


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
