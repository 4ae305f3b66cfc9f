"""What windows carry: a tree never has more packets under way than it has slots.

A tree of s slots sends at most s packets per round trip, whatever its links could carry. Slots are given out with the
rates (`rules.place_slots`), and round trips are estimated from the links' delays, a packet's time on each link and the
hosts' time (`rules.round_trip_ms`). Where the memory of a switch leaves a tree fewer slots than its rate asks for, that
switch is what binds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from controlplane.plan.limits import DoesNotFit, Limits, held
from controlplane.plan.model import Plan
from controlplane.rules import MAXIMUM_SLOTS, place_slots, round_trip_ms
from controlplane.topology import Topology
from p4src.protocol import frame_bytes

PLENTY = 1 << 24


@dataclass(frozen=True)
class Windows:
    """Per tree: slots, round trip (ms), what they carry (Mbit/s). rate_mbps: the sending rate at which no tree needs
    more; tree: the one that does first; switch: where its slots ran out (None: it has the most that a tree can have).
    """

    slots: tuple[int, ...]
    round_trips_ms: tuple[float, ...]
    carries_mbps: tuple[float, ...]
    rate_mbps: float
    tree: int
    switch: str | None

    def to_json(self) -> dict[str, Any]:
        return {
            "rate_mbps": self.rate_mbps,
            "tree": self.tree,
            "switch": self.switch,
            "slots": list(self.slots),
            "round_trips_ms": list(self.round_trips_ms),
            "carries_mbps": list(self.carries_mbps),
        }

    def lines(self, rate_mbps: float) -> Iterator[str]:
        """Beside the rate that links and switches allow."""
        if self.rate_mbps >= rate_mbps:
            yield f"windows     carry {self.rate_mbps:.4g} Mbit/s per worker: enough"
            return
        where = f"aggregation memory of {self.switch}" if self.switch else "the most slots that a tree can have"
        slots, trip = self.slots[self.tree], self.round_trips_ms[self.tree]
        yield (
            f"windows     carry {self.rate_mbps:.4g} Mbit/s per worker only: tree {self.tree} has {slots} slots and a "
            f"round trip of {trip:.3g} ms ({where})"
        )


def windows(plan: Plan, topology: Topology, rate_mbps: float) -> Windows | None:
    """Of a plan at this rate; None where the packets' size is not known, or the slots do not fit."""
    limits = held(topology)
    values = limits.values_per_packet
    if values is None or not plan.trees:
        return None
    at_rate = Plan(plan.job, plan.strategy, rate_mbps, plan.trees)
    most = max(limits.slots.values(), default=PLENTY)
    try:
        slots, _ = place_slots(at_rate, topology, Limits(values, most, PLENTY, PLENTY), {})
    except DoesNotFit:
        return None
    bits = 8 * frame_bytes(values)
    trips = tuple(round_trip_ms(tree, topology, bits) for tree in plan.trees)
    carries = tuple(n * bits / (1e3 * trip) for n, trip in zip(slots, trips, strict=True))
    first = min(range(len(slots)), key=lambda i: carries[i] / plan.trees[i].share)
    used: dict[str, int] = {}
    for tree, n in zip(plan.trees, slots, strict=True):
        for point in tree.points:
            used[point] = used.get(point, 0) + n
    full = [v for v in plan.trees[first].points if used[v] + slots[first] > limits.slots.get(v, PLENTY)]
    switch = max(full, key=lambda v: used[v], default=None) if slots[first] < MAXIMUM_SLOTS else None
    return Windows(slots, trips, carries, carries[first] / plan.trees[first].share, first, switch)
