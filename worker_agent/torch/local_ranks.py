"""The ranks of a node work together before and after the network: each carries one part of what the node has.

    bucket --reduce-scatter on the node--> this rank's part --network--> its sum --all-gather on the node--> bucket

passage.py has what each operation does.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from worker_agent.errors import AgentError
from worker_agent.torch.groups import make_group


def node_key(agent: str | None, node: str | None, size: int) -> str:
    """What the ranks of one node have in common, and no other node has. size: ranks of this node."""
    if size == 1:
        return f"process {os.getpid()} on {_machine()}"
    if "GROUP_RANK" in os.environ:  # torchrun's number of the node
        return f"node {os.environ['GROUP_RANK']}"
    return f"{agent or node or ''} on {_machine()}"


def _machine() -> str:
    """This network namespace of this boot: what sees the same abstract sockets."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = os.uname().nodename
    return f"{boot} {os.stat('/proc/self/ns/net').st_ino}"


@dataclass(frozen=True)
class Place:
    """Where a rank of a process group is. key: of its node; rank: on the node."""

    key: str
    rank: int


def arrange(places: Sequence[Place], rank: int) -> tuple[list[int], int]:
    """The ranks of `rank`'s node in the process group, by their rank on the node, and the number of nodes. Raises
    AgentError when the nodes do not have the same number."""
    nodes: dict[str, list[tuple[int, int]]] = {}
    for number, place in enumerate(places):
        nodes.setdefault(place.key, []).append((place.rank, number))
    sizes = {len(members) for members in nodes.values()}
    if len(sizes) > 1:
        raise AgentError(
            f"the nodes have {', '.join(map(str, sorted(sizes)))} ranks of this process group: in the network every "
            "node takes part with the same number"
        )
    # The same part of a bucket must meet its likes of the other nodes.
    kinds = {tuple(sorted(local for local, _ in members)) for members in nodes.values()}
    if len(kinds) > 1:
        raise AgentError("the nodes take part in this process group with different local ranks: use the same on each")
    return [number for _, number in sorted(nodes[places[rank].key])], len(nodes)


class LocalRanks:
    """The ranks of this node in a process group.

    Args:
        name: of the groups that are made, the same on the ranks of this node and of no other.
        rank, size: among them; size 2 or more.
        workers: nodes of the process group, each a worker of the job.

    Attributes:
        worker: which of them this node is; -1: not known, which only broadcasts need.
    """

    def __init__(self, name: str, store: Any, rank: int, size: int, workers: int) -> None:
        self.rank = rank
        self.size = size
        self.workers = workers
        self.worker = -1
        self._name = name
        self._store = store
        self._groups: dict[str, tuple[dist.ProcessGroup, dist.ProcessGroup]] = {}
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def groups(self, device: str) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
        """For scattering and for gathering: they are used by different threads, each in its own order."""
        if device not in self._groups:
            backend = "nccl" if device == "cuda" else "gloo"
            self._groups[device] = tuple(  # type: ignore[assignment]
                make_group(f"{self._name}/{device}/{use}", self._store, self.rank, self.size, backend=backend)
                for use in ("scatter", "gather")
            )
        return self._groups[device]

    def stream(self, device: torch.device) -> torch.cuda.Stream:
        """For what runs beside the computation."""
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return self._streams[device]
