"""Operations run over one engine and then over the next: none is lost, doubled, or summed under the wrong plan."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from worker_agent.collectives import SUM, Collective
from worker_agent.errors import AbortedError, AgentError, AllReduceError
from worker_agent.operands import HostArray, host_array
from worker_agent.relay import Relay
from worker_agent.work import Work

SECONDS = 10.0


class Engine:
    """Accepts operations and ends them when told to."""

    def __init__(self, config: Any) -> None:
        self.config = config
        self.works: list[tuple[int, Work]] = []
        self.arrays: list[np.ndarray] = []
        self.aborted = ""
        self.closed = threading.Event()
        self.broken = ""

    def submit(self, memory: HostArray, op: Collective) -> Work:
        if self.broken or self.aborted:
            raise AbortedError(self.broken or self.aborted)
        array = memory.owner.view(memory.owner.dtype if op.raw else memory.dtype)
        work = Work(array.size, array.nbytes)
        self.works.append((int(array[0]), work))
        self.arrays.append(array)
        return work

    def end(self) -> None:
        for _, work in self.works:
            if not work.done():
                work.finish(None)

    def abort(self, reason: str) -> None:
        self.aborted = reason
        for _, work in self.works:
            if not work.done():
                work.finish(AbortedError(reason))

    def reconfigure(self, config: Any, reason: str) -> None:
        self.config, self.aborted = config, ""

    def close(self) -> None:
        self.abort("closed")
        self.closed.set()

    @property
    def taken(self) -> list[int]:
        return [number for number, _ in self.works]


class Rig:
    """A relay over such engines."""

    def __init__(self) -> None:
        self.drained = threading.Event()
        self.engines: list[Engine] = []
        self.relay = Relay(self.drained.set)
        self.relay.configure("one", self.make, "")
        self.submitted: list[Work] = []

    def make(self, config: Any) -> Any:
        self.engines.append(Engine(config))
        return self.engines[-1]

    def submit(self, count: int = 1) -> None:
        for _ in range(count):
            self.submitted.append(self.relay.submit(host_array(np.full(3, len(self.submitted), np.float32)), SUM))


@settings(deadline=None)
@given(before=st.integers(0, 4), held=st.integers(0, 5), ahead=st.integers(0, 5), after=st.integers(0, 5))
def test_every_operation_goes_to_its_plan_in_order(before, held, ahead, after):
    rig = Rig()
    rig.submit(before)
    assert rig.relay.prepare("two", rig.make) == before
    rig.submit(held)
    old, new = rig.engines
    assert old.taken == list(range(before)), "held operations have not started"
    first = before + ahead  # This is the position of the worker that is furthest ahead.
    rig.relay.switch_over(first)
    rig.submit(after)
    total = before + held + after
    assert old.taken == list(range(min(first, total)))
    assert new.taken == list(range(first, total))
    old.end()
    if total >= first:
        assert rig.drained.wait(SECONDS)
        assert old.closed.is_set()
        assert rig.relay.engine is new
    else:
        assert not rig.drained.is_set()
        assert not old.closed.is_set()
    new.end()
    assert all(work.done() and work.exception() is None for work in rig.submitted)


def test_old_engine_stays_until_its_last_operation_is_done():
    rig = Rig()
    rig.submit(2)
    rig.relay.prepare("two", rig.make)
    rig.relay.switch_over(2)
    old = rig.engines[0]
    old.works[0][1].finish(None)
    assert not old.closed.is_set()
    with pytest.raises(AgentError, match="has not ended"):
        rig.relay.prepare("three", rig.make)
    old.end()
    assert rig.drained.wait(SECONDS)
    assert rig.relay.prepare("three", rig.make) == 0


def test_withdrawn_update_leaves_everything_with_the_old_engine():
    rig = Rig()
    rig.submit()
    rig.relay.prepare("two", rig.make)
    rig.submit(2)
    rig.relay.withdraw()
    rig.submit()
    old, new = rig.engines
    assert old.taken == [0, 1, 2, 3]
    assert new.taken == []
    assert new.closed.is_set()
    assert not old.closed.is_set()


@pytest.mark.parametrize("switched", [False, True])
def test_stop_in_the_middle_ends_all_operations_with_its_reason(switched):
    rig = Rig()
    rig.submit(2)
    rig.relay.prepare("two", rig.make)
    rig.submit()
    if switched:
        rig.relay.switch_over(2)
    rig.relay.abort("w3 is gone")
    for work in rig.submitted:
        assert isinstance(work.exception(), AbortedError)
        assert "w3 is gone" in str(work.exception())
    with pytest.raises(AbortedError, match="w3 is gone"):
        rig.submit()
    rig.relay.configure("three", rig.make, "epoch 3")
    rig.submit()
    running = rig.relay.engine
    assert running is not None and running.config == "three"
    assert all(engine.closed.is_set() for engine in rig.engines if engine is not running)


def test_held_operation_that_cannot_start_fails_and_says_why():
    rig = Rig()
    rig.relay.prepare("two", rig.make)
    rig.submit()
    rig.engines[0].broken = "no memory"
    rig.relay.switch_over(1)
    assert isinstance(rig.submitted[0].exception(), AllReduceError)
    assert "no memory" in str(rig.submitted[0].exception())


def test_switch_over_in_the_past_is_refused():
    rig = Rig()
    rig.submit(2)
    rig.relay.prepare("two", rig.make)
    with pytest.raises(AgentError, match="cannot switch over at operation 1"):
        rig.relay.switch_over(1)


def test_operations_from_many_threads_each_start_once():
    rig = Rig()
    rig.relay.prepare("two", rig.make)
    threads = [threading.Thread(target=rig.submit, args=(50,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    rig.relay.switch_over(100)
    for thread in threads:
        thread.join()
    assert [len(engine.taken) for engine in rig.engines] == [100, 100]


def test_a_timeout_tells_the_time_that_was_asked_for():
    work = Work(256, 1024)
    work.fetched_by(lambda timeout: threading.Event().wait(timeout))
    with pytest.raises(TimeoutError, match=r"256 elements is not done after 0\.05 s"):
        work.wait(0.05)
