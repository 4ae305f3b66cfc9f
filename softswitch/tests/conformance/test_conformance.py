"""The programs of ``programs/`` do on softswitch what their STF files say, and the runner notices when they do not.
bmv2 does the same: run ``python -m softswitch.tests.conformance softswitch/tests/conformance/programs --target bmv2``.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from softswitch.tests.conformance.build import PROGRAMS
from softswitch.tests.conformance.samples import (
    COMPILER,
    FAIL,
    PASS,
    UNSUPPORTED,
    Sample,
    find,
    run_compiled,
    run_sample,
)
from softswitch.tests.support.switches import missing

SAMPLES = find(PROGRAMS)


def artifacts(sample: Sample) -> tuple[bytes, str]:
    return sample.program.with_suffix(".json").read_bytes(), sample.program.with_suffix(".p4info.txtpb").read_text()


@pytest.fixture(autouse=True)
def _compiler() -> None:
    reason = missing("softswitch")
    if reason:
        pytest.skip(reason)


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda s: s.name)
def test_program(sample: Sample) -> None:
    assert run_compiled(sample.stf, *artifacts(sample), "softswitch") == ([], "")


def altered(tmp_path: Path, name: str, old: str, new: str) -> list[str]:
    sample = next(s for s in SAMPLES if s.name == name)
    text = sample.stf.read_text()
    assert old in text
    (tmp_path / "altered.stf").write_text(text.replace(old, new, 1))
    return run_compiled(tmp_path / "altered.stf", *artifacts(sample), "softswitch")[0]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("expect 1 02 000005 aa $", "expect 1 02 000006 aa $", "port 1, frame 0: 02000005aa instead of 02000006aa$"),
        ("expect 1 02 000005 aa $", "expect 1 02 000005 aabb", "port 1, frame 0"),
        ("expect 1 02 000005 aa $", "expect 1 02 000005 $", "port 1, frame 0"),
        ("expect 1 02 000005 aa $", "", "port 1: 3 frames instead of 2"),
        ("expect 1 02 000005 aa $", "expect 2 02 000005 aa $", "port 2: 0 frames instead of 1"),
        ("register_read sums 2 0x4", "register_read sums 2 0x5", "register sums[2] is 0x4, not 0x5"),
        ("seen(2) packets == 2", "seen(2) packets > 2", "counter seen[2] has 2 packets, not > 2"),
    ],
)
def test_a_difference_is_noticed(tmp_path: Path, old: str, new: str, problem: str) -> None:
    assert any(problem in p for p in altered(tmp_path, "registers", old, new))


def test_unsupported_is_not_a_failure(tmp_path: Path) -> None:
    if shutil.which(COMPILER) is None:
        pytest.skip(f"{COMPILER} is not on PATH")
    program = tmp_path / "a.p4"
    program.write_text("#include <psa.p4>\n")
    (tmp_path / "a.stf").write_text("packet 0 00\n")
    (sample,) = find(tmp_path)
    assert run_sample(sample, "softswitch").outcome == UNSUPPORTED
    program.write_text((PROGRAMS / "registers.p4").read_text())
    (tmp_path / "a.stf").write_text("packet 0 02 000005\nexpect 1 02000006\n")
    assert run_sample(sample, "softswitch").outcome == FAIL
    (tmp_path / "a.stf").write_text("packet 0 02 000005\nexpect 1 02000005\n")
    assert run_sample(sample, "softswitch").outcome == PASS


def test_artifacts_are_of_the_sources(tmp_path: Path) -> None:
    """p4c, where it is installed, compiles the programs to the same JSON again."""
    if shutil.which(COMPILER) is None:
        pytest.skip(f"{COMPILER} is not on PATH")
    from softswitch.tests.conformance.samples import compile_sample
    from softswitch.tests.dataplane.programs import compact

    sample = SAMPLES[0]
    config, _ = compile_sample(sample, tmp_path)
    assert json.loads(compact(config.decode(), keep_lines=False)) == json.loads(artifacts(sample)[0])
