"""An agent's readiness, and what it reports of its trees, each without an agent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controlplane.common.rpc import inart_pb2 as pb
from ps_server.__main__ import ParameterServer
from tests.deploy.job import configs
from worker_agent.agent import Agent
from worker_agent.errors import AgentError, NotReadyError
from worker_agent.readiness import Readiness
from worker_agent.reporter import Reporter

CONFIG = replace(configs("127.0.0.1")["w1"], epoch=7)
SECONDS = 20.0


def test_who_waits_gets_the_configuration_once_the_agent_begins() -> None:
    state = Readiness("no answer yet")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(state.wait, SECONDS)
        state.begin(CONFIG)
        assert waiting.result(SECONDS) is CONFIG
    assert state.ready and not state.problem


def test_who_waits_in_vain_is_told_what_is_missing_and_why_the_last_epoch_ended() -> None:
    state = Readiness("no answer yet")
    with pytest.raises(NotReadyError, match="no answer yet"):
        state.wait(0)
    state.begin(CONFIG)
    state.stop("w2 is gone")
    state.wait_for_others("waiting for w2")
    with pytest.raises(NotReadyError, match="w2 is gone; waiting for w2"):
        state.wait(0)
    state.begin(CONFIG)
    assert not state.problem


def test_an_agent_that_runs_goes_on_without_its_controller() -> None:
    state = Readiness("no answer yet")
    state.begin(CONFIG)
    state.miss_controller("it does not answer")
    assert state.ready
    state.stop("w2 is gone")
    state.miss_controller("it does not answer")
    assert state.problem == "it does not answer"


def test_only_an_agent_that_runs_can_give_up_its_epoch() -> None:
    state = Readiness("no answer yet")
    assert not state.stop_if_ready("a timeout")
    assert state.problem == "no answer yet"
    state.begin(CONFIG)
    assert state.stop_if_ready("a timeout")
    assert not state.stop_if_ready("another")
    assert state.problem == "a timeout"


def test_a_failure_is_raised_for_everybody_who_waits() -> None:
    state = Readiness("no answer yet")
    state.fail(AgentError("refused"))
    with pytest.raises(AgentError, match="refused"):
        state.wait(SECONDS)
    with pytest.raises(AgentError, match="refused"):
        state.wait_change(SECONDS)


class Reports:
    """An agent of one tree whose oldest chunk never changes; it counts the looks and keeps the reports."""

    def __init__(self, fails: int = 0) -> None:
        self.sent: list[tuple[Mapping[str, float], Sequence[pb.TreeReport]]] = []
        self.looks, self._fails, self._news = 0, fails, threading.Condition()

    def open_chunks(self) -> dict[int, int]:
        self.looks += 1
        if self.looks <= self._fails:
            raise AgentError("it has no engine just now")
        return {3: 40}

    def statistics(self) -> Any:
        return {"resent": 2.0}, [pb.TreeReport(tree=3, oldest_chunk=40), pb.TreeReport(tree=4)]

    def send(self, statistics: Mapping[str, float], trees: Sequence[pb.TreeReport]) -> None:
        with self._news:
            self.sent.append((statistics, trees))
            self._news.notify_all()

    def wait(self, count: int) -> bool:
        with self._news:
            return self._news.wait_for(lambda: len(self.sent) >= count, SECONDS)


@pytest.mark.parametrize("fails", [0, 2])
def test_a_tree_that_is_stuck_is_reported_with_how_long_it_waits(fails: int) -> None:
    reports = Reports(fails)
    reporter = Reporter(lambda: True, reports.open_chunks, reports.statistics, reports.send)
    reporter.start()
    try:
        assert reports.wait(2)
    finally:
        reporter.close()
    (statistics, (stuck, other)), (_, (later, _)) = reports.sent[:2]
    assert statistics == {"resent": 2.0}
    assert 0 < stuck.waiting_seconds < later.waiting_seconds
    assert not other.waiting_seconds


def test_nothing_is_looked_at_while_the_agent_does_not_run() -> None:
    reports, asked = Reports(), threading.Semaphore(0)

    def running() -> bool:
        asked.release()
        return False

    reporter = Reporter(running, reports.open_chunks, reports.statistics, reports.send)
    reporter.start()
    assert all(asked.acquire(timeout=SECONDS) for _ in range(3))
    reporter.close()
    assert not reports.looks and not reports.sent


@pytest.mark.parametrize("start", [lambda: ParameterServer("127.0.0.1:1", "s1"), lambda: Agent("127.0.0.1:1", "w1")])
def test_an_engine_that_cannot_be_compiled_is_said_before_the_agent_joins(
    start: Callable[[], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine is compiled before anybody waits for the agent, which would count as hanging meanwhile."""
    monkeypatch.setenv("INART_CACHE", str(tmp_path))
    monkeypatch.setenv("CC", "false")
    with pytest.raises(AgentError, match="false"):
        start()
