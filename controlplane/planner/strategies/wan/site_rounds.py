"""Rounds of sites that come and go: each round is done by the sites that are present, and its plan is made for exactly
these.

A round has a number, which trainers give: a site's state is "before round r" or "after it". These rules follow.

- A submission for a round that is done already is given back (`Reject` with `behind`): its site needs the state of the
  others first. So a site that was restarted with an old model adds nothing to the others'.
- A round begins when all *active* sites have submitted their values for it. A site is active from the time when its
  state is that of the others until it is lost, or until the others did not wait for it (`patience`).
- The first round waits as well for the sites that began together and are still fetching the state of one of them. So
  it does not depend on how fast each site is which ones take part.
- A round has a deadline: when half of the sites that live will have waited for as long as they do (so one site that
  waits for a short time only decides nothing for the others). When half of the time until then has passed, no site
  waits any longer for sites that say nothing at all: the round begins without them, and a task under way is begun again
  without them. For sites that live and have submitted nothing, it is three quarters. Where a task takes half of the
  remaining time and all its sites live, links are slow: the network is measured again meanwhile, and the task is done
  again as soon as that gives another plan.
- A site whose own time is over leaves the round, and the others go on: a task that has its values has them once.
- A round whose task is given up, because a site was lost, is submitted again by those that do not have its result.
  A site that has the result submits the next round, and then the others are behind: they get the result with the
  state.

- A submission whose contents do not fit those of the others is given back before the round begins, and submitted again
  with other contents (site_contents.py).

A round may have two tasks: "maximum" agrees on scales and fixes the participants, and "words" adds integers. The second
one needs exactly the participants of the first; else the round is begun again. A site that comes between the two waits
for the next round: it would have the others begin this one again.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from math import inf
from typing import Protocol

from controlplane.planner.plan.model import Plan
from controlplane.planner.plan.task import AS_PLANNED, MOST_CONTRIBUTORS, Op, Sending, SumTree, Task, task_of
from controlplane.planner.strategies.wan.policy import (
    Abort,
    Event,
    Failed,
    Finished,
    LetGo,
    Lost,
    Order,
    Ready,
    Reject,
    Start,
    Tick,
    Withdrawn,
    uneven,
)
from controlplane.planner.strategies.wan.site_contents import adapted
from controlplane.planner.strategies.wan.site_waiting import HALF, Running, Submitted, Waiting
from controlplane.planner.topology import Topology

NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
OPS: tuple[Op, ...] = ("sum", "maximum", "words")
MOST_NAMES = 60_000
"""Most names that may ever join one coordinator, as agents are numbered with 16 bits."""


class NoLink(Exception):
    """No plan is possible, since no links lead from some of the sites to others. The message says why.

    Attributes:
        lasting: whether operators have declared it, so that waiting does not help.
    """

    def __init__(self, message: str, *, lasting: bool) -> None:
        super().__init__(message)
        self.lasting = lasting


class Planner(Protocol):
    """The part of the service that knows the network between sites (overlay/core/site_network.py). `version` changes
    whenever plans would.
    """

    version: int

    def plan(self, sites: Sequence[str]) -> tuple[Plan, Topology]:
        """Return the plan for these sites, and the topology that it was made on. Raise NoLink where sites are not
        linked, and as strategies do.
        """
        ...

    def chunks(self, sites: Sequence[str], values: int) -> tuple[int, int]:
        """Return the values of a chunk in a round of `values` values, and the chunks of a tree that a site sends ahead
        of their results.
        """
        ...


class SiteRounds:
    """The policy of sites (docs/sites.md); the module's text has the rules.

    `planner` makes the plans; the first round waits for `sites` sites. `patience` seconds after a round's first
    submission, it begins without sites that have submitted nothing (None: by the rules). `broken` is called with two
    sites that cannot reach each other, `did` with a round and the sites that did it, `overdue` with a task of whose
    time half has passed while all its sites live; `allows` returns whether these sites may do a round though others are
    missing.

    `round` is the first round that is not done. `late` has active sites for which none waits until they submit again,
    `fetching` the sites that began together with these and lack their state. `started` says whether a first round may
    begin, `held` that none begins, as the network is being measured (unless half of its time has passed).
    """

    ticks = True  # the driver sends it `Tick`
    lets_go = True  # and `Withdrawn` for tasks that run

    def __init__(
        self,
        planner: Planner,
        *,
        sites: int,
        patience: float | None = None,
        broken: Callable[[str, str], None] = lambda site, other: None,
        allows: Callable[[Collection[str]], bool] = lambda sites: True,
        did: Callable[[int, Sequence[str]], None] = lambda round_, sites: None,
        overdue: Callable[[Task], None] = lambda task: None,
        sending: Sending = AS_PLANNED,
    ) -> None:
        self._planner, self.sites, self.sending = planner, sites, sending
        self._broken, self.allows, self._did, self._overdue = broken, allows, did, overdue
        self._names: list[str] = []
        self.round = 0
        self.active: set[str] = set()
        self.late: set[str] = set()
        self.fetching: set[str] = set()
        self.started = self.held = False
        self.numbers = 0
        self.running: dict[int, Running] = {}
        self._ready: dict[str, deque[Submitted]] = {}
        self._waiting = Waiting(patience)
        self._left: set[str] = set()  # sites that have left a task of this round
        self._agreed: tuple[int, tuple[str, ...]] = (-1, ())  # round and participants of the last "maximum"

    @property
    def nodes(self) -> tuple[str, ...]:
        """All sites that have ever joined, in the order in which they did: their numbers never change."""
        return tuple(self._names)

    def admit(self, node: str) -> str | None:
        """Let a site join, of any name. Return the reason why it may not, or None."""
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
        """Make a site active that has the state before round `round`. Return why it may not take part, or None."""
        self.fetching.discard(node)
        self.late.discard(node)
        if node not in self.active and len(self.active) >= MOST_CONTRIBUTORS:
            return f"{MOST_CONTRIBUTORS} sites take part already, which is as many as a tree of sums has room for"
        self.active.add(node)
        return None

    def begin_at(self, round_: int, sites: Iterable[str] = ()) -> None:
        """Let these sites begin together, with the state before this round; each is active when it has that."""
        self._reached(round_)
        self.started = True
        self.fetching = set(sites)

    @property
    def _awaited(self) -> set[str]:
        return (self.active - self.late - self._left) | self.fetching

    def missing(self) -> list[str]:
        """Return the sites for which the round under way waits, because others have submitted values."""
        waiting = [node for node in self._awaited if not self._ready[node]]
        return sorted(waiting) if any(self._ready[node] for node in self.active) else []

    # --- events ---

    def handle(self, event: Event, now: float) -> Sequence[Order]:
        match event:
            case Ready(node=node):
                return [*self._submitted(event, now), *self._begin(now)]
            case Withdrawn(node, turn, task):
                return [*self._withdrawn(node, turn, task), *self._begin(now)]
            case Finished(node, task):
                self._finished(node, task)
                return [*self._outdated(), *self._begin(now)]
            case Failed(task, reason) if task in self.running:
                return [self._give_up(task, reason), *self._begin(now)]
            case Lost(node, other, reason):
                return [*self._lost(node, other, reason), *self._begin(now)]
            case Tick(silent):
                return [*self._look(silent, now), *self._begin(now)]
        return ()

    def _submitted(self, event: Ready, now: float) -> list[Order]:
        node = event.node
        if event.op not in OPS:
            return [Reject((node,), f"sites submit one of {', '.join(OPS)}, not {event.op!r}: use inart.sites")]
        if (self.started and node not in self.active) or event.round < self.round:
            return [self._behind(node, event.round)]
        self._ready[node].append(Submitted(event, inf if event.within is None else now + event.within))
        self.late.discard(node)
        return []

    def _withdrawn(self, node: str, turn: int, number: int | None) -> list[Order]:
        """Handle that a site's time is over: no site waits for it until it submits something again."""
        self.late.add(node)
        self._ready[node] = deque(each for each in self._ready[node] if each.ready.turn != turn)
        run = self.running.get(-1 if number is None else number)
        if run is None or node not in run.waiting:
            return []
        reason = f"{node} waits no longer; without all of it: {', '.join(sorted(run.waiting))}"
        run.waiting.discard(node)
        self._left.add(node)
        if run.have and run.task.op != "maximum":
            self.active.discard(node)  # others are past this round
        if run.waiting:
            return [LetGo(run.task.number, node, reason)]
        if run.have:
            del self.running[run.task.number]
            return [LetGo(run.task.number, node, reason)]
        for sites in (self.late, self._left):  # the round has come to nothing, and begins anew for all of them
            sites.difference_update(run.task.participants)
        return [self._give_up(run.task.number, reason)]

    def _look(self, silent: Collection[str], now: float) -> list[Order]:
        """Look at the tasks of which half of the time has passed, and return the orders that follow."""
        self._waiting.silent = frozenset(silent)
        orders: list[Order] = []
        for number, run in list(self.running.items()):
            if now < run.half:
                continue
            gone = run.task.nodes.intersection(silent)
            if gone and self.allows(set(run.task.participants) - gone):
                self.active -= gone  # they have to take the others' state before they are waited for again
                orders.append(self._give_up(number, f"{', '.join(sorted(gone))} said nothing for too long"))
            elif not gone and not run.slow:
                run.slow = True
                self._overdue(run.task)
            elif run.version != self._planner.version:
                orders.append(self._give_up(number, "it took too long, and there is another plan now"))
        return orders

    def _give_up(self, number: int, reason: str) -> Abort:
        del self.running[number]
        return Abort(number, reason)

    def _behind(self, node: str, round_: int) -> Reject:
        why = f"it submitted round {round_}, and the others are before round {self.round}: it needs their state"
        self.active.discard(node)
        return Reject((node,), why, behind=self.round)

    def _outdated(self) -> list[Order]:
        """Give back submissions for rounds that are done."""
        orders: list[Order] = []
        for node, waiting in self._ready.items():
            while waiting and waiting[0].ready.round < self.round:
                orders.append(self._behind(node, waiting.popleft().ready.round))
        return orders

    def _finished(self, node: str, number: int) -> None:
        if number not in self.running:
            return
        task = (run := self.running[number]).task
        run.waiting.discard(node)
        run.have.add(node)
        if task.op == "maximum":
            self._agreed = task.round, task.participants
        elif task.round >= self.round:  # one site has its result, so no site may do it again
            self._reached(task.round + 1)
            self._did(task.round, task.participants)
        if task.op != "maximum":
            self.active.difference_update(self.active.intersection(task.participants) - run.have - run.waiting)
        if not run.waiting:
            del self.running[number]

    def _reached(self, round_: int) -> None:
        self.round = round_
        self._left.clear()

    def _lost(self, node: str, other: str | None, why: str) -> list[Order]:
        if other is None:
            self._ready[node].clear()
            for sites in (self.active, self.late, self.fetching, self._left):
                sites.discard(node)
            reason = f"{node} is lost"
            concerned = [number for number, run in self.running.items() if node in run.task.nodes]
            if not self.active:
                self.started = False  # no site has the state any more: sites begin together again
                self.fetching.clear()
        else:
            self._broken(node, other)
            reason = f"{node} and {other} cannot reach each other" + (f": {why}" if why else "")
            concerned = [number for number, run in self.running.items() if {node, other} <= run.task.nodes]
        return [self._give_up(number, reason) for number in concerned]

    # --- rounds ---

    def _begin(self, now: float) -> list[Order]:
        """Start the tasks that can start, and return the orders."""
        orders: list[Order] = []
        for node in self._ready.keys() - self.active if self.started else ():
            while self._ready[node]:  # submitted before the sites began, without the state that they began with
                orders.append(self._behind(node, self._ready[node].popleft().ready.round))
        while self.started:
            heads = self._heads()
            if not heads:
                self._waiting.since = None
                break
            if self._waiting.since is None:
                self._waiting.since = now
            ahead = max(head.ready.round for head in heads.values())
            if ahead > self.round:  # an active site has the result of a round that was given up at the others
                self._reached(ahead)
                orders += self._outdated()
                continue
            words = {node: head for node, head in heads.items() if head.ready.op == "words"}
            if any(self._blocks(run, bool(words)) for run in self.running.values()):
                self._waiting.since = None
                break
            if words:
                sites = self._agreed[1] if self._agreed[0] == self.round else ()
                complete = self._waiting.complete(words, sites, self._awaited - (heads.keys() - words.keys()), now)
                if complete is False:
                    orders += self._begin_again(words)
                    continue
                if complete is None:
                    break
                heads = words
            elif self._waiting.goes_on(heads, self._awaited, now):
                break
            if self.held and not self._waiting.passed(HALF, heads, self._awaited, now):
                break
            if not self.allows(heads.keys()):
                break
            unfit = [] if words else self._give_back_unfit(heads)
            if unfit:
                orders += unfit
                continue
            ends = self._waiting.deadline(heads, self._awaited)
            orders += self._next({node: head.ready for node, head in heads.items()}, ends, now)
        return orders

    def _heads(self) -> dict[str, Submitted]:
        """Return each active site's oldest submission. A site that has left this round waits for its end while others
        are in it: each one that came back would have them begin again.
        """
        heads = {node: waiting[0] for node, waiting in self._ready.items() if waiting and node in self.active}
        rest = {node: head for node, head in heads.items() if node not in self._left}
        return rest if rest or any(run.task.round == self.round for run in self.running.values()) else heads

    def _blocks(self, run: Running, second: bool) -> bool:
        """Return whether a task has to end before the next one begins, be it the second of a round or another one."""
        return run.task.round == self.round and not (second and run.task.op == "maximum")

    def _begin_again(self, words: dict[str, Submitted]) -> list[Order]:
        """Begin a round again that agreed on scales and cannot be done with these sites; return the orders."""
        self._waiting.since = None
        if self._agreed[0] == self.round:
            self.late.update(node for node in self._agreed[1] if not self._ready[node])
        for node in words:
            self._ready[node].popleft()
        why = "who takes part has changed: the round is begun again"
        stuck = [number for number, run in self.running.items() if run.task.round == self.round]
        return [*(self._give_up(number, why) for number in stuck), Reject(tuple(words), why, again=True)]

    def _give_back_unfit(self, heads: dict[str, Submitted]) -> list[Order]:
        """Give back the submissions that do not fit the others; return the orders. The time in which their sites submit
        them again does not count as waiting.
        """
        given = {node: (head.ready.weight, head.ready.contents) for node, head in heads.items()}
        orders: list[Order] = []
        for node, contents in adapted(given).items():
            before = self._ready[node].popleft().ready.contents
            assert before is not None, "only contents that were given are adapted"
            why = "other tensors have changed at other sites"
            if contents.norm < before.norm:
                why = f"the norm of its change ({before.norm:.3g}) is too large beside the others': {contents.norm:.3g}"
            orders.append(Reject((node,), f"round {self.round} is submitted again: {why}", contents=contents))
            self._waiting.since = None
        return orders

    def _next(self, heads: dict[str, Ready], ends: float, now: float) -> list[Order]:
        """Use up these sites' first submissions, all for one round: as a task until `ends`, or given back."""
        participants = tuple(sorted(heads))
        self._waiting.since = None
        if all(head.op != "words" for head in heads.values()):
            self.active.intersection_update(participants)  # the others wait no longer for those that are missing
            self.fetching.clear()
        self.late.difference_update(participants)
        self._left.difference_update(participants)
        for node in participants:
            self._ready[node].popleft()
        wrong = unequal(heads)
        if wrong is not None:
            return [Reject(participants, wrong)]
        self.numbers += 1
        try:
            task = self.make_task(participants, heads)
        except NoLink as error:
            return [Reject(participants, str(error), again=not error.lasting)]
        except Exception as error:  # of any kind, as a plan that fails must not end the job
            return [Reject(participants, f"no task can be made: {type(error).__name__}: {error}")]
        half = now + HALF * (ends - now)
        self.running[task.number] = Running(task, set(task.participants), half, self._planner.version)
        return [Start(task)]

    def make_task(self, participants: tuple[str, ...], heads: dict[str, Ready]) -> Task:
        return make_task(self._planner, self.numbers, participants, heads, self.sending)


def make_task(
    planner: Planner, number: int, participants: tuple[str, ...], heads: dict[str, Ready], sending: Sending
) -> Task:
    """Return the task of these submissions, with the plan for these sites. Raise as strategies do."""
    head = heads[participants[0]]
    op: Op = next(op for op in OPS if op == head.op)
    if len(participants) == 1:
        (node,) = participants
        trees: tuple[SumTree, ...] = (SumTree(node, 0, head.values, (), (), (node,), (node,)),)
        made = Task(number, head.values, trees, op, head.round)
    else:
        plan, topology = planner.plan(participants)
        chunk, window = planner.chunks(participants, head.values)
        made = task_of(
            plan, topology, head.values, number=number, round=head.round, op=op,
            way=replace(sending, chunk_values=chunk, window=window),
        )  # fmt: skip
    return made.weighted({node: heads[node].weight for node in participants})


def unequal(heads: dict[str, Ready]) -> str | None:
    """Return, in words, how the submissions of one round differ; None where they do not, and may be added."""
    ops = {node: head.op for node, head in heads.items()}
    if len(set(ops.values())) > 1:
        words = ", ".join(f"{node}: {op}" for node, op in sorted(ops.items()))
        return f"the sites use different numbers of bits ({words}): give all the same"
    return uneven({node: head.values for node, head in heads.items()})
