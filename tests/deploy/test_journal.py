"""The journal: who did what on a network, when, and what changed. `inart log` shows it, a controller that starts again
goes on with it, and a replay of its events gives the state of every job and of the network.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from controlplane.cli.controller import main as operate
from controlplane.cli.log import parse_time
from controlplane.common.access import Access, Caller
from controlplane.common.log_lines import SILENT, calling
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.common.rpc.client import ControllerError, ask
from controlplane.common.rpc.tls import Tls
from controlplane.planner.job import Job
from controlplane.service import journal as journals
from controlplane.service import journal_files
from controlplane.service.core.disabled import Why
from controlplane.service.core.journal import HIDDEN, STATE, Entry, orders_of, replay, replay_network
from controlplane.service.core.state import NodeState, Phase
from controlplane.service.journal import Journal, logger_of
from controlplane.service.journal_files import JournalFiles
from tests.deploy.agents import Agents
from tests.deploy.memory_network import RACKS, MemoryNetwork

A = Job("A", ("h1", "h4"), ("h2", "h5"), 10**6)
TEXT = {"name": "A", "workers": ["h1", "h4"], "parameter_servers": ["h2"], "model_bytes": "any"}
ALICE, GRAFANA = "alice" * 4, "grafana" * 4
SECONDS = 20.0


class Rig(MemoryNetwork):
    """A network in memory, its controller, which knows alice and a viewer by their tokens, and its journal."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.said = folder, list[str]()
        self.journal = Journal(folder / "journal", calling(self.said.append))
        super().__init__(folder, journal=self.journal)
        tokens = {ALICE: Caller("operator", "alice"), GRAFANA: Caller("viewer", "grafana")}
        self.address = self.serve(access=Access(tokens))
        for name, token in (("alice", ALICE), ("grafana", GRAFANA)):
            (folder / name).mkdir()
            (folder / name / "token").write_text(token)

    def order(self, *words: str, who: str = "alice") -> int:
        return operate([*words, "--controller", self.address, "--credentials", str(self.folder / who)])

    def close(self) -> None:
        super().close()
        self.journal.close()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    (tmp_path / "A.json").write_text(json.dumps(TEXT))
    yield made
    made.close()


@pytest.fixture
def log(rig: Rig, capsys) -> Callable[..., list[dict]]:
    def read(*words: str) -> list[dict]:
        capsys.readouterr()
        assert rig.order("log", "--json", *words) == 0
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return read


def stored(folder: Path, journal: Journal | None = None) -> list[list[dict]]:
    """Return the entries of each file, the oldest first, after all that a journal has were written."""
    assert journal is None or journal.flush(SECONDS)
    return [[json.loads(line) for line in file.read_text().splitlines()] for file in sorted(folder.glob("*.jsonl"))]


def shown(journal: Journal, most: int = 7) -> list[Entry]:
    """Return all entries that `inart log` would show, page by page."""
    found: list[Entry] = []
    after, more = 0, True
    while more:
        page = journal.read(after, most=most)
        assert len(page.entries) <= most
        found += page.entries
        after, more = page.next, page.more
    return found


# -- inart log --------------------------------------------------------------------------------------------------------


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
    assert entries and set(entries[0]["data"]) <= set(RACKS.switches), "what changed on which switch"
    assert all(number > 0 for number in entries[0]["data"].values())
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
        ask(rig.address, "log", pb.LogRequest(), Tls(token=rig.folder / "grafana/token"))


def test_the_log_hides_what_is_for_the_replay_and_its_numbers_have_no_gaps(rig, log):
    """A job migrates: each agent's progress is in the journal, and not in the log, whose numbers do not count it."""
    running = rig.add(A)
    agents = Agents(running.roster)
    agents.join()
    assert rig.order("drain", "h2") == 0
    (entries,) = stored(rig.folder / "journal", rig.journal)
    hidden = [one for one in entries if one["kind"] in HIDDEN]
    assert {one["number"] for one in hidden} == {0}
    assert {STATE, "Prepared", "Drained"} <= {one["kind"] for one in hidden}
    numbers = [one["number"] for one in log()]
    assert numbers == list(range(1, len(numbers) + 1))
    assert numbers == [one["number"] for one in entries if one["kind"] not in HIDDEN]
    assert replay(entries, "A") == running.roster.state
    running.roster.close()
    agents.end()


def test_long_data_is_in_the_journal_and_left_out_of_pages(tmp_path):
    journal = Journal(tmp_path)
    journal.add("order", "text" * 1000, data={"plan": "x" * 5000})
    (entry,) = journal.read().entries
    assert entry.data == {"left_out": "it is too long"} and len(entry.text) == journals.MAX_TEXT
    assert stored(tmp_path, journal)[0][0]["data"] == {"plan": "x" * 5000}
    journal.close()


def test_times_are_ago_or_dates():
    assert time.time() - parse_time("2h") == pytest.approx(7200, abs=60)
    assert parse_time("2026-11-23T12:00+00:00") == 1795435200
    with pytest.raises(ValueError, match="a time is like"):
        parse_time("yesterday")


# -- replay -----------------------------------------------------------------------------------------------------------


def test_the_journal_names_the_actors_and_reproduces_the_state_of_a_job(rig):
    running = rig.add(A)
    members = rig.join(running)
    (entries,) = stored(rig.folder / "journal", rig.journal)
    assert replay(entries, "A") == running.roster.state
    assert running.roster.state.phase == Phase.RUNNING
    running.roster.announce_leave(members["h1"].agent)
    running.roster.leave(members["h1"])
    assert running.roster.state.state_of("h1") == NodeState.LEFT
    assert rig.order("job", "remove", "A") == 0
    (entries,) = stored(rig.folder / "journal", rig.journal)
    assert replay(entries, "A") == running.roster.state
    by = [(one["kind"], one["by"]) for one in entries if one["job"] == "A" and "now" in one]
    assert ("Joined", "agent of h1") in by and ("Left", "agent of h1") in by
    assert by[-1] == ("Closed", "operator alice")


def test_the_journal_names_who_disabled_a_switch_and_reproduces_the_state_of_the_network(rig):
    assert rig.order("drain", "s1") == 0
    rig.network.failover.lose({"e1-s2": "nothing comes out of link e1-s2"}, Why.SILENT)
    (entries,) = stored(rig.folder / "journal", rig.journal)
    assert replay_network(entries) == rig.network.state.parts
    assert set(rig.network.state.off) == {"s1", "e1-s2"}
    by = {one["kind"]: one["by"] for one in entries}
    assert by["ordered"] == "operator alice" and by["failed"] == "the controller"
    rig.network.failover.look()
    assert len(stored(rig.folder / "journal", rig.journal)[0]) == len(entries), "nothing has changed"
    exploded = {"kind": "exploded", "job": "", "now": 1.0, "data": {}}
    with pytest.raises(ValueError, match="is no event"):
        replay_network([*entries, exploded])


def test_each_segment_begins_with_the_states_of_all_jobs_and_the_network_and_replays_alone(rig, monkeypatch):
    monkeypatch.setattr(journals, "SEGMENT_ENTRIES", 40)
    assert rig.order("drain", "s1") == 0
    first, second = rig.add(A), rig.add(Job("B", ("h3",), ("h6",), 10**6))
    rig.join(second)
    for _ in range(12):
        for member in rig.join(first).values():
            first.roster.leave(member)
    segments = stored(rig.folder / "journal", rig.journal)
    assert len(segments) > 2
    for entries in segments[1:]:
        assert {one["job"] for one in entries[:3]} == {"A", "B", ""} and {one["kind"] for one in entries[:3]} == {STATE}
        assert len(entries) <= 40 + 3
    assert replay(segments[-1], "A") == replay([one for each in segments for one in each], "A") == first.roster.state
    assert replay(segments[-1], "B") == replay(rig.journal.records(), "B") == second.roster.state
    assert replay_network(segments[-1]) == rig.network.state.parts
    assert rig.order("job", "remove", "B") == 0
    for member in [*rig.join(first).values()] * 10:
        rig.journal.add("line", f"{member} is there")
    last = stored(rig.folder / "journal", rig.journal)[-1]
    assert {one["job"] for one in last if one["kind"] == STATE} == {"A", ""}, "B has ended"


def test_events_reach_the_file_though_nobody_waits_for_the_disk(rig, monkeypatch):
    """The disk hangs: jobs run and orders are carried out, and all of it is written when the disk answers again."""
    hangs, append = threading.Event(), JournalFiles.append

    def slow(files: JournalFiles, first: int, entries: Sequence[Entry]) -> int:
        assert hangs.wait(SECONDS)
        return append(files, first, entries)

    monkeypatch.setattr(JournalFiles, "append", slow)
    running = rig.add(A)
    rig.join(running)
    assert rig.order("drain", "s1") == 0
    assert running.roster.running and not rig.journal.flush(0.0)
    hangs.set()
    (entries,) = stored(rig.folder / "journal", rig.journal)
    assert replay(entries, "A") == running.roster.state and replay_network(entries) == rig.network.state.parts


def test_a_process_that_ends_at_once_has_its_last_line_in_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(journals, "FLUSH_SECONDS", SECONDS)
    journal = Journal(tmp_path)
    log = logger_of(journal)
    log.error("it ends")
    log.handlers[0].flush()
    assert [json.loads(line)["text"] for file in tmp_path.iterdir() for line in file.open()] == ["it ends"]
    journal.close()
    log.error("it has ended")
    log.handlers[0].flush()
    assert journal.lines()[-1].text == "it has ended", "in memory, without waiting for a thread that has ended"


# -- files ------------------------------------------------------------------------------------------------------------


def test_a_controller_that_starts_again_goes_on_with_the_journal(rig, tmp_path):
    assert rig.order("drain", "s1") == 0
    rig.journal.close()
    before = rig.journal.read().entries
    again = Journal(tmp_path / "journal")
    assert again.read().entries == before
    logger_of(again).info("job A: back")
    (entry,) = again.read(before[-1].number).entries
    assert (entry.number, entry.job, entry.by) == (before[-1].number + 1, "A", "the controller")
    assert again.flush(SECONDS)
    (file,) = (tmp_path / "journal").iterdir()
    assert file.stat().st_mode & 0o077 == 0, "it is nobody else's"
    assert again.read().entries == (*before, entry)
    again.close()


def test_pages_follow_each_other_without_gap_and_the_oldest_files_go(tmp_path, monkeypatch):
    monkeypatch.setattr(journals, "SEGMENT_BYTES", 2000)
    monkeypatch.setattr(journals, "SEGMENT_ENTRIES", 10)
    monkeypatch.setattr(journal_files, "SEGMENT_BYTES", 2000)
    monkeypatch.setattr(journal_files, "MAX_BYTES", 6000)
    journal = Journal(tmp_path)
    for number in range(100):
        with orders_of(f"operator {number}"):
            journal.add("order", "x" * 20, job="A" if number % 2 else "B")
        assert number % 5 or journal.flush(SECONDS)
    assert journal.flush(SECONDS)
    files = list(tmp_path.iterdir())
    assert 2 <= len(files) <= 4 and sum(file.stat().st_size for file in files) <= 6000
    found = shown(journal)
    numbers = [entry.number for entry in found]
    assert numbers == list(range(numbers[0], 101)) and 1 < numbers[0] < 80, "from files, then from memory"
    assert found[-1].by == "operator 99"
    assert {entry.job for entry in journal.read(job="A").entries} == {"A"}
    assert journal.read(100).next == 100, "whoever follows asks after this one"
    journal.close()
    assert shown(Journal(tmp_path)) == found


def test_a_segment_ends_when_its_file_is_large(tmp_path, monkeypatch):
    monkeypatch.setattr(journals, "SEGMENT_BYTES", 1000)
    journal = Journal(tmp_path)
    for _ in range(30):
        journal.add("line", "x" * 100)
        assert journal.flush(SECONDS)
    sizes = [file.stat().st_size for file in sorted(tmp_path.iterdir())]
    assert len(sizes) > 3 and all(1000 <= size < 1300 for size in sizes[:-1])
    journal.close()


def test_a_line_that_was_cut_off_by_a_power_failure_is_reported_and_skipped(tmp_path):
    journal = Journal(tmp_path)
    journal.add("line", "first")
    journal.close()
    (file,) = tmp_path.iterdir()
    with file.open("a") as more:
        more.write('{"number": 2, "time": 1.0, "by"')
    said: list[str] = []
    journal = Journal(tmp_path, calling(said.append))
    journal.add("line", "after")
    journal.add("line", "and more")
    journal.close()
    assert len(said) == 1 and "line 2 is damaged" in said[0] and str(file) in said[0]
    assert [(one.number, one.text) for one in Journal(tmp_path).read().entries] == [
        (1, "first"), (2, "after"), (3, "and more"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "damage",
    [
        b"\xff\xfe\x80 not UTF-8",
        b'{"number": 2, "time": 1.0, "by": "al\xffice", "job": "", "kind": "line"}',
        b'{"number": 2, "time": 1.0, "by": "\\ud800", "job": "", "kind": "line"}',
        b'{"number": 2, "time": "now", "by": "alice", "job": "", "kind": "line"}',
        b'{"number": 2, "time": NaN, "by": "alice", "job": "", "kind": "line"}',
        b'{"number": 2, "time": 1.0, "by": "alice", "job": "", "kind": "line", "level": "loud"}',
        b'{"number": 99999999999999999999, "time": 1.0, "by": "alice", "job": "", "kind": "line"}',
        b'{"number": 2, "time": 1.0, "by": "alice", "job": "", "kind": "line", "more": 1}',
        b"[" * 100_000,
        b"7",
        b"",
    ],
)
def test_a_damaged_line_is_reported_and_everything_else_is_read(tmp_path, damage):
    """The controller starts, numbers go on as they were, and `inart log` answers."""
    journal = Journal(tmp_path)
    for text in ("one", "two", "three"):
        journal.add("line", text)
    journal.close()
    (file,) = tmp_path.iterdir()
    lines = file.read_bytes().split(b"\n")
    file.write_bytes(b"\n".join([lines[0], damage, *lines[2:]]))
    said: list[str] = []
    journal = Journal(tmp_path, calling(said.append))
    journal.add("line", "four")
    assert [one.text for one in journal.read().entries] == ["one", "three", "four"]
    assert journal.read().entries[-1].number == 4
    assert len(said) == bool(damage) and all("line 2 is damaged" in line for line in said)
    journal.close()


def test_a_file_that_cannot_be_read_is_reported_and_skipped(tmp_path):
    journal = Journal(tmp_path)
    journal.add("line", "one")
    journal.close()
    (tmp_path / "000000000002.jsonl").mkdir()
    (tmp_path / "job-3.jsonl").write_text("of an earlier version")
    said: list[str] = []
    journal = Journal(tmp_path, calling(said.append))
    assert len(said) == 1 and "cannot be read" in said[0]
    assert [one.text for one in journal.read().entries] == ["one"]
    journal.close()


def test_a_full_disk_is_said_once_and_everything_is_written_when_there_is_room(tmp_path, monkeypatch, until):
    monkeypatch.setattr(journals, "RETRY_SECONDS", 0.01)
    said: list[str] = []
    (tmp_path / "journal").write_text("a file where the folder should be")
    made = MemoryNetwork(tmp_path, journal=Journal(tmp_path / "journal", calling(said.append)))
    journal = made.network.journal
    journal.add("line", "one")
    assert not journal.flush(SECONDS)
    running = made.add(A)
    made.join(running)
    journal.add("line", "two")
    assert running.roster.running
    assert len(said) == 1 and "cannot be written" in said[0] and "in memory" in said[0]
    found = journal.read().entries
    assert [one.text for one in found if one.kind == "line"] == ["one", "two"]
    assert replay(journal.records(), "A") == running.roster.state, "they are in memory all the same"
    (tmp_path / "journal").unlink()
    until(journal.flush, "the journal is written")
    (entries,) = stored(tmp_path / "journal")
    assert replay(entries, "A") == running.roster.state
    assert [one["text"] for one in entries if one["kind"] == "line"][-1] == "two"
    made.close()
    journal.close()
    assert len(said) == 2 and "again" in said[1]


def test_a_line_that_did_not_fit_on_the_disk_is_written_once_there_is_room(tmp_path, monkeypatch):
    """Half of the line was written before the disk was full: that half is removed."""
    files = JournalFiles(tmp_path, SILENT)
    entries = [Entry(number, 1.0, "alice", "", "line", f"text {number}") for number in (1, 2)]
    size = files.append(1, entries[:1])
    opened = open

    def full(*args, **options):  # type: ignore[no-untyped-def]
        file = opened(*args, **options)

        class Full:
            tell, truncate = file.tell, file.truncate

            def write(self, data: memoryview) -> int:
                if file.tell() > size:
                    raise OSError(28, "No space left on device")
                return file.write(data[:10])

            def __enter__(self) -> Full:
                return self

            def __exit__(self, *_: object) -> None:
                file.close()

        return Full()

    monkeypatch.setattr(journal_files, "open", full, raising=False)
    with pytest.raises(OSError, match="No space"):
        files.append(1, entries[1:])
    assert (tmp_path / "000000000001.jsonl").stat().st_size == size
    monkeypatch.undo()
    files.append(1, entries[1:])
    assert [one["text"] for one in stored(tmp_path)[0]] == ["text 1", "text 2"]
