"""CREW's policy: agents that are ready queue, and the first p of the queue form a group (CREW paper, III and IV-B)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from controlplane.planner.plan.task import Edge, SumTree, Task
from controlplane.planner.strategies.wan.crew import algorithm
from controlplane.planner.strategies.wan.crew.links import Links
from controlplane.planner.strategies.wan.errors import WanError
from controlplane.planner.strategies.wan.policy import (
    Abort,
    Back,
    Changed,
    ContinueAlone,
    DefaultSplit,
    Event,
    Failed,
    Finished,
    Lost,
    Mend,
    Order,
    Ready,
    Silent,
    Start,
    Withdrawn,
)

SCHEMES = ("CREW", "OPR", "A2A")
Tasks = Mapping[int, tuple[Task, Collection[str]]]


@dataclass(frozen=True)
class CrewSettings:
    """Settings of CREW's policy. Raises ValueError for another scheme, and for an eager scatter with another one than
    CREW.

    Attributes:
        scheme: "CREW" (all agents add), "OPR" (only the group does), or "A2A" (each member sends its tensor to all
            members, which add by themselves).
        network_aware: Whether blocks follow LP (2); else they have equal size (E-D).
        chunk_values: Values of a chunk in tasks.
        budget: Seconds after which a group discards its task; 0 for never.
        blocking: Whether the scatter begins when the group is known; else it begins at once by a default split (IV-A2),
            which Algorithm 2 changes into the group's (the eager scatter).
        avoid: Whether groups are split without connections that are known to be broken; else a block that needs one is
            replaced when the group begins.
    """

    scheme: str = "CREW"
    network_aware: bool = True
    chunk_values: int = 65_536
    budget: float = 0.0
    blocking: bool = True
    avoid: bool = True

    def __post_init__(self) -> None:
        if self.scheme not in SCHEMES:
            raise ValueError(f"unknown scheme {self.scheme!r}; known: {', '.join(SCHEMES)}")
        if not self.blocking and self.scheme != "CREW":
            raise ValueError("blocking=False, the eager scatter, needs the scheme CREW")


USUAL = CrewSettings()


class Crew:
    """Partial reduce in groups of `p` of the agents `nodes`; bandwidth_mbps[i, j] is the believed rate from agent i to
    j.

    Networks whose connections share links are given as `links`. The LP then has a row for each link and counts both
    phases at once, since agents add chunk by chunk; and rates follow `Changed`, by the names of the agents at a link's
    ends.

    Failover (IV-B): when the aggregator of a block is lost, or its connection to a member, another agent adds that
    block, by Eq. (3), and the rest of the task continues. Where no agent can, and when a member of a group is lost, the
    group's members queue again with the values that they submitted. Agents that cannot reach the coordinator train
    alone, and finish the tasks that have begun.
    """

    alone = True
    """Whether trainers continue with their own values while there is no coordinator."""

    def __init__(
        self,
        nodes: Sequence[str],
        bandwidth_mbps: ArrayLike,
        p: int,
        settings: CrewSettings = USUAL,
        *,
        links: Links | None = None,
    ) -> None:
        self.settings = settings
        self.defaults: dict[int, tuple[algorithm.Ranges, ...]] = {}  # size of the tensor -> the default split
        self.links = links
        self.nodes = tuple(nodes)
        n = len(self.nodes)
        self.belief = algorithm.mesh(bandwidth_mbps)
        if self.belief.shape != (n, n):
            raise ValueError(f"bandwidths must be ({n}, {n}), got {self.belief.shape}")
        if not 1 <= p <= n:
            raise ValueError(f"p must be 1 .. {n}, got {p}")
        self.p = p
        self.index = {node: k for k, node in enumerate(self.nodes)}
        self.queue: list[tuple[str, int, int]] = []  # (agent, number of values, turn) of each that is ready
        self.away: set[str] = set(self.nodes)
        self.silent: set[str] = set()
        self.edges: dict[str, tuple[dict[str, Edge], dict[str, Edge]]] = {}
        self.cut = np.zeros((n, n), dtype=bool)
        self.running: dict[int, tuple[Task, set[str]]] = {}
        self.numbers = 0
        self.replaced = 0  # blocks that another agent has added

    def handle(self, event: Event, now: float) -> Sequence[Order]:
        match event:
            case Ready(node, values, turn):
                self.away.discard(node)
                self.queue.append((node, values, turn))
                return [*self.preset(values), *self._group()]
            case Withdrawn(node, turn):
                self.queue = [entry for entry in self.queue if (entry[0], entry[2]) != (node, turn)]
            case Finished(node, number):
                if number in self.running:
                    self.running[number][1].discard(node)
                    if not self.running[number][1]:
                        del self.running[number]
            case Back(node, str(other)):
                i, j = self.index[node], self.index[other]
                self.cut[i, j] = self.cut[j, i] = False
            case Back(node):
                self.away.discard(node)
                self.silent.discard(node)
                k = self.index[node]
                self.cut[k, :] = self.cut[:, k] = False
                return self._preset_all()
            case Changed(sender, receiver, mbps) if self.links is not None:
                if (sender, receiver) in self.links.index:
                    self.links.change((sender, receiver), mbps)
                    self.belief = algorithm.mesh(self.links.narrowest())
            case Failed(number, reason) if number in self.running:
                del self.running[number]
                return [Abort(number, reason)]
            case Silent(node):
                self.silent.add(node)
                self.queue = [entry for entry in self.queue if entry[0] != node]
                return self._preset_all()
            case Lost(node, None):
                self.away.add(node)
                self.queue = [entry for entry in self.queue if entry[0] != node]
                orders = self._preset_all()
                for task, _ in list(self.running.values()):
                    if node in task.participants:
                        del self.running[task.number]
                        orders.append(Abort(task.number, f"{node} is lost", again=True))
                    else:
                        orders += self._mend(task, lambda tree, member: tree.root == node, f"{node} is lost")
                return orders
            case Lost(node, str(other)):
                i, j = self.index[node], self.index[other]
                self.cut[i, j] = self.cut[j, i] = True

                def apart(tree: SumTree, member: str) -> bool:
                    return {tree.root, member} == {node, other}

                reason = f"{node} and {other} cannot reach each other"
                return [o for task, _ in list(self.running.values()) for o in self._mend(task, apart, reason)]
        return ()

    def adopt(self, tasks: Tasks, number: int) -> None:
        """Continue the groups that have begun, as the controller of IV-B retrieves its state from the workers; ready
        agents submit again.
        """
        self.numbers = number
        self.running = {each: (task, set(waiting)) for each, (task, waiting) in tasks.items()}

    def _mend(self, task: Task, broken: Callable[[SumTree, str], bool], reason: str) -> list[Order]:
        """Have another agent add the blocks (trees) whose connection to a member is broken. Where no agent can, the
        task is given up, and its members' submissions wait for another task.
        """
        found: list[tuple[int, int]] = []
        stuck = False
        for k, tree in enumerate(task.trees):
            if tree.count:
                lacking = [m for m in tree.receivers if broken(tree, m)]
                found += [(tree.first, k)] if lacking else []
                stuck = stuck or not self.silent.isdisjoint(lacking)  # a member cannot be told
        if not found:
            return []
        trees = [k for _, k in sorted(found)]
        mended = None if stuck or self.settings.scheme == "A2A" else self.with_others(task, trees)
        if mended is None:
            del self.running[task.number]
            return [Abort(task.number, reason, again=True)]
        self.running[task.number] = mended, self.running[task.number][1]
        self.replaced += len(trees)
        return [Mend(mended)]

    def with_others(self, task: Task, trees: Sequence[int]) -> Task | None:
        """Return the task with other aggregators for these blocks: of the agents that all members reach, the one with
        the least load by Eq. (3). Return None where there is none.
        """
        members = [self.index[node] for node in task.trees[0].contributors]
        belief = np.where(self.cut, 0.0, self.belief)
        np.fill_diagonal(belief, np.inf)
        out = [k for k, node in enumerate(self.nodes) if node in self.away or node in self.silent]
        out += [k for k in range(len(self.nodes)) if k not in members] if self.settings.scheme == "OPR" else []
        loads = np.zeros(len(self.nodes))
        for other, _ in self.running.values():
            for tree in other.trees:
                loads[self.index[tree.root]] += tree.count
        for number in trees:
            block = task.trees[number]
            loads[self.index[block.root]] -= block.count
            chosen = algorithm.replacement(belief, members, loads, block.count, out)
            if chosen is None:
                return None
            loads[chosen] += block.count
            task = task.with_root(number, self.nodes[chosen])
        return task

    # --- eager scatter ---

    def _preset_all(self) -> list[Order]:
        """Return the orders that tell the default split of each size again, as the agents that are present have
        changed.
        """
        sizes = list(self.defaults)
        self.defaults.clear()
        return [order for values in sizes for order in self.preset(values)]

    def preset(self, values: int) -> list[Order]:
        """Return the order that tells the default split of tensors with this many values, where it has not been told
        yet.
        """
        if self.settings.blocking or values in self.defaults:
            return []
        present = self._present()
        if not present:
            return []
        weights = algorithm.even_split(len(self.nodes), present)
        if self.settings.network_aware and len(present) > 1:
            weights = self._optimal(self.belief, present, present)
        chunks = -(-values // self.settings.chunk_values)
        default = self.defaults[values] = algorithm.split_model(weights, chunks)
        return [DefaultSplit(values, self.settings.chunk_values, self._blocks(default, values))]

    def _blocks(self, ranges: Sequence[algorithm.Ranges], values: int) -> tuple[tuple[str, int, int], ...]:
        size = self.settings.chunk_values
        return tuple(
            (self.nodes[k], begin * size, min(values, end * size) - begin * size)
            for k, own in enumerate(ranges)
            for begin, end in own
            if end > begin
        )

    def _group(self) -> list[Order]:
        orders: list[Order] = []
        while True:
            group = self._first()
            if group is None:
                return orders
            values = group[0][1]
            self.queue = [entry for entry in self.queue if entry not in group]
            members = [node for node, *_ in group]
            try:
                task = self.make_task(self.numbers + 1, members, values)
                if not self.settings.blocking:
                    task = replace(task, turns=tuple(turn for *_, turn in group))
            except WanError as error:
                orders += [ContinueAlone(node, str(error)) for node in members]
                continue
            self.numbers += 1
            self.running[task.number] = task, set(members)
            orders.append(Start(task))
            if not self.settings.avoid and self.cut.any():
                orders += self._mend(task, self._apart, "a connection is broken")

    def _apart(self, tree: SumTree, member: str) -> bool:
        return bool(self.cut[self.index[tree.root], self.index[member]])

    def _present(self) -> list[int]:
        """Return the numbers of the agents that may add, which are those connected to the coordinator."""
        return [k for k, node in enumerate(self.nodes) if node not in self.away and node not in self.silent]

    def _first(self) -> list[tuple[str, int, int]] | None:
        """Return the first p agents of the queue that have submitted equally many values; None where there are too
        few.
        """
        for _, values, _ in self.queue:
            same = [entry for entry in self.queue if entry[1] == values]
            if len(same) >= self.p:
                return same[: self.p]
        return None

    def weights(self, members: Sequence[int]) -> NDArray[np.float64]:
        """Return the part of the model that each agent adds. Raise WanError where no agent can be reached by all
        members.
        """
        able = members if self.settings.scheme == "OPR" else self._present()
        belief = self.belief
        if self.settings.avoid and self.cut.any():
            belief = np.where(self.cut, 0.0, belief)
            able = [k for k in able if not self.cut[list(members), k].any()]
        if not able:
            raise WanError(f"no agent has connections to all of {', '.join(self.nodes[k] for k in members)}")
        if self.settings.network_aware:
            return self._optimal(belief, members, able)
        return algorithm.even_split(len(self.nodes), able)

    def _optimal(self, belief: NDArray[np.float64], members: Sequence[int], able: Sequence[int]) -> NDArray[np.float64]:
        if self.links is not None:
            return self.links.split(members, able, pipelined=True).weights
        return algorithm.optimal_split(belief, members, able).weights

    def make_task(self, number: int, members: Sequence[str], values: int) -> Task:
        if self.settings.scheme == "A2A":
            trees = []
            for sender in members:
                others = tuple(node for node in members if node != sender)
                trees.append(SumTree(sender, 0, values, (), tuple(Edge(sender, o) for o in others), (sender,), others))
            return Task(number, values, tuple(trees), "mix", chunk_values=self.settings.chunk_values, window=0)
        weights = self.weights([self.index[node] for node in members])
        if self.settings.blocking:
            bounds = np.rint(np.concatenate([[0.0], np.cumsum(weights)]) * values).astype(int).tolist()
            bounds[-1] = values
            pieces = tuple((node, a, b - a) for node, (a, b) in zip(self.nodes, pairwise(bounds), strict=True))
        else:
            pieces = self._blocks(algorithm.rearrange(weights, self.defaults[values]), values)
        members = tuple(members)
        blocks = []
        for owner, first, count in pieces:
            if count:
                others = tuple(node for node in members if node != owner) if owner in members else members
                up, down = self._edges(owner)
                blocks.append(
                    SumTree(
                        owner, first, count, tuple(map(up.__getitem__, others)), tuple(map(down.__getitem__, others)),
                        members, members,
                    )
                )  # fmt: skip
        return Task(
            number,
            values,
            tuple(blocks),
            chunk_values=self.settings.chunk_values,
            window=0,
            keep=True,
            budget=self.settings.budget,
        )

    def _edges(self, owner: str) -> tuple[dict[str, Edge], dict[str, Edge]]:
        """Return the edges from each node to this one, and back. They are shared, as a task of many agents has
        thousands.
        """
        if owner not in self.edges:
            self.edges[owner] = (
                {node: Edge(node, owner) for node in self.nodes}, {node: Edge(owner, node) for node in self.nodes}
            )  # fmt: skip
        return self.edges[owner]
