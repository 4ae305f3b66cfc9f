"""Sets of switches with the servers that hang on them only, whose links bound the rate of any tree: racks, and the
parts that stay connected once the switches farthest from servers are left out (in a fat-tree, pods).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from controlplane.planner.job import Job
from controlplane.planner.topology import Topology


@dataclass(frozen=True)
class Bound:
    """An upper bound of the rate of plans in Mbit/s; `what` names the capacities that it comes from."""

    mbps: float
    what: str


@dataclass(slots=True)
class Cut:
    """A set of switches with the servers that hang on these only. Rates are in Mbit/s; workers and roots are
    counted.
    """

    name: str
    workers: int = 0
    roots: int = 0
    aggregation: float = 0.0
    ingress: float = 0.0
    out: float = 0.0
    into: float = 0.0


@lru_cache(maxsize=4)
def cuts(topology: Topology, job: Job) -> tuple[Cut, ...]:
    """Return the racks of a network, and the larger parts of it, as cuts; they are kept, as several bounds ask for
    them.
    """
    distance = {v: 1 for v in topology.switches if any(topology.kind(u) == "server" for u in topology.neighbours(v))}
    queue = list(distance)
    for node in queue:
        for other in topology.neighbours(node):
            if topology.kind(other) == "switch" and other not in distance:
                distance[other] = distance[node] + 1
                queue.append(other)
    racks = {v: v for v, level in distance.items() if level == 1}
    found = _parts(topology, job, racks, "rack {}")
    for level in range(1, max(distance.values(), default=0)):
        part: dict[str, str] = {}
        for first, far in distance.items():
            if far > level or first in part:
                continue
            part[first] = first
            queue = [first]
            for node in queue:
                for other in topology.neighbours(node):
                    if distance.get(other, level + 1) <= level and other not in part:
                        part[other] = first
                        queue.append(other)
        if len(set(part.values())) > 1 and part != racks:
            found += _parts(topology, job, part, "the part around {}")
    return tuple(found)


def _parts(topology: Topology, job: Job, part: dict[str, str], name: str) -> list[Cut]:
    """Return the cuts of a network that is divided into parts, which are named by one of their switches (`part` has the
    part of each switch).
    """
    found = {first: Cut(name.format(first)) for first in part.values()}
    of = dict(part)
    for server in topology.servers:
        homes = {part.get(v, "") for v in topology.neighbours(server)}
        if len(homes) == 1 and (home := homes.pop()):
            of[server] = home
    for v, home in part.items():
        found[home].aggregation += topology.residual_aggregation_mbps(v)
    for worker in job.workers:
        if worker in of:
            found[of[worker]].workers += 1
    for root in job.parameter_servers:
        if root in of:
            found[of[root]].roots += 1
            found[of[root]].ingress += topology.residual_ingress_mbps(root)
    for u, v in topology.links:
        if of.get(u) != of.get(v):
            mbps = topology.residual_bandwidth_mbps(u, v)
            if u in of:
                found[of[u]].out += mbps
            if v in of:
                found[of[v]].into += mbps
    return list(found.values())
