"""Operations start in the order of their places, and each caller hears of its own, whatever is ready, fails or is
closed when: the queue itself, and a process's, a node's and its trainers' use of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.support.waiting import wait_until
from worker_agent.collectives import SUM, Collective
from worker_agent.errors import AbortedError, AllReduceError
from worker_agent.lane import Lane
from worker_agent.operands import HostArray, host_array
from worker_agent.ordered_queue import OrderedQueue, Place
from worker_agent.team import Team
from worker_agent.work import Work

SECONDS = 10.0
GOOD, REFUSED, BROKEN = "good", "refused", "broken"


@dataclass
class Starts:
    """Starts operations, each of whose arrays has its number; those in `fates` are refused, or find no engine."""

    fates: dict[int, str] = field(default_factory=dict)
    works: dict[int, Work] = field(default_factory=dict)
    errors: dict[int, AllReduceError] = field(default_factory=dict)

    def __call__(self, memory: HostArray, op: Collective) -> Work:
        number = int(memory.owner[0])
        fate = self.fates.get(number, GOOD)
        if fate == REFUSED:
            raise ValueError(f"{number} cannot be")
        if fate == BROKEN:
            raise self.errors.setdefault(number, AllReduceError(f"no engine for {number}"))
        self.works[number] = Work(1, 4)
        return self.works[number]


def array(number: int) -> HostArray:
    return host_array(np.full(1, number, np.float32))


@dataclass
class Order:
    """A queue, and for each place what its caller has of it: a handle, or the error that was raised."""

    fates: dict[int, str]
    got: dict[int, Work | Exception] = field(default_factory=dict)
    open: dict[int, Place] = field(default_factory=dict)  # places that are not filled yet

    def __post_init__(self) -> None:
        self.starts = Starts(self.fates)
        self.queue = OrderedQueue(self.starts)
        self.count = 0

    def ask(self, number: int, call: Callable[[], Work]) -> None:
        try:
            self.got[number] = call()
        except (AllReduceError, ValueError) as error:
            self.got[number] = error

    def submit(self) -> None:
        number, self.count = self.count, self.count + 1
        self.ask(number, lambda: self.queue.submit(array(number), SUM))

    def reserve(self, with_work: bool) -> None:
        number, self.count = self.count, self.count + 1
        work = Work(1, 4) if with_work else None
        self.open[number] = self.queue.reserve(work)
        if work is not None:
            self.got[number] = work

    def fill(self, number: int) -> None:
        place = self.open.pop(number)
        if place.work is not None:
            self.queue.fill(place, array(number), SUM)
        else:
            self.ask(number, lambda: self.queue.fill(place, array(number), SUM))

    def failure(self, number: int) -> Exception | None:
        got = self.got[number]
        return got if isinstance(got, Exception) else got.exception()

    def check(self) -> None:
        started = list(self.starts.works)
        assert started == sorted(started), "in the order of the places"
        first = min(self.open, default=self.count)
        for number, got in self.got.items():
            failed = self.failure(number)
            if number in self.starts.works:
                assert failed is None
                assert isinstance(got, Work)
                assert not got.done(), "before the operation itself"
            elif failed is None:
                assert number >= first, "it waits for nothing else"
            elif isinstance(failed, AllReduceError) and failed in self.starts.errors.values():
                cause = next(one for one, error in self.starts.errors.items() if error is failed)
                assert cause <= number, "an error ends only what follows"
            else:
                assert self.fates.get(number) == REFUSED
                assert f"{number} cannot be" in str(failed)


MOVES = st.lists(st.tuples(st.sampled_from(["submit", "reserve", "handle", "fill", "skip"]), st.integers(0, 5)))
FATES = st.dictionaries(st.integers(0, 12), st.sampled_from([REFUSED, BROKEN]), max_size=4)


def move(order: Order, what: str, which: int) -> None:
    if what == "submit":
        order.submit()
    elif what in ("reserve", "handle"):
        order.reserve(what == "handle")
    elif order.open:
        number = sorted(order.open)[which % len(order.open)]
        if what == "fill":
            order.fill(number)
        elif order.open[number].work is None:
            order.queue.skip(order.open.pop(number))


@given(moves=MOVES, fates=FATES)
def test_operations_start_in_the_order_of_their_places(moves: list[tuple[str, int]], fates: dict[int, str]) -> None:
    order = Order(fates)
    for what, which in moves:
        waiting = [number for number in order.got if order.failure(number) is None and number not in order.starts.works]
        before = set(order.starts.errors)
        move(order, what, which)
        if new := set(order.starts.errors) - before:
            ended = [number for number in waiting if number > max(new)]
            assert all(order.failure(number) is not None for number in ended), "all that waited behind it"
        for number in [one for one in order.open if one in order.got and order.failure(one) is not None]:
            del order.open[number]  # an error ended it before its operation was there
        order.check()
    for number in sorted(order.open):
        order.fill(number)
    order.check()
    for number, work in order.starts.works.items():
        work.finish(None)
        got = order.got[number]
        assert isinstance(got, Work)
        assert got.done()
        assert got.exception() is None
    assert all(isinstance(got, Exception) or got.done() for got in order.got.values()), "none is forgotten"


@given(moves=MOVES, fates=FATES)
def test_a_closed_queue_ends_what_waits_and_what_comes(moves: list[tuple[str, int]], fates: dict[int, str]) -> None:
    order = Order(fates)
    for what, which in moves:
        move(order, what, which)
    waiting = [number for number in order.got if order.failure(number) is None and number not in order.starts.works]
    started = list(order.starts.works)
    assert order.queue.close("w3 is gone")
    assert not order.queue.close("again")
    order.submit()
    waiting.append(order.count - 1)
    for number in sorted(order.open):
        order.fill(number)
        waiting.append(number)
    for number in waiting:
        failed = order.failure(number)
        if failed not in order.starts.errors.values():
            assert isinstance(failed, AbortedError)
            assert str(failed) == "w3 is gone"
    with pytest.raises(AbortedError, match="w3 is gone"):
        order.queue.reserve()
    assert list(order.starts.works) == started, "nothing starts any more"


@given(count=st.integers(1, 6), first=st.integers(0, 5), kept=st.integers(0, 5))
def test_waiting_operations_are_taken_from_one_on(count: int, first: int, kept: int) -> None:
    order = Order({})
    for _ in range(count):
        order.reserve(True)
    places = dict(order.open)
    at = min(first, count - 1)
    taken = order.queue.take_waiting(places[at])
    assert taken == [places[number].work for number in range(at, count)]
    assert order.queue.take_waiting(places[at]) == [], "it is gone already"
    for number in range(count):
        order.fill(number)
    assert list(order.starts.works) == list(range(at))


def test_an_array_that_cannot_be_reduced_is_refused_while_others_wait() -> None:
    order = Order({})
    order.reserve(False)
    with pytest.raises(TypeError, match="cannot all-reduce complex64"):
        order.queue.submit(np.zeros(3, np.complex64), SUM)
    order.submit()
    order.fill(0)
    assert list(order.starts.works) == [0, 1], "it has no place"


@pytest.mark.parametrize("skipped", [False, True])
def test_whoever_hears_of_an_end_may_wait_for_another_thread_that_submits(skipped: bool) -> None:
    """A callback of an operation that waited takes a lock that another thread holds while it submits."""
    order = Order({1: BROKEN})
    order.reserve(False)
    order.submit()
    submitted = threading.Event()

    def heard(_: Work) -> None:
        threading.Thread(target=lambda: (order.submit(), submitted.set())).start()
        assert submitted.wait(SECONDS)

    handle = order.got[1]
    assert isinstance(handle, Work)
    handle.add_done_callback(heard)
    if skipped:
        order.queue.skip(order.open.pop(0))
    else:
        order.fill(0)
    assert submitted.is_set()


# -- a process's lane --------------------------------------------------------------------------------------------------


def lane_of_tensors(starts: Starts) -> Lane:
    return Lane(lambda tensor, op: starts(host_array(tensor), op))


@given(late=st.lists(st.booleans(), min_size=1, max_size=8))
def test_tensors_that_are_ready_later_keep_their_place(late: list[bool]) -> None:
    starts, release = Starts(), threading.Event()
    lane = lane_of_tensors(starts)
    works = []
    for number, later in enumerate(late):
        tensor = torch.full((1,), float(number))

        def ready(tensor: torch.Tensor = tensor) -> torch.Tensor:
            assert release.wait(SECONDS)
            return tensor

        works.append(lane.submit_later(ready, SUM, 1, 4) if later else lane.submit(tensor, SUM))
    assert list(starts.works) == list(range(late.index(True) if True in late else len(late)))
    release.set()
    lane.close()
    wait_until(lambda: len(starts.works) == len(late))
    assert list(starts.works) == list(range(len(late)))
    for work in starts.works.values():
        work.finish(None)
    wait_until(lambda: all(work.done() for work in works))


def test_a_tensor_that_never_gets_ready_ends_what_waits_for_it_and_what_comes() -> None:
    starts, release = Starts(), threading.Event()
    lane = lane_of_tensors(starts)

    def never() -> Any:
        assert release.wait(SECONDS)
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    works = [lane.submit_later(never, SUM, 1, 4), lane.submit(torch.ones(1), SUM)]
    release.set()
    lane.close()
    wait_until(lambda: all(work.done() for work in works))
    for work in works:
        assert isinstance(work.exception(), AllReduceError)
        assert "illegal memory access" in str(work.exception())
    with pytest.raises(AbortedError, match=r"could not begin before this one.*illegal memory access"):
        lane.submit(torch.ones(1), SUM)
    with pytest.raises(AbortedError, match="could not begin before this one"):
        lane.submit_later(lambda: torch.ones(1), SUM, 1, 4)
    assert not starts.works, "the other workers would add one to another operation of theirs"


# -- a node's trainers -------------------------------------------------------------------------------------------------


class Agent:
    """The agent of a node, for a team."""

    problem = ""

    def __init__(self, fates: dict[int, str]) -> None:
        self.submit = Starts(fates)
        self.listeners: list[Callable[[str], None]] = []

    def wait_ready(self, timeout: float) -> Any:
        return SimpleNamespace(epoch=1, workers=("w1", "w2"), node="w1", index=0, values_per_packet=64)

    def on_stop(self, listener: Callable[[str], None], *, remove: bool = False) -> None:
        (self.listeners.remove if remove else self.listeners.append)(listener)

    def late(self) -> list[str]:
        return ["w2"]


@pytest.fixture(autouse=True)
def ways(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker_agent.team.Ways", SimpleNamespace(of=lambda config: None))


@given(
    size=st.integers(1, 4),
    rounds=st.integers(1, 4),
    calls=st.lists(st.integers(0, 3), max_size=20),
    refused=st.sets(st.integers(0, 12), max_size=3),
)
def test_trainers_take_turns_in_whatever_order_they_come(
    size: int, rounds: int, calls: list[int], refused: set[int]
) -> None:
    """An operation that is refused has had its turn, so that all nodes have the same order."""
    agent: Any = Agent(dict.fromkeys(refused, REFUSED))
    team = Team(agent, size)
    counts = [0] * size
    for member in [call % size for call in calls] + sorted(list(range(size)) * (rounds + len(calls)), reverse=True):
        if counts[member] < rounds:
            number = counts[member] * size + member
            counts[member] += 1
            try:
                work = team.submit(member, array(number), SUM)
            except ValueError:
                assert number in refused
                continue
            assert work.exception() is None or number in refused
        behind = [f"local rank {one} of w1" for one, count in enumerate(counts) if count < max(counts)]
        assert team.late() == (behind or ["w2"])
    assert list(agent.submit.works) == [number for number in range(size * rounds) if number not in refused]


def test_a_team_ends_with_its_epoch() -> None:
    agent: Any = Agent({})
    team = Team(agent, 2)
    heard: list[str] = []
    team.on_end(heard.append)
    waiting = team.submit(1, array(1), SUM)
    agent.listeners[0]("epoch 2 has begun")
    assert str(waiting.exception()) == "epoch 2 has begun"
    assert heard == [team.ended] == ["epoch 2 has begun"]
    team.on_end(heard.append)
    assert heard == ["epoch 2 has begun"] * 2
    assert not agent.listeners
    for member in (0, 1):
        with pytest.raises(AbortedError, match="epoch 2 has begun"):
            team.submit(member, array(0), SUM)
    assert not agent.submit.works
