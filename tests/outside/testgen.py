"""p4testgen's tests (p4c) on softswitch, and on bmv2 where simple_switch_grpc is on PATH.

    python -m tests.outside.testgen [--values 4 64 256] [--tests 100] [--json] [--write]           # our p4src/bmv2
    python -m tests.outside.testgen FOLDER [--only '*-bmv2'] [--tests 10] [--seconds 60] [--json]  # other programs
        [--results FILE] [--some N]

p4testgen looks for paths through a P4 program and makes a test of each: table entries, a packet, and what has to leave.
Of our program it makes three sets: as few tests as cover every statement (the state that a packet finds is p4testgen's
choice, too: tests/p4/before.py), as few as cover what is possible when a packet leaves, and --tests by chance in which
one leaves. Of a program of FOLDER it makes --tests in --seconds; --some N takes N programs by chance, always the same.
Each test runs on a switch of its own; nothing may leave beside what is expected. The compiled programs are those in
p4src/artifacts, or made by p4c-bm2-ss. --write puts our first two sets where CI finds them (tests/p4/generated).
--results keeps each program's outcome in a file as soon as it is there; a run with the same file takes up where the
last one was stopped, and ends with a table of all. Needs p4testgen on PATH. The status is 1 when a test of this run
differs.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import grpc

from p4src import artifacts, tofino_toolchain
from softswitch import SoftswitchError, UnsupportedConstruct
from softswitch.tests.conformance.samples import NotCompiled, Sample, compile_sample, run_compiled
from softswitch.tests.conformance.stf import StfError
from softswitch.tests.conformance.targets import TARGETS
from softswitch.tests.support.switches import missing
from tests.p4 import before

COMMAND = "p4testgen"
USUAL = ("--std", "p4-16", "--Wdisable", "--track-coverage", "STATEMENTS", "--print-coverage", "--seed", "1")
BMV2 = ("--target", "bmv2", "--arch", "v1model", "--test-backend", "STF")
COVERING = ("--max-tests", "0", "--stop-metric", "MAX_NODE_COVERAGE", "--only-covering-tests",
            "--path-selection", "GREEDY_STATEMENT_SEARCH")  # fmt: skip
# With few ports, p4testgen does not take port 511, by which nothing leaves.
LEAVING = ("--output-packet-only", "--port-ranges", "1:8", "--packet-size-range", "0:12000")
SECONDS = 600


@dataclass
class Generated:
    """What p4testgen said and made. missing: the statements that it did not reach; ended: why it stopped early."""

    covered: int = 0
    statements: int = 0
    missing: list[str] = field(default_factory=list)
    tests: list[Path] = field(default_factory=list)
    ended: str = ""


@dataclass
class Report:
    """The outcome of one program's tests: by target how many passed, and what differs ("test: how")."""

    program: str
    statements: int = 0
    covered: int = 0
    tests: int = 0
    passed: dict[str, int] = field(default_factory=dict)
    different: dict[str, list[str]] = field(default_factory=dict)
    unsupported: dict[str, list[str]] = field(default_factory=dict)
    note: str = ""

    def line(self) -> str:
        """Return it as a line, and a line for each difference."""
        lines = [f"{self.program}: {self.covered} of {self.statements} statements, {self.tests} tests"]
        for target in sorted({*self.passed, *self.different, *self.unsupported}):
            different, unsupported = self.different.get(target, []), self.unsupported.get(target, [])
            lines[0] += f"; {target}: {self.passed.get(target, 0)} passed, {len(different)} different"
            lines += [f"    {target}, {one}"[:400] for one in different]
            lines += [f"    {target}, not run: {one}"[:400] for one in unsupported]
        return "\n".join([*lines, *([f"    {self.note}"] if self.note else [])])


def generate(
    program: Path, folder: Path, options: Sequence[str], seconds: float, target: Sequence[str] = BMV2
) -> Generated:
    """Run p4testgen on a program. When it takes longer, it is stopped; what it has made until then counts."""
    command = [COMMAND, *target, *USUAL, *options, "--out-dir", str(folder), str(program)]
    made = Generated()
    with tempfile.TemporaryFile("w+") as said:
        try:
            # Its own search for a path is not bounded, and a rare program makes it fail: the tests before that count.
            done = subprocess.run(command, stdout=said, stderr=subprocess.STDOUT, timeout=seconds, check=False)
            status = done.returncode
        except subprocess.TimeoutExpired:
            made.ended, status = f"p4testgen was stopped after {seconds:g} s", 0
        said.seek(0)
        text = said.read()
    for found in re.finditer(r"Nodes covered: \S+ \((\d+)/(\d+)\)", text):
        made.covered, made.statements = int(found[1]), int(found[2])
    uncovered = text.rpartition("Not covered program nodes:\n")[2] if "Not covered program nodes:" in text else ""
    made.missing = [line.strip() for line in uncovered.splitlines() if line.startswith("\t")]
    made.tests = sorted(folder.glob("*.stf"), key=lambda path: int(path.stem.rpartition("_")[2]))
    if status and not made.tests:
        errors = [line for line in text.splitlines() if "error" in line.lower() or "nimplemented" in line]
        made.ended = f"p4testgen: {(errors or ['status ' + str(status)])[-1].strip()}"
    return made


def judge(report: Report, tests: Sequence[tuple[str, str]], targets: Sequence[str], config: bytes, info: str) -> None:
    """Run tests (name, STF) on each target and enter the outcomes in the report."""
    report.tests += len(tests)
    for target in targets:
        for name, text in tests:
            try:
                with tempfile.NamedTemporaryFile("w", suffix=".stf") as file:
                    file.write(text)
                    file.flush()
                    problems, _ = run_compiled(Path(file.name), config, info, target, every_port=True)
            except (StfError, UnsupportedConstruct) as error:
                report.unsupported.setdefault(target, []).append(f"{name}: {error}")
                continue
            except (SoftswitchError, grpc.RpcError, OSError, RuntimeError) as error:
                problems = [f"{type(error).__name__}: {error}"]
            if problems:
                report.different.setdefault(target, []).append(f"{name}: {'; '.join(problems)}")
            else:
                report.passed[target] = report.passed.get(target, 0) + 1


def without_trace(text: str) -> str:
    """Return a test without p4testgen's account of how it got there."""
    return "\n".join(line for line in text.splitlines() if line.strip() and not line.startswith("#")) + "\n"


def our_program(values: int, tests: int, seconds: float, targets: Sequence[str], write: bool) -> Report:
    """Judge the switches by p4testgen's tests of p4src/bmv2 with so many values in a packet."""
    artifact = artifacts.find("v1model", values)
    sizes = artifact.manifest
    macros = tofino_toolchain.options((values,), values, sizes.slots, sizes.label_table_size, sizes.route_table_size)
    defined = [word for name, value in macros.items() for word in ("-D", f"{name}={value}")]
    report = Report(f"p4src/bmv2, {values} values")
    with tempfile.TemporaryDirectory(prefix="inart-testgen-") as work:
        program = before.sources(Path(work, "copy"))
        covering = generate(program, Path(work, "covering"), [*defined, *COVERING], seconds)
        leaving = generate(program, Path(work, "leaving"), [*defined, *LEAVING, *COVERING], seconds)
        options = [*defined, *LEAVING, "--max-tests", str(tests), "--path-selection", "RANDOM_BACKTRACK"]
        chance = generate(program, Path(work, "chance"), options, seconds) if tests else Generated()
        added = before.STATEMENTS + values
        if covering.statements:  # none: it was stopped before its first test
            report.statements, report.covered = covering.statements - added, max(0, covering.covered - added)
        report.note = "; ".join([*covering.missing[:5], *filter(None, (covering.ended, leaving.ended, chance.ended))])
        texts = [(f"covering {path.stem}", without_trace(path.read_text())) for path in covering.tests]
        texts += [(f"leaving {path.stem}", without_trace(path.read_text())) for path in leaving.tests]
        if write:
            keep = Path(before.__file__).with_name("generated") / f"v1model-{values}.stf"
            keep.write_text("\n".join(f"# {name}\n{text}" for name, text in texts))
        texts += [(f"chance {path.stem}", without_trace(path.read_text())) for path in chance.tests]
    ready = [(name, before.as_packets(text, sizes.slots, values)) for name, text in texts]
    judge(report, ready, targets, artifact.program.read_bytes(), artifact.p4info.read_text())
    return report


def others_program(program: Path, tests: int, seconds: float, targets: Sequence[str]) -> Report:
    """Judge the switches by p4testgen's tests of somebody else's v1model program."""
    report = Report(program.stem)
    with tempfile.TemporaryDirectory(prefix="inart-testgen-") as work:
        try:
            config, info = compile_sample(Sample(program.stem, program, program), Path(work))
        except (NotCompiled, subprocess.TimeoutExpired) as error:
            report.note = str(error)
            return report
        options = ("--max-tests", str(tests), "--path-selection", "RANDOM_BACKTRACK", "-I", str(program.parent))
        made = generate(program, Path(work, "tests"), options, seconds)
        report.statements, report.covered, report.note = made.statements, made.covered, made.ended
        judge(report, [(path.stem, without_trace(path.read_text())) for path in made.tests], targets, config, info)
    return report


def kept(file: Path) -> list[Report]:
    """Return the outcomes in a file of results; of a program that was run twice the later one."""
    lines = file.read_text().splitlines() if file.exists() else []
    return list({report.program: report for report in (Report(**json.loads(line)) for line in lines)}.values())


def table(reports: Sequence[Report]) -> str:
    """Return what became of many programs, by kind, as text."""
    targets = sorted({target for report in reports for target in {*report.passed, *report.different}})
    tested = [report for report in reports if report.tests]
    statements = sum(report.covered for report in tested), sum(report.statements for report in tested)
    lines = [
        f"{len(reports)} programs, {len(tested)} with tests, {statements[0]} of {statements[1]} statements covered"
    ]
    for target in targets:
        passed = sum(report.passed.get(target, 0) for report in tested)
        different = [f"{report.program} ({len(found)})" for report in tested if (found := report.different.get(target))]
        lines.append(f"{target}: {passed} tests passed; different: {', '.join(different) or 'none'}")
    reasons = Counter(_reason(report.note) for report in reports if not report.tests)
    lines += [f"without tests: {count} {reason}" for reason, count in reasons.most_common()]
    return "\n".join(lines)


def _reason(note: str) -> str:
    """Return why a program has no tests, without what is of this program alone."""
    if note.startswith("a program of architecture"):
        return note
    if "was stopped after" in note:
        return "p4testgen found no test in its time"
    if note.startswith(COMMAND):
        return "p4testgen cannot test it"
    return "p4c-bm2-ss does not compile it" if note else "p4testgen made none"


def _reports(options: argparse.Namespace, targets: Sequence[str]) -> Iterator[Report]:
    if options.folder is None:
        for values in options.values:
            yield our_program(values, options.tests, options.seconds, targets, options.write)
        return
    done = {report.program for report in kept(options.results)} if options.results else set()
    programs = [one for one in sorted(options.folder.glob("*.p4")) if fnmatch.fnmatch(one.stem, options.only)]
    if options.some is not None:
        programs = sorted(random.Random(1).sample(programs, min(options.some, len(programs))))
    for program in programs:
        if program.stem not in done:
            report = others_program(program, options.tests, options.seconds, targets)
            if options.results:
                with options.results.open("a") as file:
                    file.write(json.dumps(asdict(report)) + "\n")
            yield report


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.outside.testgen", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("folder", type=Path, nargs="?", metavar="FOLDER", help="other programs than ours")
    parser.add_argument("--only", metavar="PATTERN", default="*-bmv2", help="names of programs in FOLDER (*-bmv2)")
    parser.add_argument("--some", type=int, metavar="N", help="so many of these programs, by chance, always the same")
    parser.add_argument("--values", type=int, nargs="+", default=[4, 64, 256], help="of our program (4 64 256)")
    parser.add_argument("--tests", type=int, default=10, metavar="N", help="tests by chance for each program (10)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"p4testgen's time for a set ({SECONDS})")
    parser.add_argument("--targets", nargs="+", choices=sorted(TARGETS), help="default: those that are here")
    parser.add_argument("--write", action="store_true", help="keep our covering tests in tests/p4/generated")
    parser.add_argument("--results", type=Path, metavar="FILE", help="of other programs: kept there, and not run again")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each program")
    options = parser.parse_args()
    if shutil.which(COMMAND) is None:
        print(f"{COMMAND} is not on PATH: it is made with p4c (ENABLE_TEST_TOOLS)", file=sys.stderr)
        return 2
    targets = options.targets or [target for target in TARGETS if missing(target) is None]
    total: Counter[str] = Counter()
    for report in _reports(options, targets):
        print(json.dumps(asdict(report)) if options.json else report.line(), flush=True)
        total["programs"] += 1
        total["tests"] += report.tests
        for target, passed in report.passed.items():
            total[f"passed on {target}"] += passed
        for target, different in report.different.items():
            total[f"different on {target}"] += len(different)
        for target, unsupported in report.unsupported.items():
            total[f"not run on {target}"] += len(unsupported)
    if options.results:
        print(table(kept(options.results)), file=sys.stderr)
    print(", ".join(f"{count} {what}" for what, count in total.items()), file=sys.stderr)
    return int(any(what.startswith("different") for what in total))


if __name__ == "__main__":
    raise SystemExit(main())
