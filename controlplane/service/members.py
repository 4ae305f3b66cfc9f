"""Agents that have joined a job, and what they report. Not thread-safe: the roster's lock guards all of it."""

from __future__ import annotations

import queue
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from controlplane.common.agentconfig import REFUSED
from controlplane.common.rpc import inart_pb2 as pb

FRESH_SECONDS = 3.0
"""Reports older than this are stale."""
BUSY_SECONDS = 0.2
"""Between two reports: a tree's rate over less says little."""


class Refused(Exception):
    """This agent cannot join; the message says why and what to do."""


@dataclass(frozen=True)
class Known:
    """A node that may join: as what, and its address."""

    role: str
    address: str


@dataclass
class Member:
    """An agent that has joined. `events`: what to send it; None ends its stream."""

    node: str
    peer: str
    agent: str
    running: tuple[int, str]
    process: str = ""
    leaving: bool = False
    failure: str = ""
    joined: float = field(default_factory=time.monotonic)
    events: queue.SimpleQueue[pb.Event | None] = field(default_factory=queue.SimpleQueue)
    statistics: dict[str, float] = field(default_factory=dict)
    trees: dict[int, pb.TreeReport] = field(default_factory=dict)
    reported: float | None = None
    heard: Counter[str] = field(default_factory=Counter)  # reports of others since this one's last
    began: float = 0.0  # with its epoch
    oldest: dict[int, tuple[int, float]] = field(default_factory=dict)  # by tree: oldest open chunk, and since when
    rates: dict[int, float] = field(default_factory=dict)  # by tree: Mbit/s while busy, between the last two reports

    def begin(self, epoch: int, digest: str) -> None:
        """An epoch begins, with the configuration of this digest: what it reported of another one says nothing."""
        self.running = (epoch, digest)
        self.statistics, self.trees, self.oldest, self.rates = {}, {}, {}, {}
        self.reported, self.began = None, time.monotonic()

    def refused(self, report: pb.ReportRequest) -> str:
        """What the check has refused since its last report, in words; empty: nothing."""
        new = {
            name: int(count - self.statistics.get(name, 0))
            for name, count in report.statistics.items()
            if name.startswith(REFUSED) and count > self.statistics.get(name, 0)
        }
        if REFUSED not in new:
            return ""
        whose = [f"{count} of {name.partition(' of ')[2]}" for name, count in new.items() if name != REFUSED]
        return f"{new[REFUSED]} sums or packets that were not what the workers had sent" + (
            f" ({', '.join(whose)})" if whose else ""
        )

    def take(self, report: pb.ReportRequest, now: float) -> None:
        """Its own report of the epoch that runs, at `now` (time.monotonic)."""
        self.statistics = dict(report.statistics)
        self.rates = dict(_rates(self.trees, report.trees))
        self.trees = {tree.tree: tree for tree in report.trees}
        self.reported = now
        self.heard.clear()
        before, self.oldest = self.oldest, {}
        for tree in report.trees:
            if tree.HasField("oldest_chunk"):
                chunk, since = before.get(tree.tree, (None, now))
                since = min(now - tree.waiting_seconds, since if chunk == tree.oldest_chunk else now)
                self.oldest[tree.tree] = tree.oldest_chunk, since

    def waits(self, now: float) -> float:
        """For how many seconds it has had the same oldest open chunk, on the tree where that is longest; 0: nowhere."""
        return max((now - since for _, since in self.oldest.values()), default=0.0)


def round_trips_ms(members: Iterable[Member]) -> dict[int, dict[str, float]]:
    """By tree and node: the shortest in this epoch, as they reported; what nobody measured is not there."""
    found: dict[int, dict[str, float]] = {}
    for member in members:
        for number, tree in member.trees.items() if member.reported is not None else ():
            if tree.round_trip_seconds > 0:
                found.setdefault(number, {})[member.node] = 1e3 * tree.round_trip_seconds
    return found


def tree_rates(workers: Iterable[Member], now: float) -> dict[int, float]:
    """By tree: Mbit/s between the last two reports of the worker that waited least there. Only trees on which each of
    these workers was busy: the others wait for one that is late, and that says nothing about the network."""
    found: dict[int, list[float]] = {}
    count = 0
    for member in workers:
        count += 1
        if member.reported is not None and now - member.reported < FRESH_SECONDS:
            for tree, rate in member.rates.items():
                found.setdefault(tree, []).append(rate)
    return {tree: max(rates) for tree, rates in found.items() if len(rates) == count}


def _rates(before: Mapping[int, pb.TreeReport], trees: Iterable[pb.TreeReport]) -> Iterator[tuple[int, float]]:
    for tree in trees:
        last = before.get(tree.tree)
        if last is not None and last.busy_seconds > 0:
            busy, nbytes = tree.busy_seconds - last.busy_seconds, tree.answered_bytes - last.answered_bytes
            if busy >= BUSY_SECONDS and nbytes >= 0:
                yield tree.tree, 8e-6 * nbytes / busy
