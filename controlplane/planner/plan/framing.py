"""Bytes that links carry beside those which a plan counts: headers on the way, acknowledgements on the way back.

A plan's rate is payload over the rate of links. Hosts over TCP send frames and messages with headers, and acknowledge
what comes: that goes over the same pair of sites the other way, where a slow link may lie beside a fast one.
"""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.planner.evaluate import unit_loads
from controlplane.planner.plan.model import Plan
from controlplane.planner.topology import Topology

MTU = 1500
"""Bytes of an IP packet on Ethernet (RFC 894), where nothing else is said."""


@dataclass(frozen=True)
class Framing:
    """Overhead in parts of the payload: headers, on the same link; acknowledgements, on the link the other way."""

    headers: float = 0.0
    acknowledgements: float = 0.0


PAYLOAD = Framing()
"""Framing without any header: a packet is nothing but payload."""


def payload_mbps(plan: Plan, topology: Topology, framing: Framing) -> float:
    """The highest rate of the plan at which links carry what comes beside its payload, too, Mbit/s."""
    load, _, _ = unit_loads(plan, topology.results_on_links)
    links = {*load, *((v, u) for u, v in load if topology.graph.has_edge(v, u))}
    return min(
        topology.residual_bandwidth_mbps(u, v)
        / ((1 + framing.headers) * load.get((u, v), 0.0) + framing.acknowledgements * load.get((v, u), 0.0))
        for u, v in links
        if load.get((u, v), 0.0) > 0 or framing.acknowledgements > 0
    )
