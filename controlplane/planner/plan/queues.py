"""Queues of links that agents fill at once: the part of an all-reduce's time that pacing does not explain."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from controlplane.planner.plan.model import Plan
from controlplane.planner.plan.round_trips import Credit
from controlplane.planner.topology import Topology


@dataclass(frozen=True)
class Queues:
    """Use of links by trees: one entry per tree and link of it, in arrays of the same length.

    flows: of the tree on the link, its results too. packet_s: of a packet on the link. ahead_s: the link's bucket, as
    time. own_s: what a single chunk waits for the tree's own flows, which its round trip has.
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
        """Return the queues of the links that a plan uses. packet_bits: of a frame. credit: what links send at once;
        None: nothing."""
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
        """Return for each tree how long its fullest link takes for the data of all trees, but for the tree's last
        chunk."""
        counts = np.array(data)
        load = np.bincount(self.link, self.flows * counts[self.tree])[self.link] * self.packet_s
        queue = np.maximum(0.0, load - self.ahead_s) - self.own_s
        found = np.zeros(self.trees)
        np.maximum.at(found, self.tree, queue)
        return found
