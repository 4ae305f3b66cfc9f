"""States of a network: without what is disabled, less what other jobs use of it, and as an operator describes it who
knows more than the controller."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from controlplane.planner.evaluate import unit_loads
from controlplane.planner.gathers import gather_loads, loads_beside
from controlplane.planner.plan import Plan
from controlplane.planner.rules import NOTHING, Taken
from controlplane.planner.topology import Topology, TopologyError
from controlplane.targets.kind import Kind


def without(topology: Topology, off: Iterable[str]) -> Topology:
    """Return the topology without these switches, links ("V1-V2", both directions) and servers. Raise TopologyError
    where it has no part of that name."""
    nodes, links = [], []
    for name in off:
        ends = [(u, v) for u, v in topology.links if name in (f"{u}-{v}", f"{v}-{u}")]
        if name in topology:
            nodes.append(name)
        elif ends:
            links += ends
        else:
            raise TopologyError(f"the network has no switch, link (like V1-V2) or parameter server {name!r}")
    return topology.replace(remove_nodes=nodes, remove_links=links)


def with_room(topology: Topology, part: float) -> Topology:
    """Return the topology with at least this part of each link, switch and server left, whoever uses them."""
    nodes: dict[str, dict[str, float]] = {}
    for node, given in topology.graph.nodes.items():
        for what in ("aggregation_mbps", "ingress_mbps"):
            most = given.get(what, math.inf) * (1 - part)
            if given.get(f"used_{what}", 0.0) > most:
                nodes.setdefault(node, {})[f"used_{what}"] = most
    links = {
        (u, v): {"used_bandwidth_mbps": topology.bandwidth_mbps(u, v) * (1 - part)}
        for u, v in topology.links
        if topology.used_bandwidth_mbps(u, v) > topology.bandwidth_mbps(u, v) * (1 - part)
    }
    return topology.replace(nodes=nodes, links=links)


def with_others(topology: Topology, used: Mapping[tuple[str, str], float]) -> Topology:
    """Return the topology whose links other traffic uses at these rates, Mbit/s, where it does not declare more."""
    links = {
        (u, v): {"used_bandwidth_mbps": mbps}
        for (u, v), mbps in used.items()
        if topology.has_link(u, v) and mbps > topology.used_bandwidth_mbps(u, v)
    }
    return topology.replace(links=links) if links else topology


def with_loads(topology: Topology, plans: Sequence[Plan]) -> Topology:
    """Return the topology with what these plans use at their rates as background load. Parts that it lacks are
    ignored."""
    nodes: dict[str, dict[str, float]] = {}
    links: dict[tuple[str, str], float] = {}
    for plan in plans:
        on_links, on_switches, on_roots = unit_loads(plan, topology.results_on_links)
        if plan.gather_speed > 1:
            gathered, _ = gather_loads(plan, topology.results_on_links)
            for link, load in gathered.items():
                on_links[link] = max(on_links.get(link, 0.0), plan.gather_speed * load)
        if plan.gathers_beside:
            beside, beside_roots = loads_beside(plan, topology.results_on_links)
            on_links = {link: max(load, beside.get(link, 0.0)) for link, load in {**beside, **on_links}.items()}
            on_roots = {root: max(load, beside_roots.get(root, 0.0)) for root, load in on_roots.items()}
        for (u, v), load in on_links.items():
            if topology.has_link(u, v):
                links[u, v] = links.get((u, v), topology.used_bandwidth_mbps(u, v)) + load * plan.rate_mbps
        for name, found in (("used_aggregation_mbps", on_switches), ("used_ingress_mbps", on_roots)):
            for node, load in found.items():
                if node in topology:
                    own = nodes.setdefault(node, {name: topology.graph.nodes[node].get(name, 0.0)})
                    own[name] += load * plan.rate_mbps
    return topology.replace(nodes=nodes, links={link: {"used_bandwidth_mbps": load} for link, load in links.items()})


def with_taken(topology: Topology, taken: Mapping[str, Taken], kind: Kind) -> Topology:
    """Return the topology with the room that its switches have left. A switch has as much room in all as its program,
    or less where the topology says so."""
    limits = kind.limits
    nodes: dict[str, dict[str, int]] = {}
    for switch, by in taken.items():
        if by != NOTHING and switch in topology:
            own = topology.graph.nodes[switch]
            there = {
                "slots": (limits.slots, by.used_slots),
                "label_entries": (limits.label_table_size, by.labels),
                "multicast_groups": (limits.multicast_groups, len(by.groups)),
            }
            free = {name: min(most, own.get(name, most)) - used for name, (most, used) in there.items()}
            nodes[switch] = {name: max(0, count) for name, count in free.items()}
    return topology.replace(nodes=nodes)


def present_state(whole: Topology, base: Topology, changes: Iterable[str] = ()) -> Topology:
    """Return a state of the deployed network (`whole`): `base`, with `changes`. Raise TopologyError where `base` is no
    state of the deployed network, or a change is invalid."""
    for u, v in base.links:
        if not whole.has_link(u, v):
            raise TopologyError(f"link {u} -> {v} is not one of the deployed network")
    for u, v in base.links:
        for switch, other in ((u, v), (v, u)):
            if whole.kind(switch) == "switch" and base.port(switch, other) != whole.port(switch, other):
                raise TopologyError(
                    f"switch {switch} has {other} at port {whole.port(switch, other)} in the deployed "
                    f"network, at {base.port(switch, other)} in this one: give the ports in the file"
                )
    for server in base.servers:
        if base.address(server) != whole.address(server):
            raise TopologyError(f"server {server} has another address in the deployed network: give it in the file")
    return apply_changes(base, changes)


def apply_changes(topology: Topology, changes: Iterable[str]) -> Topology:
    """Return the topology with changes like "V1.aggregation_mbps=10" (of a node) and "V1-V2.used_bandwidth_mbps=5" (of
    a link, in both directions).

    Raise TopologyError, which names the change, where one is invalid.
    """
    nodes: dict[str, dict[str, float]] = {}
    links: dict[tuple[str, str], dict[str, float]] = {}
    for change in changes:
        where, equals, value = change.partition("=")
        what, dot, attribute = where.rpartition(".")
        try:
            number = float(value)
        except ValueError:
            equals = ""
            number = 0.0
        if not (equals and dot and what and attribute.endswith("_mbps")):
            raise TopologyError(
                f"{change!r} is not a change: give NODE.aggregation_mbps=10, or NODE-NODE.used_bandwidth_mbps=5"
            )
        if what in topology:
            nodes.setdefault(what, {})[attribute] = number
            continue
        ends = [(u, v) for u, v in topology.links if what in (f"{u}-{v}", f"{v}-{u}")]
        if not ends:
            raise TopologyError(f"{change!r}: the network has no node and no link {what!r}")
        for link in ends:
            links.setdefault(link, {})[attribute] = number
    return topology.replace(nodes=nodes, links=links)
