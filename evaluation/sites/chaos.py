"""Disturb sites in namespaces: sites join, leave and are killed, links change, the coordinator is killed (root).

    python -m evaluation.sites chaos --sites 20 --minutes 10 --seed 1 --json

Every site checks every mean for which sites' values are in it, and how often. The report says what went wrong: a wrong
sum; two states before one round, each of which all of its round's sites had; a site that waited for more than 5 s
beyond its timeout; a site that had its state and did not take part in that round or the next one. The exit
status is 1 when something went wrong, and 130 after Ctrl-C where nothing had until then.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import signal
import socket
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import networkx as nx

from evaluation import commands
from overlay.sites.command import main as command
from topologies.command import guarded
from topologies.network import EmulationError
from topologies.reaper import MARK
from topologies.wan.networks import Wan, emulated, redrawn, scaled
from topologies.zygote import HostFailure, HostProcess, Zygote

RECEIVE_SECONDS = 1.0
LEAVE_SECONDS = 10.0
GRACE_SECONDS = 5.0
"""Seconds that a call may take beyond its timeout."""
KINDS = {"kill": 5, "leave": 2, "join": 3, "redraw": 2, "coordinator": 3}
"""Disturbances, with weights by which they are drawn."""

AWAY_SECONDS = {"site": (2.0, 8.0), "coordinator": (5.0, 15.0)}
APART_SECONDS = 2.0, 7.0
LEAST_PART = 0.6
"""Fraction of the sites that stay: where no more are connected, no site is killed or leaves."""


def coordinate(words: list[str], log: str) -> None:
    """Run the coordinator's command in this process, with its output in a file."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    command(words)


def drawn_network(sites: int, seed: int) -> nx.DiGraph:
    """Return sites in a circle with chords, and links of 20 to 155 Mbit/s, with the same rate both ways."""
    rng = random.Random(seed)
    graph = nx.DiGraph(name=f"{sites} sites")
    graph.add_nodes_from(range(sites))
    for u, v in nx.connected_watts_strogatz_graph(sites, min(4, sites - 1), 0.3, seed=seed).edges:
        mbps = rng.uniform(20, 155)
        graph.add_edge(u, v, mbps=mbps)
        graph.add_edge(v, u, mbps=mbps)
    return graph


@dataclass
class Seen:
    """The reports of the sites.

    Attributes:
        states: by round and digest, the sites that have this state.
        done: by round and digest, the sites that did the round before it.
        fresh: sites that have got a state and have not done a round since, with the state's round.
        waiting: sites that wait for others, with the time since which they wait.
        wrong: what went wrong, in words.
    """

    timeout: float
    rounds: Counter[str] = field(default_factory=Counter)
    alone: int = 0
    furthest: int = 0
    longest: float = 0.0
    late: int = 0
    joined: int = 0
    wrong: list[str] = field(default_factory=list)
    states: dict[tuple[int, str], set[str]] = field(default_factory=lambda: defaultdict(set))
    done: dict[tuple[int, str], set[str]] = field(default_factory=dict)
    fresh: dict[str, int] = field(default_factory=dict)
    waiting: dict[str, float] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def said(self, name: str, message: dict[str, Any]) -> None:
        with self.lock:
            kind = message["kind"]
            if kind in ("waits", "asks"):
                self.waiting[name] = time.monotonic()
                return
            self.waiting.pop(name, None)
            if "seconds" in message:
                self._waited(name, message["seconds"])
            if kind == "late":
                self.late += 1
            elif kind == "state":
                self.fresh[name] = message["round"]
                self.states[message["round"], message["digest"]].add(name)
            elif kind == "round":
                self._round(name, message)

    def _waited(self, name: str, seconds: float) -> None:
        self.longest = max(self.longest, seconds)
        if seconds > self.timeout + GRACE_SECONDS:
            self.wrong.append(f"{name} waited for {seconds:.1f} s, and its timeout is {self.timeout:g} s")

    def _round(self, name: str, message: dict[str, Any]) -> None:
        number, key = message["round"], (message["round"] + 1, message["digest"])
        self.rounds[name] += 1
        self.alone += message["alone"]
        self.furthest = max(self.furthest, number)
        self.states[key].add(name)
        self.done[key] = set(message["sites"])
        if message["wrong"]:
            self.wrong.append(f"{name}, round {number}: {message['wrong']}")
        state = self.fresh.pop(name, None)
        if state is not None:
            self.joined += 1
            if number > state + 1:
                self.wrong.append(f"{name} had the state before round {state} and took part in round {number} first")

    def gone(self, name: str) -> None:
        with self.lock:
            self.waiting.pop(name, None)
            self.fresh.pop(name, None)

    def check(self) -> None:
        """Check all reports together, when the run is over."""
        with self.lock:
            now = time.monotonic()
            for name, since in self.waiting.items():
                self._waited(name, now - since)
            whole: dict[int, int] = Counter()
            for (number, digest), sites in self.done.items():
                whole[number] += sites <= self.states[number, digest]
            self.wrong += [f"{count} states before round {number} are all of their sites'"
                           for number, count in whole.items() if count > 1]  # fmt: skip


class Chaos:
    """The sites and their coordinator, and the disturbances of them."""

    def __init__(self, arguments: argparse.Namespace, stack: ExitStack) -> None:
        self.arguments, self.stack, self.rng = arguments, stack, random.Random(arguments.seed)
        self.graph, self.factor = scaled(drawn_network(arguments.sites, arguments.seed), arguments.total_mbps)
        self.topology = emulated(self.graph, arguments.delay_ms)
        self.wan = stack.enter_context(Wan(self.topology, 0.0, arguments.seed))
        self.zygote = stack.enter_context(Zygote(self.wan.emulation, preload=["evaluation.sites.chaos_site"]))
        self.zygote.wait_ready()
        self.names = list(self.topology.servers)
        self.forks = multiprocessing.get_context("forkserver")
        self.forks.set_forkserver_preload(["overlay.sites.command"])
        self.seen = Seen(arguments.timeout)
        self.counts: Counter[str] = Counter()
        self.sites: dict[str, HostProcess] = {}
        self.threads: list[threading.Thread] = []
        self.due: list[tuple[float, str, str]] = []  # (time, "site" or "coordinator", name) to start again
        host = self.wan.emulation.controller_host
        with socket.create_server((host, 0)) as free:
            self.address = f"{host}:{free.getsockname()[1]}"
        self.draws, self.ending = 0, False
        self.began = time.monotonic()
        self.coordinator: Any = None
        # The server that forks coordinators gets the emulation's mark: the reaper then ends them however this one ends.
        os.environ.update(self.wan.emulation.environment)
        self.start_coordinator()
        del os.environ[MARK]

    def say(self, line: str) -> None:
        print(f"{time.monotonic() - self.began:6.1f} s  {line}", file=sys.stderr, flush=True)

    # --- the coordinator ---

    def start_coordinator(self) -> None:
        """Start the coordinator in a process of its own, with the same address each time."""
        words = ["coordinator", "--sites", str(self.first), "--insecure", "--listen", self.address,
                 "--probe-seconds", "0.3", "--chunk", "1024"]  # fmt: skip
        log = self.wan.emulation.directory / "coordinator.log"
        self.coordinator = self.forks.Process(target=coordinate, args=(words, str(log)), daemon=True)
        self.coordinator.start()
        self.stack.callback(self.coordinator.kill)

    def kill_coordinator(self) -> None:
        self.coordinator.kill()
        self.coordinator.join()
        self.coordinator = None
        self._later("coordinator", "")

    # --- sites ---

    @property
    def first(self) -> int:
        """Number of sites at the beginning; the others join later."""
        return max(2, round(0.8 * len(self.names)))

    def start_site(self, name: str) -> None:
        about = {
            "name": name, "coordinator": self.address, "names": self.names,
            "address": self.topology.address(name), "timeout": self.arguments.timeout,
            "values": self.arguments.values, "pause": self.arguments.pause,
        }  # fmt: skip
        process = self.sites[name] = self.zygote.spawn(name, "evaluation.sites.chaos_site:site", about)
        thread = threading.Thread(target=self._listen, args=(name, process), daemon=True)
        self.threads.append(thread)
        thread.start()

    def _listen(self, name: str, process: HostProcess) -> None:
        while True:
            try:
                message = process.receive(3600)
            except HostFailure as error:
                if self.sites.get(name) is process and not self.ending:
                    self.seen.wrong.append(f"{name} has ended: {error}")
                return
            if not isinstance(message, dict):
                return
            if self.sites.get(name) is process:
                self.seen.said(name, message)

    def _part(self, name: str, number: signal.Signals) -> None:
        process = self.sites.pop(name)
        process.signal(number)
        self.seen.gone(name)
        self._later("site", name)

    def _later(self, what: str, name: str) -> None:
        self.due.append((time.monotonic() + self.rng.uniform(*AWAY_SECONDS[what]), what, name))

    # --- the run ---

    def disturb(self, kind: str) -> None:
        there = sorted(self.sites)
        enough = len(there) > LEAST_PART * len(self.names)
        waiting = [name for name in self.names if name not in there and all(name != each for *_, each in self.due)]
        if kind in ("kill", "leave") and enough:
            name = self.rng.choice(there)
            self._part(name, signal.SIGKILL if kind == "kill" else signal.SIGTERM)
            self.say(f"{kind} {name}")
        elif kind == "join" and waiting:
            self.start_site(waiting[0])
            self.say(f"join {waiting[0]}")
        elif kind == "redraw":
            self.draws += 1
            for (u, v), mbps in redrawn(self.graph, self.factor, self.arguments.seed, self.draws).items():
                self.wan.emulation.shape(f"dc{u}", f"dc{v}", rate_mbps=mbps)
            self.say("redraw all links")
        elif kind == "coordinator" and self.coordinator is not None:
            self.kill_coordinator()
            self.say("kill the coordinator")
        else:
            return
        self.counts[kind] += 1

    def run(self) -> None:
        """Disturb the sites for so many minutes, then let them go on for as long as one timeout."""
        self.began = time.monotonic()
        for name in self.names[: self.first]:
            self.start_site(name)
        while not self.seen.furthest and time.monotonic() < self.began + 120:
            time.sleep(RECEIVE_SECONDS / 4)
        end, following = time.monotonic() + 60 * self.arguments.minutes, 0.0
        while (now := time.monotonic()) < end:
            self._start_due(now)
            if now > following:
                self.disturb(self.rng.choices(list(KINDS), list(KINDS.values()))[0])
                following = now + self.rng.uniform(*APART_SECONDS)
            time.sleep(RECEIVE_SECONDS / 4)
        self._start_due(float("inf"))
        self._settle()

    def _start_due(self, now: float) -> None:
        for each in [each for each in self.due if each[0] <= now]:
            self.due.remove(each)
            _, what, name = each
            if what == "coordinator":
                self.start_coordinator()
            else:
                self.start_site(name)
            self.say(f"{what} {name}".rstrip() + " starts again")

    def _settle(self) -> None:
        """Wait until all sites that are connected have done a round without a disturbance."""
        before = dict(self.seen.rounds)
        end = time.monotonic() + self.arguments.timeout + GRACE_SECONDS
        while time.monotonic() < end:
            left = [name for name in self.sites if self.seen.rounds[name] == before.get(name, 0)]
            if not left:
                return
            time.sleep(RECEIVE_SECONDS / 4)
        self.seen.wrong.append(f"at the end {', '.join(left)} did no round any more")

    def report(self) -> dict[str, Any]:
        seen, a = self.seen, self.arguments
        return {
            "sites": a.sites, "minutes": a.minutes, "seed": a.seed,
            "rounds": seen.furthest, "means_checked": sum(seen.rounds.values()),
            "means_without_coordinator": seen.alone,
            "disturbances": dict(self.counts), "joined_or_caught_up": seen.joined, "timeouts": seen.late,
            "timeout_s": a.timeout, "longest_wait_s": round(seen.longest, 2), "wrong": seen.wrong,
        }  # fmt: skip


def main(argv: Sequence[str]) -> int:
    parser = commands.parser("sites chaos", __doc__)
    parser.add_argument("--sites", type=int, default=20, help="four fifths begin (default %(default)s)")
    parser.add_argument("--minutes", type=float, default=10.0, help="of disturbances (default %(default)g)")
    parser.add_argument("--values", type=int, default=20_000, help="of a site (default %(default)s)")
    parser.add_argument("--pause", type=float, default=0.5, help="s between rounds (default %(default)g)")
    parser.add_argument("--timeout", type=float, default=60.0, help="s, of each call (default %(default)g)")
    parser.add_argument("--delay-ms", type=float, default=5.0, help="one way, of each link (default %(default)g)")
    parser.add_argument("--total-mbps", type=float, default=400.0, help="of all links (default %(default)g)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--logs", type=Path, metavar="DIR", help="keep the logs of sites and coordinator")
    parser.add_argument("--json", action="store_true", help="instead of lines")
    arguments = parser.parse_args(argv)
    return guarded("sites chaos", lambda: disturbed(arguments), EmulationError)


def disturbed(arguments: argparse.Namespace) -> int:
    """Disturb sites, print the report, and return the exit status. An interruption ends the run early and loses no
    finding.
    """
    interrupted = False
    with ExitStack() as stack:
        chaos = Chaos(arguments, stack)
        try:
            chaos.run()
        except KeyboardInterrupt:
            interrupted = True
            chaos.say("interrupted: what was found until now")
        finally:
            chaos.ending = True
            if arguments.logs is not None:
                keep(chaos.wan.emulation.directory, arguments.logs)
        chaos.seen.check()
        found = chaos.report()
    print(json.dumps(found, indent=1) if arguments.json else "\n".join(f"{key:<26} {found[key]}" for key in found))
    return int(bool(found["wrong"])) or (130 if interrupted else 0)


def keep(directory: Path, folder: Path) -> None:
    """Copy the logs of a run from its folder into a directory."""
    folder.mkdir(parents=True, exist_ok=True)
    for log in directory.glob("*.log"):
        with suppress(OSError):
            (folder / log.name).write_bytes(log.read_bytes())
