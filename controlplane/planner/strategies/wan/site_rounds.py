"""Rounds of sites that come and go: each round is done by whoever is there, and its plan is made for exactly these.

A round has a number, which trainers give: a site's state is "before round r" or "after it". Four rules follow.

- A submission for a round that is done already is given back (`Reject` with `behind`): its site needs the state of the
  others first. So a site that was restarted with an old model adds nothing to the others'.
- A round begins when all *active* sites have submitted their values for it. A site is active from the time when its
  state is that of the others until it is lost, or until the others did not wait for it (`patience`).
- The first round waits as well for the sites that began together and are still fetching the state of one of them. So
  it does not depend on how fast each of them is who takes part.
- A round whose task is given up, because a site was lost, is submitted again by those that do not have its result.
  Whoever has the result submits the next round, and then the others are behind: they get the result with the state.

A round may have two tasks: "maximum" agrees on scales and says who takes part, and "words" adds integers. The second
one needs exactly the participants of the first; else the round is begun again.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Protocol

from controlplane.planner.plan.model import Plan
from controlplane.planner.plan.task import MOST_CONTRIBUTORS, Op, SumTree, Task, task_of
from controlplane.planner.strategies.wan.policy import (
    Abort,
    Event,
    Failed,
    Finished,
    Lost,
    Order,
    Ready,
    Reject,
    Start,
    Tick,
    Withdrawn,
    uneven,
)
from controlplane.planner.topology import Topology

NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
OPS: tuple[Op, ...] = ("sum", "maximum", "words")
MOST_NAMES = 60_000
"""Names that may ever join one coordinator: agents are numbered with 16 bits."""


class Planner(Protocol):
    """Knows the network between sites (overlay/core/site_network.py)."""

    def plan(self, sites: Sequence[str]) -> tuple[Plan, Topology]:
        """The plan for these sites, and the topology that it was made on. Raises as strategies do."""
        ...

    def window(self, sites: Sequence[str]) -> int:
        """Chunks of a tree that are sent ahead of their results."""
        ...


class SiteRounds:
    """The policy of sites (docs/sites.md).

    planner: makes the plans. sites: how many the first round waits for. patience: seconds after the first submission
    for a round, after which it begins without the sites that have submitted nothing; None: it waits for all active
    sites. broken(site, other): these two cannot reach each other. allows(sites): these may do a round though others
    are missing (another coordinator may have them). did(round, sites): these have done a round. options: of `task_of`.

    round: the first round that is not done. active: see above. fetching: the sites that began together with these and
    do not have their state yet. started: a first round may begin, or has. held: no round begins now (the network is
    being measured).
    """

    ticks = True  # it is told of the time that passes

    def __init__(
        self,
        planner: Planner,
        *,
        sites: int,
        patience: float | None = None,
        broken: Callable[[str, str], None] = lambda site, other: None,
        allows: Callable[[Collection[str]], bool] = lambda sites: True,
        did: Callable[[int, Sequence[str]], None] = lambda round_, sites: None,
        **options: Any,
    ) -> None:
        self._planner, self.sites, self.patience, self.options = planner, sites, patience, options
        self._broken, self._allows, self._did = broken, allows, did
        self._names: list[str] = []
        self.round = 0
        self.active: set[str] = set()
        self.fetching: set[str] = set()
        self.started = self.held = False
        self.numbers = 0
        self.running: dict[int, tuple[Task, set[str]]] = {}  # task -> participants that are not finished
        self._ready: dict[str, deque[Ready]] = {}
        self._since: float | None = None  # when the first submission came that waits now
        self._agreed: tuple[int, tuple[str, ...]] = (-1, ())  # round and participants of the last "maximum"

    @property
    def nodes(self) -> tuple[str, ...]:
        """All sites that have ever joined, in the order in which they did: their numbers never change."""
        return tuple(self._names)

    def admit(self, node: str) -> str | None:
        """A site joins, of any name. Returns why it may not; None: it may."""
        if node in self._names:
            return None
        if not NAME.fullmatch(node):
            return f"{node[:80]!r} is no name of a site: 1 to 64 letters, digits, dots, dashes or underscores"
        if len(self._names) >= MOST_NAMES:
            return f"{MOST_NAMES} different names have joined already"
        self._names.append(node)
        self._ready[node] = deque()
        return None

    # --- who is active ---

    def activate(self, node: str) -> str | None:
        """The site has the state of the others, before round `round`. Returns why it cannot take part; None: it can."""
        self.fetching.discard(node)
        if node not in self.active and len(self.active) >= MOST_CONTRIBUTORS:
            return f"{MOST_CONTRIBUTORS} sites take part already, which is as many as a tree of sums has room for"
        self.active.add(node)
        return None

    def begin_at(self, round_: int, sites: Iterable[str] = ()) -> None:
        """These sites begin together, with the state before this round. Each of them is active when it has that."""
        self.round, self.started = round_, True
        self.fetching = set(sites)

    @property
    def _awaited(self) -> set[str]:
        return self.active | self.fetching

    def missing(self) -> list[str]:
        """The sites that the round under way waits for, because others have submitted values."""
        waiting = [node for node in self._awaited if not self._ready[node]]
        return sorted(waiting) if len(waiting) < len(self._awaited) else []

    # --- events ---

    def handle(self, event: Event, now: float) -> Sequence[Order]:
        match event:
            case Ready(node=node):
                return [*self._submitted(event), *self._begin(now)]
            case Withdrawn(node, turn):
                self._ready[node] = deque(each for each in self._ready[node] if each.turn != turn)
            case Finished(node, task):
                self._finished(node, task)
                return [*self._outdated(), *self._begin(now)]
            case Failed(task, reason) if task in self.running:
                del self.running[task]
                return [Abort(task, reason), *self._begin(now)]
            case Lost(node, other):
                return [*self._lost(node, other), *self._begin(now)]
            case Tick():
                return self._begin(now)
        return ()

    def _submitted(self, event: Ready) -> list[Order]:
        node = event.node
        if event.op not in OPS:
            return [Reject((node,), f"sites submit one of {', '.join(OPS)}, not {event.op!r}: use inart.sites")]
        if (self.started and node not in self.active) or event.round < self.round:
            return [self._behind(node, event.round)]
        self._ready[node].append(event)
        return []

    def _behind(self, node: str, round_: int) -> Reject:
        why = f"it submitted round {round_}, and the others are before round {self.round}: it needs their state"
        self.active.discard(node)
        return Reject((node,), why, behind=self.round)

    def _outdated(self) -> list[Order]:
        """Gives back what was submitted for rounds that are done."""
        orders: list[Order] = []
        for node, waiting in self._ready.items():
            while waiting and waiting[0].round < self.round:
                orders.append(self._behind(node, waiting.popleft().round))
        return orders

    def _finished(self, node: str, number: int) -> None:
        if number not in self.running:
            return
        task, waiting = self.running[number]
        waiting.discard(node)
        if task.op == "maximum":
            self._agreed = task.round, task.participants
        elif task.round >= self.round:  # one site has its result, so no site may do it again
            self.round = task.round + 1
            self._did(task.round, task.participants)
        if not waiting:
            del self.running[number]

    def _lost(self, node: str, other: str | None) -> list[Order]:
        if other is None:
            self._ready[node].clear()
            self.active.discard(node)
            self.fetching.discard(node)
            reason = f"{node} is lost"
            concerned = [number for number, (task, _) in self.running.items() if node in task.nodes]
            if not self.active:
                self.started = False  # nobody has the state any more: sites begin together again
                self.fetching.clear()
        else:
            self._broken(node, other)
            reason = f"{node} and {other} cannot reach each other"
            concerned = [n for n, (task, _) in self.running.items() if {node, other} <= task.nodes]
        for number in concerned:
            del self.running[number]
        return [Abort(number, reason) for number in concerned]

    # --- rounds ---

    def _begin(self, now: float) -> list[Order]:
        """Starts what can start."""
        orders: list[Order] = []
        for node in self._ready.keys() - self.active if self.started else ():
            while self._ready[node]:  # submitted before the sites began, without the state that they began with
                orders.append(self._behind(node, self._ready[node].popleft().round))
        while self.started and not self.held:
            heads = {node: waiting[0] for node, waiting in self._ready.items() if waiting and node in self.active}
            if not heads:
                self._since = None
                break
            if self._since is None:
                self._since = now
            ahead = max(head.round for head in heads.values())
            if ahead > self.round:  # an active site has the result of a round that was given up at the others
                self.round = ahead
                orders += self._outdated()
                continue
            if self._awaited - heads.keys() and not self._impatient(now):
                break
            if not self._allows(heads.keys()):
                break
            orders += self._next(heads)
        return orders

    def _impatient(self, now: float) -> bool:
        assert self._since is not None, "a submission waits"
        return self.patience is not None and now >= self._since + self.patience

    def _next(self, heads: dict[str, Ready]) -> list[Order]:
        """Uses up the first submissions of these sites, which are all for the same round: as a task, or given back."""
        participants = tuple(sorted(heads))
        self._since = None
        first = [node for node, head in heads.items() if head.op != "words"]
        second = [node for node in heads if node not in first]
        if second and (first or self._agreed != (self.round, participants)):
            for node in second:
                self._ready[node].popleft()
            return [Reject(tuple(second), "who takes part has changed: the round is begun again", again=True)]
        self.active.intersection_update(participants)  # the others wait no longer for those that are missing
        self.fetching.clear()
        for node in participants:
            self._ready[node].popleft()
        wrong = self._unequal(heads)
        if wrong is not None:
            return [Reject(participants, wrong)]
        self.numbers += 1
        try:
            task = self._task(participants, heads)
        except Exception as error:  # of whatever kind: a plan that fails must not end the job
            return [Reject(participants, f"no task can be made: {type(error).__name__}: {error}")]
        self.running[task.number] = task, set(task.participants)
        return [Start(task)]

    def _unequal(self, heads: dict[str, Ready]) -> str | None:
        ops = {node: head.op for node, head in heads.items()}
        if len(set(ops.values())) > 1:
            words = ", ".join(f"{node}: {op}" for node, op in sorted(ops.items()))
            return f"the sites use different numbers of bits ({words}): give all the same"
        return uneven({node: head.values for node, head in heads.items()})

    def _task(self, participants: tuple[str, ...], heads: dict[str, Ready]) -> Task:
        head = heads[participants[0]]
        op: Op = next(op for op in OPS if op == head.op)
        if len(participants) == 1:
            (node,) = participants
            trees: tuple[SumTree, ...] = (SumTree(node, 0, head.values, (), (), (node,), (node,)),)
            made = Task(self.numbers, head.values, trees, op, head.round)
        else:
            plan, topology = self._planner.plan(participants)
            made = task_of(
                plan, topology, head.values, number=self.numbers, round=head.round, op=op,
                window=self._planner.window(participants), **self.options,
            )  # fmt: skip
        return made.weighted({node: heads[node].weight for node in participants})
