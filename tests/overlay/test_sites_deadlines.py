"""A site that hangs, and rounds that take long: what becomes of the others, event by event and in random histories.

In the histories time is simulated: sites train, submit, hang (their hosts answer, and their processes say nothing) and
have timeouts, and the policy that runs in a coordinator decides. Nobody but a site that has hung may run into its
timeout, all that do a round together have the same state, and rounds go on. Each part of the rule that gives this is
taken away once, to see one of the three go wrong.
"""

from __future__ import annotations

import heapq
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from controlplane.planner.plan.task import Edge, SumTree, Task
from controlplane.planner.strategies.wan import site_rounds, site_waiting
from controlplane.planner.strategies.wan.policy import (
    Abort,
    Finished,
    LetGo,
    Order,
    Ready,
    Reject,
    Start,
    Tick,
    Withdrawn,
)
from controlplane.planner.strategies.wan.site_rounds import SiteRounds
from controlplane.planner.strategies.wan.site_waiting import Waiting
from overlay.core.errors import Behind, Late, PeerLost
from overlay.core.site_network import SiteNetwork
from overlay.net import agent, liveness
from overlay.sites import SiteGroup
from overlay.sites import group as group_module
from tests.overlay import test_sites_elastic as elastic
from tests.overlay.test_agents import until
from tests.overlay.test_sites import coordinating

ROOT = Path(__file__).resolve().parents[2]

TIMEOUT = 60.0
QUIET_SECONDS = 5.0
VALUES = 64


class Rounds(SiteRounds):
    """Plans are stars, which cost nothing to make."""

    def _task(self, participants: tuple[str, ...], heads: dict[str, Ready]) -> Task:
        root, head = participants[0], heads[participants[0]]
        up = tuple(Edge(node, root) for node in participants[1:])
        down = tuple(Edge(root, node) for node in participants[1:])
        tree = SumTree(root, 0, head.values, up, down, participants, participants)
        return Task(self.numbers, head.values, (tree,), head.op, head.round)


class ModelSite:
    """timeout: of its calls. state: (sites, attempt) of each round that is in the model. hung: until this time its
    process says nothing, which shows from `heard` on. excused: until this time it may run into its timeout, since it
    has hung. ends: of the call that waits.
    """

    def __init__(self, name: str, timeout: float) -> None:
        self.name, self.state, self.timeout = name, (), timeout
        self.hung = self.heard = self.excused = self.ends = 0.0
        self.task: int | None = None  # that contains its values
        self.turn: int | None = None  # of its submission that waits
        self.catching_up = False


class History:
    """wrong: what must not be, in words. rounds: how many were done."""

    def __init__(self, seed: int, make: Callable[..., SiteRounds] = Rounds) -> None:
        self.rng, self.now, self.wrong = random.Random(seed), 0.0, list[str]()
        self.sites = {name: ModelSite(name, TIMEOUT) for name in "abcdefg"[: self.rng.randint(3, 7)]}
        if self.rng.random() < 0.5:  # one site waits for a short time only
            self.sites["a"] = ModelSite("a", 12.0)
            self.sites["a"].excused = float("inf")
        self.policy = make(SiteNetwork(64), sites=len(self.sites))
        self.due: list[tuple[float, int, Callable[[], None]]] = []
        self.numbers, self.turns = count(), count(1)
        self.tasks: dict[int, tuple[Task, float]] = {}  # that run: when they are done if nobody hangs
        self.pace = self.rng.choice([(0.5, 3.0), (4.0, 8.0)])  # seconds of a task
        for name in self.sites:
            assert self.policy.admit(name) is None and self.policy.activate(name) is None
        self.policy.begin_at(0)

    @property
    def rounds(self) -> int:
        return max(len(site.state) for site in self.sites.values())

    # --- time ---

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        heapq.heappush(self.due, (self.now + seconds, next(self.numbers), act))

    def awake(self, site: ModelSite, act: Callable[[], None]) -> None:
        """The site does this now, or when it hangs no more."""
        if site.hung > self.now:
            self.after(site.hung - self.now + 0.001, lambda: self.awake(site, act))
        else:
            act()

    def run(self, seconds: float) -> History:
        for site in self.sites.values():
            self.train(site)
        self.after(1.0, self.tick)
        self.after(self.rng.uniform(5, 60), self.hang)
        while self.due and not self.wrong and self.due[0][0] < seconds:
            self.now, _, act = heapq.heappop(self.due)
            act()
        return self

    def tick(self) -> None:
        """As a coordinator's loop: every second."""
        quiet = [each.name for each in self.sites.values() if each.hung > self.now and each.heard < self.now]
        self.orders(self.policy.handle(Tick(frozenset(quiet)), self.now))
        self.after(1.0, self.tick)

    def hang(self) -> None:
        """One site hangs at a time."""
        site = self.rng.choice(list(self.sites.values()))
        site.hung = self.now + self.rng.choice([3.0, 20.0, 150.0])
        site.heard = self.now + QUIET_SECONDS
        site.excused = max(site.excused, site.hung + 2 * TIMEOUT)
        self.after(site.hung - self.now + self.rng.uniform(70, 200), self.hang)

    # --- sites ---

    def train(self, site: ModelSite) -> None:
        def begin() -> None:
            site.ends = self.now + site.timeout
            self.submit(site, "maximum")

        self.after(self.rng.uniform(0.0, 10.0), lambda: self.awake(site, begin))

    def submit(self, site: ModelSite, op: str) -> None:
        site.turn = turn = next(self.turns)
        ends = site.ends
        within = ends - self.now
        self.after(within, lambda: self.awake(site, lambda: self.give_up(site, turn)))
        self.orders(self.policy.handle(Ready(site.name, VALUES, turn, len(site.state), op, 1.0, within), self.now))

    def give_up(self, site: ModelSite, turn: int) -> None:
        """The site's timeout has passed, if this submission has not ended."""
        if site.turn != turn:
            return
        if self.now > site.excused:
            self.wrong.append(f"{self.now:.1f}: {site.name} ran into its timeout in round {len(site.state)}")
        task, site.task, site.turn = site.task, None, None
        self.orders(self.policy.handle(Withdrawn(site.name, turn, task), self.now))
        self.train(site)

    def catch_up(self, site: ModelSite) -> None:
        """Takes the state of a site that has the one before the policy's round, as soon as there is one."""
        having = [self.sites[name] for name in sorted(self.policy.active)
                  if len(self.sites[name].state) == self.policy.round and name != site.name]  # fmt: skip
        if having:
            site.state = having[0].state
            assert self.policy.activate(site.name) is None
            self.train(site)
        else:
            self.after(1.0, lambda: self.awake(site, lambda: self.catch_up(site)))

    # --- orders ---

    def orders(self, orders: list[Order]) -> None:
        for order in orders:
            match order:
                case Start(task):
                    self.start(task)
                case Abort(number):
                    task, _ = self.tasks.pop(number)
                    for site in map(self.sites.get, task.participants):
                        if site.task == number:
                            site.task = site.turn = None
                            self.again(site)
                case LetGo():
                    pass  # the model's sites go at once
                case Reject(nodes, behind=behind):
                    for site in map(self.sites.get, nodes):
                        site.turn = None
                        if behind is None:
                            self.again(site)
                        else:
                            self.after(1.0, lambda site=site: self.awake(site, lambda: self.catch_up(site)))

    def again(self, site: ModelSite) -> None:
        """Its values came back: it submits them again, for what is left of its time."""

        def act() -> None:
            if site.turn is None and site.task is None and self.now < site.ends:
                self.submit(site, "maximum")
            elif site.turn is None and site.task is None:
                self.train(site)

        self.after(0.01, lambda: self.awake(site, act))

    def start(self, task: Task) -> None:
        states = {self.sites[name].state for name in task.participants}
        if len(states) > 1:
            self.wrong.append(f"{self.now:.1f}: round {task.round} begins with {len(states)} states")
        for name in task.participants:
            self.sites[name].task = task.number
        self.tasks[task.number] = task, 0.0
        self.work(task, self.rng.uniform(*self.pace))

    def work(self, task: Task, left: float) -> None:
        """The task goes on while none of its sites hangs."""
        if task.number not in self.tasks:
            return
        hung = [self.sites[name].hung for name in task.participants if self.sites[name].hung > self.now]
        if hung:
            self.after(max(hung) - self.now + 0.01, lambda: self.work(task, left))
        elif left > 0:
            self.after(min(left, 1.0), lambda: self.work(task, left - 1.0))
        else:
            for name in task.participants:
                self.after(self.rng.uniform(0.0, 0.5), lambda site=self.sites[name]: self.finish(site, task))

    def finish(self, site: ModelSite, task: Task) -> None:
        """The result is at the site, in time for its trainer or not."""
        if task.number not in self.tasks or site.task != task.number:
            return
        site.task = site.turn = None
        if task.op == "words":
            site.state = (*site.state, (task.participants, task.number))
        orders = self.policy.handle(Finished(site.name, task.number), self.now)
        if task.op == "words":
            self.train(site)
        else:
            self.awake(site, lambda: self.submit(site, "words"))
        self.orders(orders)


def histories(make: Callable[..., SiteRounds], seeds: range) -> tuple[list[str], int]:
    """What went wrong, and the fewest rounds that were done in a history."""
    done = [(seed, History(seed, make).run(600.0)) for seed in seeds]
    return [f"seed {seed}: {each.wrong[0]}" for seed, each in done if each.wrong], min(each.rounds for _, each in done)


def test_nobody_but_a_site_that_hangs_runs_into_its_timeout_and_rounds_go_on():
    wrong, rounds = histories(Rounds, range(50))
    assert not wrong, wrong[:5]
    assert rounds > 10, "600 s; a round takes up to 26 s, and about 40 while one hangs"


class WaitsForSilent(Rounds):
    """Tasks wait for sites that say nothing."""

    def _look(self, silent, now: float) -> list[Order]:
        self._waiting.silent = frozenset(silent)
        return []


class Forever(Waiting):
    def goes_on(self, heads, awaited, now: float) -> bool:
        return bool(set(awaited) - heads.keys())


class WaitsForMissing(Rounds):
    """Rounds wait for sites that have submitted nothing."""

    def __init__(self, *given, **named) -> None:
        super().__init__(*given, **named)
        self._waiting = Forever(None)


@pytest.mark.parametrize("mutant", [WaitsForSilent, WaitsForMissing])
def test_without_a_part_of_the_rule_sites_run_into_their_timeouts(mutant):
    wrong, _ = histories(mutant, range(20))
    assert wrong


# --- event by event ---


def begun(names: str) -> Rounds:
    policy = Rounds(SiteNetwork(64), sites=len(names))
    for name in names:
        assert policy.admit(name) is None and policy.activate(name) is None
    policy.begin_at(0)
    return policy


def ready(node: str, round_: int, op: str = "sum", within: float = TIMEOUT) -> Ready:
    return Ready(node, VALUES, 1, round_, op, 1.0, within)


def task_in(orders: list[Order]) -> Task:
    (task,) = [order.task for order in orders if isinstance(order, Start)]
    return task


def submitted(policy: Rounds, names: str, round_: int, op: str, now: float, *, within: float = TIMEOUT) -> list[Order]:
    return [order for name in names for order in policy.handle(ready(name, round_, op, within), now)]


def test_a_site_whose_time_is_over_leaves_the_round_and_the_others_have_its_values_once():
    policy = begun("abc")
    task = task_in(submitted(policy, "abc", 0, "sum", 0.0))
    assert [type(order) for order in policy.handle(Withdrawn("a", 1, task.number), 60.0)] == [LetGo]
    assert not policy.handle(ready("a", 0), 60.1), "it waits for the end of the round that it has left"
    (refused,) = policy.handle(Finished("b", task.number), 61.0)
    assert isinstance(refused, Reject) and (refused.nodes, refused.behind) == (("a",), 1)
    policy.handle(Finished("c", task.number), 61.0)
    assert task_in(submitted(policy, "bc", 1, "sum", 62.0)).participants == ("b", "c"), "a has no state to go on with"


def test_a_task_is_given_up_when_all_its_sites_have_left_it():
    policy = begun("ab")
    task = task_in(submitted(policy, "ab", 0, "sum", 0.0))
    assert [type(order) for order in policy.handle(Withdrawn("a", 1, task.number), 60.0)] == [LetGo]
    assert [type(order) for order in policy.handle(Withdrawn("b", 1, task.number), 60.0)] == [Abort]
    assert task_in(submitted(policy, "ab", 0, "sum", 61.0)).participants == ("a", "b")


def test_timeouts_one_after_the_other_do_not_have_the_others_begin_again():
    """Twenty sites' timeouts pass while they agree on scales; before, each of them gave the round up for all."""
    names = "abcdefghijklmnopqrst"
    policy = begun(names)
    first = task_in(submitted(policy, names, 0, "maximum", 0.0))
    for number, name in enumerate(names[:5]):
        assert [type(order) for order in policy.handle(Withdrawn(name, 1, first.number), 60.0 + number)] == [LetGo]
        assert not policy.handle(ready(name, 0, "maximum"), 60.5 + number)
    for name in names[5:]:
        assert not policy.handle(Finished(name, first.number), 66.0)
    again = submitted(policy, names[5:], 0, "words", 66.0)
    assert all(isinstance(order, Reject) and order.again for order in again), "their sums would lack five"
    second = task_in(submitted(policy, names[5:], 0, "maximum", 66.1))
    assert second.participants == tuple(names[5:])


def test_who_lives_and_submits_nothing_is_left_out_after_three_quarters_of_the_time():
    policy = begun("abc")
    submitted(policy, "ab", 0, "sum", 0.0)
    assert not policy.handle(Tick(), 44.0) and policy.missing() == ["c"]
    assert task_in(policy.handle(Tick(), 45.0)).participants == ("a", "b")


def test_who_says_nothing_at_all_is_left_out_after_half_of_the_time():
    policy = begun("abc")
    submitted(policy, "ab", 0, "sum", 0.0)
    assert not policy.handle(Tick(frozenset("c")), 29.0)
    task = task_in(policy.handle(Tick(frozenset("c")), 30.0))
    assert task.participants == ("a", "b")
    abort, *_ = policy.handle(Tick(frozenset("b")), 46.0)  # b hangs while it adds, with 30 s left at the beginning
    assert isinstance(abort, Abort) and abort.reason == "b said nothing for too long"
    assert task_in(submitted(policy, "a", 0, "sum", 46.1, within=14.0)).participants == ("a",)
    (refused,) = submitted(policy, "b", 0, "sum", 47.0)
    assert isinstance(refused, Reject) and refused.behind == 0, "b has to ask for the state"


def test_one_site_that_waits_for_a_short_time_only_does_not_have_the_others_left_out():
    policy = begun("abc")
    submitted(policy, "a", 0, "sum", 0.0, within=2.0)
    assert not policy.handle(Tick(), 1.9)
    assert not policy.handle(Withdrawn("a", 1), 2.0)
    assert task_in(submitted(policy, "abc", 0, "sum", 3.0)).participants == ("a", "b", "c")


def test_a_site_that_comes_while_the_others_agree_waits_for_the_next_round():
    policy = begun("abc")
    policy.active.discard("c")
    first = task_in(submitted(policy, "ab", 0, "maximum", 0.0))
    policy.activate("c")
    assert not submitted(policy, "c", 0, "maximum", 0.1)
    for name in "ab":
        assert not policy.handle(Finished(name, first.number), 0.2)
    second = task_in(submitted(policy, "ab", 0, "words", 0.3))
    assert second.participants == ("a", "b")
    (refused,) = policy.handle(Finished("a", second.number), 0.4)
    assert isinstance(refused, Reject) and (refused.nodes, refused.behind) == (("c",), 1)


def test_rounds_wait_no_longer_than_half_of_their_time_for_measurements():
    policy = begun("ab")
    policy.held = True
    assert not submitted(policy, "ab", 0, "sum", 0.0)
    assert not policy.handle(Tick(), 29.0)
    assert task_in(policy.handle(Tick(), 30.0)).participants == ("a", "b")


def test_a_task_over_slow_links_is_done_again_when_there_is_another_plan():
    network, overdue = SiteNetwork(64), []
    policy = Rounds(network, sites=2, overdue=overdue.append)
    for name in "ab":
        assert policy.admit(name) is None and policy.activate(name) is None
    policy.begin_at(0)
    task = task_in(submitted(policy, "ab", 0, "sum", 0.0))
    assert not policy.handle(Tick(), 29.0) and not overdue
    assert not policy.handle(Tick(), 30.0) and not policy.handle(Tick(), 31.0) and overdue == [task]
    network.told("a", "b", 1.0)
    (abort,) = policy.handle(Tick(), 40.0)
    assert isinstance(abort, Abort) and policy.active == {"a", "b"}


# --- real sites ---


class Hold:
    """Keeps what a site sends to others, until it is released."""

    def __init__(self, group: SiteGroup) -> None:
        self._neighbours, self._loop = group.agent.neighbours, group.agent.loop
        self._send, self._kept = self._neighbours.send, []
        self._neighbours.send = lambda *given, **named: self._kept.append((given, named))

    def release(self) -> None:
        def go_on() -> None:
            self._neighbours.send = self._send
            for given, named in self._kept:
                self._send(*given, **named)

        self._loop.call_soon_threadsafe(go_on)


def test_a_site_leaves_a_round_that_others_do_and_takes_its_result_from_them():
    """The round's sums pass a link that stands still until a's time is over."""
    with coordinating(3, probe_seconds=0) as (coordinator, lines):
        groups = elastic.begun(coordinator, "abc")
        elastic.averaged(groups, 0)
        held = Hold(groups["c"])
        groups["a"].timeout = 1.0
        with ThreadPoolExecutor(3) as pool:
            values = {name: np.full(VALUES, ord(name), np.float32) for name in groups}
            futures = {name: pool.submit(groups[name].average, values[name], round=1) for name in groups}
            with pytest.raises(Late, match="a waits no longer; without all of it: a, b, c"):
                futures["a"].result(60)
            held.release()
            assert [futures[name].result(60).sites for name in "bc"] == [("a", "b", "c")] * 2
            assert values["b"][0] == values["c"][0] == 98.0
            for name in "bc":
                groups[name].offer(elastic.state(3), 2)
            groups["a"].timeout = 60.0
            with pytest.raises(Behind):
                groups["a"].average(np.zeros(VALUES, np.float32), round=1)
            assert groups["a"].agree(elastic.state(2), 1).round == 2
        assert elastic.averaged(groups, 2, bits=8)["a"][1].sites == ("a", "b", "c")
        assert any("goes on: a waits no longer" in line for line in lines)


def test_a_trainer_is_late_in_time_though_its_own_agent_is_busy(monkeypatch):
    """An agent that plans as a deputy, or has no processor, says nothing. Then the site goes on with the others."""
    monkeypatch.setattr(agent, "UNANSWERED_SECONDS", 0.1)
    with coordinating(2, probe_seconds=0) as (coordinator, _):
        groups = elastic.begun(coordinator, "ab")
        elastic.averaged(groups, 0)
        groups["a"].timeout, free = 0.3, threading.Event()
        groups["a"].agent.loop.call_soon_threadsafe(free.wait)
        try:
            with pytest.raises(Late, match="this site's own agent is too busy"):
                groups["a"].average(np.zeros(VALUES, np.float32), round=1)
        finally:
            free.set()
        groups["a"].timeout = 60.0
        assert groups["a"].agree(elastic.state(2), 1).round == 1  # else b does the round without it
        assert elastic.averaged(groups, 1)["a"][1].sites == ("a", "b")


@pytest.mark.timeout(200)
def test_a_process_that_stops_in_the_middle_of_a_round_is_left_out_and_comes_back(monkeypatch):
    """SIGSTOP: its host answers, so that no connection ends."""
    monkeypatch.setattr(liveness, "QUIET_SECONDS", 4.0)
    monkeypatch.setattr(site_rounds, "HALF", 0.12)
    monkeypatch.setattr(site_waiting, "HALF", 0.12)
    with coordinating(3, probe_seconds=0) as (coordinator, lines):
        where = f"127.0.0.1:{coordinator.address[1]}"
        command = [sys.executable, "-m", "inart", "site", "agent", "--coordinator", where, "--site", "c", "--rounds",
                   "100000", "--values", "50000"]  # fmt: skip
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
            try:
                groups = {name: elastic.joined(coordinator, name, timeout=60.0) for name in "ab"}
                nothing = np.zeros(8, np.uint8)
                with ThreadPoolExecutor(2) as pool:
                    list(pool.map(lambda group: group.agree(nothing, 0), groups.values()))

                    def round_(number: int) -> set[tuple[str, ...]]:
                        def one(group) -> tuple[str, ...]:
                            found = group.average(np.ones(50_000, np.float32), round=number)
                            group.offer(nothing, number + 1)
                            return found.sites

                        return set(pool.map(one, groups.values()))

                    assert round_(0) == {("a", "b", "c")}
                    process.send_signal(signal.SIGSTOP)
                    number = 1
                    while ("a", "b") not in (sites := round_(number)):
                        assert sites == {("a", "b", "c")}, "what was under way"
                        number += 1
                    process.send_signal(signal.SIGCONT)
                    until(lambda: "c" in coordinator.policy.active or process.poll() is not None)
            finally:
                process.kill()
        assert not any("goes on: " in line for line in lines), "nobody's time was over"


def test_a_round_that_breaks_at_once_is_done_again_after_pauses(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(group_module.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(group_module.time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    tried = []

    def synchronise(tensor, timeout, about):
        tried.append(now[0])
        now[0] += 0.01
        raise PeerLost("a and b cannot reach each other")

    agent = SimpleNamespace(node="a", synchronise=synchronise)
    with pytest.raises(Late, match="cannot reach each other"):
        SiteGroup(agent, timeout=60.0).average(np.ones(8, np.float32), round=0)
    assert tried[1] - tried[0] == pytest.approx(0.01), "once at once"
    assert 40 < len(tried) < 80 and now[0] <= 60.0, "and then not hundreds of times a second"
