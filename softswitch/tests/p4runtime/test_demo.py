"""demo.json and demo.p4info.txtpb are compiled from demo.p4, and fake.py has the same declarations."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from google.protobuf import text_format

from softswitch.dataplane.program import Program
from softswitch.p4runtime.stubs import p4info_pb2
from softswitch.tests.p4runtime.client import demo_p4info
from softswitch.tests.p4runtime.fake import PROGRAM_JSON, FakeProgram

HERE = Path(__file__).parent


@pytest.mark.skipif(shutil.which("p4c-bm2-ss") is None, reason="p4c-bm2-ss is not on PATH")
def test_artifacts_are_compiled_from_the_source(tmp_path: Path) -> None:
    p4info, program = tmp_path / "demo.p4info.txtpb", tmp_path / "demo.json"
    command = ["p4c-bm2-ss", "--std", "p4-16", "--p4runtime-files", str(p4info), "-o", str(program), "demo.p4"]
    subprocess.run(command, cwd=HERE, check=True, capture_output=True, timeout=60)
    assert text_format.Parse(p4info.read_text(), p4info_pb2.P4Info()) == demo_p4info()
    compiled, kept = json.loads(program.read_bytes()), json.loads(PROGRAM_JSON)
    for part in ("header_types", "headers", "parsers", "deparsers", "actions", "pipelines", "register_arrays"):
        assert compiled[part] == kept[part], part


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler (cc)")
def test_the_fake_program_declares_the_same_as_the_real_one() -> None:
    real, fake = Program.load(PROGRAM_JSON), FakeProgram()
    for name, table in fake.tables.items():
        found = real.tables[name]
        keys = [(key.name, key.match_kind, key.width) for key in table.keys]
        assert keys == [(key.name, key.match_kind, key.width) for key in found.keys]
        # The size of a const table is the number of its entries.
        assert dataclasses.replace(table, size=found.size, keys=found.keys) == found
    assert {name: real.actions[name].params for name in fake.actions} == {
        name: action.params for name, action in fake.actions.items()
    }
    assert {name: real.registers[name] for name in fake.registers} == fake.registers
    assert set(fake.counters) <= set(real.counters)
