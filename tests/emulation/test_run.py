"""`python -m topologies run` works as its users start it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from controlplane.planner.generators import parse_topology
from tests.emulation.test_lifetime import Traces, poll
from topologies.__main__ import main
from topologies.faults import Fault, parse_fault
from topologies.lifetime import PREFIX, sweep
from topologies.reaper import MARK
from topologies.run import main as run
from topologies.scale import scaled

ROOT = Path(__file__).resolve().parents[2]
RING = "ring:switches=4,servers=3,bandwidth=10,aggregation=30"


def test_two_jobs_share_a_ring_whose_link_fails(tmp_path, capsys):
    file = tmp_path / "summary.json"
    jobs = ["--job", "workers=4", "--job", "workers=3,name=other"]
    wanted = ["--allreduce", "400K", "--repeat", "2", "--fail", "s1-s2 at 0.1s", "--switch", "softswitch"]
    assert run(["--topology", RING, *jobs, "--share", *wanted, "--output", str(file)]) == 0
    said = capsys.readouterr().out
    summary = json.loads(file.read_text())
    assert [job["name"] for job in summary["jobs"]] == ["job", "other"]
    assert all(job["right"] and len(job["seconds"]) == 2 and not job["failure"] for job in summary["jobs"])
    assert any(event["text"] == "--- s1-s2 fails" for event in summary["events"])
    assert "other" in said
    assert "right" in said
    assert "WRONG" not in said


def test_script_runs_on_every_worker_as_from_a_launcher(tmp_path):
    script = (
        f'echo "$(hostname) $NODE_RANK/$NNODES $RANK/$WORLD_SIZE $INART_JOB" >'
        f' {tmp_path}/$(hostname -I | tr -d " ")-$NODE_RANK;'
        " exec python -m worker_agent allreduce --bytes 10K --repeat 1"
    )
    options = ["--topology", "dumbbell:left=2,right=1", "--job", "workers=2,name=x", "--switch", "softswitch"]
    assert run([*options, "--ranks", "2", "--script", script]) == 0
    assert sorted(file.read_text().strip() for file in tmp_path.iterdir()) == ["h2 0/2 0/4 x", "h3 1/2 2/4 x"]


@pytest.mark.parametrize("command", [["run", "--job", "workers=2", "--output"], ["--switches"]])
@pytest.mark.parametrize(("file", "reason"), [("no/file", "there is no folder no"), ("topologies", "is a folder")])
def test_file_that_cannot_be_written_is_refused_before_anything_is_built(command, file, reason, capsys):
    with pytest.raises(SystemExit) as refused:
        main([*command, file])
    said = capsys.readouterr()
    assert refused.value.code == 2 and reason in said.err and "up after" not in said.out


def test_script_that_fails_is_the_commands_failure(capsys):
    options = ["--topology", "dumbbell:left=2,right=1", "--job", "workers=2,name=x", "--switch", "softswitch"]
    assert run([*options, "--script", 'echo broken on purpose; exit "$NODE_RANK"']) == 3
    assert "ended with 1: broken on purpose" in capsys.readouterr().out


def test_next_start_removes_what_a_killed_emulation_and_its_reaper_left():
    command = [sys.executable, "-m", "topologies", "run", "--topology", "dumbbell:left=1,right=1", "--hold"]
    process = subprocess.Popen(
        [*command, "--switch", "softswitch", "--allreduce", "1K"], cwd=ROOT, stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    try:
        assert any("holding" in line for line in process.stdout)
        traces = Traces.of_process(process.pid)
        assert traces is not None
        assert traces.any()
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            if b"reaper.py" in Path(f"/proc/{child}/cmdline").read_bytes():
                os.kill(int(child), signal.SIGKILL)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    assert traces.any(), "nobody has cleaned up yet"
    assert traces.directory in sweep()
    poll(lambda: not traces.any(), f"left of {PREFIX}{traces.number}, {MARK}={traces.token}")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("s1 at 10s", Fault("s1", 10.0)),
        ("s1-s2 at 0.5 for 3s", Fault("s1-s2", 0.5, 3.0)),
        ("h2 at 1s", Fault("h2", 1.0)),
    ],
)
def test_failures_are_written_as_people_say_them(text, fault):
    topology = parse_topology(RING)
    assert parse_fault(text, topology) == fault
    assert parse_fault(str(fault), topology) == fault


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--fail", "s1"], "like 'a1 at 10s'"),
        (["--fail", "s9 at 1s"], "'s9' cannot fail"),
        (["--fail", "s1-h1 at 1s"], "no link between two switches"),
        (["--job", "workers=40"], "needs 41 servers, the topology has 12"),
        (["--job", "workers=4", "--job", "workers=4", "--job", "workers=4"], "needs 5 servers, the topology has 2"),
        (["--job", "workers=2,name=x", "--job", "workers=2,name=x"], "two jobs are named 'x'"),
        (["--job", "no/such.json"], "cannot read job file"),
        (["--allreduce", "many"], "a size is a number"),
        (["--strategy", "fast"], "unknown strategy 'fast'"),
    ],
)
def test_impossible_runs_are_refused_before_anything_is_built(arguments, words, capsys):
    assert run(["--topology", RING, "--switch", "softswitch", *arguments]) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert "building" not in said.out


def test_a_network_is_scaled_in_all_its_rates():
    topology = parse_topology("leafspine:leaves=2,spines=2,servers=2,uplink=40")
    less = scaled(topology, 0.1)
    assert less.bandwidth_mbps("s1", "e1") == pytest.approx(4.0)
    assert less.bandwidth_mbps("e1", "h1") == pytest.approx(2.0)
    assert less.aggregation_mbps("e1") == pytest.approx(0.9)
    assert less.ingress_mbps("h1") == pytest.approx(2.0)
