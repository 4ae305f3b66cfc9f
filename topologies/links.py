"""The token buckets of an emulation's links, as the cost model needs them (planner/plan/follow.py)."""

from controlplane.planner.topology import Topology
from topologies.network import host_burst_bytes
from topologies.softswitch import port_burst_bytes


def link_credit_ms(topology: Topology, link: tuple[str, str]) -> float:
    """Return how many milliseconds a link may be ahead of its rate, which is the burst of softswitch's port or the
    host's queue.
    """
    mbps = topology.bandwidth_mbps(*link)
    burst = host_burst_bytes(mbps) if topology.kind(link[0]) == "server" else port_burst_bytes(mbps)
    return burst * 8 / (mbps * 1e3)
