"""p4testgen's tests of our v1model program, on softswitch: they cover each of its statements.

p4testgen is a tool of p4c that looks for paths through a program and makes a test of each: table entries, a packet, and
what leaves. `python -m tests.outside.testgen --values 4 --write` makes the tests in generated/ again.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from p4src import artifacts
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
