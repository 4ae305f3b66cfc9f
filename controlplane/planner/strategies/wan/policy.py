"""Strategies over time: a policy gets events and answers with tasks. It knows no socket and no simulator.

The simulator (overlay/sim/simulation.py) and the overlay's coordinator (overlay/net/coordinator.py) drive the same
objects, so that what is measured beside what is simulated compares the network and not two implementations.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import networkx as nx

from controlplane.planner.plan.model import Plan
from controlplane.planner.plan.task import Task, task_of
from controlplane.planner.topology import Topology

BROKEN_MBPS = 1e-3
"""What is believed of a link that two agents have found broken, until the network tells of another rate."""


@dataclass(frozen=True)
class Ready:
    """An agent has computed and has `values` float32 values to synchronise. turn: the agent's number for them."""

    node: str
    values: int
    turn: int = 0


@dataclass(frozen=True)
class Finished:
    """An agent has all that the task had for it."""

    node: str
    task: int


@dataclass(frozen=True)
class Measured:
    """The throughput that a chunk met on the way between two agents, Mbit/s."""

    sender: str
    receiver: str
    mbps: float


@dataclass(frozen=True)
class Changed:
    """The network has told that the bandwidth from one site to a neighbour is another one now, Mbit/s."""

    sender: str
    receiver: str
    mbps: float


@dataclass(frozen=True)
class Progress:
    """The sender of a copy still has this part of it to send to that receiver."""

    node: str
    task: int
    receiver: str
    left: float


@dataclass(frozen=True)
class Lost:
    """An agent is gone, or (with `other`) two agents cannot reach each other."""

    node: str
    other: str | None = None


@dataclass(frozen=True)
class Silent:
    """An agent cannot reach the controller, others can reach it: it finishes what has begun, and brings nothing until
    it is back."""

    node: str


@dataclass(frozen=True)
class Back:
    """An agent has joined (again), or (with `other`) two agents reach each other again."""

    node: str
    other: str | None = None


@dataclass(frozen=True)
class Failed:
    """An agent cannot carry this task out, or not in its time."""

    task: int
    reason: str


@dataclass(frozen=True)
class Withdrawn:
    """An agent's trainer wants back what it brought and what is in no task yet. turn: as in `Ready`."""

    node: str
    turn: int


Event = Ready | Withdrawn | Finished | Measured | Changed | Progress | Lost | Silent | Back | Failed


@dataclass(frozen=True)
class Start:
    """Carry this task out. Numbers ascend from one to the next: what comes of an unknown lower one, agents take for old
    and drop."""

    task: Task


@dataclass(frozen=True)
class Abort:
    """Give this task up; its participants are told why. again: their values are as they brought them, and ready. Where
    the task kept them and agents may go on alone, they do so otherwise."""

    task: int
    reason: str
    again: bool = False


@dataclass(frozen=True)
class Drop:
    """These receivers of a copy get no more of it."""

    task: int
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Pace:
    """The sender of what switches copy sends at this rate from now on, Mbit/s of values."""

    task: int
    mbps: float


@dataclass(frozen=True)
class Mend:
    """The task goes on with these trees: some carry nothing any more, and what they carried is that of trees at the end
    (`Task.with_root`). Who has been brought into it by that is told of it anew."""

    task: Task


@dataclass(frozen=True)
class Release:
    """Who sent this copy may go on."""

    node: str
    task: int


@dataclass(frozen=True)
class ContinueAlone:
    """Nobody can be found for what this agent has brought: it goes on with its own values."""

    node: str
    reason: str


@dataclass(frozen=True)
class Reject:
    """No task can be made of what these agents brought first: their trainers get it back, with the reason."""

    nodes: tuple[str, ...]
    reason: str


@dataclass(frozen=True)
class DefaultSplit:
    """Whoever is ready with so many values begins to send them: blocks of (who adds, first value, values)."""

    values: int
    chunk_values: int
    blocks: tuple[tuple[str, int, int], ...]


Order = Start | Abort | Mend | Drop | Pace | Release | ContinueAlone | Reject | DefaultSplit


def uneven(values: Mapping[str, int]) -> str | None:
    """In words, who has brought another number of values than most; None: all have brought equally many."""
    sizes = Counter(values.values())
    if len(sizes) < 2:
        return None
    usual = max(sizes, key=lambda size: (sizes[size], -size))
    others = [f"{node} has {size}" for node, size in values.items() if size != usual]
    rest = [node for node, size in values.items() if size == usual]
    return f"{', '.join(others)} values to synchronise, and {', '.join(rest)} {usual}"


def rates_changed(before: nx.DiGraph, now: nx.DiGraph, part: float) -> bool:
    """Whether the bandwidth ("mbps") of some link differs by more than this part of what it was."""
    return any(
        abs(data["mbps"] - before.edges[u, v]["mbps"]) > part * before.edges[u, v]["mbps"]
        for u, v, data in now.edges(data=True)
    )


class Policy(Protocol):
    """Called from one thread, one event at a time; `now` in seconds, never falling."""

    nodes: tuple[str, ...]
    """All agents that the policy counts on."""

    def handle(self, event: Event, now: float) -> Sequence[Order]: ...


@runtime_checkable
class TakeoverPolicy(Policy, Protocol):
    """A policy that can go on where another one of its kind has ended: agents tell what they are in the middle of."""

    def adopt(self, tasks: Mapping[int, tuple[Task, Collection[str]]], number: int) -> None:
        """tasks: under way, and who of each still waits for its end. Numbers of new tasks are above `number`."""


class Rounds:
    """Bulk-synchronous rounds: when all agents have brought their next values, one task. Several may be under way (the
    buckets of a model). Subclasses say which task, and may learn.

    An agent that is lost ends what is under way; the next needs everyone again.
    """

    def __init__(self, nodes: Sequence[str]) -> None:
        self.nodes = tuple(nodes)
        self.numbers = 0
        self.ready: dict[str, deque[Ready]] = {node: deque() for node in self.nodes}
        self.running: dict[int, set[str]] = {}  # task -> participants that are not finished

    def task(self, number: int, values: int, now: float) -> Task:
        """The task of this number. Raises Infeasible, PlanError, WanError where there is none."""
        raise NotImplementedError

    def learn(self, event: Measured | Changed, now: float) -> None:
        """What a measurement, or a network that tells, changes."""

    def done(self, number: int) -> None:
        """All participants have all of the task."""

    def broken(self, node: str, other: str) -> None:
        """These two cannot reach each other: where it can, the next round goes other ways."""

    def handle(self, event: Event, now: float) -> Sequence[Order]:
        match event:
            case Ready(node=node):
                self.ready[node].append(event)
                return self._begin(now)
            case Withdrawn(node, turn):
                self.ready[node] = deque(each for each in self.ready[node] if each.turn != turn)
            case Finished(node, task):
                waiting = self.running.get(task)
                if waiting is not None:
                    waiting.discard(node)
                    if not waiting:
                        del self.running[task]
                        self.done(task)
            case Measured() | Changed():
                self.learn(event, now)
            case Failed(number, reason) if number in self.running:
                del self.running[number]
                return [Abort(number, reason)]
            case Lost(node, other):
                if other is None:
                    self.ready[node].clear()
                else:
                    self.broken(node, other)
                reason = f"{node} is lost" if other is None else f"{node} and {other} cannot reach each other"
                orders = [Abort(number, reason) for number in self.running]
                self.running.clear()
                return orders
        return ()

    def adopt(self, tasks: Mapping[int, tuple[Task, Collection[str]]], number: int) -> None:
        """As `TakeoverPolicy` has it."""
        self.numbers = number
        self.running = {each: set(waiting) for each, (_, waiting) in tasks.items()}

    def _begin(self, now: float) -> Sequence[Order]:
        """A round of which no task can be made fails by itself: the next one may do."""
        orders: list[Order] = []
        while all(self.ready.values()):
            values = {node: waiting.popleft().values for node, waiting in self.ready.items()}
            self.numbers += 1
            reason = uneven(values)
            if reason is not None:
                orders.append(Reject(self.nodes, reason))
                continue
            try:
                task = self.task(self.numbers, values[self.nodes[0]], now)
            except Exception as error:  # of whatever kind: strategies are many, and none may end the job
                orders.append(Reject(self.nodes, f"no task can be made: {type(error).__name__}: {error}"))
                continue
            self.running[self.numbers] = set(task.participants)
            orders.append(Start(task))
        return orders


class FollowPlan(Rounds):
    """Every round with the trees of one plan: any strategy that makes aggregation trees or multicasts."""

    def __init__(self, plan: Plan, topology: Topology, **options: Any) -> None:
        """`options`: of `task_of`."""
        super().__init__(plan.job.workers)
        self.plan, self.topology, self.options = plan, topology, options

    def task(self, number: int, values: int, now: float) -> Task:
        return task_of(self.plan, self.topology, values, number=number, round=number, **self.options)


class FollowNetwork(FollowPlan):
    """The same, planned again before a round when some link has changed by more than the part `change` since.

    make: plans on a topology. link: the topology's link between two agents' sites.
    """

    def __init__(
        self,
        make: Callable[[Topology], Plan],
        topology: Topology,
        *,
        link: Callable[[str, str], tuple[str, str]],
        change: float = 0.05,
        **options: Any,
    ) -> None:
        super().__init__(make(topology), topology, **options)
        self.make, self.link, self.change = make, link, change
        self.changed: dict[tuple[str, str], float] = {}
        self.decisions = 1

    def learn(self, event: Measured | Changed, now: float) -> None:
        if isinstance(event, Changed):
            self.changed[self.link(event.sender, event.receiver)] = event.mbps

    def broken(self, node: str, other: str) -> None:
        for link in (self.link(node, other), self.link(other, node)):
            if self.topology.graph.has_edge(*link):
                self.changed[link] = BROKEN_MBPS

    def followed(self) -> bool:
        """Whether the topology is another one than before, by what has changed."""
        before = self.topology.residual_bandwidth_mbps
        if any(abs(mbps - before(u, v)) > self.change * before(u, v) for (u, v), mbps in self.changed.items()):
            links = [
                (u, v, {**data, "bandwidth_mbps": self.changed.get((u, v), data["bandwidth_mbps"])})
                for u, v, data in self.topology.graph.edges(data=True)
            ]
            nodes = dict(self.topology.graph.nodes(data=True))
            self.topology = Topology(
                nodes, links, self.topology.name, results_on_links=self.topology.results_on_links
            )
            self.changed.clear()
            self.decisions += 1
            return True
        return False

    def task(self, number: int, values: int, now: float) -> Task:
        if self.followed():
            self.plan = self.make(self.topology)
        return super().task(number, values, now)
