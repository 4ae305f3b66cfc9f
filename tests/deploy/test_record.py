"""`inart log`: who did what on a network, when, and what changed; a controller that starts again still knows it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controlplane.cli.controller import main as operate
from controlplane.cli.log import parse_time
from controlplane.common.access import Access, Caller
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.common.rpc.client import ControllerError, ask
from controlplane.common.rpc.tls import Tls
from controlplane.planner.generators import leaf_spine
from controlplane.service import record
from controlplane.service.core.disabled import Why
from controlplane.service.core.journal import orders_of
from controlplane.service.record import Recorder
from tests.deploy.memory_network import MemoryNetwork

NETWORK = leaf_spine(2, 2, 3, 300.0)
A = {"name": "A", "workers": ["h1", "h4"], "parameter_servers": ["h2"], "model_bytes": "any"}
ALICE, GRAFANA = "alice" * 4, "grafana" * 4
Order = Callable[..., list[dict]]


class Rig(MemoryNetwork):
    """A network in memory, its controller, which knows alice and a viewer by their tokens, and its record."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.recorder = folder, Recorder(folder / "log")
        super().__init__(folder, NETWORK, recorder=self.recorder)
        tokens = {ALICE: Caller("operator", "alice"), GRAFANA: Caller("viewer", "grafana")}
        self.address = self.serve(access=Access(tokens))
        for name, token in (("alice", ALICE), ("grafana", GRAFANA)):
            (folder / name).write_text(token)

    def order(self, *words: str, who: str = "alice") -> int:
        return operate([*words, "--controller", self.address, "--token", str(self.folder / who)])


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    (tmp_path / "A.json").write_text(json.dumps(A))
    yield made
    made.close()


@pytest.fixture
def log(rig: Rig, capsys) -> Order:
    def read(*words: str) -> list[dict]:
        capsys.readouterr()
        assert rig.order("log", "--json", *words) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return read


def test_the_log_names_who_ordered_what_and_what_it_changed(rig, log, tmp_path, capsys):
    """A job is added, a switch drained, one fails, an order is refused, the job is removed: all by whom it was."""
    assert rig.order("job", "add", "--job", str(tmp_path / "A.json")) == 0
    assert rig.order("drain", "s1") == 0
    rig.network.failover.lose({"s2": "switch s2 does not answer"}, Why.LOST)
    assert rig.order("undrain", "nothing") == 1
    assert rig.order("job", "remove", "A") == 0
    found = log()
    orders = [one for one in found if one["kind"] == "order"]
    assert [one["by"] for one in orders] == ["operator alice"] * 4
    assert [one["text"].split()[0] for one in orders] == ["job", "replan", "replan", "job"]
    assert all(one["data"]["seconds"] >= 0 for one in orders), "how long each took"
    assert orders[1]["text"].startswith("replan without=s1")
    assert "refused: nothing is not disabled" in orders[2]["text"]
    parts = [one for one in found if one["kind"] == "parts"]
    assert [(one["by"], one["data"]["event"]) for one in parts][:2] == [
        ("operator alice", "Ordered"),
        ("the controller", "Failed"),
    ]
    assert parts[0]["data"]["off"].keys() == {"s1"} and "s2 is disabled" in parts[1]["text"]
    entries = [one for one in found if one["kind"] == "entries" and one["by"] == "operator alice"]
    assert entries and set(entries[0]["data"]) <= set(NETWORK.switches), "what changed on which switch"
    assert all(number > 0 for number in entries[0]["data"].values())
    assert [one["number"] for one in found] == sorted(one["number"] for one in found)
    of_a = log("--job", "A")
    assert of_a and all(one["job"] == "A" for one in of_a)
    ordered = [one["text"].split()[:2] for one in of_a if one["kind"] == "order"]
    assert ordered == [["job", "add"], ["job", "remove"]], "the orders about it, from the first"
    assert any(one["kind"] == "Closed" and one["by"] == "operator alice" for one in of_a), "events of its agents, too"
    rig.order("log")
    assert "operator alice  order  replan without=s1" in capsys.readouterr().out


def test_an_order_for_a_job_that_is_refused_is_in_the_jobs_log(rig, log, tmp_path, capsys):
    assert rig.order("job", "add", "--job", str(tmp_path / "A.json"), "--guarantee", "100000") == 1
    (refused,) = log("--job", "A", "--level", "warning")
    assert refused["kind"] == "order" and ": refused: " in refused["text"] and refused["level"] == "warning"
    rig.order("log", "--level", "warning")
    assert "WARNING  operator alice  job A  order  job add" in capsys.readouterr().out


def test_only_operators_read_it(rig, capsys):
    assert rig.order("log", who="grafana") == 1
    assert "viewer grafana may not read the log" in capsys.readouterr().err
    with pytest.raises(ControllerError):
        ask(rig.address, "log", pb.LogRequest(), Tls(token=rig.folder / "grafana"))


def test_a_controller_that_starts_again_goes_on_with_the_record(rig, tmp_path):
    assert rig.order("drain", "s1") == 0
    before = rig.recorder.read().entries
    again = Recorder(tmp_path / "log")
    assert again.read().entries == before
    again.line("job A: back")
    (entry,) = again.read(before[-1].number).entries
    assert (entry.number, entry.job, entry.by) == (before[-1].number + 1, "A", "the controller")
    assert (tmp_path / "log" / "log.jsonl").stat().st_mode & 0o077 == 0


def test_pages_follow_each_other_without_gap_and_the_oldest_part_goes(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "PART_BYTES", 2000)
    monkeypatch.setattr(record, "PARTS", 3)
    monkeypatch.setattr(record, "IN_MEMORY", 5)
    recorder = Recorder(tmp_path)
    for number in range(100):
        with orders_of(f"operator {number}"):
            recorder.add("order", "x" * 20, job="A" if number % 2 else "B")
    assert len(list(tmp_path.iterdir())) <= 3
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 3 * 2200
    found: list[record.Entry] = []
    after, more = 0, True
    while more:
        page = recorder.read(after, most=7)
        assert len(page.entries) <= 7
        found += page.entries
        after, more = page.next, page.more
    numbers = [entry.number for entry in found]
    assert numbers == list(range(numbers[0], 101)) and 1 < numbers[0] < 90
    assert found[-1].by == "operator 99"
    assert {entry.job for entry in recorder.read(job="A").entries} == {"A"}
    assert recorder.read(100).next == 100, "whoever follows asks after this one"


def test_a_line_that_was_cut_off_by_a_power_failure_is_passed_over(tmp_path):
    Recorder(tmp_path).line("first")
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"number": 2, "time": 1.0, "by"')
    recorder = Recorder(tmp_path)
    recorder.line("after")
    recorder.line("and more")
    assert [entry.text for entry in Recorder(tmp_path).read().entries] == ["first", "after", "and more"]


def test_a_full_disk_is_said_once_and_the_latest_entries_are_still_there(tmp_path):
    said: list[str] = []
    (tmp_path / "log").write_text("a file where the folder should be")
    recorder = Recorder(tmp_path / "log", said.append)
    recorder.line("one")
    recorder.line("two")
    assert len(said) == 1 and "cannot be written" in said[0]
    assert [entry.text for entry in recorder.read().entries] == ["one", "two"]


def test_times_are_ago_or_dates():
    assert time.time() - parse_time("2h") == pytest.approx(7200, abs=60)
    assert parse_time("2026-11-23T12:00+00:00") == 1795435200
    with pytest.raises(ValueError, match="a time is like"):
        parse_time("yesterday")
