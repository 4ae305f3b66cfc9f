"""The addresses of a topology's servers on the data network."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any

import networkx as nx

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
