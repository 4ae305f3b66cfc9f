"""Bytes that links carry beside those which a plan counts: headers on the way, acknowledgements on the way back.

A plan's rate is that of payload on links. Hosts over TCP send frames and messages with headers, and acknowledge what
they receive: acknowledgements go between the same two sites in the other direction, where a slow link may lie beside a
fast one.
"""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.planner.evaluate import unit_loads
from controlplane.planner.plan.model import Plan
from controlplane.planner.topology import Topology

MTU = 1500
"""Bytes of an IP packet on Ethernet (RFC 894), the default."""


@dataclass(frozen=True)
class Framing:
    """Overhead as fractions of the payload: `headers` go over the same link, `acknowledgements` over the link in the
    other direction.
    """

    headers: float = 0.0
    acknowledgements: float = 0.0


PAYLOAD = Framing()
"""Framing without any overhead: a packet is nothing but payload."""


def payload_mbps(plan: Plan, topology: Topology, framing: Framing) -> float:
    """Return the highest rate of the plan in Mbit/s at which links carry the overhead of its payload, too."""
    load, _, _ = unit_loads(plan, topology.results_on_links)
    links = {*load, *((v, u) for u, v in load if topology.graph.has_edge(v, u))}
    return min(
        topology.residual_bandwidth_mbps(u, v)
        / ((1 + framing.headers) * load.get((u, v), 0.0) + framing.acknowledgements * load.get((v, u), 0.0))
        for u, v in links
        if load.get((u, v), 0.0) > 0 or framing.acknowledgements > 0
    )
