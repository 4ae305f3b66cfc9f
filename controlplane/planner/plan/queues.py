"""Queues of links that agents fill at once: the part of an all-reduce's time that pacing does not explain."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from controlplane.planner.plan.follow import Credit
from controlplane.planner.plan.model import Plan
from controlplane.planner.topology import Topology


@dataclass(frozen=True)
class Queues:
    """The use of links by trees, with one entry per tree and link of it, in arrays of the same length.

    Attributes:
        flows: Flows of the tree on the link, its results included.
        packet_s: Seconds of a packet on the link.
        ahead_s: The link's token bucket, in seconds of its rate.
        own_s: Seconds that a single chunk waits for the tree's own flows, which are part of its round trip.
    """

    trees: int
    tree: np.ndarray
    link: np.ndarray
    flows: np.ndarray
    packet_s: np.ndarray
    ahead_s: np.ndarray
    own_s: np.ndarray

    @classmethod
    def of(cls, plan: Plan, topology: Topology, packet_bits: int, credit: Credit | None) -> Queues:
        """Return the queues of the links that a plan uses, for frames of `packet_bits` bits and links with this
        `credit` (None: links send nothing ahead).
        """
        numbers: dict[tuple[str, str], int] = {}
        tree, link, flows = [], [], []
        for index, each in enumerate(plan.trees):
            used = each.crossed()
            if topology.results_on_links:
                used.update(each.return_edges)
            for pair, count in used.items():
                tree.append(index)
                link.append(numbers.setdefault(pair, len(numbers)))
                flows.append(count)
        packet = np.array([packet_bits / 1e6 / max(topology.bandwidth_mbps(*pair), 1e-3) for pair in numbers])
        ahead = np.array([credit(topology, pair) / 1e3 if credit else 0.0 for pair in numbers])
        at, times = np.array(link, dtype=int), np.array(flows)
        own = np.maximum(0.0, times * packet[at] - ahead[at])
        return cls(len(plan.trees), np.array(tree, dtype=int), at, times, packet[at], ahead[at], own)

    def seconds(self, data: list[int]) -> np.ndarray:
        """Return for each tree how long its fullest link takes for the data of all trees, without the tree's last
        chunk. `data` has the packets of each tree.
        """
        counts = np.array(data)
        load = np.bincount(self.link, self.flows * counts[self.tree])[self.link] * self.packet_s
        queue = np.maximum(0.0, load - self.ahead_s) - self.own_s
        found = np.zeros(self.trees)
        np.maximum.at(found, self.tree, queue)
        return found
