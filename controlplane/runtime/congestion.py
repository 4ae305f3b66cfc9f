"""Links that carry less than is planned on them: noticed by trees that stay slow, found by the queue that stands there.

A tree that is slower than planned for some time, while it has something to send, is followed: of every link that it
uses, what has gone in and has not come out waits in a queue there, or was lost there. The link with far the most of it
is taken for what it carries now, and all jobs are planned again with that. After some time it is tried at its full
rate; twice as long each time that it is congested again. So many changes in so much time, and no more.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from controlplane.runtime.hops import Entry, Hop, hops_of
from controlplane.runtime.network import Network
from controlplane.runtime.running import RunningJob
from controlplane.targets.base import Counters
from controlplane.topology import Topology

LOOK_SECONDS = 1.0
SLOW = 0.7
"""Of its planned rate: a tree below this is slow."""
SLOW_LOOKS = 5
"""How often a tree must be found slow, one after the other."""
BACKLOG = 4
WAIT_SECONDS = 0.1
"""So many packets, and what passes in that time, must wait on a link at both looks."""
FAR_MORE = 2.0
"""Than on any other link of the tree."""
BETWEEN_SECONDS = 1.0
HOLD_SECONDS = 60.0
"""How long a link is taken for what it carried, at first."""
LONGEST_HOLD_SECONDS = 3600.0
LEAST_PART = 0.01
"""Of its bandwidth, that a link is taken to carry at least: who waits for something else sends little over it, too."""
SETTLE_SECONDS = 10.0
"""How long after a failure nothing is taken for congestion: what was lost then looks like a queue."""
MOST_CHANGES = 6
CHANGES_SECONDS = 600.0

Readings = Mapping[str, tuple[float, Counters]]
"""By switch: what it counted, and when it said so."""


@dataclass
class Congestion:
    """Looks for it when told to (`look`), from one thread.

    read: asks switches for their counters. log: gets one line per event.
    """

    network: Network
    read: Callable[[Iterable[str]], Readings]
    log: Callable[[str], None] = lambda line: None
    _looked: float = 0.0
    _slow: dict[str, dict[int, int]] = field(default_factory=dict)  # by job and tree: how often in a row
    _first: dict[str, tuple[float, object, Readings]] = field(default_factory=dict)
    _held: dict[str, tuple[float, float]] = field(default_factory=dict)  # by link: until when, how long
    _changes: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_CHANGES))
    _said: set[str] = field(default_factory=set)

    def look(self) -> None:
        """At most once a second."""
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        if now - self.network.state.disturbed < SETTLE_SECONDS:
            self._slow.clear()
            self._first.clear()
            self._end_holds(now)
            return
        names = set()
        for job in self.network.jobs:
            names.add(job.name)
            slow = self._look_at(job)
            if slow:
                self._follow(job, slow, now)
            else:
                self._first.pop(job.name, None)
        for gone in set(self._slow) - names:
            del self._slow[gone]
        self._end_holds(now)

    def _look_at(self, job: RunningJob) -> set[int]:
        """Trees that have been slow for long."""
        rates = job.roster.tree_rates()
        planned: dict[int, float] = {}
        for config in job.roster.configs.values():
            planned |= {tree.tree: tree.rate_mbps for tree in config.worker_trees}
        before = self._slow.get(job.name, {})
        now = {tree: before.get(tree, 0) + 1 for tree, rate in rates.items() if rate < SLOW * planned.get(tree, 0.0)}
        self._slow[job.name] = now
        return {tree for tree, times in now.items() if times >= SLOW_LOOKS}

    def _follow(self, job: RunningJob, slow: set[int], now: float) -> None:
        updater, topology = job.updater, self.network.topology
        if updater is None or len(updater.versions) != 1:
            self._first.pop(job.name, None)
            return
        (version,) = updater.versions
        hops = [hop for hop in hops_of(version.plan, version.deployment, topology) if hop.tree in slow]
        first = self._first.get(job.name)
        if first is not None and first[1] is version and now - first[0] < BETWEEN_SECONDS:
            return
        counted = self.read({entry[0] for hop in hops for entry in (*hop.into, hop.out)})
        if first is None or first[1] is not version:
            self._first[job.name] = now, version, counted
            return
        del self._first[job.name]
        self._slow[job.name] = {}
        found = congested(hops, first[2], counted)
        if found is None:
            self._say_once(f"job {job.name}: tree {_names(slow)} is slow, and no queue says where")
            return
        self._limit(job, found, slow, throughput(found, topology, first[2], counted))

    def _limit(self, job: RunningJob, link: tuple[str, str], slow: set[int], mbps: float) -> None:
        topology, now = self.network.topology, time.monotonic()
        name, bandwidth = "-".join(link), topology.bandwidth_mbps(*link)
        if name in self.network.state.slow or mbps <= 0 or mbps > SLOW * bandwidth:
            return
        if len(self._changes) == MOST_CHANGES and now - self._changes[0] < CHANGES_SECONDS:
            self._say_once(
                f"link {name} is congested, but nothing is changed: {MOST_CHANGES} times in "
                f"{CHANGES_SECONDS / 60:g} minutes are enough"
            )
            return
        mbps = max(mbps, LEAST_PART * bandwidth)
        self._changes.append(now)
        _, before = self._held.get(name, (0.0, HOLD_SECONDS / 2))
        pause = min(2 * before, LONGEST_HOLD_SECONDS)
        self._held[name] = now + pause, pause
        self._said.clear()
        self.network.failover.limit(
            link,
            mbps,
            f"link {name} is congested: it carries {mbps:.4g} of {bandwidth:.4g} Mbit/s, and tree {_names(slow)} of "
            f"job {job.name} waits for it; planned for that for {pause:g} s",
        )

    def _end_holds(self, now: float) -> None:
        for name, (until, pause) in list(self._held.items()):
            if name in self.network.state.slow and now >= until:
                self.network.failover.unlimit(name, f"link {name} is tried at its full rate after {pause:g} s")
            elif now >= until + 2 * pause:
                del self._held[name]

    def _say_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self.log(line)


def packets(read: Readings) -> dict[Entry, int]:
    """What every entry has counted."""
    return {
        (switch, port, label): count
        for switch, (_, counters) in read.items()
        for (port, label), (count, _) in counters.labels.items()
    }


def congested(hops: Sequence[Hop], before: Readings, after: Readings) -> tuple[str, str] | None:
    """The link on which far the most packets wait at both readings; None: there is none.

    What passes between the readings at its two ends does not wait, nor does what is on its way for a moment.
    """
    links: dict[tuple[str, str], list[Hop]] = {}
    looks = [packets(before), packets(after)]
    for hop in hops:
        if all(entry in counted for counted in looks for entry in (*hop.into, hop.out)):
            links.setdefault(hop.ends, []).append(hop)
    backlog: dict[tuple[str, str], float] = {}
    for (u, v), own in links.items():
        seconds = after[v][0] - before[v][0]
        passed = sum(looks[1][hop.out] - looks[0][hop.out] for hop in own)
        rate = max(0.0, passed / seconds) if seconds > 0 else 0.0
        waiting = []
        for reading, counted in zip((before, after), looks, strict=True):
            found = sum(min(counted[entry] for entry in hop.into) - counted[hop.out] for hop in own)
            waiting.append(found - rate * abs(reading[u][0] - reading[v][0]))
        if min(waiting) >= max(BACKLOG, rate * WAIT_SECONDS):
            backlog[u, v] = min(waiting)
    most = sorted(backlog, key=lambda link: -backlog[link])
    if not most or (len(most) > 1 and backlog[most[0]] < FAR_MORE * backlog[most[1]]):
        return None
    return most[0]


def throughput(
    link: tuple[str, str],
    topology: Topology,
    before: Readings,
    after: Readings,
) -> float:
    """Mbit/s of all jobs that came out of a link between two readings."""
    switch = link[1]
    if switch not in before or switch not in after:
        return 0.0
    port = topology.port(switch, link[0])
    (began, first), (ended, last) = before[switch], after[switch]
    counted = {key: count for key, (_, count) in last.labels.items() if key[0] == port}
    grown = sum(max(0, count - first.labels.get(key, (0, 0))[1]) for key, count in counted.items())
    return 8e-6 * grown / (ended - began) if ended > began else 0.0


def _names(trees: set[int]) -> str:
    return ", ".join(map(str, sorted(trees)))
