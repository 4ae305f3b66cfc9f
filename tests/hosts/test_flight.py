"""The flight recorder: what it keeps is a Chrome trace, and a failure writes it."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from controlplane.common.rpc import inart_pb2 as pb
from worker_agent import flight as module
from worker_agent.errors import ProgressTimeoutError
from worker_agent.flight import FlightRecorder
from worker_agent.work import Work


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FlightRecorder:
    monkeypatch.delenv("INART_TRACE", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    made = FlightRecorder()
    made.node = "w1"
    return made


def written(path: Path | None) -> list[dict[str, Any]]:
    """Return a file's events, with the names of their lanes in the place of numbers."""
    assert path is not None
    events = json.loads(path.read_text())
    lanes = {one["tid"]: one["args"]["name"] for one in events if one["name"] == "thread_name"}
    assert [one["args"]["name"] for one in events if one["name"] == "process_name"] == ["w1"]
    return [one | {"tid": lanes[one["tid"]]} for one in events if one["ph"] != "M"]


def of(events: list[dict[str, Any]], lane: str) -> list[dict[str, Any]]:
    return [one for one in events if one["tid"] == lane and one["ph"] == "X"]


def operation(recorder: FlightRecorder, began: float, error: ProgressTimeoutError | None = None) -> None:
    work = Work(1000, 4000)
    if error is None:
        work.first_send, work.last_answer = began + 0.01, began + 0.03
    work.finish(error)
    recorder.operation(work, "sum", began, 7)


def test_an_operation_waits_in_the_agent_and_is_then_in_the_network(recorder):
    began = time.monotonic() - 0.05
    operation(recorder, began)
    events = written(recorder.dump("the test"))
    (whole,), (inside,) = of(events, "operations"), of(events, "in the network")
    assert inside["ts"] - whole["ts"] == pytest.approx(10_000, abs=1)
    assert inside["dur"] == pytest.approx(20_000, abs=1)
    assert whole["args"] == {"bytes": 4000, "epoch": 7}
    assert abs(whole["ts"] / 1e6 - time.time()) < 60, "microseconds since 1970"


def test_an_operation_that_failed_says_why_and_was_in_no_network(recorder):
    operation(recorder, time.monotonic() - 1, ProgressTimeoutError("no progress on tree 8"))
    events = written(recorder.dump("the test"))
    assert of(events, "operations")[0]["args"]["error"] == "no progress on tree 8"
    assert not of(events, "in the network")


def test_a_tree_that_waits_says_for_how_long_and_whom_its_root_lacks(recorder):
    now = time.monotonic()
    recorder.counted({"resent": 5.0}, [pb.TreeReport(tree=3, missing=["w2", "w4"])])
    recorder.trees({3: (17, now), 4: (9, now)}, now)
    recorder.trees({3: (17, now), 4: (10, now + 0.1)}, now + 0.1)
    recorder.trees({4: (10, now + 0.1)}, now + 2.0)
    recorder.counted({"resent": 8.0}, [])
    events = written(recorder.dump("the test"))
    (waited,) = of(events, "tree 3")
    assert waited["name"] == "waits for chunk 17" and waited["dur"] == pytest.approx(2e6)
    assert waited["args"]["root lacks"] == "w2, w4"
    assert [one["args"]["packets"] for one in events if one["ph"] == "C"] == [5.0, 3.0]


def test_what_waits_when_it_is_written_is_in_it(recorder):
    now = time.monotonic()
    recorder.moment("operations", "epoch 7 begins")
    recorder.trees({8: (0, now - 60)}, now)
    (waited,) = of(written(recorder.dump("gave up")), "tree 8")
    assert waited["dur"] == pytest.approx(60e6, rel=0.01)


def test_failures_that_follow_each_other_write_one_file(recorder, monkeypatch):
    operation(recorder, time.monotonic() - 1)
    assert recorder.dump("first") is not None
    assert recorder.dump("second") is None
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.0)
    assert recorder.dump("later") is not None


def test_only_the_latest_files_and_events_stay(recorder, monkeypatch, tmp_path):
    monkeypatch.setattr(module, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(module, "MOST_FILES", 2)
    clock = iter(range(1_800_000_000, 1_800_000_100))
    monkeypatch.setattr(module.time, "time", lambda: float(next(clock)))
    for _ in range(module.MOST_EVENTS + 5):
        recorder.moment("steps", "one")
    paths = [recorder.dump("again") for _ in range(4)]
    left = list((tmp_path / "inart" / "flight").iterdir())
    assert len(left) == 2 and all(path in paths for path in left)
    assert len([one for one in recorder.events() if one["ph"] != "M"]) == module.MOST_EVENTS


def test_a_folder_that_cannot_be_written_is_no_failure(recorder, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("INART_TRACE", str(tmp_path / "file" / "folder"))
    operation(recorder, time.monotonic() - 1)
    assert recorder.dump("the test") is None
