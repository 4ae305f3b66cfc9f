"""Watches for sums that agents' checks refuse: names who changes packets, and disables a switch or link that is proven
to."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from controlplane.common.agentconfig import read_suspect_key
from controlplane.common.log_lines import SILENT, Log
from controlplane.service.core.disabled import Why
from controlplane.service.core.ways import connected
from controlplane.service.network import Network
from controlplane.service.running import RunningJob
from controlplane.service.suspicion import Group, Key, Way, in_words, named, points_alone, suspects, ways_of
from controlplane.service.versions import Version

WINDOW_SECONDS = 10.0
"""Seconds after which a failed check is no longer considered."""
SETTLE_SECONDS = 3.0
"""Seconds after the first failed check until failures are judged: agents report every second, at different moments, and
all need time to report theirs."""
AT_LEAST = 3
"""Failed checks in the window before anything is named."""
UNCLEAR_AT_LEAST = 20
"""Failed checks in the window before an adding switch is named although a link that only its sums cross is not cleared,
and before the log says that it may be one of several."""
AGAIN_SECONDS = 60.0
"""Seconds within which the same line is not logged again."""


@dataclass
class _Seen:
    """Observations of one job under one plan (or two, during a migration).

    Attributes:
        since: when they began to, in seconds.
        ways: the way of each flow; empty during a migration.
        failures: the checks that failed: when, of which flow, and how many.
    """

    versions: tuple[Version, ...]
    since: float
    ways: dict[Key, Way]
    failures: list[tuple[float, Key, int]] = field(default_factory=list)


_Counted = dict[str, tuple[object, dict[str, float]]]
"""By node: the epoch, and the counts that its agent has reported last."""


@dataclass
class Culprits:
    """Looks at what agents' checks refuse, from one thread. `log` gets one line when something is named."""

    network: Network
    log: Log = SILENT
    _counted: WeakKeyDictionary[RunningJob, _Counted] = field(default_factory=WeakKeyDictionary)
    _seen: WeakKeyDictionary[RunningJob, list[_Seen]] = field(
        default_factory=WeakKeyDictionary
    )  # the running plan last
    _said: dict[str, float] = field(default_factory=dict)

    def look(self) -> None:
        """Take what was reported since the last look, and name the culprit when it is clear."""
        now = time.monotonic()
        for job in self.network.jobs:
            self._take(job, now)
        for seen in self._current():
            for one in seen:
                one.failures = [failure for failure in one.failures if now - failure[0] <= WINDOW_SECONDS]
            seen[:-1] = [one for one in seen[:-1] if one.failures]
        found = [one for seen in self._current() for one in seen if one.failures]
        if found and now - min(one.failures[0][0] for one in found) >= SETTLE_SECONDS:
            self._judge(found, now)

    def _current(self) -> list[list[_Seen]]:
        """Return the plans that were seen of the jobs that run now."""
        return [self._seen[job] for job in self.network.jobs if job in self._seen]

    def _take(self, job: RunningJob, now: float) -> None:
        versions, seen = job.migrator.versions, self._seen.setdefault(job, [])
        if not seen or seen[-1].versions != versions:
            (version, *others) = versions
            # While two plans run at once, it is not known which of them a packet belonged to.
            seen.append(_Seen(versions, now, {} if others else ways_of(version.plan, version.deployment)))
        nodes = job.roster.state.nodes
        for node, member in job.roster.members().items():
            epoch = nodes[node].running[0] if node in nodes else 0
            counts = {name: count for name, count in member.statistics.items() if read_suspect_key(name)}
            counted = self._counted.setdefault(job, {})
            running, before = counted.get(node, (None, counts))
            counted[node] = epoch, counts
            if running is not None and running != epoch:
                before = {}
            for name, count in counts.items():
                key, new = read_suspect_key(name), int(count - before.get(name, 0))
                assert key is not None
                tree, label, worker = key
                way = tree, job.roster.label_number(label), worker if label else node
                # What was counted since the last report may have been before the plan changed.
                if new > 0 and way in seen[-1].ways and now - seen[-1].since >= SETTLE_SECONDS / 2:
                    seen[-1].failures.append((now, way, new))

    def _judge(self, found: list[_Seen], now: float) -> None:
        groups = []
        for one in found:
            counts: dict[Key, int] = {}
            for _, key, count in one.failures:
                counts[key] = counts.get(key, 0) + count
            groups.append(Group(one.ways, counts))
        total = sum(sum(group.failures.values()) for group in groups)
        if total < AT_LEAST:
            return
        left = suspects(groups)
        name = named(left, self.network.topology)
        if not name and total >= UNCLEAR_AT_LEAST:
            name = named(points_alone(groups, left), self.network.topology)
        if name:
            self._name(name, total, now)
        elif total >= UNCLEAR_AT_LEAST:
            whose = f"one of {in_words(left)} changes them" if left else "more than one thing changes them"
            self._say(f"{total} sums or packets were refused within {WINDOW_SECONDS:g} s: {whose}", now, whose)

    def _name(self, name: str, total: int, now: float) -> None:
        topology, state = self.network.topology, self.network.state
        if name in state.off:
            return
        how = f"{total} sums or packets were refused within {WINDOW_SECONDS:g} s, all of which came by"
        if name in topology and topology.kind(name) != "switch":
            self._say(f"host {name}, or its link, changes what it sends or receives: {how} it", now, name)
            return
        kind = "switch" if name in topology else "link"
        why_not = self._needed(name)
        if why_not:
            self._say(f"{kind} {name} corrupts: {how} it; it stays in use, as {why_not}", now, name)
            return
        for seen in self._current():
            for one in seen:
                one.failures.clear()
        self.network.failover.lose({name: f"{kind} {name} corrupts: {how} it (replan --with {name})"}, Why.CORRUPTS)
        self.network.changed()  # it stays out when the controller starts again

    def _needed(self, name: str) -> str:
        """Return why some job cannot be rerouted around this switch, link or host; "" where every job can."""
        state = self.network.state
        for job in self.network.jobs:
            nodes = [node for node in job.servers if node not in job.without]
            for node in nodes:
                if name in state.parts.layout.only_switch(node):
                    return f"{node} of job {job.name} hangs on it alone"
            if not connected(state.parts.layout, nodes, {*state.off, name}):
                return f"job {job.name} has no other way"
        return ""

    def _say(self, line: str, now: float, what: str) -> None:
        if now - self._said.get(what, -AGAIN_SECONDS) >= AGAIN_SECONDS:
            self._said[what] = now
            self.log.warning(line)
