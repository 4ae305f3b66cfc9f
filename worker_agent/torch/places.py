"""Finds the place of each rank of a process group: its node, and its rank among those of the node.

torchrun and srun set the local rank in the environment. Without them (`mp.spawn`), or where several processes inherit
the same values, the ranks of each node are counted. All operations of a node's ranks have one order, so all ranks of
the job count, not only those of a process group.
"""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist

from worker_agent.errors import AgentError
from worker_agent.shared import Options, completed, job_key
from worker_agent.torch.control import Control
from worker_agent.torch.groups import Ranks, default_store

logger = logging.getLogger("inart")


def node_key(options: Options, *, alone: bool) -> str:
    """Return a text that all ranks of one node share and no other node has.

    `alone` says that this process has an agent of its own, which it shares with no other rank.
    """
    if options.size > 1 and "GROUP_RANK" in os.environ:  # This is torchrun's number of the node.
        return f"node {os.environ['GROUP_RANK']}"
    # Threads may be ranks of several nodes.
    process = f"process {os.getpid()} " if alone else ""
    options = completed(options)  # A later process group of a process may name less, and use the same agent.
    return f"{process}{options.agent or options.node or options.interface or ''} on {_machine()}"


def _machine() -> str:
    """Return a name of this network namespace of this boot: processes with the same name share abstract sockets."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = os.uname().nodename
    return f"{boot} {os.stat('/proc/self/ns/net').st_ino}"


@dataclass(frozen=True)
class Place:
    """The place of a rank.

    Attributes:
        key: identifies its node.
        rank: its rank on the node; -1: not known.
        job: identifies its job among those on the node.
    """

    key: str
    rank: int
    job: str = ""


@dataclass(frozen=True)
class _Counted:
    """The place of this process as it was counted, with the number of ranks on its node.

    A later process group may have too few of the ranks to count them. It is valid in this process and world.
    """

    world: tuple[int, int]
    place: Place
    size: int


_counted: _Counted | None = None


def find_places(
    options: Options, ranks: Ranks, control: Control, *, alone: bool, timeout: float
) -> tuple[Options, list[Place]]:
    """Return the options with this process's place, and the places of the ranks; this is a collective call.

    Args:
        alone: see node_key.
        timeout: seconds to wait for the other ranks of the job where a process group of some of them has to count all.
    """
    global _counted
    world = os.getpid(), max(ranks.size, dist.get_world_size() if dist.is_initialized() else 0)
    if _counted is not None and _counted.world == world and ranks.size < world[1] and not alone:
        options = _with(options, _counted)
    own = Place(node_key(options, alone=alone), options.rank if options.size else -1, options.job or job_key())
    places = _exchange(control, own)
    if _are_certain(places):
        return options, places
    of_one_node = len({place.key for place in places}) == 1  # It needs no agent: the other ranks need not appear.
    if ranks.size == world[1] or of_one_node:
        peers, number = places, ranks.rank
    else:
        peers, number = _of_the_world(own, timeout)
    mine = [one for one, peer in enumerate(peers) if peer.key == own.key]
    counted = _Counted(world, replace(own, rank=mine.index(number), job=peers[mine[0]].job), len(mine))
    if ranks.size == world[1] or not of_one_node:
        _counted = counted
    return _with(options, counted), _exchange(control, counted.place)


def _with(options: Options, counted: _Counted) -> Options:
    return replace(options, rank=counted.place.rank, size=counted.size, job=counted.place.job)


def _exchange(control: Control, own: Place) -> list[Place]:
    return [Place(*json.loads(text)) for text in control.exchange(json.dumps([own.key, own.rank, own.job]))]


def _are_certain(places: Sequence[Place]) -> bool:
    """Return whether each rank has a place that no other has."""
    different = Counter((place.key, place.rank) for place in places)
    return all(place.rank >= 0 and different[place.key, place.rank] == 1 for place in places)


def _of_the_world(own: Place, timeout: float) -> tuple[list[Place], int]:
    """Return the places of all ranks of the default process group that count within `timeout` seconds, and the number
    of this one's among them.
    """
    store, rank = default_store(), dist.get_rank()
    keys = [f"inart/place/{number}" for number in range(dist.get_world_size())]
    store.set(keys[rank], json.dumps([own.key, own.rank, own.job]))
    try:
        store.wait(keys, timedelta(seconds=timeout))
    except RuntimeError:
        logger.warning(
            "not all ranks of the default process group use InArt: those of each node that do so within %g s are its "
            "ranks; set LOCAL_RANK and LOCAL_WORLD_SIZE to make them known without waiting",
            timeout,
        )
    there = [number for number, key in enumerate(keys) if store.check([key])]
    return [Place(*json.loads(store.get(keys[number]))) for number in there], there.index(rank)


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
