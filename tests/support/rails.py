"""A network whose hosts have two links, each to a switch of its own (dual-homed, rails)."""

from __future__ import annotations

from controlplane.planner.topology import Topology


def two_rails(hosts: int, mbit: float) -> Topology:
    """Return hosts h1, h2, .. that all hang on both of two switches, which are linked with each other."""
    nodes = {name: {"kind": "switch", "aggregation_mbps": 10 * mbit} for name in ("a1", "a2")}
    nodes |= {f"h{number}": {"kind": "server"} for number in range(1, hosts + 1)}
    pairs = [("a1", "a2"), *((host, switch) for host in nodes if host[0] == "h" for switch in ("a1", "a2"))]
    links = [(*pair, {"bandwidth_mbps": mbit}) for one, other in pairs for pair in ((one, other), (other, one))]
    return Topology(nodes, links, "two rails")
