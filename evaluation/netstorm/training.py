"""Synchronous training over a changing WAN, on the overlay's simulator (NetStorm paper, IV to VI, IX).

The policy and the agents are those of the real system. One thing is the paper's and not the agents': links may tell
their rates at once (`full`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import networkx as nx
import numpy as np

from controlplane.planner.plan.task import Task
from controlplane.planner.strategies.wan.netstorm.policy import NetStorm, NetStormSettings, sum_tree
from evaluation.wan.networks import overlay
from overlay.core.measurement import PROBE_CHUNKS
from overlay.sim.simulation import Simulation

# The tensors of AlexNet's layers, in million parameters, in the order in which their gradients are ready; biases are
# with their weights.
ALEXNET_TENSORS = (4.1, 16.78, 37.65, 0.59, 0.885, 0.664, 0.307, 0.024)
ALEXNET_PARAMETERS = 61.0
MILLION = 1_000_000


@dataclass(frozen=True)
class Setup(NetStormSettings):
    """The settings of a simulation: those of the policy, with the paper's defaults, and more.

    Attributes:
        full: whether the policy knows all links' rates at any time.
        known: whether it knows all throughputs at the start; otherwise they are guesses (20 to 155 Mbit/s), as in the
            authors' code.
        parameters: size of the model, in million parameters.
        whole: whether AlexNet's tensors are not cut into chunks, as in systems with one server.
        probe_values: least size of a chunk that is a probe. 2 million as in Table II would leave out every chunk of its
            CHUNK_SIZE of 1 million, so ours is half a million.
        probe_chunks: PROBE_CHUNK_NUM.
        compute: seconds of computing between two iterations.
    """

    lazy: bool = True
    full: bool = False
    known: bool = False
    parameters: float = ALEXNET_PARAMETERS
    whole: bool = False
    probe_values: int = MILLION // 2
    probe_chunks: int = PROBE_CHUNKS
    compute: float = 0.5


class _WholeTensors(NetStorm):
    """NetStorm's policy, or a baseline's, with a tree for each tensor, which the agents send as one chunk."""

    def task(self, number: int, values: int, now: float) -> Task:
        task = super().task(number, values, now)
        trees, first = [], 0
        for tensor in ALEXNET_TENSORS:
            count = round(tensor * MILLION)
            trees.append(sum_tree(self.trees[0], self.nodes, first, count))
            first += count
        return replace(task, trees=tuple(trees), chunk_values=values, window=0)


class Training:
    """A simulation run on a network of the nodes 0, 1, .. whose bandwidths may change.

    Args:
        change: called every `interval` s with the time in s; returns the new network. None where it never changes.
        root: root of STAR, BKT and MST, and of FAPT with one root if given.
        guesses: seed of the throughputs that the scheduler assumes for the links until it knows them.
    """

    def __init__(
        self,
        setup: Setup,
        graph: nx.DiGraph,
        *,
        change: Callable[[float], nx.DiGraph] | None = None,
        interval: float = 180.0,
        root: int | None = None,
        guesses: int = 0,
    ) -> None:
        belief = _agents(graph)
        if not setup.known:
            rng = np.random.default_rng([guesses, len(graph)])
            for _, _, data in belief.edges(data=True):
                data["mbps"] = float(rng.integers(20, 156))
        kind = _WholeTensors if setup.whole else NetStorm
        self.policy = kind(belief, replace(setup, root=None if root is None else f"h{root}"))
        self.setup, self.change, self.interval = setup, change, interval
        self.ends: list[float] = []
        self.run_of = Simulation(
            self.policy,
            overlay(graph),
            round(setup.parameters * MILLION),
            compute=lambda node: setup.compute,
            probe_values=setup.probe_values if setup.aware and not setup.full else None,
            probe_chunks=setup.probe_chunks,
            finished=lambda task, seconds: self.ends.append(self.run_of.sim.now),
        )
        self._told(graph)

    def _told(self, graph: nx.DiGraph) -> None:
        if self.setup.full:
            self.policy.belief = _agents(graph)

    def _vary(self) -> None:
        assert self.change is not None
        graph = self.change(self.run_of.sim.now)
        for u, v, data in graph.edges(data=True):
            self.run_of.set_rate(f"dc{u}", f"dc{v}", data["mbps"])
        self._told(graph)
        self.run_of.sim.after(self.interval, self._vary)

    def run(self, seconds: float) -> float:
        """Return the iterations per second, computation included."""
        if self.change is not None:
            self.run_of.sim.after(self.interval, self._vary)
        self.run_of.run(10**9, seconds)
        return len(self.ends) / self.ends[-1] if self.ends else 0.0


def _agents(graph: nx.DiGraph) -> nx.DiGraph:
    return nx.relabel_nodes(graph, {node: f"h{node}" for node in graph})
