"""Tasks of hosts: a plan's trees between agents that add and forward (docs/overlay.md).

A plan's trees lead over switches. An overlay has agents instead, one for each worker; the first of a site's workers
adds what the site's switch would add. A task describes one synchronisation completely: which agents contribute, which
add, which get the result, over which others, in chunks of which size. Policies make tasks; simulator and agents carry
them out.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

from controlplane.planner.plan.model import Plan, PlanError, Tree
from controlplane.planner.topology import Topology

MOST_CONTRIBUTORS = 64
MOST_VIA = 7
CHUNK_VALUES = 65_536
"""Default size of a chunk in float32 values: 256 KB, so that several are under way on a long link and many make a
model.
"""

WINDOW_CHUNKS = 32
ALIGNED_VALUES = 16  # 64 bytes


class TaskError(ValueError):
    """Error of a task that is not well formed; the message names the tree and the agent."""


@dataclass(frozen=True)
class Edge:
    """A connection by which `sender` sends to `receiver`, through the agents `via`, which only forward."""

    sender: str
    receiver: str
    via: tuple[str, ...] = ()

    @property
    def path(self) -> tuple[str, ...]:
        """All agents from the sender to the receiver."""
        return (self.sender, *self.via, self.receiver)


@dataclass(frozen=True)
class SumTree:
    """A tree of a task: the values [first, first + count) of the tensor are added at `root` and go back to the
    receivers.

    Attributes:
        root: The agent that has the sum in the end.
        first: First value of the tensor that the tree carries.
        count: How many values it carries.
        up: The edge of each contributor and each inner agent towards the root.
        down: The edges that results take.
        contributors: Agents whose values are added.
        receivers: Agents that get the result.
        rate_mbps: Most Mbit/s that each contributor sends into the tree; 0 for no limit.
        routes: Where switches copy the result (L3), the routes over the network's nodes from the root, which sends it
            once, to each receiver; they are a tree.
        label: The label under which switches copy; 0 where the network has not been told yet.
    """

    root: str
    first: int
    count: int
    up: tuple[Edge, ...]
    down: tuple[Edge, ...]
    contributors: tuple[str, ...]
    receivers: tuple[str, ...]
    rate_mbps: float = 0.0
    routes: tuple[tuple[str, ...], ...] = ()
    label: int = 0

    @cached_property
    def parent(self) -> dict[str, Edge]:
        """The edge over which each agent sends its sum."""
        return {edge.sender: edge for edge in self.up}

    @cached_property
    def nodes(self) -> frozenset[str]:
        """All agents that the tree needs, those that only forward included."""
        ends = [n for edge in (*self.up, *self.down) for n in edge.path]
        return frozenset((self.root, *self.contributors, *self.receivers, *ends))

    def without(self, nodes: Collection[str]) -> SumTree:
        """Return the tree of a multicast (nothing is added on the way) without these receivers."""
        return replace(
            self,
            down=tuple(edge for edge in self.down if edge.receiver not in nodes),
            receivers=tuple(node for node in self.receivers if node not in nodes),
            routes=tuple(route for route in self.routes if route[-1] not in nodes),
        )

    def bits(self, node: str) -> int:
        """Return the contributors (a bit each, by position) whose sum `node` sends up, or the root has in the end."""
        return self._bits.get(node, 0)

    @cached_property
    def _bits(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for position, contributor in enumerate(self.contributors):
            node: str | None = contributor
            while node is not None:
                found[node] = found.get(node, 0) | 1 << position
                edge = self.parent.get(node)
                node = edge.receiver if edge else None
        return found

    def children(self, node: str) -> list[str]:
        """Return the agents that send partial sums to `node`."""
        return [edge.sender for edge in self.up if edge.receiver == node]

    def check(self, name: str, values: int) -> None:
        """Check that every contributor's values reach the root and every receiver gets the result once; raise
        TaskError, whose message begins with `name`, otherwise.
        """
        if not 0 <= self.first <= self.first + self.count <= values:
            raise TaskError(
                f"{name}: its values {self.first} to {self.first + self.count} are not all among the tensor's {values}"
            )
        if not self.contributors or len(set(self.contributors)) != len(self.contributors):
            raise TaskError(f"{name}: it must have contributors, and name each of them once")
        if len(self.contributors) > MOST_CONTRIBUTORS:
            raise TaskError(
                f"{name}: it has {len(self.contributors)} contributors, at most {MOST_CONTRIBUTORS} are possible"
            )
        if self.routes:
            self._check_routes(name)
        for edge in (*self.up, *self.down):
            path = edge.path
            if len(set(path)) != len(path) or len(edge.via) > MOST_VIA:
                raise TaskError(f"{name}: {' -> '.join(path)} is no path, or longer than {MOST_VIA + 1} hops")
        if len(self.parent) != len(self.up):
            raise TaskError(f"{name}: an agent sends its sum to two others")
        for start in {*self.contributors, *self.parent}:
            node, seen = start, {start}
            while node != self.root:
                if node not in self.parent or self.parent[node].receiver in seen:
                    raise TaskError(f"{name}: what {start} sends does not reach the root {self.root}")
                node = self.parent[node].receiver
                seen.add(node)
        above = {edge.receiver: edge.sender for edge in self.down}
        if len(above) != len(self.down) or self.root in above:
            raise TaskError(f"{name}: someone gets the result twice")
        for start in {*self.receivers, *above}:
            node, seen = start, {start}
            while node != self.root:
                if node not in above or above[node] in seen:
                    raise TaskError(f"{name}: the result does not reach {start}")
                node = above[node]
                seen.add(node)

    def _check_routes(self, name: str) -> None:
        ends = sorted((route[0], route[-1]) for route in self.routes if len(route) > 1)
        if ends != sorted((edge.sender, edge.receiver) for edge in self.down) or any(s != self.root for s, _ in ends):
            raise TaskError(
                f"{name}: switches copy the result, but the routes do not lead from the root to every receiver"
            )
        if not self.rate_mbps > 0:
            raise TaskError(f"{name}: switches copy the result, so it needs a rate: nothing else limits its sender")


Op = Literal["sum", "mean", "mix", "copy", "maximum", "words"]


@dataclass(frozen=True)
class Task:
    """One synchronisation.

    Attributes:
        number: A number that is unique and rising in an epoch.
        trees: The trees, which together carry all values.
        op: "sum"; "mean" over the tree's contributors; "mix", where each receiver takes the mean of its own values and
            all that reach it (SelMcast; one tree a sender, nothing is added on the way); "copy", where receivers get
            the sender's values beside their own, whenever they come (SelMcast, SSP; one tree, straight from its root);
            "maximum" of each value; "words", where each two values are the bits of one unsigned number of 64 bits, and
            these are added (integers of few bits, several in a word; who submits them leaves room, so that no carry
            leaves a field).
        round: The round of training, for the log.
        window: Chunks of a tree that a contributor sends ahead of their results; 0 for no limit.
        keep: Whether agents keep the values that they submitted, so that the task can be repeated when it is given up.
        priority: Tasks with a lower number go first where several share a connection.
        detours: Further ways between two agents, for chunks whose direct way has `busy_bound` chunks under way; each
            takes `detour_length` chunks at a time (NetStorm, VI).
        lazy: Where all detours are busy, too, a chunk waits until a way has room; if not set, it takes the direct way.
        budget: Seconds after which a participant that lacks results discards the task; 0 for never.
        turns: For each participant, which of its submissions this is, where they have begun to send before the task
            (CREW's scatter that does not block); trees then begin at whole chunks.
        weights: The weight that each participant gave (its samples, say); agents do not multiply by it, they tell their
            trainers.
    """

    number: int
    values: int
    trees: tuple[SumTree, ...]
    op: Op = "mean"
    round: int = 0
    chunk_values: int = CHUNK_VALUES
    window: int = WINDOW_CHUNKS
    keep: bool = False
    priority: int = 0
    detours: tuple[Edge, ...] = field(default=())
    busy_bound: int = 2
    detour_length: int = 1
    lazy: bool = True
    budget: float = 0.0
    turns: tuple[int, ...] = ()
    weights: tuple[float, ...] = ()

    @cached_property
    def nodes(self) -> frozenset[str]:
        over = {node for edge in self.detours for node in edge.via}
        return frozenset(over.union(*(tree.nodes for tree in self.trees)))

    @cached_property
    def participants(self) -> tuple[str, ...]:
        """The agents that contribute values or get results, in the order of the trees."""
        return tuple(dict.fromkeys(n for tree in self.trees for n in (*tree.contributors, *tree.receivers)))

    @property
    def submitters(self) -> tuple[str, ...]:
        """The agents that must have submitted values before the task begins."""
        return self.trees[0].contributors if self.op == "copy" else self.participants

    @property
    def awaited(self) -> tuple[str, ...]:
        """The agents that must have all results before the task is done."""
        return self.trees[0].receivers if self.op == "copy" else self.participants

    def hops(self) -> Iterator[tuple[str, str]]:
        """Yield (agent, the next one) for each connection that is used, tree by tree; a pair may come several times."""
        for tree in self.trees:
            for edge in () if tree.routes else (*tree.up, *tree.down):
                yield from pairwise(edge.path)

    def chunks(self, tree: int) -> int:
        """Return how many chunks this tree has."""
        return -(-self.trees[tree].count // self.chunk_values)

    def chunk(self, tree: int, number: int) -> tuple[int, int]:
        """Return a chunk's range in the tensor: its first value, and one past its last."""
        part = self.trees[tree]
        start = part.first + number * self.chunk_values
        return start, min(start + self.chunk_values, part.first + part.count)

    def without(self, nodes: Collection[str]) -> Task:
        """Return the same task, whose copies these receivers no longer get."""
        return replace(self, trees=tuple(tree.without(nodes) for tree in self.trees))

    def at_rate(self, mbps: float) -> Task:
        """Return the same task with this limit of every contributor's rate, in Mbit/s."""
        return replace(self, trees=tuple(replace(tree, rate_mbps=mbps) for tree in self.trees))

    def weighted(self, weights: Mapping[str, float]) -> Task:
        """Return the same task with the participants' weights."""
        return replace(self, weights=tuple(weights[node] for node in self.participants))

    def with_root(self, tree: int, root: str) -> Task:
        """Return the same task, in which another agent adds this tree's values, straight from its contributors and
        back. The tree itself then carries nothing; a new one at the end carries its values, so that no message means
        two things.
        """
        old = self.trees[tree]
        new = replace(
            old, root=root,
            up=tuple(Edge(node, root) for node in old.contributors if node != root),
            down=tuple(Edge(root, node) for node in old.receivers if node != root),
        )  # fmt: skip
        return replace(self, trees=(*self.trees[:tree], replace(new, count=0), *self.trees[tree + 1 :], new))

    def check(self) -> None:
        """Check that the task is well formed; raise TaskError otherwise."""
        if self.values < 1 or self.chunk_values < 1 or self.window < 0:
            raise TaskError(f"task {self.number}: values and chunk_values must be above 0, window at least 0")
        for index, tree in enumerate(self.trees):
            tree.check(f"task {self.number}, tree {index} (root {tree.root})", self.values)
            if self.op in ("mix", "copy") and (tree.up or tree.contributors != (tree.root,)):
                raise TaskError(f"task {self.number}, tree {index}: nothing is added on the way of a multicast")
        if self.op == "copy" and (
            len(self.trees) != 1
            or any(edge.sender != self.trees[0].root for edge in self.trees[0].down)
            or self.trees[0].root in self.trees[0].receivers
        ):
            raise TaskError(
                f"task {self.number}: a copy must have one tree, which leads straight from its root to other agents"
            )
        if self.turns and (
            len(self.turns) != len(self.participants) or any(tree.first % self.chunk_values for tree in self.trees)
        ):
            raise TaskError(
                f"task {self.number}: turns must be given for all participants, and trees begin at whole chunks"
            )
        if self.weights and len(self.weights) != len(self.participants):
            given = f"{len(self.weights)} weights for {len(self.participants)} participants"
            raise TaskError(f"task {self.number}: {given}")
        bounds = [number for tree in self.trees for number in (tree.first, tree.count)]
        if self.op == "words" and any(n % 2 for n in (self.values, self.chunk_values, *bounds)):
            raise TaskError(f"task {self.number}: words of 64 bits are two values each, and a chunk would cut one")
        if self.op != "mix":
            ranges = sorted((tree.first, tree.count) for tree in self.trees if tree.count)
            end = 0
            for first, count in ranges:
                if first != end:
                    raise TaskError(f"task {self.number}: values {min(first, end)} to {max(first, end)} are in no tree "
                                    "or in two")  # fmt: skip
                end = first + count
            if end != self.values:
                raise TaskError(f"task {self.number}: values from {end} on are in no tree")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, source: Mapping[str, Any] | str) -> Task:
        """Return the task that `to_json` wrote, as an object or its JSON text. Raise TaskError where it is no JSON or
        a field is missing or unknown.
        """
        try:
            data: Mapping[str, Any] = json.loads(source) if isinstance(source, str) else source
            trees = tuple(
                SumTree(
                    **{
                        **tree,
                        "up": _edges(tree["up"]),
                        "down": _edges(tree["down"]),
                        "contributors": tuple(tree["contributors"]),
                        "receivers": tuple(tree["receivers"]),
                        "routes": tuple(tuple(route) for route in tree.get("routes", ())),
                    }
                )
                for tree in data["trees"]
            )
            lists = {name: tuple(data.get(name, ())) for name in ("turns", "weights")}
            return cls(**{**data, **lists, "trees": trees, "detours": _edges(data.get("detours", ()))})
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise TaskError(f"task: {error}") from None


def _edges(data: Iterable[Mapping[str, Any]]) -> tuple[Edge, ...]:
    return tuple(Edge(edge["sender"], edge["receiver"], tuple(edge.get("via", ()))) for edge in data)


class Agents:
    """The agents that stand for the nodes of a topology: a worker for itself, for a site the first worker there, and
    for a parameter server the agent of its site (or itself, where the site has no worker).
    """

    def __init__(self, plan: Plan, topology: Topology) -> None:
        job = plan.job
        self.of: dict[str, str] = {}
        for node in (*job.workers, *job.parameter_servers):
            self.of.setdefault(topology.access_switch(node), node)
        for worker in job.workers:
            self.of[worker] = worker
        for server in job.parameter_servers:
            self.of[server] = self.of[topology.access_switch(server)]

    def edge(self, route: tuple[str, ...]) -> Edge | None:
        """Return the route as an edge between agents; None where it stays inside one agent. Sites without an agent only
        forward, and the edge does not name them.
        """
        path = list(dict.fromkeys(self.of[node] for node in route if node in self.of))
        return Edge(path[0], path[-1], tuple(path[1:-1])) if len(path) > 1 else None


@dataclass(frozen=True)
class Sending:
    """Settings by which agents send a plan's tasks.

    Attributes:
        window: Chunks of a tree that may be without a result.
        headroom: The fraction of the plan's rate that stays unused.
        paced: Whether trees keep to their rates; else they are as fast as TCP.
        detours: Whether chunks may take the plan's detours (NetStorm's auxiliary paths), but for those over a site
            without an agent or over more than MOST_VIA agents.
        replicated: Whether a multicast of layer L3 leaves its sender once, and switches copy it along the plan's routes
            at the plan's rate.
    """

    chunk_values: int = CHUNK_VALUES
    window: int = WINDOW_CHUNKS
    headroom: float = 0.0
    paced: bool = True
    detours: bool = False
    replicated: bool = False


AS_PLANNED = Sending()


def task_of(
    plan: Plan,
    topology: Topology,
    values: int,
    *,
    number: int = 1,
    round: int = 0,
    op: Op = "mean",
    way: Sending = AS_PLANNED,
) -> Task:
    """Return the task of one synchronisation of `values` float32 values with the plan. Raise PlanError where the plan
    has no trees and no multicasts.

    Trees carry contiguous parts by their shares. Where a tree adds nothing on the way (a star) its results go back to
    each worker on its own, as over TCP, along the way by which its values came.
    """
    agents = Agents(plan, topology)
    if plan.multicasts:
        trees = []
        for each in plan.multicasts:
            edges = [agents.edge(route) for route in each.routes]
            down = tuple(edge for edge in edges if edge is not None)
            routes = each.routes if each.layer == "L3" and way.replicated else ()
            if routes:
                down = tuple(Edge(each.sender, receiver) for receiver in each.receivers)
            rate = plan.rate_mbps * (1 - way.headroom) if routes else 0.0
            trees.append(SumTree(each.sender, 0, values, (), down, (each.sender,), each.receivers, rate, routes=routes))
        task = Task(number, values, tuple(trees), "mix", round, way.chunk_values, 0)
    else:
        if not plan.trees:
            raise PlanError("the plan has no trees")
        trees, done, share = [], 0, 0.0
        for tree in plan.trees:
            share += tree.share
            end = values if tree is plan.trees[-1] else min(values, _aligned(share * values))
            rate = plan.rate_mbps * tree.share * (1 - way.headroom) if way.paced else 0.0
            trees.append(_tree(tree, agents, plan.job.workers, range(done, max(done, end)), rate))
            done = max(done, end)
        ways = _detours(plan, agents) if way.detours else ()
        task = Task(
            number, values, tuple(t for t in trees if t.count), op, round, way.chunk_values, way.window, detours=ways
        )
    task.check()
    return task


def _detours(plan: Plan, agents: Agents) -> tuple[Edge, ...]:
    found: dict[Edge, None] = {}
    for route in plan.detours:
        edge = agents.edge(route)
        whole = all(node in agents.of for node in route)
        if whole and edge is not None and 0 < len(edge.via) <= MOST_VIA:
            found[edge] = None
    return tuple(found)


def _aligned(values: float) -> int:
    """Round a position in the tensor to a cache line, where trees begin. If they began at whole chunks, small trees
    would get more or fewer chunks than their shares, and the plan's links would not be full at once.
    """
    return round(values / ALIGNED_VALUES) * ALIGNED_VALUES


def _tree(tree: Tree, agents: Agents, workers: tuple[str, ...], values: range, rate: float) -> SumTree:
    root = agents.of[tree.root]
    found: dict[str, Edge] = {}
    for route in (*(a.route for a in tree.assignments), *(r.route for r in tree.relays)):
        edge = agents.edge(route)
        if edge is not None:
            found[edge.sender] = edge
    up = tuple(found.values())
    if tree.relays:
        down = []
        agent = {tree.root: root}
        for above, below in tree.return_edges:  # from the root on down
            agent[below] = agents.of.get(below, agent[above])
            if agent[below] != agent[above]:
                down.append(Edge(agent[above], agent[below]))
    else:
        down = [Edge(root, edge.sender, edge.via[::-1]) for edge in up]
    return SumTree(root, values.start, len(values), up, tuple(down), workers, workers, rate)
