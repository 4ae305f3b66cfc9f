"""Numbers that a topology's nodes get: the addresses of its servers on the data network, the ports of all nodes, and on
hardware switches those of the front panel.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any

import networkx as nx

from controlplane.planner.frontpanel import FrontPanelPort, make_port, overlaps
from controlplane.planner.topology_checks import TopologyError

FIRST_ADDRESS = ipaddress.IPv4Address("10.0.0.1")


def assign_addresses(graph: nx.DiGraph, servers: Sequence[str]) -> dict[str, str]:
    """Return the servers' IPv4 addresses: those that their attributes give, else the first free ones from 10.0.0.1 on,
    in the servers' order. Raise TopologyError where two servers have the same.
    """
    given = {s: graph.nodes[s]["ip"] for s in servers if "ip" in graph.nodes[s]}
    owners: dict[str, str] = {}
    for server, address in given.items():
        if address in owners:
            raise TopologyError(f"servers {owners[address]} and {server} have the same address {address}")
        owners[address] = server
    addresses = dict(given)
    candidate = FIRST_ADDRESS
    for server in servers:
        if server in addresses:
            continue
        while str(candidate) in owners or candidate.packed[3] in (0, 255):
            candidate += 1
        addresses[server] = str(candidate)
        candidate += 1
    return addresses


def mac_of(attributes: Mapping[str, Any], address: str) -> str:
    """Return a server's MAC address: the attribute, else 02:00 and the four bytes of its IPv4 address."""
    if "mac" in attributes:
        return str(attributes["mac"])
    return ":".join(f"{byte:02x}" for byte in b"\x02\x00" + ipaddress.IPv4Address(address).packed)


def check_macs(macs: Mapping[str, str]) -> None:
    """Check that no two servers have the same MAC address (`macs` has them by server); raise TopologyError
    otherwise.
    """
    owners: dict[str, str] = {}
    for server, mac in macs.items():
        other = owners.setdefault(mac.lower(), server)
        if other != server:
            raise TopologyError(f"servers {other} and {server} have the same MAC address {mac}")


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
