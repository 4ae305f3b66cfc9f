"""Disturb sites in namespaces: sites join, leave and are killed, links change, the coordinator is killed.

    python -m evaluation.sites chaos --sites 20 --minutes 10 --seed 1
    python -m evaluation.sites chaos --sites 20 --minutes 10 --seed 1 --list

Needs root (network namespaces). Every site checks every mean for which sites' values are in it, and how often. Failed
for good is: two states before one round, each of which all of its round's sites had; a site that waited for more than
5 s beyond its timeout; a site that had its state and did not take part in that round or the next one. Exit status: 0
when all is well; 1 when it could not run; 3 when a mean was wrong; 4 when something failed; 130 when it was
interrupted.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import socket
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import networkx as nx

from controlplane.common.command_line import whole
from evaluation.chaos.controller import dead, eventually
from evaluation.chaos.events import Act, Event, Happening, Kind, Steps
from evaluation.chaos.findings import Findings
from evaluation.chaos.harness import System
from overlay.sites.command import main as command
from topologies.emulation import Emulation
from topologies.reaper import MARK
from topologies.wan.networks import Wan, emulated, redrawn, scaled
from topologies.zygote import HostFailure, HostProcess

DESCRIPTION = __doc__ or ""
TOTAL_MBPS, DELAY_MS = 400.0, 5.0
"""Rate of all links together, and one-way delay of each."""
LOOK_SECONDS = 0.25
FIRST_SECONDS = 120.0
GRACE_SECONDS = 5.0
"""Seconds that a call may take beyond its timeout."""
PAUSE_SECONDS = 0.5
"""Seconds between two rounds."""
SITE_SECONDS, COORDINATOR_SECONDS = (2.0, 8.0), (5.0, 15.0)
KINDS: dict[str, Kind] = {
    "kill": Kind("site", SITE_SECONDS, False, "a site is killed (SIGKILL) and started again"),
    "leave": Kind("site", SITE_SECONDS, False, "a site leaves (SIGTERM) and comes back"),
    "join": Kind("site", (0.0, 0.0), False, "another site joins"),
    "redraw": Kind("network", (0.0, 0.0), False, "all links get other rates"),
    "coordinator": Kind("coordinator", COORDINATOR_SECONDS, False, "the coordinator is killed and started again"),
}
WEIGHTS = {"kill": 5, "leave": 2, "join": 3, "redraw": 2, "coordinator": 2, "coordinators": 1}
"""Weights by which kinds are drawn. "coordinators" killed all coordinators when there were several; it is drawn as
before, so that a seed means the same schedule.
"""
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


def draw(names: Sequence[str], seconds: float, seed: int) -> list[Event]:
    """Return the events of so many seconds, in the order in which they begin."""
    drawn = random.Random(seed)
    joined = list(names[: first_of(names)])
    back: dict[str, float] = {}
    """Time at which each site that is away, and the coordinator (""), is started again."""
    events: list[Event] = []
    at = 0.0
    while at < seconds:
        back = {name: until for name, until in back.items() if until > at}
        there = sorted(set(joined) - back.keys())
        kind, target, away = drawn.choices(list(WEIGHTS), list(WEIGHTS.values()))[0], None, 0.0
        if kind in ("kill", "leave") and len(there) > LEAST_PART * len(names):
            target = drawn.choice(there)
        elif kind == "join" and len(joined) < len(names):
            target = names[len(joined)]
            joined.append(target)
        elif kind == "redraw":
            target = ""
        elif kind in ("coordinator", "coordinators") and "" not in back:
            target = drawn.choice([""]) if kind == "coordinator" else ""
            kind = "coordinator"
        if target is not None:
            if KINDS[kind].seconds[1]:
                away = drawn.uniform(*KINDS[kind].seconds)
                back[target] = at + away
            draws = sum(event.kind == "redraw" for event in events) + 1
            number, lasts = len(events) + 1, min(away, seconds - at)
            events.append(Event(number, at, lasts, kind, target, draws if kind == "redraw" else 0))
        at += drawn.uniform(*APART_SECONDS)
    return events


def first_of(names: Sequence[str]) -> int:
    """Return the number of sites at the beginning; the others join later."""
    return max(2, round(0.8 * len(names)))


@dataclass
class Seen:
    """The reports of the sites, which add to the findings.

    Attributes:
        states: by round and digest, the sites that have this state.
        done: by round and digest, the sites that did the round before it.
        fresh: sites that have got a state and have not done a round since, with the state's round.
        waiting: sites that wait for others, with the time since which they wait.
    """

    timeout: float
    findings: Findings
    rounds: Counter[str] = field(default_factory=Counter)
    alone: int = 0
    furthest: int = 0
    longest: float = 0.0
    joined: int = 0
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
                self.findings.add_flagged(message["words"], again=False)
            elif kind == "state":
                self.fresh[name] = message["round"]
                self.states[message["round"], message["digest"]].add(name)
            elif kind == "round":
                self._round(name, message)

    def _waited(self, name: str, seconds: float) -> None:
        self.longest = max(self.longest, seconds)
        if seconds > self.timeout + GRACE_SECONDS:
            self.findings.failed.append(f"{name} waited for {seconds:.1f} s, and its timeout is {self.timeout:g} s")

    def _round(self, name: str, message: dict[str, Any]) -> None:
        number, key = message["round"], (message["round"] + 1, message["digest"])
        self.rounds[name] += 1
        self.findings.add_sums(1)
        self.alone += message["alone"]
        self.furthest = max(self.furthest, number)
        self.states[key].add(name)
        self.done[key] = set(message["sites"])
        if message["wrong"]:
            self.findings.wrong.append(f"{name}, round {number}: {message['wrong']}")
        state = self.fresh.pop(name, None)
        if state is not None:
            self.joined += 1
            if number > state + 1:
                self.findings.failed.append(
                    f"{name} had the state before round {state} and took part in round {number} first"
                )

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
            self.findings.failed += [
                f"{count} states before round {number} are all of their sites'"
                for number, count in whole.items() if count > 1
            ]  # fmt: skip


class Sites(System):
    """Sites that average in rounds over emulated wide-area links, and their coordinator."""

    name, description, minutes = "sites chaos", DESCRIPTION, 10.0
    kinds = KINDS
    preload = ("evaluation.sites.chaos_site",)

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.seed, self.timeout, self.values = arguments.seed, arguments.timeout, arguments.values
        self.title = f"{arguments.sites} sites, seed {arguments.seed}"
        self.graph, self.factor = scaled(drawn_network(arguments.sites, arguments.seed), TOTAL_MBPS)
        self.topology = emulated(self.graph, DELAY_MS)
        self.names = list(self.topology.servers)
        self.events = draw(self.names, 60 * arguments.minutes, arguments.seed)
        self._sites: dict[str, HostProcess] = {}
        self._ending = False

    @staticmethod
    def add_arguments(parser: argparse.ArgumentParser) -> None:
        sites, values = whole(2, what="a whole number from 2 on"), whole(1, what="a whole number above 0")
        parser.add_argument("--sites", type=sites, default=20, help="four fifths begin (default %(default)s)")
        parser.add_argument("--values", type=values, default=20_000, help="of a site (default %(default)s)")
        parser.add_argument("--timeout", type=float, default=60.0, help="s, of each call (default %(default)g)")

    @contextmanager
    def network(self) -> Iterator[Emulation]:
        with Wan(self.topology, 0.0, self.seed) as wan:
            yield wan.emulation

    def start(self, stack: ExitStack) -> None:
        emulation = self.place.emulation
        self._stack, self._seen = stack, Seen(self.timeout, self.place.findings)
        with socket.create_server((emulation.controller_host, 0)) as free:
            self._address = f"{emulation.controller_host}:{free.getsockname()[1]}"
        self._forks = multiprocessing.get_context("forkserver")
        self._forks.set_forkserver_preload(["overlay.sites.command"])
        # The server that forks coordinators gets the emulation's mark: the reaper then ends them however this one ends.
        os.environ.update(emulation.environment)
        self._start_coordinator()
        del os.environ[MARK]

    def _start_coordinator(self) -> None:
        """Start the coordinator in a process of its own, with the same address each time."""
        config = self.place.emulation.directory / "site.toml"
        config.write_text("[sites]\nprobe_seconds = 0.3\nchunk = 1024\n")
        words = ["coordinator", "--sites", str(first_of(self.names)), "--insecure", "--listen", self._address,
                 "--config", str(config)]  # fmt: skip
        log = self.place.emulation.directory / "coordinator.log"
        self._coordinator = self._forks.Process(target=coordinate, args=(words, str(log)), daemon=True)
        self._coordinator.start()
        self._stack.callback(self._coordinator.kill)

    def _start_site(self, name: str) -> None:
        about = {
            "name": name, "coordinator": self._address, "names": self.names, "address": self.topology.address(name),
            "timeout": self.timeout, "values": self.values, "pause": PAUSE_SECONDS,
        }  # fmt: skip
        process = self._sites[name] = self.place.zygote.spawn(name, "evaluation.sites.chaos_site:site", about)
        threading.Thread(target=self._listen, args=(name, process), daemon=True).start()

    def _listen(self, name: str, process: HostProcess) -> None:
        while True:
            try:
                message = process.receive(3600)
            except HostFailure as error:
                if self._sites.get(name) is process and not self._ending:
                    self.place.findings.failed.append(f"{name} has ended: {error}")
                return
            if not isinstance(message, dict):
                return
            if self._sites.get(name) is process:
                self._seen.said(name, message)

    # -- the run ------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start the first sites, and wait for their first round."""
        for name in self.names[: first_of(self.names)]:
            self._start_site(name)
        until = time.monotonic() + FIRST_SECONDS
        while not self._seen.furthest and time.monotonic() < until:
            time.sleep(LOOK_SECONDS)

    def acts(self) -> Mapping[str, Act]:
        return {
            "kill": lambda one: self._part(one, signal.SIGKILL), "leave": lambda one: self._part(one, signal.SIGTERM),
            "join": self._join, "redraw": self._redraw, "coordinator": self._kill_coordinator,
        }  # fmt: skip

    def _part(self, one: Happening, number: signal.Signals) -> Steps:
        name = one.event.target
        process = self._sites.pop(name)
        process.signal(number)
        self._seen.gone(name)
        one.happened = number == signal.SIGTERM or eventually(lambda: dead(process.pid))
        yield
        self._start_site(name)

    def _join(self, one: Happening) -> Steps:
        self._start_site(one.event.target)
        one.happened = True
        yield

    def _redraw(self, one: Happening) -> Steps:
        for (u, v), mbps in redrawn(self.graph, self.factor, self.seed, one.event.seed).items():
            self.place.emulation.shape(f"dc{u}", f"dc{v}", rate_mbps=mbps)
        one.happened = True
        yield

    def _kill_coordinator(self, one: Happening) -> Steps:
        self._coordinator.kill()
        self._coordinator.join()
        one.happened = not self._coordinator.is_alive()
        yield
        self._start_coordinator()

    def finish(self) -> None:
        """Wait until all sites that are connected have done a round without a disturbance."""
        before = dict(self._seen.rounds)
        until = time.monotonic() + self.timeout + GRACE_SECONDS
        while time.monotonic() < until:
            left = [name for name in self._sites if self._seen.rounds[name] == before.get(name, 0)]
            if not left:
                return
            time.sleep(LOOK_SECONDS)
        self.place.findings.failed.append(f"at the end {', '.join(left)} did no round any more")

    def conclude(self) -> None:
        self._ending = True
        self._seen.check()

    def details(self) -> dict[str, Any]:
        seen = self._seen
        return {
            "rounds": seen.furthest, "means_without_coordinator": seen.alone, "joined_or_caught_up": seen.joined,
            "longest_wait_s": round(seen.longest, 2),
        }  # fmt: skip

    def detail_lines(self) -> list[str]:
        seen = self._seen
        return [
            "",
            f"{seen.furthest} rounds; {seen.alone} means without a coordinator; {seen.joined} times a site joined or "
            f"caught up; the longest wait was {seen.longest:.1f} s",
        ]
