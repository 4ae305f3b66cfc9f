"""Runs a system while events disturb it, and reports the findings.

A system registers by its class (see `System`): its command calls `main` with it. The harness imports no system.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from controlplane.common.rpc.client import ControllerError
from controlplane.planner.job import JobError
from controlplane.planner.topology import TopologyError
from evaluation import commands
from evaluation.chaos.events import Act, Event, Happening, Kind, described, happen
from evaluation.chaos.findings import Findings, compared
from topologies.command import Say, guarded, stopwatch
from topologies.emulation import Emulation
from topologies.network import EmulationError
from topologies.zygote import Zygote

LOOK_SECONDS = 0.5
LOGS = (".log", ".out", ".err", ".json", ".jsonl")


@dataclass(frozen=True)
class Place:
    """The surroundings of a run: the network, the zygote that starts processes in its hosts, and the findings."""

    emulation: Emulation
    zygote: Zygote
    findings: Findings
    say: Say


class System(ABC):
    """A system that events disturb: it draws the events, builds what they disturb, and makes them happen.

    Attributes:
        name: name of its command below `evaluation`.
        description: description for --help.
        minutes: default of --minutes.
        kinds: its kinds of events, by name.
        preload: modules that the zygote imports.
        title: title of the report.
        events: the schedule, drawn by the constructor. Raise ValueError, TopologyError, JobError or EmulationError
            there if the arguments allow none.
        place: the surroundings, from `start` on.
    """

    name: ClassVar[str]
    description: ClassVar[str]
    minutes: ClassVar[float]
    kinds: ClassVar[Mapping[str, Kind]]
    preload: ClassVar[Sequence[str]]
    title: str
    events: Sequence[Event]
    place: Place

    @abstractmethod
    def __init__(self, arguments: argparse.Namespace) -> None: ...

    @staticmethod
    @abstractmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        """Add the system's own options."""

    def lines(self) -> list[str]:
        """Return the schedule in words, one line per event."""
        return [str(event) for event in self.events]

    @abstractmethod
    def network(self) -> AbstractContextManager[Emulation]:
        """Return the emulated network, which is built on entry."""

    @abstractmethod
    def start(self, stack: ExitStack) -> None:
        """Start everything in the network; `stack` gets the functions that end it."""

    @abstractmethod
    def acts(self) -> Mapping[str, Act]:
        """Return the function that makes an event happen, by kind."""

    @abstractmethod
    def begin(self) -> None:
        """Begin the work that is disturbed: the time of the events counts from the return."""

    def around(self, one: Happening) -> AbstractContextManager[None]:
        """Return a context in which the event happens, for observations before and after."""
        return nullcontext()

    @abstractmethod
    def finish(self) -> None:
        """End the work in good order after the last event, and search for remains."""

    def conclude(self) -> None:  # noqa: B027 (a system may have nothing to add)
        """Complete the findings, also of an interrupted run."""

    def details(self) -> dict[str, Any]:
        """Return the fields that the report has beside those of all systems."""
        return {}

    def detail_lines(self) -> list[str]:
        """Return the lines that the table has beside those of all systems."""
        return []

    def last_words(self) -> str:
        """Return the end of the logs that explain a failure."""
        return ""


def run(system: System, seconds: float, say: Say, logs: Path | None = None) -> Findings:
    """Build the system, disturb it for `seconds` seconds, and take it down. An interruption ends the run early and
    loses no finding.

    Args:
        logs: folder where the logs are kept, or None.

    Raises:
        EmulationError, ControllerError: the run could not begin.
    """
    findings = Findings([Happening(event) for event in system.events], system.kinds)
    over = threading.Event()
    with ExitStack() as stack:
        emulation = stack.enter_context(system.network())
        if logs is not None:
            stack.callback(keep_logs, emulation.directory, logs)
        zygote = stack.enter_context(Zygote(emulation, system.preload))
        zygote.wait_ready()
        system.place = Place(emulation, zygote, findings, say)
        system.start(stack)
        try:
            findings.began = time.monotonic()
            system.begin()
            findings.began = time.monotonic()
            _disturb(system, seconds, over)
            say("all events are over")
            system.finish()
        except KeyboardInterrupt:
            findings.interrupted = True
            say("interrupted: the report covers the time until now")
        finally:
            over.set()
        findings.seconds = time.monotonic() - findings.began
        system.conclude()
        if findings.status and (words := system.last_words()):
            say(f"last words:\n{words}")
    return findings


def _disturb(system: System, seconds: float, over: threading.Event) -> None:
    """Make all events happen at their times, each lane in a thread of its own, and wait until `seconds` are over."""
    findings, acts = system.place.findings, system.acts()
    lanes: dict[str, list[Happening]] = {}
    for one in findings.happenings:
        lanes.setdefault(system.kinds[one.event.kind].lane or str(one.event.number), []).append(one)

    def follow(lane: Sequence[Happening]) -> None:
        for one in lane:
            over.wait(max(0.0, findings.began + one.event.at - time.monotonic()))
            if over.is_set():
                return
            with system.around(one):
                happen(one, acts[one.event.kind], over, system.place.say)
            system.place.say(f"{one.event.name} is over: {one.evidence}")

    threads = [threading.Thread(target=follow, args=(lane,), daemon=True) for lane in lanes.values()]
    for thread in threads:
        thread.start()
    until = findings.began + seconds
    while time.monotonic() < until:
        system.place.emulation.switches.check()
        time.sleep(min(LOOK_SECONDS, max(0.0, until - time.monotonic())))
    for thread in threads:
        while thread.is_alive():
            thread.join(1.0)


def keep_logs(folder: Path, kept: Path) -> None:
    """Copy the logs from the folder of an emulation, which is removed with it."""
    for file in folder.rglob("*"):
        if file.suffix in LOGS and file.is_file():
            to = kept / file.relative_to(folder)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, to)


def _above_zero(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"got {text!r}; wanted: a number above 0")
    return number


def make_parser(system: type[System]) -> argparse.ArgumentParser:
    parser = commands.parser(system.name, f"{system.description}\nEvents:\n{described(system.kinds)}")
    parser.add_argument(
        "--minutes", type=_above_zero, default=system.minutes, help="duration of the events (default: %(default)g)"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the schedule (default: %(default)s)")
    system.add_arguments(parser)
    parser.add_argument("--list", action="store_true", help="print the schedule, and end")
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep the logs of all processes here")
    parser.add_argument("--json", action="store_true", help="print the report as JSON instead of a table")
    return parser


def main(system: type[System], argv: Sequence[str] | None = None) -> int:
    """Run the system's command, and return its exit status. Progress is printed on standard error."""
    words = list(sys.argv[1:] if argv is None else argv)

    def work() -> int:
        if words[:1] == ["--summary"]:
            print(compared([json.loads(Path(file).read_text()) for file in words[1:]], system.kinds))
            return 0
        arguments = make_parser(system).parse_args(words)
        made = system(arguments)
        if arguments.list:
            print("\n".join(made.lines()))
            return 0
        print(f"Schedule (seed {arguments.seed}):", *made.lines(), sep="\n  ", file=sys.stderr, flush=True)
        findings = run(made, 60 * arguments.minutes, stopwatch(sys.stderr), arguments.logs)
        if arguments.json:
            print(json.dumps(findings.to_json(made.title) | made.details(), indent=1))
        else:
            print("\n".join([findings.table(made.title), *made.detail_lines()]))
        return findings.status or (130 if findings.interrupted else 0)

    return guarded(system.name, work, EmulationError, ControllerError, TopologyError, JobError, ValueError)
