"""Bounds the rate that hosts alone can reach on a network whose links lose packets, whatever their protocol."""

from __future__ import annotations

from controlplane.planner.plan.model import Plan
from controlplane.planner.topology import Topology


def most_carried(topology: Topology, plan: Plan, loss: float) -> float:
    """Return an upper bound of the part of the planned rate that is carried while each link loses `loss` of its frames.

    A contribution that crosses n links arrives with probability (1 - loss)^n, so a worker sends each of its packets 1 /
    (1 - loss)^n times on average until it has arrived, also when it always knows which have. Its link, which carries
    all of these, limits it; the slowest worker limits the job. Switches do not send again what they have added, so a
    sum that is lost on its way costs each contribution once more, and the bound holds with them, too.
    """
    if loss >= 1:
        return 0.0
    sent = dict.fromkeys(plan.job.workers, 0.0)  # packets sent for each that arrives, by worker
    for tree in plan.trees:
        beyond = {point: len(tree.way(point)) - 1 for point in tree.points}
        for a in tree.assignments:
            links = len(a.route) - 1 + (beyond[a.point] if a.point != tree.root else 0)
            sent[a.worker] += tree.share / (1 - loss) ** links
    room = (topology.bandwidth_mbps(worker, topology.access_switch(worker)) / plan.rate_mbps for worker in sent)
    return min(1.0, *(room_of / packets for room_of, packets in zip(room, sent.values(), strict=True)))
