"""Whoever adds a job for which hosts alone would be faster is told so."""

from __future__ import annotations

import json

from controlplane.cli.controller import main as operate
from controlplane.planner.generators import fattree
from controlplane.planner.job import place_job

JOB = place_job(fattree(4, 100.0), 5, 1)
NETWORK = fattree(4, 100.0, ingress_mbps=None).replace({JOB.parameter_servers[0]: {"ingress_mbps": 20.0}})


def test_a_job_for_which_hosts_alone_would_be_faster_is_told_so_at_admission(rig, address, capsys) -> None:
    """One parameter server takes in 20 Mbit/s, where the workers' links carry 100: a ring among them beats the plan."""
    words = ["job", "add", "--controller", address, "--job", "workers=5,ps=1,name=slow", "--dry-run"]
    assert operate(words) == 0
    (note,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note: ")]
    assert "without switches that add" in note and "of 20" in note
    assert operate([*words, "--json"]) == 0
    assert f"note: {json.loads(capsys.readouterr().out)['note']}" == note
    assert any(line.endswith(note.removeprefix("note: ")) for line in rig.log), "the controller's log has it, too"
