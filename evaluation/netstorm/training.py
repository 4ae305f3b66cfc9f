"""Synchronous training over a changing WAN on the flow-level simulator (NetStorm paper, IV to VI, IX).

The policy that also runs in the real system keeps the estimates of links, decides when to replan, and chooses roots and
trees.

Chunks climb their root's tree (a node passes a chunk on when its children's have come), and come back down. Hops store
and forward whole chunks: small ones pipeline, one chunk per root is Theorem 1's model.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import networkx as nx
import numpy as np

from controlplane.planner.simulate import Simulator
from controlplane.planner.strategies.wan.apsp.algorithm import Node, Path
from controlplane.planner.strategies.wan.netstorm import algorithm as netstorm
from controlplane.planner.strategies.wan.netstorm.policy import NetStorm, NetStormSettings
from controlplane.planner.strategies.wan.policy import Measured
from overlay.core.measurement import PROBE_CHUNKS, ThroughputEstimator
from overlay.core.path_selector import free_path

ALEXNET_PARAMETERS = 61.0  # million
MBIT = 32.0  # per million float32 parameters
# The tensors of its layers, in the order in which their gradients are ready; biases are with their weights.
ALEXNET_TENSORS = (4.1, 16.78, 37.65, 0.59, 0.885, 0.664, 0.307, 0.024)


@dataclass(frozen=True)
class Setup:
    """The settings of a simulation: those of Tables I and II, and more. Sizes are in million parameters.

    Attributes:
        topology: STAR, BKT, MST or FAPT.
        awareness: none (the first trees stay), passive (links that carried probes) or full.
        known: whether all throughputs are known at the start; otherwise they are guesses (20 to 155 Mbit/s), as in
            the authors' code.
        tensors: sizes that are cut into chunks, one after the other; empty for all `parameters` at once.
        probe_size: least size of a chunk that is a probe. 2 as in Table II would leave out every chunk of its
            CHUNK_SIZE 1, so ours is 0.5.
        lazy: a sender assigns a chunk when a path has room; else at once, as the text says.
        update_rate: the policy replans every `update` s if some link's known throughput has changed by more than
            this fraction since the last time (0 for any change, the paper's value).
    """

    topology: str = "FAPT"
    roots: int = 9
    awareness: str = "passive"
    auxiliary: bool = True
    parameters: float = ALEXNET_PARAMETERS
    tensors: tuple[float, ...] = ()
    known: bool = False
    chunk: float = 1.0
    busy_bound: int = 2
    auxiliary_length: int = 1
    probe_size: float = 0.5
    probe_count: int = PROBE_CHUNKS
    update: float = 5.0
    update_rate: float = 0.0
    compute: float = 0.5
    lazy: bool = True

    def __post_init__(self) -> None:
        topologies, awareness = ("STAR", "BKT", "MST", "FAPT"), ("none", "passive", "full")
        for value, known in ((self.topology, topologies), (self.awareness, awareness)):
            if value not in known:
                raise ValueError(f"unknown {value!r}; known: {', '.join(known)}")
        if self.update_rate < 0:
            raise ValueError("update_rate must be >= 0")


PRIMARY: Path = ()


class _Sender:
    """The queues of one node towards another. `chunks_on` counts the chunks on the primary path and on the auxiliary
    ones.
    """

    def __init__(self) -> None:
        self.chunks_on: Counter[Path] = Counter()
        self.waiting: deque[tuple[float, Callable[[], None]]] = deque()


class Training:
    """A simulation run on a network whose bandwidths change.

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
        root: Node | None = None,
        guesses: int = 0,
    ) -> None:
        self.setup = setup
        self.graph = graph
        belief = graph.copy()
        if not setup.known:
            rng = np.random.default_rng([guesses, len(graph)])
            for _, _, data in belief.edges(data=True):
                data["mbps"] = float(rng.integers(20, 156))
        self.policy = NetStorm(
            belief,
            settings=NetStormSettings(
                topology=setup.topology,
                roots=setup.roots,
                root=root,
                aware=setup.awareness != "none",
                auxiliary=False,
                update=0.0,
                update_rate=setup.update_rate,
            ),
        )
        self.links = {link: k for k, link in enumerate(graph.edges)}
        capacities = [data["mbps"] for _, _, data in graph.edges(data=True)]
        # Overlay links that are no links of the network use the routes with the fewest hops.
        self.routes = dict(nx.all_pairs_shortest_path(graph))
        self.sim = Simulator(capacities, "fcfs")
        self.change, self.interval = change, interval
        self.senders: dict[tuple[Node, Node], _Sender] = {}
        self.throughputs: dict[tuple[Node, Node], ThroughputEstimator] = {}
        self.ends: list[float] = []
        self.begins: list[float] = []
        self.stale = False  # whether the trees are out of date because the policy has replanned since
        self.trees = self.policy.trees
        self.paths: dict[tuple[Node, Node], list[Path]] = {}

    # --- the scheduler ---

    def _measure(self, u: Node, v: Node, size: float, stamp: float) -> None:
        """Tell the policy of the throughput of the link u -> v, as an agent does, from a chunk that has come over it
        and that its sender stamped at the time `stamp`.
        """
        if self.setup.awareness == "passive":
            throughput = self.throughputs.setdefault((u, v), ThroughputEstimator(self.setup.probe_count))
            mbps = throughput.arrived(stamp, self.sim.now, size, counts=size >= self.setup.probe_size * MBIT)
            if mbps is not None:
                self.policy.learn(Measured(u, v, mbps), self.sim.now)

    def _update(self) -> None:
        if self.setup.awareness == "full":
            self.policy.belief = self.graph.copy()
        if self.policy.refresh(self.sim.now):
            self.stale = True
            self.paths = {}  # auxiliary paths change at once, trees at the next push
        self.sim.after(self.setup.update, self._update)

    def _vary(self) -> None:
        assert self.change is not None
        self.graph = self.change(self.sim.now)
        for link, resource in self.links.items():
            self.sim.set_capacity(resource, self.graph.edges[link]["mbps"])
        self.sim.after(self.interval, self._vary)

    # --- moving chunks ---

    def _send(self, u: Node, v: Node, size: float, arrived: Callable[[], None]) -> None:
        sender = self.senders.get((u, v))
        if sender is None:
            sender = self.senders[u, v] = _Sender()
        sender.waiting.append((size, arrived))
        self._assign(u, v, sender)

    def _assign(self, u: Node, v: Node, sender: _Sender) -> None:
        setup = self.setup
        while sender.waiting:
            path: Path | None = PRIMARY
            if setup.auxiliary:
                path = free_path(
                    sender.chunks_on, PRIMARY, self._auxiliary(u, v),
                    busy_bound=setup.busy_bound, detour_length=setup.auxiliary_length, lazy=setup.lazy,
                )  # fmt: skip
            if path is None:
                return
            sender.chunks_on[path] += 1
            size, arrived = sender.waiting.popleft()

            def left(path: Path = path, arrived: Callable[[], None] = arrived) -> None:
                sender.chunks_on[path] -= 1
                arrived()
                self._assign(u, v, sender)

            if path == PRIMARY:
                self._primary(u, v, size, left)
            else:
                self._hop(path, size, left)

    def _auxiliary(self, u: Node, v: Node) -> Iterator[Path]:
        """Yield the auxiliary paths from u to v, which are computed when the first one is needed."""
        if (u, v) not in self.paths:
            self.paths[u, v] = netstorm.auxiliary_paths(self.policy.decided, u, v)
        yield from self.paths[u, v]

    def _primary(self, u: Node, v: Node, size: float, arrived: Callable[[], None]) -> None:
        """Send a chunk from u to v along the fewest links."""
        route, stamp = self.routes[u][v], self.sim.now

        def done() -> None:
            if len(route) == 2:
                self._measure(u, v, size, stamp)
            arrived()

        self.sim.send(size, [self.links[link] for link in pairwise(route)], done)

    def _hop(self, path: Path, size: float, arrived: Callable[[], None]) -> None:
        """Send a chunk along its path, which its first node fixed; the nodes only forward it."""
        if len(path) == 1:
            arrived()
            return
        u, v, stamp = path[0], path[1], self.sim.now

        def done() -> None:
            self._measure(u, v, size, stamp)
            self._hop(path[1:], size, arrived)

        self.sim.send(size, [self.links[u, v]], done)

    # --- iterations ---

    def _iteration(self) -> None:
        """Push and pull all chunks when all nodes have computed, with one policy for the whole iteration."""
        self.begins.append(self.sim.now)
        if self.stale:
            self.trees = self.policy.trees
            self.stale = False
        sizes = []
        for left in self.setup.tensors or (self.setup.parameters,):
            while left > 1e-9:
                sizes.append(min(self.setup.chunk, left) * MBIT)
                left -= self.setup.chunk
        owners = netstorm.chunk_roots(self.trees, len(sizes))
        missing = [len(sizes) * len(self.graph)]

        def got() -> None:
            missing[0] -= 1
            if missing[0] == 0:
                self.ends.append(self.sim.now)
                self.sim.after(self.setup.compute, self._iteration)

        children = [tree.children() for tree in self.trees]

        def down(tree: int, size: float, node: Node) -> None:
            got()
            for child in children[tree][node]:
                self._send(node, child, size, partial(down, tree, size, child))

        def up(tree: int, size: float, waits: dict[Node, int], node: Node) -> None:
            waits[node] -= 1
            if waits[node] > 0:
                return
            if node == self.trees[tree].root:
                down(tree, size, node)
                return
            parent = self.trees[tree].parent[node]
            self._send(node, parent, size, partial(up, tree, size, waits, parent))

        for size, tree in zip(sizes, owners, strict=True):
            waits = {node: 1 + len(below) for node, below in children[tree].items()}
            for node in self.graph.nodes:
                up(tree, size, waits, node)

    def run(self, seconds: float) -> float:
        """Return the iterations per second, computation included."""
        self.sim.after(self.setup.compute, self._iteration)
        self.sim.after(self.setup.update, self._update)
        if self.change is not None:
            self.sim.after(self.interval, self._vary)
        self.sim.run(seconds)
        if not self.ends:
            return 0.0
        return len(self.ends) / self.ends[-1]
