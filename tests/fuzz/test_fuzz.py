"""The bases of the fuzzers: recorded answers of bmv2, the shrinker, and short runs of the fuzzers that need no bmv2."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from softswitch.errors import SoftswitchError
from tests.fuzz import undefined
from tests.fuzz.build import build, inputs, missing_sanitizers
from tests.fuzz.case import multiset, read
from tests.fuzz.differential import ROOT, Program, load, on_softswitch
from tests.fuzz.hostile import fuzz_json, fuzz_p4runtime
from tests.fuzz.record import RECORDED
from tests.fuzz.wires import Wires, difference

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler (cc)")
PROGRAMS = ROOT / "softswitch" / "tests" / "conformance" / "programs"


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.stf")), ids=lambda path: path.stem)
def test_bmv2_answered_the_same(path: Path) -> None:
    """softswitch gives the answers that bmv2 gave to random frames after random writes; the order on a port does not
    matter.
    """
    case, answers = read(path, ROOT)
    assert multiset(on_softswitch(case, counting=False).frames) == multiset(answers)


needs_interfaces = pytest.mark.skipif(os.geteuid() != 0, reason="interfaces and raw sockets need root")


@pytest.mark.namespaces
@needs_interfaces
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", ["router", "registers", "replicas"])
def test_interfaces_change_nothing(name: str, threads: int) -> None:
    """Recorded cases, whose answers are bmv2's, have the same answers over interfaces and with super-frames."""
    case, _ = read(RECORDED / f"{name}.stf", ROOT)
    with Wires() as wires:
        what, left, _ = difference(case, random.Random(1), wires, threads)
    assert what == ""
    assert left > 0


@pytest.mark.namespaces
@needs_interfaces
def test_interfaces_change_nothing_in_runs_of_datagrams() -> None:
    program = Program(ROOT / "p4src" / "artifacts" / "v1model-4" / "inart.json", seed=1)
    with undefined.counted(), Wires() as wires:
        found = [difference(program.case(n, 30), random.Random(n), wires, 1 + n) for n in range(3)]
    assert [what for what, _, _ in found] == [""] * 3
    assert sum(supers for _, _, supers in found) > 0


@pytest.fixture(name="runtime", scope="module")
def _runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the runtime's objects, which several programs share."""
    return tmp_path_factory.mktemp("runtime")


@pytest.mark.parametrize("name", ["profiles", "lookahead"])
def test_generated_code_with_sanitizers(tmp_path: Path, runtime: Path, name: str) -> None:
    reason = missing_sanitizers("cc")
    if reason:
        pytest.skip(reason)
    artifacts, known = load(PROGRAMS / f"{name}.json")
    binary = build(artifacts.config, tmp_path / "build", libfuzzer=False, compiler="cc", runtime=runtime)
    files = []
    for number, data in enumerate(inputs(artifacts, known, 100, 1)):
        files.append(tmp_path / str(number))
        files[-1].write_bytes(data)
    done = subprocess.run([str(binary), *map(str, files)], capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stdout) == (0, "100 inputs\n"), done.stderr[-3000:]


def test_hostile_input_for_a_moment(tmp_path: Path) -> None:
    source = random.Random(3)
    json = fuzz_json(1, source, None, tmp_path)
    assert json.findings == [] and json.outcomes
    p4runtime = fuzz_p4runtime(1, source, tmp_path)
    assert p4runtime.findings == [] and p4runtime.outcomes["servers"]


def test_a_program_that_does_not_load_is_not_built(tmp_path: Path) -> None:
    with pytest.raises(SoftswitchError):
        build(b"{}", tmp_path, libfuzzer=False, compiler="cc")
