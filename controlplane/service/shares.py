"""Shares of a network: what jobs are planned to use, and each job's bottleneck, with the job's share there."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.planner.evaluate import root_mbps, unit_loads
from controlplane.planner.plan import Plan
from controlplane.planner.topology import Topology

Link = tuple[str, str]
ALONE = 0.995
"""Lowest part of the planned load of a resource that counts as all of it, for the words about a bottleneck."""


@dataclass(frozen=True)
class Loads:
    """Load of a plan at its rate, Mbit/s. `flows` counts links with results, also where planners leave those out
    (`Topology.results_on_links`); `links` counts as planners do. `root_capacities` are the rates at which the job's
    parameter servers can add, Mbit/s."""

    flows: Mapping[Link, float]
    links: Mapping[Link, float]
    switches: Mapping[str, float]
    roots: Mapping[str, float]
    root_capacities: Mapping[str, float]

    @classmethod
    def of(cls, plan: Plan, topology: Topology) -> Loads:
        """Return the load of a plan on links, switches and parameter servers at its rate, Mbit/s."""
        flows, switches, roots = unit_loads(plan)
        links = flows if topology.results_on_links else unit_loads(plan, results_on_links=False)[0]
        rate = plan.rate_mbps
        return cls(
            {link: load * rate for link, load in flows.items()},
            {link: load * rate for link, load in links.items()},
            {node: load * rate for node, load in switches.items()},
            {node: load * rate for node, load in roots.items()},
            {node: root_mbps(topology, plan.job, node) for node in roots},
        )


class Used:
    """Planned load of all jobs together, Mbit/s."""

    def __init__(self, topology: Topology, loads: Iterable[Loads]) -> None:
        self.topology = topology
        self.flows: dict[Link, float] = {}
        self.links: dict[Link, float] = {}
        self.switches: dict[str, float] = {}
        self.roots: dict[str, float] = {}
        for one in loads:
            _add(self.flows, one.flows)
            _add(self.links, one.links)
            _add(self.switches, one.switches)
            _add(self.roots, one.roots)

    def bottleneck(self, loads: Loads) -> dict[str, Any]:
        """Return the fullest resource that a job uses: its `kind` (link, switch or parameter_server), name and link,
        the part of it that all jobs are planned to use (`used`), and the part of that which is this job's (`share`)."""
        topology = self.topology
        found: list[tuple[float, float, str, str, Link | None]] = []

        def note(name: str | Link, of: Mapping[Any, float], whole: Mapping[Any, float], capacity: float) -> None:
            kind = "link" if of is loads.links else "switch" if of is loads.switches else "parameter_server"
            share = of[name] / whole[name] if whole[name] else 1.0
            link = None if isinstance(name, str) else name
            words = name if isinstance(name, str) else "->".join(name)
            found.append((_part(whole[name], capacity), share, kind, words, link))

        for link in loads.links:
            if topology.has_link(*link):
                note(link, loads.links, self.links, topology.residual_bandwidth_mbps(*link))
        for node in loads.switches:
            if node in topology:
                note(node, loads.switches, self.switches, topology.residual_aggregation_mbps(node))
        for node in loads.roots:
            if node in topology:
                note(node, loads.roots, self.roots, loads.root_capacities[node])
        if not found:
            return {"kind": "", "name": "", "link": None, "used": 0.0, "share": 1.0}
        # Among equally full ones, prefer what is shared with others, then what this job has most of (rates are made
        # equal there), and then a node, which says more than the link that leads to it.
        used, share, kind, name, at = max(
            found, key=lambda one: (round(one[0], 6), one[1] < ALONE, round(one[1], 6), one[4] is None)
        )
        return {"kind": kind, "name": name, "link": list(at) if at else None, "used": used, "share": share}


def bottleneck_words(found: Mapping[str, Any]) -> str:
    """Return a job's bottleneck (`Used.bottleneck`) in a few words: how full it is, and how much of that is the
    job's."""
    if not found["name"]:
        return ""
    own = "" if found["share"] >= ALONE else f", {100 * found['share']:.0f} % of that its own"
    return f"{found['kind'].replace('_', ' ')} {found['name']}, {100 * found['used']:.0f} % full{own}"


def _add(whole: dict[Any, float], part: Mapping[Any, float]) -> None:
    for name, load in part.items():
        whole[name] = whole.get(name, 0.0) + load


def _part(load: float, capacity: float) -> float:
    if math.isinf(capacity):
        return 0.0
    return load / capacity if capacity > 0 else 1e9
