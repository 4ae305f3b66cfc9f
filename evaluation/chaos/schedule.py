"""The schedule of events: drawn from a seed before anything runs, and the same for the same arguments."""

from __future__ import annotations

import random
from collections.abc import Sequence

from controlplane.planner.job import Job
from controlplane.planner.topology import Topology
from evaluation.chaos.events import Event, Kind
from evaluation.chaos.kinds import KINDS, compatible
from topologies.faults import link_of
from topologies.network import EmulationError

WARM_SECONDS = 8.0
"""Seconds without events at first, so that jobs run and their usual times are known."""
QUIET_SECONDS = (4.0, 9.0)
"""Least and most seconds between two slots, so that the cost of an event is seen before the next one comes."""
PAIRED = 0.5
"""Fraction of the slots with two events that overlap."""


def draw(topology: Topology, jobs: Sequence[Job], kinds: Sequence[str], seconds: float, seed: int) -> list[Event]:
    """Return the events of so many seconds, in the order in which they begin; each kind comes about as often as the
    others. Raise EmulationError when the network has no target for one of the kinds.
    """
    drawn = random.Random(f"chaos {seed}")
    targets = {name: _targets(KINDS[name], topology, jobs) for name in kinds}
    empty = [name for name, there in targets.items() if not there]
    if empty:
        raise EmulationError(f"nothing in this network that {empty[0]} could happen to: leave it out with --events")
    events: list[Event] = []
    deck: list[str] = []
    at = WARM_SECONDS
    while True:
        pair = drawn.random() < PAIRED
        slot: list[Event] = []
        begins = at
        for _ in range(2 if pair else 1):
            name = _next(deck, kinds, drawn, [event.kind for event in slot])
            length = drawn.uniform(*KINDS[name].seconds)
            target = _target(drawn, targets[name], slot, topology, jobs)
            if name is None or target is None:
                continue
            slot.append(Event(0, begins, length, name, target, drawn.randrange(1 << 30)))
            begins = at + drawn.uniform(0.2, max(1.0, length * 0.8))
        end = max((event.until for event in slot), default=at)
        at = end + drawn.uniform(*QUIET_SECONDS)
        if at > seconds:
            return [Event(i, e.at, e.seconds, e.kind, e.target, e.seed) for i, e in enumerate(events, 1)]
        events += slot


def _next(deck: list[str], kinds: Sequence[str], drawn: random.Random, beside: Sequence[str]) -> str:
    """Return the next kind of a deck, which is shuffled anew when it is used up; one that may overlap with the kinds
    `beside`, if any is.
    """
    if len(deck) < len(kinds):
        fresh = list(kinds)
        drawn.shuffle(fresh)
        deck += fresh
    for position, name in enumerate(deck):
        if all(compatible(name, other) for other in beside):
            return deck.pop(position)
    return deck.pop(0)


def _targets(kind: Kind, topology: Topology, jobs: Sequence[Job]) -> list[str]:
    workers = [node for job in jobs for node in job.workers]
    servers = [node for job in jobs if len(job.parameter_servers) > 1 for node in job.parameter_servers]
    hosts = [*workers, *(node for job in jobs for node in job.parameter_servers)]
    edges = sorted({topology.access_switch(node) for node in hosts})
    with_hosts = {topology.access_switch(node) for node in topology.servers}
    return {
        "link": sorted(f"{u}-{v}" for u, v in topology.links if u < v and link_of(f"{u}-{v}", topology)),
        "switch": [name for name in topology.switches if name not in with_hosts],
        "edge": edges,
        "worker": workers,
        "ps": servers,
        "host": hosts,
        "controller": [""],
        "network": [""],
    }[kind.where]


def _target(
    drawn: random.Random, targets: Sequence[str], slot: Sequence[Event], topology: Topology, jobs: Sequence[Job]
) -> str | None:
    """Return a target that no other event of the slot has, and without which the jobs' hosts still reach each other."""
    down = [event.target for event in slot if event.kind in ("link", "switch")]
    candidates = list(targets)
    drawn.shuffle(candidates)
    for target in candidates:
        if target and any(event.target == target for event in slot):
            continue
        if _connected(topology, jobs, [*down, target]):
            return target
    return None


def _connected(topology: Topology, jobs: Sequence[Job], down: Sequence[str]) -> bool:
    """Return whether all hosts of the jobs reach each other without these links, and without these switches that have
    no host.
    """
    gone = {name for name in down if name in topology.switches}
    cut = {frozenset(ends) for name in down if (ends := link_of(name, topology)) is not None}
    wanted = {topology.access_switch(node) for job in jobs for node in (*job.workers, *job.parameter_servers)}
    if gone & wanted:
        return True  # an access switch: its hosts have no other way, and wait for it
    first = next(iter(sorted(wanted)))
    seen, todo = {first}, [first]
    while todo:
        switch = todo.pop()
        for other in topology.neighbours(switch):
            if other in topology.switches and other not in seen | gone and frozenset((switch, other)) not in cut:
                seen.add(other)
                todo.append(other)
    return wanted <= seen
