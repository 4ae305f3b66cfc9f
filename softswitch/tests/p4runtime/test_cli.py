"""The commands of bmv2's simple_switch_CLI: what packets meet afterwards, what is printed, and what is refused."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from softswitch import AlreadyExists, Device, Fabric, Match, Program, SoftswitchError
from softswitch.__main__ import main
from softswitch.app.commands import ABSENT, Commands
from softswitch.app.config import parse
from softswitch.app.control import ControlServer
from softswitch.app.switches import Switches
from softswitch.dataplane.meters import MeterConfig

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler (cc)")

HERE = Path(__file__).parent
PROGRAMS = HERE.parent / "conformance" / "programs"
COMMANDS = """
# the syntax of bmv2's command files
table_set_default keyless NoAction
table_add exact_table forward 02:00:00:00:00:01 1 => 2
table_add MyIngress.lpm_table route 10.0.0.0/8 => 02:00:00:00:00:99 3
table_add lpm_table route 10.1.2.3/16 => 0x020000000098 4
table_add acl forward 17&&&0xff 1000->2000 0&&&0 1 => 5 10
table_add acl drop 17&&&0xff 1500->1500 7&&&0xff 1 => 5
table_add acl replicate 6&&&0xffff 0->0xffff 0&&&0 1 => 9 20

mc_mgrp_create 9
mc_node_create 0 6 7
mc_node_associate 9 0
mirroring_add 3 8
"""


def demo(address: str, protocol: int, port: int, class_: int, destination: int = 0x020000000002) -> bytes:
    """Return a frame of the program demo.p4."""
    fields = bytes(int(part) for part in address.split("."))
    fields += protocol.to_bytes(2) + port.to_bytes(2) + bytes([class_])
    return destination.to_bytes(6) + bytes(6) + b"\x88\xb6" + fields


def ports(device: Device, frame: bytes) -> list[int]:
    return sorted(port for port, _ in device.process(1, frame))


@pytest.fixture
def device(fabric: Fabric) -> Device:
    device = fabric.add_device(1)
    device.load(Program.load((HERE / "demo.json").read_bytes()))
    return device


@pytest.fixture
def fabric() -> Iterator[Fabric]:
    with Fabric(seed=7) as made:
        yield made


@pytest.fixture
def commands(device: Device) -> Commands:
    made = Commands(device)
    for line in COMMANDS.splitlines():
        if line and not line.startswith("#"):
            made.run(line)
    return made


def loaded(fabric: Fabric, name: str) -> tuple[Device, Commands]:
    device = fabric.add_device(1)
    device.load(Program.load((PROGRAMS / f"{name}.json").read_bytes()))
    return device, Commands(device)


def test_packets_meet_the_entries_of_a_command_file(device: Device, commands: Commands) -> None:
    assert ports(device, bytes.fromhex("020000000001 000000000000 0001")) == [2]
    ((port, frame),) = device.process(1, demo("10.9.9.9", 1, 0, 0))
    assert (port, frame[:6].hex()) == (3, "020000000099")
    ((port, frame),) = device.process(1, demo("10.1.200.1", 1, 0, 0))
    assert (port, frame[:6].hex()) == (4, "020000000098")
    assert ports(device, demo("10.9.9.9", 17, 1500, 0)) == [5]
    assert ports(device, demo("10.9.9.9", 17, 2001, 0)) == [3]
    assert ports(device, demo("10.9.9.9", 17, 1500, 7)) == [], "the lowest priority wins"
    assert [7 in ports(device, demo("10.9.9.9", 6, 5, 0)), 6 in ports(device, demo("10.9.9.9", 6, 5, 0))] == [
        True,
        True,
    ]
    commands.run("table_set_default keyless copy 3")
    assert ports(device, demo("10.9.9.9", 17, 1500, 0)) == [5, 8]
    commands.run("table_reset_default keyless")
    commands.run("mc_node_update 0 6")
    assert ports(device, demo("10.9.9.9", 6, 5, 0)) == [6]


def test_handles_are_those_of_bmv2(device: Device, commands: Commands) -> None:
    assert commands.run("table_add acl drop 1&&&1 0->1 0&&&0 1 => 9").lines == ["Entry has been added with handle 3"]
    commands.run("table_delete acl 1")
    assert ports(device, demo("10.9.9.9", 17, 1500, 7)) == [5]
    commands.run("table_modify acl forward 0 6")
    assert ports(device, demo("10.9.9.9", 17, 1500, 7)) == [6]
    assert commands.run("table_add acl drop 2&&&2 0->1 0&&&0 1 => 9").value == {
        "table": "MyIngress.acl",
        "handle": 1 << 24 | 1,  # the second entry in place 1
    }
    device.insert("MyIngress.lpm_table", [Match("lpm", 0, prefix_len=0)], "MyIngress.drop")
    assert commands.run("table_num_entries lpm_table").lines == ["3"]
    commands.run("table_delete lpm_table 2")
    assert len(device.entries("MyIngress.lpm_table")) == 2
    assert commands.run("table_dump_entry_from_key lpm_table 10.1.0.0/16").value == {
        "handle": 1,
        "match": ["0a010000/16"],
        "action": "MyIngress.route",
        "parameters": [0x020000000098, 4],
    }
    device.delete("MyIngress.lpm_table", [Match("lpm", 0x0A010000, prefix_len=16)])
    with pytest.raises(SoftswitchError, match="no entry has handle 1"):
        commands.run("table_delete lpm_table 1")
    commands.run("table_clear acl")
    assert device.entries("MyIngress.acl") == []


def test_dump(commands: Commands) -> None:
    text = "\n".join(commands.run("table_dump acl").lines)
    assert "Dumping entry 0x0\nMatch key:" in text
    assert "TERNARY   0011 &&& 00ff" in text and "RANGE     03e8 -> 07d0" in text
    assert "Priority: 10\nAction entry: MyIngress.forward - 0005" in text
    assert text.endswith("Dumping default entry\nAction entry: NoAction - \n==========")
    assert any(line.startswith("  -> (L1h=0, rid=0) -> (ports=[6, 7]") for line in commands.run("mc_dump").lines)


def test_registers_and_counters(device: Device, commands: Commands) -> None:
    commands.run("register_write sums 0 40")
    device.process(1, demo("10.0.0.1", 1, 2, 0))
    assert commands.run("register_read sums 0").lines == ["sums[0]= 42"]
    assert commands.run("register_read MyIngress.sums").lines == ["MyIngress.sums= 42, 0, 0, 0"]
    commands.run("register_reset sums")
    assert device.register_read_all("MyIngress.sums") == [0] * 4
    assert commands.run("counter_read verdicts 1").lines == ["verdicts[1]= (23 bytes, 1 packets)"]
    device.process(1, bytes.fromhex("020000000001 000000000000 0001"))
    assert commands.run("counter_read exact_counter 0").value == {"packets": 1, "bytes": 14}
    commands.run("counter_write exact_counter 0 5 6")
    assert commands.run("counter_read exact_counter 0").value == {"packets": 5, "bytes": 6}
    for counter in ("verdicts", "exact_counter"):
        commands.run(f"counter_reset {counter}")
        assert commands.run(f"counter_read {counter} 0").value == {"packets": 0, "bytes": 0}


def test_action_profiles(fabric: Fabric) -> None:
    device, commands = loaded(fabric, "profiles")

    def result(table: int) -> int:
        ((_, frame),) = device.process(0, bytes([table, 0, 0, 0, 0]) + bytes(6))
        return frame[9]

    assert commands.run("act_prof_create_member shared set 4").lines == ["Member has been created with handle 0"]
    assert commands.run("table_indirect_create_member lpm_table set 5").value == {"profile": "I.shared", "member": 1}
    assert commands.run("act_prof_create_group shared").lines == ["Group has been created with handle 0"]
    commands.run("table_indirect_add_with_group lpm_table 0/0 => 0")
    assert result(1) == 0, "the group is empty"
    commands.run("act_prof_add_member_to_group shared 1 0")
    assert result(1) == 5
    commands.run("act_prof_modify_member shared set 1 => 9")
    assert result(1) == 9
    commands.run("table_indirect_add ternary_table 0&&&0 => 0 1")
    assert result(2) == 4
    dump = "\n".join(commands.run("table_dump lpm_table").lines)
    assert "Index: group(0)" in dump and "Dumping group 0\nMembers: [1]" in dump
    with pytest.raises(AlreadyExists):
        commands.run("act_prof_add_member_to_group shared 1 0")
    with pytest.raises(SoftswitchError, match="table entries point to it"):
        commands.run("act_prof_delete_member shared 0")
    commands.run("table_indirect_delete ternary_table 0")
    commands.run("act_prof_delete_member shared 0")
    commands.run("act_prof_remove_member_from_group shared 1 0")
    assert commands.run("act_prof_dump shared").value == {
        "profile": "I.shared",
        "members": {"1": {"action": "I.set", "parameters": [9]}},
        "groups": {"0": []},
    }


def test_meters_and_value_sets(fabric: Fabric) -> None:
    device, commands = loaded(fabric, "meters")
    assert commands.run("meter_get_rates by_bytes 1").value == []
    commands.run("meter_set_rates by_bytes 1 0.0005:9 0.001:18")
    assert device.meter_read("I.by_bytes", 1, 1)[0].config == MeterConfig(500, 9, 1000, 18)
    assert commands.run("meter_get_rates by_bytes 1").lines == [
        "0: info rate = 0.0005, burst size = 9",
        "1: info rate = 0.001, burst size = 18",
    ]
    commands.run("meter_array_set_rates by_packets 1:1 2:2")
    assert {one.config for one in device.meter_read("I.by_packets")} == {MeterConfig(1_000_000, 1, 2_000_000, 2)}
    for wrong in ("1 2:2", "x:1 2:2", "2:2 1:1", "nan:1 2:2", "1e300:1 1e301:2"):
        with pytest.raises(SoftswitchError):
            commands.run(f"meter_set_rates by_packets 0 {wrong}")
    device.load(Program.load((PROGRAMS / "value_sets.json").read_bytes()))
    commands.run("pvs_add pairs 0x923")  # 12 and 7 bits: 0x12 and 0x23
    commands.run("pvs_add kinds 77")
    assert commands.run("pvs_get pairs").lines == ["0012 23"]
    state = device.process(0, (77).to_bytes(2) + bytes(14))[0][1][4]
    assert state == 0x10
    commands.run("pvs_remove kinds 77")
    assert commands.run("pvs_get kinds").lines == []


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("", "no command ''"),
        ("table_fly acl", "no command 'table_fly'"),
        ("table_add nothing drop 1 =>", "no table nothing; there are"),
        ("table_add exact_table route 1 1 => 1 1", "no action route; there are"),
        ("table_add exact_table forward 1 1 => 512", "does not fit 9 bits"),
        ("table_add exact_table forward 1 1 =>", "needs 1 parameters, got 0"),
        ("table_add exact_table forward 1 => 1", "needs 2 match fields, got 1"),
        ("table_add exact_table forward -1 1 => 1", "negative"),
        ("table_add exact_table forward 02:00:00:00:00:01 1 => 1", "already there"),
        ("table_add exact_table forward 02:00:00:00:1 1 => 1", "not an address of 48 bits"),
        ("table_add lpm_table drop 10.0.0.0 =>", "write A/B"),
        ("table_add lpm_table drop 10.0.0.0/33 =>", "above 32"),
        ("table_add lpm_table drop 10.0.0.256/8 =>", "not an address of 32 bits"),
        ("table_add acl drop 1 1->2 0&&&0 1 => 1", "write A&&&B"),
        ("table_add acl drop 1&&&1 2->1 0&&&0 1 => 1", "ends before it starts"),
        ("table_add acl drop 1&&&1 1->2 0&&&0 1 =>", "priority"),
        ("table_add acl drop 1&&&1 1->2 0&&&0 1 => 99999999", "priority 99999999 is above"),
        ("table_add const_table forward 1 => 1", "const"),
        ("table_modify exact_table forward 99 1", "no entry has handle 99"),
        ("table_delete exact_table x", "not a whole number"),
        ("register_read", "usage: register_read <register> [index]"),
        ("register_read sums 4", "not in 0..3"),
        ("register_write sums 0 4294967296", "does not fit 32 bits"),
        ("counter_read verdicts 8", "not in 0..7"),
        ("mc_mgrp_create 9", "exists already"),
        ("mc_mgrp_create 0", "1..65535"),
        ("mc_node_associate 9 7", "no multicast node 7"),
        ("mc_node_associate 9 0", "belongs to group 9 already"),
        ("mc_node_create 1 512", "port 512"),
        ("mc_node_create 1 5 5", "given twice"),
        ("mc_node_create 1 5 | 1", "link aggregation"),
        ("mirroring_add_mc 3 8", "no command made multicast group 8"),
        *((name, "has no counterpart") for name in sorted(ABSENT)),
    ],
)
def test_refused(device: Device, commands: Commands, line: str, why: str) -> None:
    before = {name: device.entries(name) for name in device.program.tables} if device.program else {}
    with pytest.raises(SoftswitchError) as caught:
        commands.run(line)
    assert why in str(caught.value)
    assert {name: device.entries(name) for name in before} == before


def test_a_new_program_voids_handles_and_nodes(device: Device, commands: Commands) -> None:
    device.load(Program.load((HERE / "demo.json").read_bytes()))
    with pytest.raises(SoftswitchError, match="no entry has handle 0"):
        commands.run("table_delete acl 0")
    commands.run("mc_mgrp_create 9")
    device.unload()
    with pytest.raises(SoftswitchError, match="no program is loaded"):
        commands.run("table_dump acl")


def test_files_pipes_and_ctl(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    device = {"id": 1, "name": "s1", "program": str(HERE / "demo.json")}
    config = parse({"grpc": "127.0.0.1:0", "control": "control.sock", "devices": [device]}, tmp_path)
    assert config.control is not None
    switches = Switches(config)
    server = ControlServer(config.control, switches)
    try:
        connections: list[object] = []
        monkeypatch.setattr(server._server, "verify_request", lambda *one: connections.append(one) or True)
        (tmp_path / "commands.txt").write_text(COMMANDS)
        assert main(["cli", config.control, str(tmp_path / "commands.txt")]) == 0
        assert capsys.readouterr().out.count("Entry has been added with handle") == 6
        assert len(connections) == 2, "one to find the device, one for all commands"
        monkeypatch.setattr(sys, "stdin", io.StringIO("table_fly\nregister_write sums 1 7\nregister_read sums 1\n"))
        assert main(["cli", config.control, "--device", "s1"]) == 1
        output = capsys.readouterr()
        assert output.out == "sums[1]= 7\n"
        assert output.err.startswith("standard input, line 1: Error: there is no command 'table_fly'")
        assert main(["ctl", config.control, "run", "s1", "table_add", "acl", "drop", "1&&&1", "1->1", "0&&&0", "1",
                     "=>", "1"]) == 0  # fmt: skip
        assert json.loads(capsys.readouterr().out) == {"table": "MyIngress.acl", "handle": 3}
        assert main(["ctl", config.control, "run", "1", "register_read", "sums"]) == 0
        assert json.loads(capsys.readouterr().out) == [0, 7, 0, 0]
        assert main(["ctl", config.control, "run", "1", "reset_state"]) == 1
        assert "no counterpart" in capsys.readouterr().err
    finally:
        server.stop()
        switches.stop()
