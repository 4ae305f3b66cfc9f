"""The ports of a topology's nodes: their numbers, and on hardware switches those of the front panel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import networkx as nx

from controlplane.planner.frontpanel import FrontPanelPort, make_port, overlaps
from controlplane.planner.topology_checks import TopologyError


def assign_ports(graph: nx.DiGraph, node: str, neighbours: Sequence[str]) -> dict[str, int]:
    """Return the node's port number by neighbour: from the links' "ports", else the first free ones in the neighbours'
    order. Raise TopologyError where two links have the same one, or one link has two.
    """
    ports: dict[str, int] = {}
    for other in neighbours:
        for u, v in ((node, other), (other, node)):
            given = graph.edges[u, v].get("ports", {}) if graph.has_edge(u, v) else {}
            if node in given and ports.setdefault(other, given[node]) != given[node]:
                raise TopologyError(f"link {node} - {other}: two port numbers at {node}")
    if len(set(ports.values())) != len(ports):
        raise TopologyError(f"node {node}: two links have the same port number")
    free = (n for n in range(1, 1 << 16) if n not in set(ports.values()))
    for other in neighbours:
        if other not in ports:
            ports[other] = next(free)
    return {other: ports[other] for other in neighbours}


def loopback_ports(attributes: Mapping[str, Any]) -> tuple[FrontPanelPort, ...]:
    """Return the ports of a switch with these attributes that are set to loop back."""
    given = attributes.get("loopback_ports", ())
    return tuple(make_port(port["front_panel"], port, loopback=True) for port in given)


def front_panel(graph: nx.DiGraph, switch: str, ports: Mapping[str, int]) -> dict[int, FrontPanelPort]:
    """Return the front-panel ports that the switch's links name, by port number; `ports` has these by neighbour. Raise
    TopologyError where two of them, or one and a loopback port, are the same.
    """
    panel: dict[int, FrontPanelPort] = {}
    for other in ports:
        for u, v in ((switch, other), (other, switch)):
            attributes = graph.edges[u, v] if graph.has_edge(u, v) else {}
            if switch in attributes.get("front_panel", {}):
                port = make_port(attributes["front_panel"][switch], attributes)
                if panel.setdefault(ports[other], port) != port:
                    raise TopologyError(f"link {switch} - {other}: its two directions name different ports")
    named = [*panel.values(), *loopback_ports(graph.nodes[switch])]
    for i, one in enumerate(named):
        for two in named[:i]:
            if overlaps(one, two):
                raise TopologyError(f"switch {switch}: ports {two} and {one} are the same or share lanes")
    return panel
