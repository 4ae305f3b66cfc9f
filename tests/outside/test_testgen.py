"""What the command for p4testgen makes of its output; where p4testgen is on PATH, our program from end to end.

The tests that p4testgen has made of our program are run by tests/p4/test_generated.py.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from softswitch.tests.support.switches import missing
from tests.outside import testgen

SAYS = """#!/bin/sh
while [ "$1" != --out-dir ]; do shift; done
mkdir -p "$2"
printf 'packet 1 00\\n' > "$2/a_1.stf"
printf 'packet 1 00\\n' > "$2/a_10.stf"
printf 'packet 1 00\\n' > "$2/a_2.stf"
echo '============ Test 1: Nodes covered: 0.5 (2/4) ============'
echo '============ Test 3: Nodes covered: 0.75 (3/4) ============'
echo 'Not covered program nodes:'
printf '\\ta.p4(7): x = y;\\n'
"""


def fake(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Put a script on PATH in p4testgen's place."""
    path = folder / testgen.COMMAND
    path.write_text(script)
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_coverage_and_tests_are_read_from_what_p4testgen_says(tmp_path, monkeypatch):
    fake(tmp_path, monkeypatch, SAYS)
    made = testgen.generate(tmp_path / "a.p4", tmp_path / "out", [], seconds=60)
    assert (made.covered, made.statements, made.ended) == (3, 4, "")
    assert made.missing == ["a.p4(7): x = y;"]
    assert [path.stem for path in made.tests] == ["a_1", "a_2", "a_10"]


def test_a_program_that_p4testgen_cannot_test_is_said_to_be_one(tmp_path, monkeypatch):
    fake(tmp_path, monkeypatch, "#!/bin/sh\necho 'a.p4(3): [--Werror=unsupported] error: no such extern'\nexit 1\n")
    made = testgen.generate(tmp_path / "a.p4", tmp_path / "out", [], seconds=60)
    assert made.tests == []
    assert "no such extern" in made.ended


def test_a_test_that_differs_is_reported_with_the_difference():
    if why := missing("softswitch"):
        pytest.skip(why)
    folder = Path(__file__).parents[2] / "softswitch/tests/conformance/programs"
    config, info = (folder / "registers.json").read_bytes(), (folder / "registers.p4info.txtpb").read_text()
    report = testgen.Report("registers")
    right, wrong = "packet 0 02 000005\nexpect 1 02 000005 $", "packet 0 02 000005\n"
    testgen.judge(report, [("right", right), ("wrong", wrong), ("none", "fly 1")], ["softswitch"], config, info)
    assert report.passed == {"softswitch": 1}
    assert report.different == {"softswitch": ["wrong: port 1: 1 frames instead of 0"]}
    assert [one.partition(":")[0] for one in report.unsupported["softswitch"]] == ["none"]


def test_a_run_takes_up_where_the_last_one_was_stopped_and_ends_with_a_table_of_all(tmp_path, monkeypatch, capsys):
    fake(tmp_path, monkeypatch, SAYS)
    for name in "abc":
        (tmp_path / f"{name}.p4").touch()
    results, run = tmp_path / "results.jsonl", []

    def outcome(program: Path, *_: object) -> testgen.Report:
        run.append(program.stem)
        if program.stem == "c":
            return testgen.Report("c", note="a program of architecture psa, not v1model")
        different = {"softswitch": ["c_1: no"]} if program.stem == "b" else {}
        return testgen.Report(program.stem, 4, 3, 2, {"softswitch": 2 - len(different)}, different)

    monkeypatch.setattr(testgen, "others_program", outcome)
    words = [testgen.COMMAND, str(tmp_path), "--targets", "softswitch", "--results", str(results), "--only"]
    monkeypatch.setattr("sys.argv", [*words, "[ab]"])
    assert testgen.main() == 1
    monkeypatch.setattr("sys.argv", [*words, "*"])
    assert testgen.main() == 0
    assert run == ["a", "b", "c"]
    assert capsys.readouterr().err.endswith(
        "3 programs, 2 with tests, 6 of 8 statements covered\n"
        "softswitch: 3 tests passed; different: b (1)\n"
        "without tests: 1 a program of architecture psa, not v1model\n"
        "1 programs, 0 tests\n"
    )


@pytest.mark.timeout(600)
def test_every_statement_of_our_program_is_covered_and_no_test_differs():
    if shutil.which(testgen.COMMAND) is None:
        pytest.skip(f"{testgen.COMMAND} is not on PATH: it is made with p4c")
    report = testgen.our_program(4, tests=0, seconds=200, targets=["softswitch"], write=False)
    assert report.covered == report.statements > 100
    assert not report.different and not report.unsupported
    assert report.passed["softswitch"] == report.tests > 10
