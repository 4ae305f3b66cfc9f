"""Policies: strategies that decide while training runs. A policy gets events and answers with orders.

A policy knows no socket and no simulator. The overlay's coordinator (overlay/net/policy_driver.py) and the simulator
(overlay/sim/simulation.py) drive the same objects, so a comparison of measured and simulated times compares networks
and not two implementations of a policy.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import networkx as nx

from controlplane.planner.plan.model import Plan
from controlplane.planner.plan.task import AS_PLANNED, Sending, Task, task_of
from controlplane.planner.strategies.wan.site_contents import Contents
from controlplane.planner.topology import Topology

BROKEN_MBPS = 1e-3
"""The rate, in Mbit/s, of a link that two agents have found broken, until the network tells another one."""


@dataclass(frozen=True)
class Ready:
    """Event: an agent has submitted values to synchronise. The attributes after `turn` are for policies whose members
    come and go (site_rounds.py).

    Attributes:
        node: The agent.
        values: How many float32 values it has submitted.
        turn: The agent's own number of the submission.
        round: The trainer's number of the round.
        op: The operation on the values; "" for the one that the policy always does.
        weight: The weight of the values, such as the number of samples behind them.
        within: Seconds that the trainer still waits; None for any time.
        contents: The contents of the values; None where they may be any.
    """

    node: str
    values: int
    turn: int = 0
    round: int = 0
    op: str = ""
    weight: float = 1.0
    within: float | None = None
    contents: Contents | None = None


@dataclass(frozen=True)
class Finished:
    """Event: an agent has everything that it gets of the task."""

    node: str
    task: int


@dataclass(frozen=True)
class Measured:
    """Event: the throughput of the last chunks between two agents was measured, in Mbit/s."""

    sender: str
    receiver: str
    mbps: float


@dataclass(frozen=True)
class Changed:
    """Event: the network has told the new bandwidth from one site to a neighbouring one, in Mbit/s."""

    sender: str
    receiver: str
    mbps: float


@dataclass(frozen=True)
class Progress:
    """Event: the sender (`node`) of a copy still has this part of it (`left`, 0 to 1) to send to a receiver."""

    node: str
    task: int
    receiver: str
    left: float


@dataclass(frozen=True)
class Lost:
    """Event: an agent is lost, or (with `other`) two agents cannot reach each other, for this reason."""

    node: str
    other: str | None = None
    reason: str = field(default="", compare=False)


@dataclass(frozen=True)
class Silent:
    """Event: an agent cannot reach the coordinator, and other agents can reach it. It finishes the tasks that have
    begun, and submits nothing until it is back.
    """

    node: str


@dataclass(frozen=True)
class Back:
    """Event: an agent has joined (again), or (with `other`) two agents reach each other again."""

    node: str
    other: str | None = None


@dataclass(frozen=True)
class Failed:
    """Event: an agent cannot carry out this task, or not within the task's time."""

    task: int
    reason: str


@dataclass(frozen=True)
class Withdrawn:
    """Event: an agent's trainer has withdrawn the submission `turn`. `task` is the running task that contains it, of
    which only policies that answer with `LetGo` are told (`lets_go`); None where no task contains it yet.
    """

    node: str
    turn: int
    task: int | None = None


@dataclass(frozen=True)
class Tick:
    """Event: time has passed, about a second since the last one. Only policies with an attribute `ticks` are told.
    `silent` has the connected agents that have said nothing for some seconds, though each says every second that it
    lives.
    """

    silent: frozenset[str] = frozenset()


Event = Ready | Withdrawn | Finished | Measured | Changed | Progress | Lost | Silent | Back | Failed | Tick


@dataclass(frozen=True)
class Start:
    """Order: carry out this task. Each task has a higher number than the one before: agents drop messages of unknown
    tasks with lower numbers as old.
    """

    task: Task


@dataclass(frozen=True)
class Abort:
    """Order: give up this task; its participants are told the reason. With `again`, their submissions wait for another
    task. Without it, trainers get an error, or continue with their own values where the task kept those and the policy
    allows it.
    """

    task: int
    reason: str
    again: bool = False


@dataclass(frozen=True)
class LetGo:
    """Order: let an agent's trainer wait no longer for the task; it gets an error with the reason. The task goes on
    with that trainer's values in it, and its agent still forwards what it has to.
    """

    task: int
    node: str
    reason: str


@dataclass(frozen=True)
class Drop:
    """Order: send no more of a copy to these receivers."""

    task: int
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Pace:
    """Order: the sender of a multicast that switches copy sends at this rate from now on, in Mbit/s of values."""

    task: int
    mbps: float


@dataclass(frozen=True)
class Mend:
    """Order: continue a running task with the trees of this one. Some of its trees carry nothing any more, and trees at
    the end of the list carry their values instead (`Task.with_root`). Agents that were not in the task before are told
    of it.
    """

    task: Task


@dataclass(frozen=True)
class Release:
    """Order: the trainer that sends this copy may continue."""

    node: str
    task: int


@dataclass(frozen=True)
class ContinueAlone:
    """Order: the trainer of this agent's oldest submission continues with its own values, as no other agent can be
    found for it.
    """

    node: str
    reason: str


@dataclass(frozen=True)
class Reject:
    """Order: give the oldest submissions of these agents back to their trainers, with the reason, as no task can
    contain them.

    Attributes:
        nodes: The agents.
        reason: The reason.
        behind: The round that others have reached meanwhile, where that is the reason; the trainer then needs their
            state.
        again: Whether the same values may be submitted again, since only the members have changed.
        contents: The contents with which the values have to be submitted again, where that is the reason.
    """

    nodes: tuple[str, ...]
    reason: str
    behind: int | None = None
    again: bool = False
    contents: Contents | None = None


@dataclass(frozen=True)
class DefaultSplit:
    """Order: agents that are ready with this many values begin to send them before their task is known. `blocks` has
    (the agent that adds, first value, number of values).
    """

    values: int
    chunk_values: int
    blocks: tuple[tuple[str, int, int], ...]


Order = Start | Abort | LetGo | Mend | Drop | Pace | Release | ContinueAlone | Reject | DefaultSplit


def uneven(values: Mapping[str, int]) -> str | None:
    """Return, in words, which agents have submitted another number of values than most; None where all have the same
    number. `values` has the number of each agent.
    """
    sizes = Counter(values.values())
    if len(sizes) < 2:
        return None
    usual = max(sizes, key=lambda size: (sizes[size], -size))
    others = [f"{node} has {size}" for node, size in values.items() if size != usual]
    rest = [node for node, size in values.items() if size == usual]
    return f"{', '.join(others)} values to synchronise, and {', '.join(rest)} {usual}"


def rates_changed(before: nx.DiGraph, now: nx.DiGraph, part: float) -> bool:
    """Return whether the bandwidth ("mbps") of some link differs from `before` by more than this part of it."""
    return any(
        abs(data["mbps"] - before.edges[u, v]["mbps"]) > part * before.edges[u, v]["mbps"]
        for u, v, data in now.edges(data=True)
    )


class Policy(Protocol):
    """A strategy over time. It is called from one thread, with one event at a time; `now` is a time in seconds that
    never falls.
    """

    @property
    def nodes(self) -> tuple[str, ...]:
        """All agents of the job."""
        ...

    def handle(self, event: Event, now: float) -> Sequence[Order]: ...


@runtime_checkable
class RecoveringPolicy(Policy, Protocol):
    """A policy that can continue the tasks of an earlier coordinator's policy of the same kind."""

    def adopt(self, tasks: Mapping[int, tuple[Task, Collection[str]]], number: int) -> None:
        """Continue the tasks under way, of which `tasks` has each with the agents that wait for its end. New tasks get
        numbers above `number`.
        """


class Rounds:
    """Bulk-synchronous rounds: a task begins when all agents have submitted their next values. Several tasks may be
    under way (the buckets of a model). Subclasses make the tasks, and may learn from measurements.

    When an agent is lost, all tasks under way are given up; the next task needs all agents again.
    """

    def __init__(self, nodes: Sequence[str]) -> None:
        self.nodes = tuple(nodes)
        self.numbers = 0
        self.ready: dict[str, deque[Ready]] = {node: deque() for node in self.nodes}
        self.running: dict[int, set[str]] = {}  # task -> participants that are not finished

    def task(self, number: int, values: int, now: float) -> Task:
        """Return the task of this number, for tensors of this many values. Raise Infeasible, PlanError or WanError
        where there is none.
        """
        raise NotImplementedError

    def learn(self, event: Measured | Changed, now: float) -> None:
        """Take note of a throughput that was measured, or of a bandwidth that the network has told."""

    def broken(self, node: str, other: str) -> None:
        """Take note that two agents cannot reach each other: the next round avoids the connection where it can."""

    def mended(self, node: str) -> None:
        """Take note that an agent is back: connections to it were broken because its process had ended, which others
        may report before the coordinator has noticed, and not because of links.
        """

    def handle(self, event: Event, now: float) -> Sequence[Order]:
        match event:
            case Back(node):
                self.mended(node)
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
        """Continue the tasks of an earlier coordinator (`RecoveringPolicy`)."""
        self.numbers = number
        self.running = {each: set(waiting) for each, (_, waiting) in tasks.items()}

    def _begin(self, now: float) -> Sequence[Order]:
        """Start tasks while all agents have submissions. A round for which no task can be made fails by itself."""
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
            except Exception as error:  # of any kind, as a strategy's error must not end the job
                orders.append(Reject(self.nodes, f"no task can be made: {type(error).__name__}: {error}"))
                continue
            self.running[self.numbers] = set(task.participants)
            orders.append(Start(task))
        return orders


class FollowPlan(Rounds):
    """Rounds that all use the trees of one plan, of any strategy that makes aggregation trees or multicasts."""

    def __init__(self, plan: Plan, topology: Topology, sending: Sending = AS_PLANNED) -> None:
        super().__init__(plan.job.workers)
        self.plan, self.topology, self.sending = plan, topology, sending

    def task(self, number: int, values: int, now: float) -> Task:
        return task_of(self.plan, self.topology, values, number=number, round=number, way=self.sending)


class BrokenLinks:
    """Links whose ends cannot reach each other, with the rates (Mbit/s) that they had before."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, str], float] = {}

    def add(self, link: tuple[str, str], mbps: float) -> None:
        """Take note that a link of this rate is broken; one that is broken already keeps its rate before that."""
        self._before.setdefault(link, mbps)

    def told(self, link: tuple[str, str]) -> bool:
        """Take note that the network has told a link's rate, and return whether it was broken."""
        return self._before.pop(link, None) is not None

    def mended(self, node: str) -> dict[tuple[str, str], float]:
        """Take note that a node's links are whole again, and return those that were broken, with their rates."""
        return {link: self._before.pop(link) for link in [*self._before] if node in link}


class FollowNetwork(FollowPlan):
    """FollowPlan that replans before a round when some link's rate has changed by more than the part `change`. `make`
    makes a plan for a topology; `link(sender, receiver)` returns the topology's link between two agents' sites.
    """

    def __init__(
        self,
        make: Callable[[Topology], Plan],
        topology: Topology,
        sending: Sending = AS_PLANNED,
        *,
        link: Callable[[str, str], tuple[str, str]],
        change: float = 0.05,
    ) -> None:
        super().__init__(make(topology), topology, sending)
        self.make, self.link, self.change = make, link, change
        self.changed: dict[tuple[str, str], float] = {}
        self.cut = BrokenLinks()
        self.decisions = 1

    def learn(self, event: Measured | Changed, now: float) -> None:
        if isinstance(event, Changed):
            link = self.link(event.sender, event.receiver)
            self.cut.told(link)
            self.changed[link] = event.mbps

    def broken(self, node: str, other: str) -> None:
        for link in (self.link(node, other), self.link(other, node)):
            if self.topology.graph.has_edge(*link):
                rate = self.topology.graph.edges[link]["bandwidth_mbps"]
                self.cut.add(link, self.changed.get(link, rate))
                self.changed[link] = BROKEN_MBPS

    def mended(self, node: str) -> None:
        self.changed |= self.cut.mended(self.link(node, node)[0])

    def followed(self) -> bool:
        """Apply the changes to the topology when they are large enough, and return whether they were."""
        before = self.topology.residual_bandwidth_mbps
        if any(abs(mbps - before(u, v)) > self.change * before(u, v) for (u, v), mbps in self.changed.items()):
            links = [
                (u, v, {**data, "bandwidth_mbps": self.changed.get((u, v), data["bandwidth_mbps"])})
                for u, v, data in self.topology.graph.edges(data=True)
            ]
            nodes = dict(self.topology.graph.nodes(data=True))
            self.topology = Topology(nodes, links, self.topology.name, results_on_links=self.topology.results_on_links)
            self.changed.clear()
            self.decisions += 1
            return True
        return False

    def task(self, number: int, values: int, now: float) -> Task:
        if self.followed():
            self.plan = self.make(self.topology)
        return super().task(number, values, now)
