"""Tofino 2 carries the same plans without a second pass, over ports of 400G, and through recirculation ports of its
own.
"""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.cli.deploy import main
from controlplane.planner.generators import parse_topology
from controlplane.targets import fabric
from controlplane.targets.base import SwitchAddress, difference
from controlplane.targets.bri import kind as bri_kind
from controlplane.targets.bri.chip import TOFINO_1, TOFINO_2
from controlplane.targets.bri.kind import TofinoKind
from controlplane.targets.bri.ports import Panel
from controlplane.targets.bri.program import Program
from controlplane.targets.bri.schema import local
from controlplane.targets.bri.target import BriTarget
from p4src.artifacts import find
from tests.support.config import config
from tests.tofino.conftest import TESTBED
from tests.tofino.plans import deployment, installed, with_front_panel
from tests.tofino.switch import TofinoSwitch
from tests.tofino.test_program import Network, all_reduce

TESTBED_2 = "topologies/data/testbed_tofino2.json"
PLAN = ["--tofino", "2", "--topology", TESTBED_2, "--job", "workers=6,ps=2", "--strategy", "inart"]


@pytest.fixture(scope="module")
def topology():
    return parse_topology(TESTBED_2)


@pytest.fixture(scope="module")
def program() -> Program:
    return Program.load(find("t2na").program)


def two_pipes(connector: int, channel: int) -> int:
    """Return device ports of two pipes in turns, after those that are inside the chip."""
    return connector % 2 * 128 + 8 * connector + channel


def one_pipe(connector: int, channel: int) -> int:
    """Return device ports of a single pipe, after those that are inside the chip."""
    return two_pipes(2 * connector, channel)


def test_a_program_knows_its_chip(program):
    assert program.chip == TOFINO_2
    assert Program.load(find("tna").program).chip == TOFINO_1
    assert "loopback" not in {local(name) for name in program.schema.table("label_table").action("aggregate").fields}


def test_a_dry_run_needs_no_loopback_port(capsys, monkeypatch):
    monkeypatch.delenv("SDE_INSTALL", raising=False)
    assert main([*PLAN, "--dry-run", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    for name in ("V1", "V2"):
        entries = data["switches"][name]["entries"]
        ports = [entry["data"] for entry in entries if entry["table"] == "$PORT"]
        assert {port["$SPEED"] for port in ports} == {"BF_SPEED_400G"}
        assert not any("$LOOPBACK_MODE" in port for port in ports)
        actions = {local(entry["action"] or "") for entry in entries}
        assert {"aggregate", "replicate"} <= actions and "read_out" not in actions
    values = {config["values_per_packet"] for config in data["agents"].values()}
    assert values == {find("t2na").manifest.values_per_packet}


@pytest.mark.parametrize(
    ("options", "speed", "message"),
    [
        (["--tofino"], "400G", "Tofino 1 has 10G, 25G, 40G, 50G, 100G"),
        (["--tofino", "2"], "1G", "Tofino 2 has 10G, 25G"),
        (
            ["--tofino", "2", "tna-64"],
            "400G",
            "target tofino2 needs a program for t2na (t2na-128, t2na-64); tna-64 is for tna",
        ),
    ],
)
def test_chip_ports_and_program_must_fit(options, speed, message, tmp_path, capsys):
    data = json.loads(Path(TESTBED_2).read_text())
    for edge in data["edges"]:
        del edge["fec"]
        edge.update(speed=speed, bandwidth_mbps=1000)
    for node in data["nodes"][:2]:
        node["loopback_ports"] = [{"front_panel": "31/0", "speed": "100G"}]
    file = tmp_path / "topology.json"
    file.write_text(json.dumps(data))
    if options[-1] == "tna-64":
        options = [*options[:-1], *config(tmp_path, switches={"artifacts": "tna-64"})]
    assert main([*options, "--topology", str(file), "--dry-run"]) != 0
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("options", "last"), [(["--tofino"], 3), (["--tofino", "2"], 7)])
def test_channels_must_exist_on_the_chips_connectors(options, last, tmp_path, capsys):
    data = json.loads(Path(TESTBED_2).read_text())
    for node in data["nodes"][:2]:
        node["loopback_ports"] = [{"front_panel": "31/4", "speed": "100G"}]
    for edge in data["edges"]:
        edge.update(speed="100G", bandwidth_mbps=1000)
    file = tmp_path / "topology.json"
    file.write_text(json.dumps(data))
    status = main([*options, "--topology", str(file), "--dry-run"])
    assert (status, f"channels 0 to {last}" in capsys.readouterr().err) == ((2, True) if last == 3 else (0, False))


@pytest.mark.parametrize("device", [one_pipe, two_pipes])
def test_flows_meet_through_the_pipes_own_ports(program, topology, device):
    """Nothing recirculates where all flows arrive in one pipe; otherwise the flows of the other pipes do, by ports 6
    and 7.
    """
    through = set()
    for entries in installed(program, topology, device, target="t2na"):
        for entry in entries:
            if local(entry.action or "") == "forward":
                through |= {int(value) % 128 for _, value in entry.data if TOFINO_2.recirculates(int(value))}  # type: ignore[arg-type]
    assert not through if device is one_pipe else through <= {6, 7} and through


def test_own_loopback_ports_can_help(program, topology):
    """Loopback ports that a topology file names count too; flows of another pipe then come in there or by the pipe's
    own port.
    """
    nodes = {"V1": {"loopback_ports": [{"front_panel": "9/0", "speed": "100G"}]}}
    larger = topology.replace(nodes=nodes)
    assert list(installed(program, larger, two_pipes, target="t2na"))


def test_sums_of_two_pipes_are_exact(program):
    """The whole chain runs without a switch, as in tests/tofino/test_program.py for Tofino 1."""
    hardware = with_front_panel(parse_topology(TESTBED), loopback=0)
    made = deployment(hardware, target="t2na")
    network = Network(hardware, made.rulesets, program)
    all_reduce(network, made, random.Random(3))
    assert all(switch.round == 0 for switch in network.switches.values())


def test_installs_reads_back_and_removes(client, program, topology, tmp_path, monkeypatch):
    servers = {name: TofinoSwitch(program_path(), devices=two_pipes) for name in ("V1", "V2")}
    targets = []
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    try:
        for name, server in servers.items():
            panel = Panel.of(topology, name)
            targets.append(BriTarget(SwitchAddress(name, server.address, 0), program, client, panel=panel))
        rules = deployment(topology, target="t2na").rulesets
        fabric.connect(targets, 5.0)
        fabric.install(targets, rules)
        for target in targets:
            assert difference(target.read(), rules[target.name]) == []
        assert list(fabric.install(targets, rules).values()) == [0, 0]
        fabric.remove(targets)
        assert [server.snapshot() for server in servers.values()] == [{}, {}]
    finally:
        for target in targets:
            target.close()
        for server in servers.values():
            server.stop()


def program_path() -> Path:
    return find("t2na").program


def test_the_other_chips_program_is_refused(client, tmp_path, monkeypatch, capsys):
    """A user who forgets the 2 in the option gets this message before anything is written."""
    servers = {name: TofinoSwitch(program_path(), devices=two_pipes) for name in ("V1", "V2")}
    monkeypatch.setattr(bri_kind, "load_client", lambda: client)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    file = tmp_path / "switches.json"
    file.write_text(json.dumps({name: {"address": s.address, "device_id": 0} for name, s in servers.items()}))
    try:
        plan = ["--tofino", "--topology", TESTBED, "--job", "workers=6,ps=2"]
        assert main([*plan, "--switches", str(file)]) == 1
        assert "runs another build of inart" in capsys.readouterr().err
        assert [server.snapshot() for server in servers.values()] == [{}, {}]
    finally:
        for server in servers.values():
            server.stop()


def test_limits_come_from_the_manifest():
    artifact = find("t2na")
    smaller = TofinoKind(replace(artifact, manifest=replace(artifact.manifest, values_per_packet=4, slots=64)))
    assert (smaller.limits.values_per_packet, smaller.limits.slots, smaller.limits.fan_in) == (4, 64, 31)
