"""The schedule of a day: drawn from a seed before anything runs, and the same for the same arguments."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, replace

from controlplane.planner.routing import next_hops
from controlplane.planner.topology import Topology, TopologyError
from evaluation.chaos.events import Event, Kind
from evaluation.chaos.kinds import KINDS as FABRIC
from topologies.faults import link_of

LAST_ARRIVAL = 0.75
"""Part of the day within which jobs come, so that they end in it."""
FIRST_STEP, LAST_STEP = 0.06, 0.92
OUTAGE_SECONDS = (2.0, 6.0)
MOST_WORKERS = 4
RESIDENTS = 4
FEWEST_OPERATIONS, MOST_OPERATIONS = 10, 30
_LANE = "operators"
KINDS: dict[str, Kind] = {
    **{name: replace(FABRIC[name], seconds=OUTAGE_SECONDS, lane=_LANE) for name in ("link", "switch", "ps")},
    "leader": Kind("controller", OUTAGE_SECONDS, False, "the controller that leads is killed, and started again",
                   lane=_LANE),
    "drain": Kind("switch", (0.0, 0.0), False, "operators have a switch carry nothing (drain --wait)", lane=_LANE),
    "undrain": Kind("switch", (0.0, 0.0), False, "operators put a drained switch back", lane=_LANE),
    "topology reload": Kind("switch", (0.0, 0.0), False, "operators add a rack", lane=_LANE),
    "upgrade": Kind("controller", (0.0, 0.0), False, "operators replace controllers and P4 program", lane=_LANE),
}  # fmt: skip


@dataclass(frozen=True)
class DayJob:
    """A job of the day.

    Attributes:
        at: when it comes, in seconds of the day.
        racked: whether it is on servers of the rack that is added.
    """

    name: str
    at: float
    workers: int
    operations: int
    elements: int
    seed: int
    racked: bool = False

    def __str__(self) -> str:
        where = " in the new rack" if self.racked else ""
        return f"{self.at:7.1f} s  {self.name} comes: {self.workers} workers{where}, {self.operations} all-reduces"


@dataclass(frozen=True)
class Day:
    """The events of a day.

    Attributes:
        rack: an access switch with its servers, which operators add.
        resident: hosts of a job that stays all day: its two workers, then its two parameter servers.
        jobs: the jobs that come.
        events: operators' orders and failures.
        flows: foreign TCP, from host to host.
    """

    rack: tuple[str, ...]
    resident: tuple[str, ...]
    jobs: tuple[DayJob, ...]
    events: tuple[Event, ...]
    flows: tuple[tuple[str, str], ...]

    def lines(self) -> list[str]:
        lines: list[DayJob | Event] = sorted([*self.jobs, *self.events], key=lambda one: one.at)
        flows = ", ".join(f"{u} to {v}" for u, v in self.flows)
        return [f"foreign TCP all day: {flows}", *map(str, lines)]


def draw(topology: Topology, jobs: int, seconds: float, seed: int, elements: int) -> Day:
    """Draw a day of so many seconds with so many jobs. Raise TopologyError."""
    drawn = random.Random(f"operate {seed}")
    edges = sorted({topology.access_switch(server) for server in topology.servers}, key=topology.switches.index)
    rack = edges[-1]
    members = [server for server in topology.servers if topology.access_switch(server) == rack]
    others = [server for server in topology.servers if server not in members]
    most = min(MOST_WORKERS, len(others) - RESIDENTS)
    if most < 2 or len(members) < 2:
        there = f"{len(others)} beside the rack that is added, which has {len(members)}"
        raise TopologyError(f"too few servers for a day (6 and 2 are needed): {there}")
    resident = tuple(drawn.sample(others, RESIDENTS))
    events = _events(topology, rack, resident, seconds, drawn)
    reloaded = next(event.at for event in events if event.kind == "topology reload")
    coming = []
    for number in range(jobs):
        racked = number == jobs - 1
        at = seconds * LAST_ARRIVAL * (number + drawn.random()) / jobs
        coming.append(
            DayJob(
                f"job{number + 1}", max(at, reloaded + seconds * 0.05) if racked else at,
                2 if racked else drawn.randint(2, most), drawn.randint(FEWEST_OPERATIONS, MOST_OPERATIONS),
                elements // drawn.choice((1, 2, 4)), drawn.randrange(1 << 30), racked,
            )
        )  # fmt: skip
    return Day((rack, *members), resident, tuple(coming), events, _flows(topology, members, drawn))


def _events(
    topology: Topology, rack: str, resident: Collection[str], seconds: float, drawn: random.Random
) -> tuple[Event, ...]:
    """Draw the order of operators' verbs and failures, which happen one at a time."""
    with_hosts = {topology.access_switch(server) for server in topology.servers}
    inner = [name for name in topology.switches if name not in with_hosts]
    links = sorted(f"{u}-{v}" for u, v in topology.links if u < v and link_of(f"{u}-{v}", topology))
    if len(inner) < 3:
        raise TopologyError(f"two switches are drained and one fails, of those without servers: there are {len(inner)}")
    drains = drawn.sample(inner, 2)
    fails = drawn.choice([name for name in inner if name not in drains])
    cuts = drawn.sample([link for link in links if rack not in link.split("-")], 2)
    order = [
        ("link", cuts[0]), ("link", cuts[1]), ("switch", fails), ("ps", list(resident)[-1]), ("leader", ""),
        ("upgrade", ""),
    ]  # fmt: skip
    drawn.shuffle(order)
    order.insert(drawn.randint(1, 3), ("topology reload", rack))
    for name in drains:
        first = drawn.randint(0, len(order) - 1)
        order.insert(first, ("drain", name))
        order.insert(drawn.randint(first + 2, len(order)), ("undrain", name))
    space = seconds * (LAST_STEP - FIRST_STEP) / len(order)
    made = []
    for number, (kind, target) in enumerate(order):
        at = seconds * FIRST_STEP + space * (number + drawn.random() / 2)
        lasts = drawn.uniform(*OUTAGE_SECONDS) if KINDS[kind].seconds == OUTAGE_SECONDS else 0.0
        made.append(Event(number + 1, at, lasts, kind, target))
    return tuple(made)


def _flows(topology: Topology, without: Collection[str], drawn: random.Random) -> tuple[tuple[str, str], ...]:
    """Return pairs of hosts whose IPv4 routes have a third of all directed links; each host is in one pair at most."""
    ways = next_hops(topology)
    hosts = [server for server in topology.servers if server not in without]
    drawn.shuffle(hosts)
    wanted = len(topology.links) / 3
    taken: set[tuple[str, str]] = set()
    flows: list[tuple[str, str]] = []
    while len(hosts) >= 2 and len(taken) < wanted:
        source, sink = hosts.pop(), hosts.pop()
        node = source
        while node != sink:
            following = ways[sink][node]
            taken |= {(node, following), (following, node)}  # TCP answers
            node = following
        flows.append((source, sink))
    return tuple(flows)
