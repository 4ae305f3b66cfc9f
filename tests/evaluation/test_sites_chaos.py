"""The run in which everything fails notices each thing that may not happen, and runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from evaluation.sites.__main__ import main
from evaluation.sites.chaos import Seen
from evaluation.sites.chaos_site import given, wrong_in
from overlay.sites.packing import Floats
from tests.support.examples import nightly
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
    seen = Seen(timeout=10.0)
    for name in "ab":
        seen.said(name, round_of(0, "one", "a", "b"))
    seen.said("c", round_of(0, "two", "c", "d"))  # d has not got it: that round broke off.
    seen.said("d", {"kind": "state", "round": 1, "digest": "one"})
    seen.said("d", round_of(2, "three", "a", "d"))
    seen.check()
    assert seen.wrong == []
    seen.said("d", round_of(0, "two", "c", "d", seconds=15.5))
    seen.said("e", {"kind": "state", "round": 3, "digest": "three"})
    seen.said("e", round_of(5, "six", "a", "e", wrong="a is in it 2.000 times"))
    seen.check()
    assert seen.wrong == [
        "d waited for 15.5 s, and its timeout is 10 s",
        "e, round 5: a is in it 2.000 times",
        "e had the state before round 3 and took part in round 5 first",
        "2 states before round 1 are all of their sites'",
    ]


@pytest.mark.namespaces
def test_sites_in_namespaces_are_killed_and_no_mean_is_wrong(capsys):
    words = ["--sites", "3", "--minutes", "0.1", "--values", "4000", "--pause", "0.1"]
    assert main(["chaos", *words, "--seed", "2", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["wrong"] == [] and report["means_checked"] >= 6 and sum(report["disturbances"].values()) >= 1


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
    words = ["--sites", "3", "--minutes", "5", "--values", "4000", "--pause", "0.1", "--json"]
    with subprocess.Popen(
        [sys.executable, "-m", "evaluation.sites", "chaos", *words], cwd=ROOT, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        assert " s  " in process.stderr.readline()  # the first disturbance
        os.kill(process.pid, number)
        out, err = process.communicate(timeout=60)
    assert "Traceback" not in err
    wait_until(lambda: not of_session(process.pid), "coordinators have ended")
    if number == signal.SIGINT:
        report = json.loads(out)
        assert process.returncode == 130 and report["wrong"] == [] and report["means_checked"] >= 1
