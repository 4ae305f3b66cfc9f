"""Puts measurements into a topology: the hosts' part of round trips, as agents measured it, and rates of links and
nodes instead of the declared ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from controlplane.common.agentconfig import ROOT_ADDS, SWITCH_ADDS
from controlplane.common.inputs import read_json
from controlplane.planner.plan.model import Plan
from controlplane.planner.plan.slots import HOSTS, round_trip, total_ms
from controlplane.planner.topology import Topology

RoundTrips = Mapping[int, Mapping[str, float]]
"""Shortest round trips in ms, by tree and worker."""


def host_times_ms(plan: Plan, topology: Topology, packet_bits: int, round_trips_ms: RoundTrips) -> dict[str, float]:
    """Return the ms that each server adds to a round trip, which the links do not explain (`slots.round_trip`); 0 at
    least.

    A worker gets half of the unexplained time of the tree in which that is least. A parameter server gets the rest: of
    its workers the one with the least rest counts. Servers without a measurement are left out, as are trees that the
    plan does not have.
    """
    left: dict[int, dict[str, float]] = {}
    for index, by_worker in round_trips_ms.items():
        if index < len(plan.trees) and by_worker:
            levels = round_trip(plan.trees[index], topology, packet_bits)
            links = total_ms(level for level in levels if level.source != HOSTS)
            left[index] = {worker: max(0.0, ms - links) for worker, ms in by_worker.items()}
    found: dict[str, float] = {}
    for parts in left.values():
        for worker, ms in parts.items():
            found[worker] = min(found.get(worker, ms / 2), ms / 2)
    roots: dict[str, float] = {}
    for index, parts in left.items():
        root = plan.trees[index].root
        least = min(ms - found[worker] for worker, ms in parts.items())
        roots[root] = min(roots.get(root, least), least)
    for root, ms in roots.items():
        found[root] = min(found.get(root, ms), ms)
    return found


RATES = ("aggregation_mbps", "ingress_mbps")
"""Quantities of a switch or server that may be measured."""


def with_rates(topology: Topology, measured: Mapping[str, Any]) -> Topology:
    """Return the topology with measured rates instead of declared ones: "links" by "u->v" in Mbit/s, and "nodes" by
    node, each an object with aggregation_mbps or ingress_mbps. Raise ValueError, naming what does not exist or is no
    rate.
    """
    links: dict[tuple[str, str], dict[str, float]] = {}
    for name, rate in _object(measured, "links").items():
        u, arrow, v = name.partition("->")
        if not arrow or not topology.has_link(u, v):
            raise ValueError(f"links: the topology has no link {name!r}; write u->v")
        links[u, v] = {"bandwidth_mbps": rate}
    nodes: dict[str, dict[str, float]] = {}
    for name, rates in _object(measured, "nodes").items():
        unknown = set(rates) - set(RATES) if isinstance(rates, Mapping) else {"a value that is no object"}
        if unknown or name not in topology:
            what = f"has {', '.join(sorted(unknown))}, known are {', '.join(RATES)}" if unknown else "does not exist"
            raise ValueError(f"nodes: {name!r} {what}")
        nodes[name] = dict(rates)
    return topology.replace(nodes=nodes, links=links) if nodes or links else topology


def _object(measured: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = measured.get(name, {})
    if not isinstance(found, Mapping):
        raise ValueError(f"{name} must be an object")
    return found


Adding = Mapping[str, Mapping[str, float]]
"""Mbit/s that hosts add, as their agents measured it, by node and by name of the statistic (ROOT_ADDS, SWITCH_ADDS)."""


def with_adding(topology: Topology, measured: Adding) -> Topology:
    """Return the topology with the Mbit/s that hosts add, as agents measured them, wherever it declares none: as
    `ingress_mbps` of a server, and as `aggregation_mbps` of the switch on a host that adds for others.
    """
    nodes: dict[str, dict[str, float]] = {}
    for node in topology.servers:
        found = measured.get(node, {})
        if found.get(ROOT_ADDS, 0.0) > 0 and "ingress_mbps" not in topology.graph.nodes[node]:
            nodes.setdefault(node, {})["ingress_mbps"] = found[ROOT_ADDS]
        switch = topology.switch_on.get(node)
        if switch and found.get(SWITCH_ADDS, 0.0) > 0 and math.isinf(topology.aggregation_mbps(switch)):
            nodes[switch] = {"aggregation_mbps": found[SWITCH_ADDS]}
    return topology.replace(nodes=nodes) if nodes else topology


def with_measured(topology: Topology, measured_ms: Mapping[str, float]) -> Topology:
    """Return the topology with these measured times of its servers in ms. A declared time (`host_ms`) counts before
    them.
    """
    nodes = {server: {"measured_ms": measured_ms[server]} for server in topology.servers if server in measured_ms}
    return topology.replace(nodes=nodes) if nodes else topology


def measured_in(topology: Topology, path: str | Path) -> Topology:
    """Return the topology with the measurements in a file: one of `inart status --json`, or an object with "links" or
    "nodes" (`with_rates`). Raise ValueError, naming the file, for anything else.
    """
    try:
        content = read_json(Path(path))
    except (OSError, ValueError):
        content = None  # `load_measured` says what is wrong
    if isinstance(content, Mapping) and "agents" not in content and content.keys() & {"links", "nodes"}:
        try:
            return with_rates(topology, content)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
    times, adding = load_measured(path)
    return with_adding(with_measured(topology, times), adding)


def load_measured(path: str | Path) -> tuple[dict[str, float], Adding]:
    """Return the ms that each server adds to a round trip, and the Mbit/s that hosts add, from a file of `inart status
    --json`. Raise ValueError for anything else.
    """
    try:
        agents = read_json(Path(path))["agents"]
        found = {str(agent["node"]): float(agent["host_ms"]) for agent in agents if agent.get("host_ms") is not None}
        adding = {str(agent["node"]): adding_in(agent.get("statistics", {})) for agent in agents}
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(f"{path}: not what `inart status --json` prints") from None
    if not found:
        raise ValueError(f"{path}: no agent has measured a round trip yet; let the job reduce something first")
    return found, {node: named for node, named in adding.items() if named}


def adding_in(statistics: Mapping[str, float]) -> dict[str, float]:
    """Return the Mbit/s that an agent's host adds, by the name of the statistic; empty where none was measured."""
    return {name: float(statistics[name]) for name in (ROOT_ADDS, SWITCH_ADDS) if statistics.get(name)}
