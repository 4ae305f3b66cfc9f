"""A short run of chaos with real failures; python -m evaluation.chaos makes long ones."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from evaluation.chaos import coming
from evaluation.chaos.events import Event
from evaluation.chaos.fabric import Fabric
from evaluation.chaos.harness import make_parser, run

ROOT = Path(__file__).resolve().parents[2]
TOPOLOGY = "leafspine:leaves=3,spines=2,servers=2,bandwidth=20"


def chaos(*events: tuple[float, float, str, str], seconds: float, at_once: int):
    """Run these (at, seconds, kind, target) under a job of 3 workers and 2 parameter servers, and others that come
    and go."""
    words = ["--topology", TOPOLOGY, "--workers", "3", "--coming", str(at_once)]
    system = Fabric(make_parser(Fabric).parse_args(words))
    (job,) = system.jobs
    names = {f"worker{i}": node for i, node in enumerate(job.workers)}
    names |= {f"ps{i}": node for i, node in enumerate(job.parameter_servers)}
    names |= {"edge": system.topology.access_switch(job.workers[0])}
    system.events = tuple(
        Event(i, at, lasts, kind, names.get(target, target), i) for i, (at, lasts, kind, target) in enumerate(events, 1)
    )
    said: list[str] = []
    findings = run(system, seconds, said.append)
    return findings, "\n".join([findings.table("here"), *said[-60:]])


@pytest.mark.timeout(500)
def test_every_sum_is_right_and_nothing_is_left_while_things_fail_and_jobs_come_and_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Failures also overlap, two at a time."""
    monkeypatch.setattr(coming, "LIFE_SECONDS", 4.0)
    # The hosts of a switch that was off get no new job for a while, so this comes last.
    findings, said = chaos(
        (1.0, 2.0, "switch", "s1"), (2.0, 2.0, "controller", ""), (8.0, 3.0, "late", "worker0"),
        (9.0, 1.0, "fork", "worker1"), (13.0, 1.5, "stop-worker", "worker2"), (13.5, 2.0, "ps", "ps0"),
        (19.0, 3.0, "stop-agents", ""), (24.0, 3.0, "link", "e1-s1"), (29.0, 0.0, "reboot", "edge"),
        (32.0, 3.0, "edge", "edge"), seconds=37.0, at_once=2,
    )  # fmt: skip
    assert findings.status == 0 and not findings.left, said
    assert findings.ended.total() + findings.turned_away >= 3 and findings.ended and findings.sums > 50, said
    report = findings.to_json()
    assert [event["happened"] for event in report["events"]] == [True] * 10, said
    assert {2} <= set(report["events"][0]["beside"]), said
    assert report["longest_outage_seconds"], said


@pytest.mark.timeout(400)
def test_an_interrupted_run_leaves_nothing_behind(tmp_path: Path) -> None:
    logs = tmp_path / "logs"
    command = [sys.executable, "-m", "evaluation.chaos", "--minutes", "20", "--topology", TOPOLOGY, "--workers", "3"]
    process = subprocess.Popen(
        [*command, "--events", "link", "--json", "--logs", str(logs)], cwd=ROOT,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        env=os.environ | {"CHAOS_TEST": str(logs)},
    )  # fmt: skip
    assert process.stderr is not None
    for line in process.stderr:
        if "link" in line and "for" in line and line.startswith("["):
            break  # the first event has begun
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    report = json.loads(out)
    assert report["interrupted"] and report["wrong"] == 0, err
    assert "job job1 (1) added" in (logs / "controller.log").read_text()
    # Others may run emulations of their own: only processes of this one have its environment.
    marked = f"CHAOS_TEST={logs}".encode()
    left = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            left += [entry] if marked in entry.read_bytes() and entry.parent.name != str(os.getpid()) else []
        except OSError:
            continue
    assert not left, [(entry.parent / "cmdline").read_bytes() for entry in left]
    assert "chaos /tmp" not in Path("/proc/mounts").read_text()
