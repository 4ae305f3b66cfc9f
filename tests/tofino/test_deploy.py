"""`python -m controlplane.deploy --tofino` and the keeper, against test servers."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from controlplane.cli import doctor
from controlplane.cli.deploy import main
from controlplane.common.log_lines import calling
from controlplane.service import keeper as keeper_module
from controlplane.service.keeper import Keeper
from controlplane.targets import fabric
from controlplane.targets.base import difference
from controlplane.targets.bri import kind as bri_kind
from controlplane.targets.bri import sde, session
from controlplane.targets.switch_entries import SwitchEntries
from tests.support.config import config
from tests.tofino.conftest import BFRT, TESTBED
from tests.tofino.plans import deployment
from tests.tofino.switch import TofinoSwitch

PLAN = ["--tofino", "--topology", TESTBED, "--job", "workers=6,ps=2", "--strategy", "atp"]


@pytest.fixture
def command(client, switches, tmp_path, monkeypatch) -> list[str]:
    """Return the end of the command, which says where the switches are. The client takes the place of an SDE's."""
    monkeypatch.setattr(bri_kind, "load_client", lambda: client)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    file = tmp_path / "switches.json"
    file.write_text(json.dumps({name: {"address": s.address, "device_id": 0} for name, s in switches.items()}))
    return ["--switches", str(file)]


def test_dry_run_prints_a_valid_set_for_both_switches_without_an_sde(capsys, monkeypatch):
    monkeypatch.delenv("SDE_INSTALL", raising=False)
    assert main([*PLAN, "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert main([*PLAN, "--dry-run", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    for name in ("V1", "V2"):
        entries = data["switches"][name]["entries"]
        assert f"switch {name}: program inart, {len(entries)} entries, all allowed by" in text
        actions = [entry["action"] for entry in entries]
        for action in ("aggregate", "read_out", "forward", "replicate"):
            assert f"InartIngress.label.{action}" in actions
        assert {entry["key"]["$DEV_PORT"] for entry in entries if entry["table"] == "$PORT"} >= {"1/0", "6/0", "7/0"}
    first = r"label_table: ingress_port=1/0, label=3 -> aggregate\(slot_base=0, slot_mask=0x[0-9a-f]+, flow=0x1"
    assert re.search(first, text)
    assert "# tree 0: from W1" in text
    assert "worker W6: tree 1 to S2" in text


def test_dry_run_needs_to_know_the_ports(capsys):
    assert main(["--tofino", "--topology", "testbed", "--job", "workers=6,ps=2", "--dry-run"]) == 2
    assert 'switch V1: the link with S1 does not say which port it is plugged into; give it "front_panel"' in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("speed", "message"),
    [("50G", "switch V1: the plan needs 100000 Mbit/s of loopback ports, available are 50000"), ("100G", "")],
)
def test_loopback_ports_must_carry_the_sums(speed, message, tmp_path, capsys):
    data = json.loads(Path(TESTBED).read_text())
    data["nodes"][0]["loopback_ports"][0]["speed"] = speed
    file = tmp_path / "topology.json"
    file.write_text(json.dumps(data))
    assert main(["--tofino", "--topology", str(file), "--strategy", "atp", "--dry-run"]) == (2 if message else 0)
    assert message in capsys.readouterr().err


def test_programs_and_kinds_must_fit(capsys, tmp_path):
    assert main([*PLAN, "--dry-run", *config(tmp_path, switches={"artifacts": "v1model-256"})]) == 2
    said = capsys.readouterr().err
    assert "target tofino needs a program for tna (tna-64); v1model-256 is for v1model" in said
    assert main([*PLAN, "--bmv2"]) == 2
    assert "exclude each other" in capsys.readouterr().err


@pytest.mark.parametrize("what", [PLAN, ["remove", "--tofino"]])
def test_without_an_sde_the_missing_part_is_reported_at_once(what, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("SDE_INSTALL", raising=False)
    file = tmp_path / "switches.json"
    nobody = {"address": "192.0.2.1:50052", "device_id": 0}
    file.write_text(json.dumps({"V1": nobody, "V2": {**nobody, "device_id": 1}}))
    assert main([*what, "--switches", str(file)]) == 1
    said = capsys.readouterr().err
    assert "$SDE_INSTALL is not set: installing on Tofino needs the SDE's BRI client" in said
    assert "https://github.com/p4lang/open-p4studio" in said
    assert "connected" not in said


def test_installs_again_and_removes_without_a_topology(command, switches, capsys):
    assert main([*PLAN, *command]) == 0
    assert "changes on 2 switches" in capsys.readouterr().err
    assert switches["V1"].count("label_table") == 23
    assert main([*PLAN, *command]) == 0
    assert "everything was there already" in capsys.readouterr().err
    assert main(["remove", "--tofino", *command]) == 0
    assert [switch.snapshot() for switch in switches.values()] == [{}, {}]


SUMS = "pipe.InartIngress.values.sum_1f.pairs"


def test_a_removed_jobs_registers_can_be_cleared_and_others_stay(command, switches, capsys, tmp_path):
    few = shutil.copytree(BFRT.parent, tmp_path / "few", ignore=shutil.ignore_patterns("switch"))
    manifest = json.loads((few / "manifest.json").read_text())
    (few / "manifest.json").write_text(json.dumps({**manifest, "slots": 256}))
    one = ["--tofino", *config(tmp_path, switches={"artifacts": str(few)}), "--topology", TESTBED, *command]
    for job, workers in (("1", "workers=2,ps=1"), ("2", "workers=3,ps=1,seed=1")):
        assert main([*one, "--job", workers, "--job-id", job]) == 0
    switch = switches["V1"]
    switch.fill_register(SUMS, 7)
    assert main(["remove", "2", *one, "--clear-registers"]) == 0
    found = re.search(r"switch V1: (\d+) slots cleared \((\d+) register cells\)", capsys.readouterr().err)
    first = switch.zeros(SUMS)
    assert found and len(first) == int(found[1]) > 0
    registers = [table for table in switch.schema.tables.values() if table.kind == "Register"]
    assert int(found[2]) == len(first) * len(registers) and len(registers) == 35
    assert all(switch.zeros(table.name) == first for table in registers)
    assert switch.count("label_table") > 0  # The other job's entries stay as they are until it is removed:
    assert main(["remove", "all", *one, "--clear-registers"]) == 0
    assert switch.zeros(SUMS) > first


def test_clearing_registers_goes_with_tofino(command, capsys):
    assert main(["remove", "--bmv2", *command, "--clear-registers"]) == 2
    assert "--clear-registers goes with --tofino" in capsys.readouterr().err


@pytest.mark.parametrize("what", [["1"], ["all", "--clear-registers"]])
def test_options_that_need_the_loopback_ports_require_the_topology(command, switches, capsys, what):
    """Without the loopback ports a job's sums cannot be told from others': removing one job would remove others'
    sums.
    """
    assert main([*PLAN, *command]) == 0
    before = switches["V1"].snapshot()
    assert main(["remove", *what, "--tofino", *command]) == 2
    assert "needs --topology" in capsys.readouterr().err
    assert switches["V1"].snapshot() == before


def test_doctor_asks_switches_without_taking_the_program(command, switches, monkeypatch, client):
    monkeypatch.setattr(sde, "load_client", lambda: client)
    file = Path(command[1])
    found = list(doctor.check_switches(file, tofino="1"))
    assert [check.ok for check in found] == [True, True]
    assert "BRI, runs program inart as compiled here" in found[0].detail
    assert [switch.binds for switch in switches.values()] == [0, 0]
    switches["V2"].stop()
    one, two = doctor.check_switches(file, tofino="1")
    assert one.ok and not two.ok and two.required
    assert "nobody answers; is bf_switchd running there" in two.detail


def test_failure_is_reported_and_nothing_is_left(command, switches, capsys):
    switches["V2"].faults.fail_updates = {11}
    assert main([*PLAN, *command]) == 1
    message = capsys.readouterr().err
    assert "switch V2 refused 1 of" in message
    assert "all switches are as they were before" in message
    assert [switch.snapshot() for switch in switches.values()] == [{}, {}]


@pytest.fixture
def kept(make_target, switches, topology, monkeypatch):
    monkeypatch.setattr(keeper_module, "HEARTBEAT_SECONDS", 0.1)
    monkeypatch.setattr(keeper_module, "RECONNECT_SECONDS", 1.0)
    monkeypatch.setattr(session, "SUBSCRIBE_SECONDS", 0.5)
    rules = deployment(topology).rulesets["V1"]
    target = make_target(switches["V1"])
    fabric.connect([target], 5.0)
    fabric.install([target], {"V1": rules})
    log: list[str] = []
    keeper = Keeper(SwitchEntries(target), rules, calling(log.append))
    yield keeper, log
    keeper.close()


def test_switch_that_restarts_is_filled_again_with_its_ports(kept, switches, until):
    keeper, log = kept
    before, port = switches["V1"].snapshot(), switches["V1"].port
    switches["V1"].stop()
    until(lambda: keeper.state == "reconnecting", "the keeper notices")
    switches["V1"] = TofinoSwitch(BFRT, port=port)
    until(lambda: keeper.refills == 1, "the switch is filled")
    assert switches["V1"].snapshot() == before
    until(lambda: keeper.state == "connected")
    assert keeper.status().verdicts["absorbed"] == 102
    assert any("V1 is back" in line for line in log)


def test_stream_that_is_cut_is_opened_again(kept, switches, until):
    keeper, _ = kept
    switches["V1"].cut_streams()
    until(lambda: keeper.refills == 1, "the keeper is back")
    assert difference(keeper.target.read(), keeper.rules) == []


def test_program_that_is_loaded_anew_gets_its_entries_back(kept, switches, until):
    keeper, _ = kept
    before = switches["V1"].snapshot()
    switches["V1"].load_again()
    until(lambda: keeper.refills == 1, "the keeper notices")
    assert switches["V1"].snapshot() == before


def test_program_that_another_client_took_meanwhile_is_left_to_it(kept, switches, make_target, until, monkeypatch):
    monkeypatch.setattr(session, "BIND_GRACE_SECONDS", 0.1)
    keeper, _ = kept
    switches["V1"].owner = 4711
    switches["V1"].cut_streams()
    until(lambda: keeper.state == "not primary", "the keeper gives way")
    assert "Client ID 4711 already owns this P4" in keeper.problem
