"""Scales a network's rates down to what this machine can emulate."""

from __future__ import annotations

import math
from collections.abc import Iterable

from controlplane.planner.evaluate import evaluate
from controlplane.planner.plan import Plan
from controlplane.planner.topology import Topology
from p4src.protocol import PROTOCOL, frame_bytes

# Packets per second that all switches together forward on two cores, with time to spare for the agents. If plans send
# more, all rates are scaled down.
PACKETS_PER_SECOND = {"softswitch": 650_000, "bmv2": 6_000}
NODE_RATES = ("aggregation_mbps", "used_aggregation_mbps", "ingress_mbps", "used_ingress_mbps")
LINK_RATES = ("bandwidth_mbps", "used_bandwidth_mbps")


def switched_packets(plan: Plan, topology: Topology) -> float:
    """Return the packets per second that enter switches and servers when the plan runs at its rate, results
    included.
    """
    megabits = sum(load.load_mbps for load in evaluate(plan, topology).loads if load.kind in ("link", "nic"))
    return megabits * 1e6 / 8 / frame_bytes(PROTOCOL.targets["v1model"].values_per_packet)


def fitting(switch: str, packets: Iterable[float]) -> float:
    """Return the factor on all rates, at most 1 and with two digits, for plans with these packets per second."""
    planned = sum(packets)
    scale = min(1.0, PACKETS_PER_SECOND[switch] / planned) if planned else 1.0
    digit = 10.0 ** (math.floor(math.log10(scale)) - 1)
    return round(math.floor(scale / digit + 1e-9) * digit, 12)


def scaled(topology: Topology, scale: float) -> Topology:
    """Return the topology with all its rates times `scale`."""

    def times(attributes: dict[str, float], rates: tuple[str, ...]) -> dict[str, float]:
        return {name: attributes[name] * scale for name in rates if name in attributes}

    graph = topology.graph
    return topology.replace(
        nodes={node: times(graph.nodes[node], NODE_RATES) for node in graph},
        links={link: times(graph.edges[link], LINK_RATES) for link in graph.edges},
    )
