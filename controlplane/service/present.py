"""The network's present state, as an operator describes it who knows more than the controller."""

from __future__ import annotations

from collections.abc import Iterable

from controlplane.planner.topology import Topology, TopologyError


def present_state(whole: Topology, base: Topology, changes: Iterable[str] = ()) -> Topology:
    """Return a state of the deployed network (`whole`): `base`, with `changes`.

    Raises:
        TopologyError: `base` is no state of the deployed network, or a change is invalid.
    """
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
