"""p4runtime-shell works with the server as a person uses it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt
from softswitch.p4runtime.unknown import API_VERSION
from softswitch.tests.p4runtime.client import EXACT, Client, exact_entry, insert
from softswitch.tests.p4runtime.conftest import Served
from softswitch.tests.p4runtime.fake import PROGRAM_JSON

PYTHON = os.environ.get("P4RUNTIME_SHELL_PYTHON", "")
"""A Python with p4runtime-shell, which wants protobuf 3.20."""

pytestmark = pytest.mark.skipif(not PYTHON, reason="P4RUNTIME_SHELL_PYTHON does not name a Python with p4runtime-shell")


def shell(served: Served, tmp_path: Path, commands: str, *options: str) -> str:
    """Return the shell's output for these commands."""
    command = [PYTHON, "-m", "p4runtime_sh", "--grpc-addr", served.address, "--device-id", "1", *options]
    environment = os.environ | {"IPYTHONDIR": str(tmp_path / "ipython"), "PYTHONWARNINGS": "ignore", "NO_COLOR": "1"}
    process = subprocess.run(
        command, input=commands, capture_output=True, text=True, timeout=150, env=environment, check=False
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_shell_pushes_the_pipeline_lists_and_edits(served: Served, tmp_path: Path) -> None:
    program = tmp_path / "prog.json"
    program.write_bytes(PROGRAM_JSON)
    p4info = Path(__file__).parent / "demo.p4info.txtpb"
    printed = shell(
        served,
        tmp_path,
        """
tables
te = table_entry["MyIngress.exact_table"](action="MyIngress.forward")
te.match["hdr.eth.dst"] = "00:00:00:00:00:02"
te.match["standard_metadata.ingress_port"] = "1"
te.action["port"] = "5"
te.insert()
print("entries", sum(1 for _ in table_entry["MyIngress.exact_table"].read()))
te.insert()
te.action["port"] = "6"
te.modify()
acl = table_entry["MyIngress.acl"](action="MyIngress.drop")
acl.match["hdr.ipv4.protocol"] = "6&&&0xff"
acl.match["meta.port"] = "80..443"
acl.match["hdr.ipv4.valid"] = "1"
acl.priority = 10
acl.insert()
route = table_entry["MyIngress.lpm_table"](action="MyIngress.route")
route.match["hdr.ipv4.dst"] = "10.0.0.0/8"
route.action["mac"] = "00:00:00:00:00:0a"
route.action["port"] = "3"
route.insert()
group = multicast_group_entry(1)
group.add(1, 1).add(2, 1)
group.insert()
session = clone_session_entry(100)
session.add(255)
session.insert()
counter_entry["MyIngress.verdicts"].read(lambda entry: print("counted", entry.packet_count))
print("default", table_entry["MyIngress.lpm_table"](is_default=True).action)
print("version", APIVersion())
""",
        "--election-id",
        "0,5",
        "--config",
        f"{p4info},{program}",
    )
    assert "MyIngress.const_table" in printed
    assert "entries 1" in printed
    assert "ALREADY_EXISTS" in printed
    assert f"version {API_VERSION}" in printed
    device = served.devices[1]
    (entry,) = device.entries("MyIngress.exact_table")
    assert (entry.action, entry.params) == ("MyIngress.forward", (6,))
    assert [entry.priority for entry in device.entries("MyIngress.acl")] == [10]
    assert [entry.match[0].prefix_len for entry in device.entries("MyIngress.lpm_table")] == [8]
    assert device.groups == {1: [(1, 1), (2, 1)]}
    assert list(device.sessions) == [100]


def test_the_shell_reads_and_deletes_entries(served: Served, primary: Client, tmp_path: Path) -> None:
    primary.write(insert(exact_entry()), insert(exact_entry(b"\x09")))
    printed = shell(
        served,
        tmp_path,
        """
for entry in table_entry["MyIngress.exact_table"].read(): entry.delete()

print("left", sum(1 for _ in table_entry["MyIngress.exact_table"].read()))
""",
        "--election-id",
        "0,9",
    )
    assert "left 0" in printed
    assert primary.read(p4rt.Entity(table_entry=p4rt.TableEntry(table_id=EXACT))) == []


def test_shell_as_backup_may_read_only(served: Served, primary: Client, tmp_path: Path) -> None:
    primary.write(insert(exact_entry()))
    printed = shell(
        served,
        tmp_path,
        """
for entry in table_entry["MyIngress.exact_table"].read(): entry.delete()

print("left", sum(1 for _ in table_entry["MyIngress.exact_table"].read()))
""",
        "--election-id",
        "0,0",
    )
    assert "not the primary" in printed
    assert "left 1" in printed
