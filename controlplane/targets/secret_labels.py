"""Labels that nobody can guess: translates the control plane's label numbers to the labels on the wire and in switches.

Everything in the control plane (rules, room for jobs, plan versions, counters, the state folder) works with label
*numbers*, which are consecutive and whose upper half identifies the job. Whoever knows the label of a tree can send
packets to it. So a controller that has a secret gives switches and agents other labels: a keyed permutation of the
32-bit numbers. It translates at two borders only: towards the switches (`targets/secret.py`) and towards the agents (in
this module).
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import replace

from controlplane.common.agentconfig import AgentConfig, RootTree, WorkerTree

ROUNDS = 4
"""Rounds of the Feistel network.

With pseudo-random round functions, four rounds cannot be told from a random permutation by an attacker who sees both
directions (Luby and Rackoff, How to Construct Pseudorandom Permutations from Pseudorandom Functions, 1988).
"""
HALF = 16
MASK = (1 << HALF) - 1


class SecretLabels:
    """A permutation of the labels 1..2^32 - 1 that depends on a key; 0, which is no label, stays 0.

    The same key gives the same labels, so that installed entries stay valid over restarts of the controller.
    """

    def __init__(self, key: bytes) -> None:
        self._rounds = [
            struct.unpack(f"<{MASK + 1}H", hashlib.shake_256(key + bytes([number])).digest(2 * (MASK + 1)))
            for number in range(ROUNDS)
        ]

    def label(self, number: int) -> int:
        """Return the label on the wire for this number."""
        if number == 0:
            return 0
        return self.forward(number) or self.forward(0)

    def number(self, label: int) -> int:
        """Return the number that this label stands for."""
        if label == 0:
            return 0
        return self.back(label) or self.back(0)

    def labels(self, numbers: Iterable[int]) -> tuple[int, ...]:
        """Return the label of each number, in order."""
        return tuple(self.label(number) for number in numbers)

    def configuration(self, config: AgentConfig) -> AgentConfig:
        """Return an agent's configuration with labels in the place of numbers."""
        return replace(
            config,
            worker_trees=tuple(self._worker_tree(tree) for tree in config.worker_trees),
            root_trees=tuple(self._root_tree(tree) for tree in config.root_trees),
        )

    def _worker_tree(self, tree: WorkerTree) -> WorkerTree:
        return replace(
            tree,
            up_label=self.label(tree.up_label),
            return_label=self.label(tree.return_label),
            answer_label=self.label(tree.answer_label),
            others_labels=self.labels(tree.others_labels),
        )

    def _root_tree(self, tree: RootTree) -> RootTree:
        return replace(
            tree,
            flows=tuple(replace(flow, label=self.label(flow.label)) for flow in tree.flows),
            return_label=self.label(tree.return_label),
            answer_labels=self.labels(tree.answer_labels),
            others_labels=self.labels(tree.others_labels),
        )

    def forward(self, number: int) -> int:
        left, right = number >> HALF, number & MASK
        for table in self._rounds:
            left, right = right, left ^ table[right]
        return left << HALF | right

    def back(self, label: int) -> int:
        left, right = label >> HALF, label & MASK
        for table in reversed(self._rounds):
            left, right = right ^ table[left], left
        return left << HALF | right
