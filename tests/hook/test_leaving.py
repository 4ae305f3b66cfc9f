"""A rank that is gone ends the operations that wait for it within seconds; one that takes its time is waited for."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.hook.conftest import Network
from tests.hook.processes import Rank
from tests.hook.test_training import start_agents
from tests.support.examples import nightly
from worker_agent.torch import presence
from worker_agent.torch.journal import Journal

LEFT = "rank 1 has left the process group after operation 1, and operation 2 (allreduce SUM of {} float32) waits for it"


def _start(scenario: str, network: Network, folder: Path, **arguments) -> list[Rank]:
    network.run_server()
    store = str(folder / "store")
    agents = start_agents(network)
    return [Rank(scenario, rank=rank, store=store, **own, **arguments) for rank, own in enumerate(agents)]


@pytest.mark.namespaces
@pytest.mark.parametrize(
    ("how", "values", "said"),
    [
        ("leaves", 5000, LEFT),
        nightly("leaves", 200_000, LEFT),
        nightly("aborts", 5000, "the process group was aborted"),
        ("aborts", 200_000, "the process group was aborted"),
    ],
)
def test_an_operation_whose_rank_is_gone_ends_with_an_error_and_the_next_group_works(
    network, tmp_path, how, values, said
):
    waits, other = _start("gone", network, tmp_path, how=how, values=values)
    assert waits.receive() == "waits"
    if how == "leaves":
        other.connection.send("leave")
    assert waits.receive() == "ended"
    for rank in (waits, other):
        rank.connection.send("again")
    results = [waits.result(), other.result()]
    error, _, later = results[0]["error"].partition("; after it: ")
    said = said.format(values)
    assert said in error
    assert said in later, "nothing more is taken, and nothing of it goes over gloo alone"
    for result in results:
        assert (result["sum"], result["in_network"]) == (3.0, True)


@pytest.mark.namespaces
def test_a_rank_that_takes_its_time_is_waited_for(network, tmp_path):
    first, second = _start("silent", network, tmp_path)
    assert first.receive() == "looked"
    second.connection.send("begin")
    results = [first.result(), second.result()]
    assert results[0]["found"] == [("", False)] * 10
    for result in results:
        assert (result["sum"], result["in_network"]) == (2.0, True)


def test_a_store_that_fails_for_a_moment_ends_nothing(monkeypatch):
    """An operation under way goes on when the store answers again; it ends when the store stays away."""
    monkeypatch.setattr(presence, "LOOK_SECONDS", 0.001)
    answers, ended, looked = iter([OSError("no answer"), False] * 20), threading.Event(), threading.Event()

    class Store:
        def check(self, keys: list[str]) -> bool:
            answer = next(answers, None)
            if answer is None:
                looked.set()
                raise OSError("gone")
            if isinstance(answer, OSError):
                raise answer
            assert not ended.is_set()
            return False

    journal = Journal()
    journal.begin(lambda: "a sum", 1e9).began -= 1e6
    present = presence.Presence(
        "g", Store(), 0, journal=journal, end=lambda error: ended.set(), late=list, patience=0.05
    )
    assert looked.wait(30), "it was never ended while the store failed every other time"
    assert ended.wait(30), "the store is gone for good"
    present.leave()
