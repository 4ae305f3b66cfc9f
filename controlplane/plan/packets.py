"""How many packets a plan's trees carry in one all-reduce, and the time that takes: headers and padding count.

The model is cut into packets of N values, and these are dealt to the trees in proportion to their shares, whole
(docs/architecture.md section 3, worker_agent/split.py). A tree with values also carries exponent packets, one value per
packet of its data and four that check. So every tree costs two packets that are not full on average, and a tree that
gets one packet more than its share takes longer than the others.
"""

from __future__ import annotations

from controlplane.plan.model import Plan
from p4src.protocol import frame_bytes

BYTES_PER_VALUE = 4
CHECK_VALUES = 4


def data_packets(plan: Plan, values_per_packet: int) -> list[int]:
    """Packets of gradients per tree: its quota rounded down, the rest to the largest remainders."""
    values = -(-plan.job.model_bytes // BYTES_PER_VALUE)
    total = -(-values // values_per_packet)
    shares = sum(tree.share for tree in plan.trees)
    quotas = [total * tree.share / shares for tree in plan.trees]
    counts = [int(quota) for quota in quotas]
    order = sorted(range(len(counts)), key=lambda i: (counts[i] - quotas[i], i))
    for i in order[: total - sum(counts)]:
        counts[i] += 1
    return counts


def packets(plan: Plan, values_per_packet: int) -> list[int]:
    """All packets that a worker sends per tree, exponents included."""
    return [
        count + -(-(count + CHECK_VALUES) // values_per_packet) if count else 0
        for count in data_packets(plan, values_per_packet)
    ]


def packet_seconds(plan: Plan, values_per_packet: int, rate_mbps: float) -> float:
    """Time of one all-reduce at the plan's rate: of the tree that takes longest."""
    bits = 8 * frame_bytes(values_per_packet)
    return max(
        count * bits / (rate_mbps * tree.share * 1e6)
        for count, tree in zip(packets(plan, values_per_packet), plan.trees, strict=True)
    )
