"""The events of a job can be read from a file afterwards: who has done what, and with what result."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.cli.controller import main as operate
from controlplane.planner.job import Job
from controlplane.service.core import journal as journals
from controlplane.service.core import parts_journal
from controlplane.service.core.disabled import Why
from controlplane.service.core.journal import replay
from controlplane.service.core.state import NodeState, Phase
from controlplane.service.state import StateFolder
from tests.deploy.memory_network import MemoryNetwork

A = Job("A", ("h1", "h4"), ("h2", "h5"), 10**6)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[StateFolder]:
    with StateFolder(tmp_path / "state") as made:
        yield made


@pytest.fixture
def rig(tmp_path: Path, folder: StateFolder) -> Iterator[MemoryNetwork]:
    said: list[str] = []
    made = MemoryNetwork(tmp_path, journal=lambda name: folder.journal(name, said.append))
    made.said = said  # type: ignore[attr-defined]
    yield made
    made.close()


def records(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_the_journal_names_the_actors_and_reproduces_the_state(rig, folder):
    address = rig.serve()
    running = rig.add(A)
    members = rig.join(running)
    file = folder.path / "journal" / f"job-{running.job_id}.jsonl"
    assert file.stat().st_mode & 0o077 == 0, "it is nobody else's"
    assert replay(records(file)) == running.roster.state
    assert running.roster.state.phase == Phase.RUNNING
    running.roster.announce_leave(members["h1"].agent)
    running.roster.leave(members["h1"])
    assert running.roster.state.state_of("h1") == NodeState.LEFT
    assert operate(["job", "remove", "A", "--controller", address]) == 0
    found = records(file)
    assert replay(found) == running.roster.state
    by = [(record["kind"], record["by"]) for record in found]
    assert ("Joined", "agent of h1") in by and ("Left", "agent of h1") in by
    assert by[-1][0] == "Closed" and "an operator at ipv4:127.0.0.1" in str(by[-1][1])


def test_file_is_bounded(rig, folder, monkeypatch):
    monkeypatch.setattr(journals, "KEPT", 10)
    running = rig.add(A)
    file = folder.path / "journal" / f"job-{running.job_id}.jsonl"
    for _ in range(10):
        for member in rig.join(running).values():
            running.roster.leave(member)
    assert {one.name for one in file.parent.glob("job-*")} == {file.name, f"{file.name}.1"}
    assert len(records(file)) <= 12
    before, now = records(Path(f"{file}.1")), records(file)
    assert replay(now) == replay([*before, *now]) == running.roster.state


def test_a_job_runs_though_its_journal_cannot_be_written_and_this_is_logged_once(rig, folder):
    (folder.path / "journal").write_text("a file where the folder should be")
    running = rig.add(A)
    rig.join(running)
    assert running.roster.running
    [line] = rig.said
    assert "events are not written to" in line
    assert replay(running.roster.journal.records()) == running.roster.state, "they are in memory all the same"


def test_the_network_s_journal_names_who_disabled_a_switch_and_reproduces_the_state(rig, folder):
    address, network = rig.serve(), rig.network
    assert operate(["drain", "s1", "--controller", address]) == 0
    network.failover.lose({"e1-s2": "nothing comes out of link e1-s2"}, Why.SILENT)
    file = folder.path / "journal" / "network.jsonl"
    found = records(file)
    assert parts_journal.replay(found) == network.state.parts
    assert set(network.state.off) == {"s1", "e1-s2"}
    by = {str(record["kind"]): str(record["by"]) for record in found}
    assert "an operator at ipv4:127.0.0.1" in by["ordered"] and by["failed"] == "the controller"
    before = len(found)
    rig.network.failover.look()
    assert len(records(file)) == before, "nothing has changed"
    with pytest.raises(ValueError, match="is no event"):
        parts_journal.replay([found[0], {"kind": "exploded"}])
