"""The folded program (128 values, every contribution recirculates) carries the same plans through the pipes' ports."""

from __future__ import annotations

import json
import random
import shutil
from functools import partial
from pathlib import Path

import pytest

from controlplane.cli.deploy import main
from controlplane.planner.generators import parse_topology
from controlplane.planner.job import parse_job
from controlplane.planner.plan.limits import DoesNotFit
from controlplane.planner.strategies import get_strategy
from controlplane.targets.bri.chip import TOFINO_2_FOLDED
from controlplane.targets.bri.kind import TofinoKind
from controlplane.targets.bri.program import Program
from controlplane.targets.bri.schema import local
from p4src.artifacts import find
from tests.model.folded import VALUES
from tests.support.config import config
from tests.tofino.conftest import TESTBED
from tests.tofino.dataplane import FoldedSwitch
from tests.tofino.plans import deployment, installed, with_front_panel
from tests.tofino.test_program import Network, all_reduce, switch
from tests.tofino.test_tofino2 import PLAN, TESTBED_2, one_pipe, two_pipes


@pytest.fixture(scope="module")
def topology():
    return parse_topology(TESTBED_2)


@pytest.fixture(scope="module")
def program() -> Program:
    return Program.load(find("t2na", VALUES).program)


def test_a_program_knows_that_it_is_folded(program):
    assert program.chip == TOFINO_2_FOLDED
    assert "loopback" in {local(name) for name in program.schema.table("label_table").action("aggregate").fields}


def test_the_folded_program_of_tofino_1_is_refused(tmp_path, capsys):
    """A folder that an earlier version built would otherwise be taken for the plain program."""
    old = tmp_path / "tna-128"
    shutil.copytree(find("tna").directory, old)
    schema = json.loads((old / "bf-rt.json").read_text())
    (register,) = [table for table in schema["tables"] if local(table["name"]) == "slot_sequence"]
    schema["tables"].append({**register, "name": "pipe.InartIngress.slots.second_half.half_owner", "id": 1})
    (old / "bf-rt.json").write_text(json.dumps(schema))
    assert (
        main(["--tofino", *config(tmp_path, switches={"artifacts": str(old)}), "--topology", TESTBED, "--dry-run"]) == 1
    )
    said = capsys.readouterr().err
    assert "adds 128 values on Tofino 1, which is no longer supported" in said and 'artifacts = "tna-64"' in said


def test_a_dry_run_needs_no_loopback_port(capsys, monkeypatch, tmp_path):
    """This holds with links of 25 Gbit/s: links of 400 Gbit/s are too much for the ports inside the pipe, and are
    refused.
    """
    monkeypatch.delenv("SDE_INSTALL", raising=False)
    folded = [*config(tmp_path, switches={"artifacts": f"t2na-{VALUES}"}), "--dry-run", "--json"]
    assert main([*PLAN, *folded]) == 2
    assert "Mbit/s of loopback ports, available are 200000" in capsys.readouterr().err
    slower = json.loads(Path(TESTBED_2).read_text())
    for edge in slower["edges"]:
        edge.update(speed="25G", bandwidth_mbps=25_000)
    file = tmp_path / "topology.json"
    file.write_text(json.dumps(slower))
    assert main([*PLAN, "--topology", str(file), *folded]) == 0
    data = json.loads(capsys.readouterr().out)
    for name in ("V1", "V2"):
        entries = data["switches"][name]["entries"]
        assert {local(entry["action"] or "") for entry in entries} >= {"aggregate", "read_out", "replicate"}
        loops = {entry["data"]["loopback"] for entry in entries if local(entry["action"] or "") == "aggregate"}
        assert loops <= {"the pipe's port 6", "the pipe's port 7"}
    assert {config["values_per_packet"] for config in data["agents"].values()} == {VALUES}


@pytest.mark.parametrize("device", [one_pipe, two_pipes])
def test_sums_recirculate_through_the_pipes_own_ports(program, topology, device):
    for entries in installed(program, topology, device, target="t2na"):
        for entry in entries:
            if local(entry.action or "") == "aggregate":
                loop, (port, _) = dict(entry.data)["loopback"], program.label_key(entry)
                assert isinstance(loop, int) and TOFINO_2_FOLDED.recirculates(loop) and loop // 128 == port // 128


def test_sums_of_two_pipes_are_exact(program):
    hardware = with_front_panel(parse_topology(TESTBED), loopback=0)
    made = deployment(hardware, target="t2na")
    network = Network(hardware, made.rulesets, program, make=partial(switch, kind=FoldedSwitch))
    all_reduce(network, made, random.Random(3))
    assert all(switch.round > 0 for switch in network.switches.values())


def test_too_much_traffic_for_the_internal_ports_is_refused(topology):
    """200 Gbit/s of loopback carry two workers of 100 Gbit/s, but not four; looped front-panel ports add capacity."""
    kind = TofinoKind(find("t2na", VALUES))
    plan = get_strategy("inart")(topology, parse_job("workers=6,ps=2", topology), seed=0)
    with pytest.raises(DoesNotFit, match="loopback"):
        kind.check(plan, topology)
    more = [{"front_panel": f"{30 + at}/0", "speed": "400G"} for at in range(3)]
    kind.check(plan, topology.replace(nodes={name: {"loopback_ports": more} for name in topology.switches}))
