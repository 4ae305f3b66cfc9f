"""p4testgen's tests of our v1model program, on softswitch: they cover each of its statements.

p4testgen is a tool of p4c that looks for paths through a program and makes a test of each: table entries, a packet, and
what leaves. `python -m tests.outside.testgen --values 4 --write` makes the tests in generated/ again.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from p4src import artifacts
from softswitch.tests.conformance import stf
from softswitch.tests.conformance.samples import run_compiled
from softswitch.tests.support.switches import missing
from tests.p4 import before

VALUES = 4
FILE = Path(__file__).with_name("generated") / f"v1model-{VALUES}.stf"
TESTS = dict(part.split("\n", 1) for part in FILE.read_text().split("# ") if part)
ARTIFACT = artifacts.find("v1model", VALUES)


@pytest.fixture(autouse=True)
def _compiler() -> None:
    if reason := missing("softswitch"):
        pytest.skip(reason)


def differences(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "test.stf"
    path.write_text(text)
    config, info = ARTIFACT.program.read_bytes(), ARTIFACT.p4info.read_text()
    return run_compiled(path, config, info, "softswitch", every_port=True)[0]


@pytest.mark.parametrize("name", TESTS)
def test_what_leaves_is_what_p4testgen_expects(tmp_path: Path, name: str) -> None:
    assert differences(tmp_path, before.as_packets(TESTS[name], ARTIFACT.manifest.slots, VALUES)) == []


def test_there_are_tests_of_packets_that_leave_with_what_a_slot_held(tmp_path: Path) -> None:
    """Without the packets that come before it, such a test must fail: otherwise it would say nothing about sums."""
    differing = 0
    for text in TESTS.values():
        if before.VALUES not in text or "expect" not in text:
            continue
        alone = [line for line in text.splitlines() if not line.startswith("setdefault")]
        differing += differences(tmp_path, "\n".join(alone)) != []
    assert differing > 0


def test_the_state_before_is_brought_about_by_packets_of_the_slots_that_it_names() -> None:
    text = (
        "setdefault InartIngress.slots.slot_before before"
        "(slot:3, owner_before:0x0000000500000007, bitmap_before:6, closed_before:1)\n"
        "setdefault InartIngress.values.values_before before"
        "(slot:9, before_00:1, before_01:2, before_02:3, before_03:4)\n"
        "packet 2 00\n"
    )
    made = stf.read_text(before.as_packets(text, slots=16, values=4))
    entries = [dict(one.call.arguments) for one in made if isinstance(one, stf.Add)]
    assert [(one["slot_base"], one["flow"], one["everyone"]) for one in entries] == [(9, 0, 1), (3, 6, 6)]
    assert [one.port for one in made if isinstance(one, stf.Packet)] == [2, 2, 2]
    beyond = stf.read_text(before.as_packets(text, slots=8, values=4))
    assert len([one for one in beyond if isinstance(one, stf.Add)]) == 1, "there is no slot 9: its values are not kept"


def test_p4testgen_is_given_the_program_with_a_table_before_slots_and_values(tmp_path: Path) -> None:
    main = before.sources(tmp_path)
    assert main.read_text() == (before.DIRECTORY / "bmv2" / "inart.p4").read_text()
    for name, table in (("slots.p4", before.SLOTS), ("values.p4", before.VALUES)):
        assert f"    apply {{\n        {table}.apply();\n" in (tmp_path / "bmv2" / name).read_text()
