"""Chaos without a network: what is drawn, how outages are attributed, what a wrong sum and a wrong clock are."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from controlplane.planner.generators import parse_topology
from controlplane.planner.job import Job, parse_next_job
from evaluation.chaos import forger
from evaluation.chaos.events import Event, Happening
from evaluation.chaos.fabric import Fabric
from evaluation.chaos.findings import QUIET, Findings
from evaluation.chaos.harness import main, make_parser
from evaluation.chaos.kinds import KINDS, compatible
from evaluation.chaos.schedule import draw
from evaluation.chaos.skewed import Clock
from evaluation.chaos.worker import LARGEST, contribution, exact_sum, judged
from p4src.protocol import PROTOCOL, VERSION
from tests.support.schedules import digest
from topologies.network import EmulationError
from worker_agent import fixedpoint

ROOT = Path(__file__).resolve().parents[2]
TOPOLOGY = parse_topology("fattree:k=4,bandwidth=20")
JOBS = [Job("a", ("h1", "h6", "h9"), ("h3", "h12"), 1000), Job("b", ("h2", "h15"), ("h16",), 1000)]


def events(seed: int, minutes: float = 60.0, kinds: list[str] | None = None) -> list[Event]:
    return draw(TOPOLOGY, JOBS, kinds or list(KINDS), 60 * minutes, seed)


def test_the_same_seed_gives_the_same_events() -> None:
    assert events(1) == events(1)
    assert events(1) != events(2)


@pytest.mark.parametrize(
    ("topology", "seed", "drawn"),
    [
        ("fattree:k=4,bandwidth=20", 1, "2802348bfee71c23"), ("fattree:k=4,bandwidth=20", 2, "c51b9a2eb9c060fe"),
        ("fattree:k=4,bandwidth=20", 3, "8bdcf17020b59ac3"),
        ("leafspine:leaves=4,spines=4,servers=3,bandwidth=20", 1, "2cfe62d6d884bc30"),
        ("leafspine:leaves=4,spines=4,servers=3,bandwidth=20", 5, "8bcf152068e0a03f"),
    ],
)  # fmt: skip
def test_a_seed_means_the_schedule_of_the_published_figures(topology: str, seed: int, drawn: str) -> None:
    network = parse_topology(topology)
    job = parse_next_job("workers=6,ps=2,name=job1", network, {})
    assert digest(draw(network, [job], list(KINDS), 1800.0, seed)) == drawn


def test_all_kinds_come_and_about_equally_often() -> None:
    counted = Counter(event.kind for event in events(3, minutes=240))
    assert counted.keys() == KINDS.keys()
    assert max(counted.values()) <= 1.5 * min(counted.values())


@pytest.mark.parametrize("seed", range(5))
def test_at_most_two_failures_overlap_and_never_exclusive_ones(seed: int) -> None:
    drawn = events(seed)
    overlapping = 0
    for one in drawn:
        low, high = KINDS[one.kind].seconds
        assert low <= one.seconds <= high
        beside = [o for o in drawn if o is not one and o.at <= one.until and one.at <= o.until]
        assert len(beside) <= 1
        overlapping += len(beside)
        for other in beside:
            assert compatible(one.kind, other.kind)
            assert not one.target or one.target != other.target
    assert overlapping > len(drawn) / 4, "about half of the slots have two"


def test_simultaneous_failures_leave_the_hosts_a_path() -> None:
    """Two spines: never both, nor a spine and a link of the other one."""
    topology = parse_topology("leafspine:leaves=3,spines=2,servers=2,bandwidth=20")
    job = Job("a", (topology.servers[0], topology.servers[2]), (topology.servers[4],), 1000)
    for seed in range(20):
        drawn = draw(topology, [job], ["link", "switch"], 1800, seed)
        for one, other in pairwise(drawn):
            if other.at <= one.until:
                spines = {name for event in (one, other) for name in event.target.split("-") if name[0] == "s"}
                assert len(spines) <= 1 or (one.kind == other.kind == "link"), (one, other)


def test_a_kind_without_a_possible_target_is_refused() -> None:
    alone = [Job("b", ("h2", "h15"), ("h16",), 1000)]
    with pytest.raises(EmulationError, match="stop-ps"):
        draw(TOPOLOGY, alone, ["stop-ps"], 600, 1)


def happening(kind: str, began: float, ended: float, jobs: frozenset[str] = frozenset()) -> Happening:
    return Happening(Event(1, 0.0, ended - began, kind, "x", 1), began, ended, True, jobs=jobs)


def test_an_outage_is_attributed_to_the_failures_during_it() -> None:
    link, late = happening("link", 100.0, 105.0), happening("late", 103.0, 110.0, frozenset({"a"}))
    findings = Findings([link, late], KINDS)
    findings.add_gap("a", 20.0, 20.5)
    findings.add_gap("a", 99.9, 101.9)
    findings.add_gap("a", 102.9, 111.0)  # waited for the late rank until 110
    findings.add_gap("b", 104.0, 104.4)
    findings.add_gap("a", 130.0, 130.25)
    assert findings.longest == pytest.approx({QUIET: 0.5, "link": 2.0, "late + link": 1.0})
    assert (link.outage, late.outage) == pytest.approx((2.0, 1.0))


def test_what_only_a_controller_mends_waits_for_the_controller() -> None:
    edge, away = happening("edge", 100.0, 103.0, frozenset({"a"})), happening("controller", 101.0, 109.0)
    fork, late = happening("fork", 200.0, 203.0), happening("stop-controller", 201.0, 209.0)
    findings = Findings([edge, away, fork, late], KINDS)
    findings.add_gap("a", 99.9, 110.5)
    findings.add_gap("a", 202.0, 204.5)  # nothing needs a controller
    assert findings.longest == pytest.approx({"controller + edge": 1.5, "fork + stop-controller": 2.5})


def test_the_report_counts_and_its_exit_status_shows_errors() -> None:
    findings = Findings([happening("link", 1.0, 2.0)], KINDS)
    assert "| `link` | 1 | 1 |\n" in findings.table("here") + "\n", "outages are not measured"
    findings.add_gap("a", 0.0, 0.5)
    findings.add_sums(3)
    findings.add_flagged("AbortedError: h3 is gone", again=False)
    findings.add_flagged("AbortedError: h3 is gone", again=True)
    assert findings.status == 0
    report = findings.to_json()
    assert {"sums", "wrong", "flagged", "failed", "longest_outage_seconds", "events"} <= report.keys()
    assert (report["sums"], report["wrong"], report["flagged"], report["failed"]) == (3, 0, 1, 0)
    assert report["flags"] == {"AbortedError: h3 is gone": 2}
    json.dumps(report)
    assert "| `link` | 1 | 1 | 0.0 |" in findings.table("here")
    findings.happenings[0].happened = False
    assert findings.status == 4 and "DID NOT HAPPEN" in findings.table("here")
    findings.failed.append("operation 7")
    findings.wrong.append("h1: 1 of 100 values")
    assert findings.status == 3, "a wrong sum is worse than all else"
    assert "**1 wrong**" in findings.table("here") and "WRONG: h1" in findings.table("here")


def test_reports_are_one_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = []
    for seed in (1, 2):
        findings = Findings([happening("link", 100.0, 105.0), happening("late", 130.0, 131.0)], KINDS)
        findings.add_gap("a", 100.0, 101.5 + seed)
        findings.add_sums(1000 * seed)
        files.append(tmp_path / f"{seed}.json")
        files[-1].write_text(json.dumps(findings.to_json(f"seed {seed}")))
    assert main(Fabric, ["--summary", *map(str, files)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "| | seed 1 | seed 2 |"
    assert "| sums checked on every worker | 1,000 | 2,000 |" in lines
    assert "| `link` | 2.5 / – | 3.5 / – |" in lines


def test_sums_of_contributions_are_carried_exactly_and_one_wrong_bit_is_seen() -> None:
    workers, elements = 64, 1000
    given = [contribution(7, worker, elements) for worker in range(workers)]
    expected = exact_sum(7, list(range(workers)), elements)
    assert np.array_equal(expected, np.sum([each.astype(np.float64) for each in given], axis=0))
    bits = fixedpoint.fraction_bits(workers)
    assert 2.0 ** (bits - LARGEST.bit_length()) >= 1.0, "a whole number needs no rounding"
    assert judged(expected.copy(), expected) is None
    wrong = expected.copy()
    wrong.view(np.uint32)[700] ^= 1
    assert judged(wrong, expected) == {
        "values": 1, "of": 1000, "first": 700, "got": float(wrong[700]), "expected": float(expected[700]),
    }  # fmt: skip


def test_a_clock_jump_affects_one_process_and_counts_its_readings(tmp_path: Path) -> None:
    clock = Clock(tmp_path / "clock")
    program = (
        "import sys, time; from pathlib import Path; from evaluation.chaos.skewed import skew\n"
        "skew(Path(sys.argv[1]))\n"
        "grpc = {'__name__': 'grpc._channel', 'time': time}\n"
        "exec('def deadline(): return time.time()', grpc)\n"
        "for line in sys.stdin: print(grpc['deadline']() if line == 'grpc\\n' else time.time(), flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(clock.file)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None

    def read(who: str = "") -> float:
        process.stdin.write(f"{who}\n")  # type: ignore[union-attr]
        process.stdin.flush()  # type: ignore[union-attr]
        return float(process.stdout.readline())  # type: ignore[union-attr]

    with process:
        day = 86400.0
        assert abs(read() - time.time()) < day / 2 and clock.wrong_reads == 0
        clock.jump(-365 * day)
        assert abs(read() + 365 * day - time.time()) < day / 2 and clock.wrong_reads == 1
        assert abs(read("grpc") - time.time()) < day / 2, "its core goes by the machine's clock"
        clock.jump(0.0)
        assert abs(read() - time.time()) < day / 2 and clock.wrong_reads == 1
        process.stdin.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_forger_gives_up_all_privileges_and_sends_given_packets() -> None:
    values, port = PROTOCOL.targets["v1model"].values_per_packet, 0x5000
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as receiver:
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        receiver.bind((forger.GROUP, port))
        membership = socket.inet_aton(forger.GROUP) + socket.inet_aton("127.0.0.1")
        receiver.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, membership)
        receiver.settimeout(10)
        packet = {"port": port, "label": 77, "flags": 2, "job": 3, "epoch": 9, "sequence": 40, "count": 2, "bitmap": 6}
        done = subprocess.run(
            [sys.executable, "-I", "-S", forger.__file__, str(VERSION), str(values), "1"],
            input=json.dumps({"address": "127.0.0.1", "packets": [packet]}) + "\n", capture_output=True, text=True,
            check=True, timeout=60,
        )  # fmt: skip
        said = json.loads(done.stdout)
        assert said == {"uid": forger.NOBODY, "capabilities": "0" * 16, "sent": 2, "not sent": 0}
        for sequence in (40, 41):
            got = receiver.recv(4096)
            assert struct.unpack(">BBHIIIQ", got[:24]) == (VERSION, 2, 3, 77, 9, sequence, 6)
            assert len(got) == 24 + 4 * values


def test_the_help_has_the_examples_and_all_kinds() -> None:
    words = make_parser(Fabric).format_help()
    assert "python -m evaluation.chaos --minutes 30" in words and all(f"  {kind} " in words for kind in KINDS)


def test_the_command_lists_planned_failures_and_refuses_unknown_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(Fabric, ["--list", "--minutes", "5", "--seed", "3"]) == 0
    listed = capsys.readouterr().out
    assert main(Fabric, ["--list", "--minutes", "5", "--seed", "3"]) == 0
    assert capsys.readouterr().out == listed and len(listed.splitlines()) > 10
    for argv, word in (
        (["--events", "rain"], "no event 'rain'"),
        (["--without", "rain"], "no event 'rain'"),
        (["--minutes", "0"], "above 0"),
        (["--minutes", "nan"], "above 0"),
        (["--workers", "0"], "above 0"),
        (["--coming", "-1"], "from 0 on"),
    ):
        with pytest.raises(SystemExit):
            main(Fabric, argv)
        assert word in capsys.readouterr().err
    assert main(Fabric, ["--list", "--workers", "99"]) == 2
    assert "needs 101 servers" in capsys.readouterr().err
