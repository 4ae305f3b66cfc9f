"""The run in which everything fails notices each thing that may not happen, and runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from evaluation.chaos.findings import Findings
from evaluation.chaos.harness import make_parser
from evaluation.sites.__main__ import main
from evaluation.sites.chaos import KINDS, LEAST_PART, Seen, Sites, draw, first_of
from evaluation.sites.chaos_site import given, wrong_in
from overlay.sites.packing import Floats
from tests.support.examples import nightly
from tests.support.schedules import digest
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
NAMES = [f"h{k}" for k in range(20)]
VALUES = 3000


def mean_of(sites: tuple[str, ...], round_: int = 3) -> Floats:
    return np.mean([given(name, round_, VALUES) for name in sites], axis=0).astype(np.float32)


def test_a_mean_tells_whose_values_are_in_it():
    sites = tuple(NAMES[:15])
    noise = np.random.default_rng(1).uniform(-0.02, 0.02, VALUES)
    rounded = np.asarray(mean_of(sites) + noise, np.float32)
    assert wrong_in(mean_of(sites), sites, NAMES, 3) == "" == wrong_in(rounded, sites, NAMES, 3)
    twice = np.asarray(mean_of(sites) + given("h4", 3, VALUES) / 15, np.float32)
    assert wrong_in(twice, sites, NAMES, 3) == "h4 is in it 2.000 times"
    assert "h14 is in it" in wrong_in(mean_of(sites[:-1]), sites, NAMES, 3)
    assert wrong_in(mean_of(tuple(NAMES[:16])), sites, NAMES, 3)
    assert wrong_in(mean_of(sites, round_=2), sites, NAMES, 3)


def round_of(number: int, digest: str, *sites: str, seconds: float = 1.0, wrong: str = "") -> dict[str, object]:
    return {"kind": "round", "round": number, "sites": sites, "seconds": seconds, "alone": False, "digest": digest,
            "wrong": wrong}  # fmt: skip


def test_what_may_not_happen_is_reported():
    findings = Findings([], KINDS)
    seen = Seen(10.0, findings)
    for name in "ab":
        seen.said(name, round_of(0, "one", "a", "b"))
    seen.said("c", round_of(0, "two", "c", "d"))  # d has not got it: that round broke off.
    seen.said("d", {"kind": "state", "round": 1, "digest": "one"})
    seen.said("d", round_of(2, "three", "a", "d"))
    seen.said("d", {"kind": "late", "seconds": 10.0, "words": "no round within 10 s"})
    seen.check()
    assert findings.status == 0 and (findings.sums, findings.flagged) == (4, 1)
    seen.said("d", round_of(0, "two", "c", "d", seconds=15.5))
    seen.said("e", {"kind": "state", "round": 3, "digest": "three"})
    seen.said("e", round_of(5, "six", "a", "e", wrong="a is in it 2.000 times"))
    seen.check()
    assert findings.wrong == ["e, round 5: a is in it 2.000 times"]
    assert findings.failed == [
        "d waited for 15.5 s, and its timeout is 10 s",
        "e had the state before round 3 and took part in round 5 first",
        "2 states before round 1 are all of their sites'",
    ]


@pytest.mark.parametrize(
    ("sites", "minutes", "seed", "drawn"),
    [
        (20, 10.0, 0, "e0c3bad8350e897d"), (20, 10.0, 1, "5f916de3efd0c097"), (20, 10.0, 2, "44275e715b5c99cb"),
        (20, 10.0, 3, "eb18292d26dc7251"), (8, 1.0, 2, "9193034d8550828c"), (8, 2.0, 2, "f0ad56c44966f80c"),
    ],
)  # fmt: skip
def test_a_seed_means_the_same_schedule_as_ever(sites: int, minutes: float, seed: int, drawn: str) -> None:
    assert digest(draw([f"h{k}" for k in range(sites)], 60 * minutes, seed)) == drawn


@pytest.mark.parametrize("seed", range(10))
def test_enough_sites_stay_and_nothing_is_disturbed_that_is_away(seed: int) -> None:
    events = draw(NAMES, 600.0, seed)
    assert {event.kind for event in events} == KINDS.keys() and events[-1].until <= 600.0
    there, back = set(NAMES[: first_of(NAMES)]), {}
    for event in events:
        for name in [name for name, until in back.items() if until <= event.at]:
            there.add(name)
            del back[name]
        if event.kind in ("kill", "leave"):
            assert event.target in there and len(there) > LEAST_PART * len(NAMES)
            there.remove(event.target)
            back[event.target] = event.until
        elif event.kind == "join":
            assert event.target not in there | back.keys()
            there.add(event.target)
    kills = [event for event in events if event.kind == "coordinator"]
    assert all(one.until <= other.at for one, other in pairwise(kills)), "it was there to be killed"


def test_the_help_has_the_examples_and_all_kinds():
    words = make_parser(Sites).format_help()
    assert "python -m evaluation.sites chaos --sites 20" in words and all(f"  {kind} " in words for kind in KINDS)


@pytest.mark.namespaces
def test_sites_in_namespaces_are_killed_and_no_mean_is_wrong(capsys):
    assert main(["chaos", "--sites", "3", "--minutes", "0.1", "--values", "4000", "--seed", "2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["wrong"], report["failed"]) == (0, 0) and report["sums"] >= 6
    assert report["events"] and all(event["happened"] for event in report["events"])


def of_session(session: int) -> list[int]:
    """Return the processes of a session, less those that have ended."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # It has ended meanwhile.
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(stat.parent.name))
    return found


@pytest.mark.namespaces
@pytest.mark.parametrize("number", [signal.SIGINT, nightly(signal.SIGTERM), signal.SIGKILL])
def test_interrupted_run_reports_what_it_found_and_leaves_no_coordinator(number):
    words = ["--sites", "3", "--minutes", "5", "--values", "4000", "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "evaluation.sites", "chaos", *words], cwd=ROOT, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("["):
                break  # the first event has begun
        os.kill(process.pid, number)
        out, err = process.communicate(timeout=60)
    assert "Traceback" not in err
    wait_until(lambda: not of_session(process.pid), "coordinators have ended")
    if number == signal.SIGINT:
        report = json.loads(out)
        assert process.returncode == 130 and report["wrong"] == 0 and report["sums"] >= 1
