"""p4c's own PTF runner with softswitch in the place of simple_switch_grpc.

    python -m tests.outside.tutorials --install
    python -m tests.outside.ptf FOLDER [--only NAME] [--nanomsg] [--json]       # as root, with p4c-bm2-ss on PATH

FOLDER is p4c's source, which is not changed: its `backends/bmv2/run-bmv2-ptf-test.py` compiles a v1model program,
starts `simple_switch_grpc` on ten interfaces of a network namespace of its own, and runs the program's PTF tests, which
set it up over P4Runtime and send and receive on those interfaces. The programs are those of `testdata/p4_16_samples`
that have such tests, a .py beside the .p4. With --nanomsg packets go over a socket in the place of interfaces
(softswitch's --packet-in).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.outside import tutorials

RUNNER = Path("backends", "bmv2", "run-bmv2-ptf-test.py")
SAMPLES = Path("testdata", "p4_16_samples")
SECONDS = 300


@dataclass(frozen=True)
class Outcome:
    """The tests of one program or exercise. reason: what was said last, where not all of them passed."""

    name: str
    tests: int
    passed: int
    reason: str = ""

    @classmethod
    def of(cls, name: str, said: str, passed: str, ended_well: bool = True) -> Outcome:
        """Read what ptf has said. passed: the pattern of the line of a test that passed."""
        found = re.search(r"Ran (\d+) tests? in", said)
        tests, good = int(found[1]) if found else 0, len(re.findall(passed, said, re.MULTILINE))
        return cls(name, tests, good, "" if ended_well and 0 < tests == good else said[-1500:])

    def print(self, as_json: bool) -> None:
        """Print it, as a line of words or of JSON."""
        line = f"{self.name}: {self.passed} of {self.tests} passed {self.reason}"
        print(json.dumps(asdict(self)) if as_json else line.rstrip(), flush=True)


def programs(p4c: Path) -> list[Path]:
    """Return the v1model samples that have PTF tests."""
    found = sorted((p4c / SAMPLES).glob("*-bmv2.py"))
    return [path.with_suffix(".p4") for path in found if path.with_suffix(".p4").exists()]


def run(program: Path, p4c: Path, nanomsg: bool = False) -> Outcome:
    """Run the PTF tests of one program; nanomsg: packets go over a socket, not over interfaces."""
    p4c, program = p4c.resolve(), program.resolve()
    with tempfile.TemporaryDirectory(prefix="inart-ptf-") as work:
        # The runner wants its Python modules and the compiler in one place; here the compiler is the one on PATH.
        root, tools = Path(work, "root"), Path(work, "tools")
        (root / "build").mkdir(parents=True)
        for name in ("backends", "tools"):
            (root / name).symlink_to(p4c / name)
        compiler = shutil.which("p4c-bm2-ss")
        assert compiler is not None
        (root / "build" / "p4c-bm2-ss").symlink_to(Path(compiler).resolve())
        tools.mkdir()
        tutorials.script(
            tools / "simple_switch_grpc",
            # With nanomsg the runner means to put the switch in the background, and gives it "&" as an argument.
            'for word; do shift; [ "$word" = "&" ] || set -- "$@" "$word"; done',
            f'PYTHONPATH={tutorials.ROOT} exec {sys.executable} -m softswitch "$@"',
        )
        command: list[str | Path] = [tutorials.interpreter(), p4c / RUNNER, root, program]
        command += ["--testdir", Path(work, "tests"), *(["--use-nanomsg"] if nanomsg else [])]
        Path(work, "tests").mkdir()
        path = f"{tools}:{tutorials.interpreter().parent}:{os.environ['PATH']}"
        done = subprocess.run(
            command, env=os.environ | {"PATH": path}, cwd=work, timeout=SECONDS, check=False,
            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
    return Outcome.of(program.stem, done.stdout, r"WARNING: ok$", done.returncode == 0)


def missing(p4c: Path, nanomsg: bool = False) -> str:
    """Return in words why the runner cannot run here; empty when it can."""
    if not (p4c / RUNNER).is_file():
        return f"{p4c} has no {RUNNER}: give p4c's source"
    for tool in ("p4c-bm2-ss", "ip"):
        if shutil.which(tool) is None:
            return f"{tool} is not on PATH"
    if os.geteuid() != 0:
        return "it needs root: network namespaces"
    if not (tutorials.interpreter().parent / "ptf").exists():
        return "ptf is not installed: python -m tests.outside.tutorials --install"
    nnpy = [str(tutorials.interpreter()), "-c", "import nnpy"]
    if nanomsg and subprocess.run(nnpy, capture_output=True, check=False).returncode:
        return f"nnpy is not installed: apt-get install libnanomsg-dev; {tutorials.interpreter()} -m pip install nnpy"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.outside.ptf", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="p4c's source")
    parser.add_argument("--only", metavar="NAME", help="one program, by its name without .p4")
    parser.add_argument("--nanomsg", action="store_true", help="packets over a nanomsg socket, not over interfaces")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each program")
    arguments = parser.parse_args()
    if why := missing(arguments.folder, arguments.nanomsg):
        parser.error(why)
    status = 0
    for program in programs(arguments.folder):
        if arguments.only not in (None, program.stem):
            continue
        outcome = run(program, arguments.folder, arguments.nanomsg)
        outcome.print(arguments.json)
        status |= bool(outcome.reason)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
