"""The PTF tests of p4lang's tutorials with softswitch in the place of simple_switch_grpc.

    python -m tests.outside.tutorials --install
    python -m tests.outside.tutorials_ptf FOLDER [--only NAME ...] [--json]       # as root, with p4c on PATH

FOLDER is a copy of p4lang/tutorials; it is not changed. An exercise with such tests has a `runptf.sh`, which makes
interfaces, compiles the solution, starts the switch and runs ptf. That script runs unchanged in a copy of the exercise
and in a network namespace of its own.
"""

from __future__ import annotations

import argparse
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from tests.outside import tutorials
from tests.outside.ptf import SECONDS, Outcome

SCRIPT = "runptf.sh"


def exercises(folder: Path) -> list[str]:
    """Return the exercises that have PTF tests."""
    return sorted(path.parent.name for path in folder.glob(f"exercises/*/{SCRIPT}"))


def run(name: str, folder: Path) -> Outcome:
    """Run the PTF tests of one exercise."""
    space = f"inart-ptf-{secrets.token_hex(3)}"
    with tempfile.TemporaryDirectory(prefix="inart-tutorials-ptf-") as work:
        copy, tools = Path(work, "copy"), Path(work, "tools")
        for part in ("utils", "bin", f"exercises/{name}"):
            shutil.copytree(folder / part, copy / part)
        (copy / "exercises" / name / "logs").mkdir(exist_ok=True)  # Which `make` makes, and the tests write to.
        tutorials.make_tools(tools)
        module_path = f"PYTHONPATH={tools}/mininet-only"
        tutorials.script(tools / "ptf", f'{module_path} exec {tutorials.interpreter().parent}/ptf "$@"')
        # The script ends whatever is named simple_switch on the whole machine; here the namespace's processes are
        # ended, and nobody else's.
        tutorials.script(tools / "pkill", f"kill -9 $(ip netns pids {space} | grep -vx -e $$ -e $PPID) 2>/dev/null; :")
        environment = os.environ | {
            "PATH": f"{tools}:{os.environ['PATH']}", "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python",
        }  # fmt: skip
        subprocess.run(["ip", "netns", "add", space], check=True)
        within = ["ip", "netns", "exec", space]
        try:
            subprocess.run([*within, "ip", "link", "set", "lo", "up"], check=True)
            done = _script(copy / "exercises" / name, environment, within)
        finally:
            pids = subprocess.run(["ip", "netns", "pids", space], capture_output=True, text=True, check=True).stdout
            for process in pids.split():
                os.kill(int(process), signal.SIGKILL)  # Only what was started in this namespace is in it.
            subprocess.run(["ip", "netns", "delete", space], check=True)
    return Outcome.of(name, done, r"\.\.\. ok$|^ok$")


def _script(place: Path, environment: dict[str, str], within: list[str]) -> str:
    """Run the exercise's script; returns what it said. The switch that it starts may still run when it has ended."""
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [*within, "bash", SCRIPT], cwd=place, env=environment, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=said, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            said.write(f"\nit did not end within {SECONDS} s")
        said.seek(0)
        return said.read()


def missing(folder: Path) -> str:
    """Return in words why the tests cannot run here; empty when they can."""
    if why := tutorials.missing(folder):
        return why
    if not exercises(folder):
        return f"no exercise of {folder} has a {SCRIPT}: it is an older copy of the tutorials"
    if shutil.which("p4c") is None:
        return "p4c, the compiler's driver, is not on PATH"
    if not (tutorials.interpreter().parent / "ptf").exists():
        return "ptf is not installed: python -m tests.outside.tutorials --install"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.outside.tutorials_ptf", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a copy of p4lang/tutorials")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="some of the exercises that have PTF tests")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each exercise")
    arguments = parser.parse_args()
    if why := missing(arguments.folder):
        parser.error(why)
    status = 0
    for name in exercises(arguments.folder):
        if arguments.only and name not in arguments.only:
            continue
        outcome = run(name, arguments.folder)
        outcome.print(arguments.json)
        status |= bool(outcome.reason)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
