"""The token buckets of an emulation's links, as the cost model takes them (planner/plan/round_trips.py)."""

from controlplane.planner.topology import Topology
from topologies.network import host_burst_bytes
from topologies.softswitch import port_burst_bytes


def link_credit_ms(topology: Topology, link: tuple[str, str]) -> float:
    """How far softswitch's ports, and the queues of hosts, let a link be ahead of its rate."""
    mbps = topology.bandwidth_mbps(*link)
    burst = host_burst_bytes(mbps) if topology.kind(link[0]) == "server" else port_burst_bytes(mbps)
    return burst * 8 / (mbps * 1e3)
