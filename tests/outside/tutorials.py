"""p4lang's tutorials with softswitch in the place of simple_switch_grpc: do their solutions run, and do they work?

    python -m tests.outside.tutorials --install
    python -m tests.outside.tutorials FOLDER [--only NAME ...] [--json]       # as root, with p4c-bm2-ss and mn on PATH

FOLDER is a copy of p4lang/tutorials; it is not changed. Each exercise is copied, its solution put where a student would
write it, and its own `make run` (Mininet) is given the commands of the exercise's README. All of it happens in a
network namespace of its own. An exercise has `passed` when Mininet's answers are those of a working solution;
`compiled` and `started` say how far it came. Its scripts need Debian's mininet package, psutil, scapy, p4runtime and
p4runtime-shell for their Python. The last one wants protobuf 3.20, so --install makes an environment for the exercises
alone, in $INART_TUTORIALS_PYTHON or ~/.cache/inart/tutorials (tests/outside/tutorials.txt).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from softswitch.tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = Path(__file__).with_name("tutorials.txt")
SYSTEM_PACKAGES = Path("/usr/lib/python3/dist-packages")
SECONDS = 300
NEEDS = ("psutil", "scapy", "p4", "p4runtime_sh")


@dataclass(frozen=True)
class Exercise:
    """What is typed at Mininet's prompt, and what (a regular expression) its answer has when the solution works.

    host: before the prompt comes, this is started on the machine: the exercise's own controller.
    """

    commands: tuple[str, ...]
    expected: str
    controller: str = ""


def scripts_environment() -> Path:
    """Return the folder of the environment in which the exercises' scripts run."""
    return Path(os.environ.get("INART_TUTORIALS_PYTHON") or Path.home() / ".cache" / "inart" / "tutorials")


def interpreter() -> Path:
    return scripts_environment() / "bin" / "python"


def install() -> None:
    """Make that environment; nothing of this one's packages is seen in it."""
    subprocess.run([sys.executable, "-m", "venv", str(scripts_environment())], check=True)
    subprocess.run([str(interpreter()), "-m", "pip", "install", "--quiet", "-r", str(PACKAGES)], check=True)


def _until(condition: str) -> str:
    """Return a command that waits for what a shell command says; all of an exercise has SECONDS."""
    return f"sh until {condition}; do sleep 0.2; done"


_ALL_PING = Exercise(("pingall",), r"Results: 0% dropped")
_SEND = "h1 printf '2 3 2 2 1\\nq\\n' | python3 send.py 10.0.2.2 > /dev/null"
# Their receivers need libpcap; what leaves towards the hosts is in the switches' recordings, too.
_MESSAGES = "cat pcaps/s2-eth1_out.pcap pcaps/s3-eth1_out.pcap | grep -a -o 'message[0-9]' | sort -u"
_ROUTED = "LC_ALL=C grep -a -q -P '\\x04\\xd2\\x10\\xe1' pcaps/s2-eth1_out.pcap"  # UDP's ports 1234 and 4321
EXERCISES = {
    "basic": _ALL_PING,
    "basic_tunnel": _ALL_PING,
    "calc": Exercise(("h1 printf '40+2\\nquit\\n' | python3 calc.py",), r"\b42\b"),
    "ecn": Exercise(("h1 ping -c 3 h2",), r"\b0% packet loss"),
    "firewall": _ALL_PING,
    "flowcache": Exercise(("h1 ping -c 10 h2",), r"\b[1-9]\d* received", "mycontroller.py"),
    "link_monitor": _ALL_PING,
    "load_balance": Exercise(
        (
            *(f"h1 python3 send.py 10.0.0.1 message{number} > /dev/null" for number in range(3)),
            _until(f"{_MESSAGES} | wc -l | grep -q 3"),
            f"sh {_MESSAGES}",
        ),
        r"(?s)message0.*message1.*message2",
    ),
    "mri": Exercise(("h1 ping -c 3 h2",), r"\b0% packet loss"),
    "multicast": Exercise(("h1 ping -c 3 h2", "h1 ping -c 3 h3"), r"(?s)\b0% packet loss.*\b0% packet loss"),
    "p4runtime": Exercise(("h1 ping -c 20 h2",), r"\b[1-9]\d* received", "mycontroller.py"),
    "qos": Exercise(("h1 ping -c 3 h2",), r"\b0% packet loss"),
    "source_routing": Exercise(
        (_SEND, _until(_ROUTED), f"sh {_ROUTED} && echo arrived"),
        r"\barrived",
    ),
}


@dataclass(frozen=True)
class Outcome:
    """How far an exercise came. reason: what it said last, where it did not pass."""

    name: str
    compiled: bool
    started: bool
    passed: bool
    seconds: float
    reason: str = ""


def script(path: Path, *lines: str) -> None:
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)


P4CONFIG = """
# p4.tmp.P4DeviceConfig (PI, proto/p4/tmp/p4config.proto), which is in no package on PyPI.
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
_file = descriptor_pb2.FileDescriptorProto(name="p4/tmp/p4config.proto", package="p4.tmp", syntax="proto3")
_message = _file.message_type.add(name="P4DeviceConfig")
_message.field.add(name="reassign", number=1, type=8, label=1)
_message.field.add(name="device_data", number=3, type=12, label=1)
_made = descriptor_pool.Default().AddSerializedFile(_file.SerializeToString())
_found = descriptor_pool.Default().FindMessageTypeByName("p4.tmp.P4DeviceConfig")
if hasattr(message_factory, "GetMessageClass"):
    P4DeviceConfig = message_factory.GetMessageClass(_found)
else:  # protobuf 3.20
    P4DeviceConfig = message_factory.MessageFactory().GetPrototype(_found)
"""
"""A module of the bmv2 installation that the tutorials want. `p4` is extended by it when Python starts."""


def make_tools(folder: Path) -> None:
    """Make the commands that the exercises' Makefiles call: softswitch by its other name, and no sudo for root."""
    (folder / "mininet-only" / "p4tmp").mkdir(parents=True)
    (folder / "mininet-only" / "mininet").symlink_to(SYSTEM_PACKAGES / "mininet")
    (folder / "mininet-only" / "p4tmp" / "p4config_pb2.py").write_text(P4CONFIG)
    (folder / "mininet-only" / "p4tmp" / "__init__.py").write_text("")
    (folder / "mininet-only" / "sitecustomize.py").write_text(
        "import sys, p4tmp, p4tmp.p4config_pb2\n"
        "sys.modules['p4.tmp'], sys.modules['p4.tmp.p4config_pb2'] = p4tmp, p4tmp.p4config_pb2\n"
    )
    switch = f'PYTHONPATH={ROOT} exec {sys.executable} -m softswitch "$@"'
    script(folder / "simple_switch_grpc", "unset PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION", switch)
    script(folder / "sudo", 'exec env "$@"')
    script(folder / "python3", f'PYTHONPATH={folder}/mininet-only exec {interpreter()} "$@"')


def _solution(exercise: Path) -> None:
    """Put the solution's files where the student's are."""
    for file in (exercise / "solution").iterdir():
        for place in (exercise, exercise / "sig-topo"):
            if file.suffix in (".p4", ".json", ".py") and (place / file.name).exists():
                shutil.copy(file, place / file.name)


def _ready(process: subprocess.Popen[str], listens: list[str]) -> bool:
    return process.poll() is not None or subprocess.run(listens, check=False).returncode == 0


def _warm(exercise: Path, environment: dict[str, str], space: list[str]) -> None:
    """Let softswitch compile the program, so that each switch of an exercise starts within Mininet's ten seconds."""
    for program in (exercise / "build").glob("*.json"):
        words = [*space, "simple_switch_grpc", str(program), "--", "--grpc-server-addr", "127.0.0.1:49999"]
        process = subprocess.Popen(words, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            listens = [*space, "sh", "-c", "ss -ltn | grep -q :49999"]
            wait_until(partial(_ready, process, listens), f"{program.name} is compiled", SECONDS)
        finally:
            process.kill()
            process.communicate()


def run(name: str, tutorials: Path) -> Outcome:
    """Run one exercise in a copy of the tutorials and in a network namespace of its own."""
    began, exercise, space = time.monotonic(), EXERCISES[name], f"inart-tut-{secrets.token_hex(3)}"
    with tempfile.TemporaryDirectory(prefix="inart-tutorials-") as folder:
        copy, tools = Path(folder, "copy"), Path(folder, "tools")
        shutil.copytree(tutorials / "utils", copy / "utils")
        shutil.copytree(tutorials / "exercises" / name, copy / "exercises" / name)
        place = copy / "exercises" / name
        _solution(place)
        make_tools(tools)
        environment = os.environ | {
            "PATH": f"{tools}:{os.environ['PATH']}", "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python",
        }  # fmt: skip
        built = subprocess.run(
            ["make", "build"], cwd=place, env=environment, capture_output=True, text=True, check=False
        )
        if built.returncode:
            return Outcome(name, False, False, False, time.monotonic() - began, (built.stdout + built.stderr)[-600:])
        subprocess.run(["ip", "netns", "add", space], check=True)
        within = ["ip", "netns", "exec", space]
        try:
            subprocess.run([*within, "ip", "link", "set", "lo", "up"], check=True)
            _warm(place, environment, within)
            said = _make_run(exercise, place, environment, within)
        finally:
            for process in subprocess.run(
                ["ip", "netns", "pids", space], capture_output=True, text=True, check=True
            ).stdout.split():
                os.kill(int(process), signal.SIGKILL)  # Only what was started in this namespace is in it.
            subprocess.run(["ip", "netns", "delete", space], check=True)
    started = "Starting mininet CLI" in said or "Welcome to the BMV2 Mininet CLI" in said
    passed = started and re.search(exercise.expected, said.partition("Welcome to the BMV2")[2]) is not None
    seconds = round(time.monotonic() - began, 1)
    return Outcome(name, True, started, passed, seconds, "" if passed else said[-1500:])


def _make_run(exercise: Exercise, place: Path, environment: dict[str, str], within: list[str]) -> str:
    """Run `make run` with the commands as its input; returns what it said."""
    lines = [*exercise.commands, "exit"]
    if exercise.controller:
        begins = f"sh python3 -u {exercise.controller} > controller.log 2>&1 &"
        lines = [begins, _until("grep -q -e Installed -e Error controller.log"), *lines]
    process = subprocess.Popen(
        [*within, "make", "run"], cwd=place, env=environment, text=True, start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    try:
        said = process.communicate("\n".join(lines) + "\n", timeout=SECONDS)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said = process.communicate()[0] + f"\nit did not end within {SECONDS} s"
    log = place / "controller.log"
    return said + (f"\nits controller: {log.read_text()[-800:]}" if log.exists() else "")


def missing(tutorials: Path) -> str:
    """Return in words why the tutorials cannot run here; empty when they can."""
    if not (tutorials / "exercises" / "basic").is_dir():
        return f"{tutorials} has no exercises: give a copy of p4lang/tutorials"
    for tool in ("p4c-bm2-ss", "mn", "make", "ip"):
        if shutil.which(tool) is None:
            return f"{tool} is not on PATH"
    if os.geteuid() != 0:
        return "it needs root: network namespaces"
    code = f"import importlib.util as u; print(*[m for m in {NEEDS!r} if u.find_spec(m) is None])"
    absent = list(NEEDS)
    if interpreter().exists():
        absent = subprocess.run([interpreter(), "-c", code], capture_output=True, text=True, check=True).stdout.split()
    return f"{', '.join(absent)} is not installed: python -m tests.outside.tutorials --install" if absent else ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.outside.tutorials", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("folder", type=Path, nargs="?", metavar="FOLDER", help="a copy of p4lang/tutorials")
    parser.add_argument("--install", action="store_true", help="make the environment of the exercises' scripts")
    parser.add_argument("--only", nargs="+", choices=EXERCISES, default=list(EXERCISES), metavar="NAME")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each")
    arguments = parser.parse_args()
    if arguments.install:
        install()
        return 0
    if arguments.folder is None:
        parser.error("FOLDER is missing")
    if why := missing(arguments.folder):
        parser.error(why)
    outcomes = []
    for name in arguments.only:
        outcome = run(name, arguments.folder)
        outcomes.append(outcome)
        steps = "passed" if outcome.passed else "started" if outcome.started else "compiled" if outcome.compiled else ""
        line = json.dumps(asdict(outcome)) if arguments.json else f"{name}: {steps or 'nothing'} {outcome.reason}"
        print(line.rstrip(), flush=True)
    print(f"{sum(one.passed for one in outcomes)} of {len(outcomes)} passed", file=sys.stderr)
    return int(not all(one.passed for one in outcomes))


if __name__ == "__main__":
    raise SystemExit(main())
