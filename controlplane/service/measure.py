"""Measurement of what flows through a network, by its switches' counters and its agents' reports.

Flows of other traffic come from what passes the switches' ports (`SwitchTarget.read_traffic`).

Counters are read when somebody asks, at most every `FRESH_SECONDS`; a rate is what was counted between two readings. A
job's own rate, from its workers' reports, is noted every second.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from weakref import WeakKeyDictionary

from controlplane.common.agentconfig import AgentConfig
from controlplane.planner.entries import Forward, Replicate
from controlplane.planner.topology import Topology
from controlplane.planner.topology_cables import access, near_at
from controlplane.service.core.others import Link
from controlplane.service.keeper import Keeper, read_each
from controlplane.service.network import Network
from controlplane.service.room import job_of
from controlplane.service.running import RunningJob
from controlplane.service.threads import Periodic
from controlplane.targets.base import Counters, Traffic

READERS = 8
FRESH_SECONDS = 1.0
LOOK_SECONDS = 1.0
HISTORY = 600
"""Seconds for which each job's rate is kept."""
PATIENCE_SECONDS = 2.0
SMOOTH_SECONDS = 2.5
"""Seconds over which a worker's reports, which come every second, are averaged."""


@dataclass
class Flow:
    """Bytes of other traffic on a link that were counted so far, and the rate between the last two readings, Mbit/s."""

    total: int = 0
    mbps: float = 0.0


Passed = Mapping[str, tuple[float, Traffic]]
"""By switch, when its ports were read (in seconds, of a clock that never goes back), and what had passed them."""


class OtherFlows:
    """Turns readings of ports into flows of other traffic, by link."""

    def __init__(self) -> None:
        self._before: dict[str, tuple[float, Traffic]] = {}
        self._flows: dict[Link, Flow] = {}

    def advance(self, passed: Passed, topology: Topology, of_jobs: Callable[[Link], float]) -> dict[Link, Flow]:
        """Return the flows of the links that are measured now. `of_jobs` returns the Mbit/s of aggregation traffic on a
        link."""
        flows: dict[Link, Flow] = {}
        for switch, (when, now) in passed.items():
            begin, before = self._before.get(switch, (when, now))
            self._before[switch] = when, now
            seconds = when - begin
            if seconds <= 0 or switch not in topology:
                continue
            for other in topology.neighbours(switch):
                port = topology.port(switch, other)
                if port not in now.ports:
                    continue
                received, sent = (
                    after - earlier if after >= earlier else after
                    for after, earlier in zip(now.ports[port], before.ports.get(port, (0, 0)), strict=True)
                )
                links = {(other, switch): received}
                if other not in passed:  # a server, or a switch that does not say what it receives
                    links[switch, other] = sent
                for link, grew in links.items():
                    own = of_jobs(link) if now.whole else 0.0
                    mbps = max(0.0, 8e-6 * grew / seconds - own)
                    total = self._flows.get(link, Flow()).total + int(mbps * seconds / 8e-6)
                    flows[link] = Flow(total, mbps)
        self._flows = {**self._flows, **flows}
        return flows


def traffic(keepers: Iterable[Keeper]) -> dict[str, tuple[float, Traffic]]:
    """Return what has passed the ports of each switch that answers and counts it, and when that was read."""
    read, _ = read_each(keepers, lambda target: target.read_traffic(), READERS)
    return {name: (when, passed) for name, (when, passed) in read.items() if passed is not None}


@dataclass(frozen=True)
class Reading:
    """The counters of the switches at one time.

    Attributes:
        at: that time, in seconds since 1970.
        links: by link and job (its number), the job's flow.
        trees: by job (its number) and tree, what a worker sends on average.
        verdicts: by switch, its counters of packets' fates.
        silent: switches that did not answer, and why.
        others: by link, the traffic of no job (`Measurements.others`).
    """

    at: float = 0.0
    links: dict[Link, dict[int, Flow]] = field(default_factory=dict)
    trees: dict[tuple[int, int], Flow] = field(default_factory=dict)
    verdicts: dict[str, dict[str, int]] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)
    others: dict[Link, Flow] = field(default_factory=dict)

    def link(self, link: Link) -> float:
        """Return the Mbit/s of all jobs on a link."""
        return sum(flow.mbps for flow in self.links.get(link, {}).values())


@dataclass
class _Reports:
    """A worker's or server's byte counter at its last reports, each as (when, value)."""

    readings: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=16))

    def add(self, when: float, value: float) -> None:
        if self.readings and (when <= self.readings[-1][0] or value < self.readings[-1][1]):
            if when <= self.readings[-1][0]:
                return
            self.readings.clear()  # another epoch
        self.readings.append((when, value))

    def mbps(self, now: float) -> float:
        """Return the average rate over the last reports, in Mbit/s; 0 when no more come."""
        recent = [one for one in self.readings if now - one[0] <= SMOOTH_SECONDS]
        if len(recent) == 1:
            recent = list(self.readings)[-2:]
        if len(recent) < 2:
            return 0.0
        (begin, first), (end, last) = recent[0], recent[-1]
        return 8e-6 * (last - first) / (end - begin)


class Measurements(Periodic):
    """Readings of a network. Thread-safe; notes the jobs' rates from `start` to `close`.

    With `others`, it also reads what other traffic takes of each link, from switches that count it: what the switch at
    the link's end has received, or, on a link to a server, what the switch has sent.
    """

    def __init__(self, network: Network, clock: Callable[[], float] = time.time, *, others: bool = False) -> None:
        super().__init__("measuring jobs", LOOK_SECONDS, network.log)
        self._network = network
        self.others = others
        self._clock = clock
        self._reading = Reading()
        self._taken = 0.0  # monotonic
        self._counted: dict[tuple[str, int, int], int] = {}
        self._when: dict[str, float] = {}  # by switch, monotonic
        self._passed = OtherFlows()
        # By job and node: what a worker has sent, and what has come to a server.
        self._bytes: WeakKeyDictionary[RunningJob, dict[str, _Reports]] = WeakKeyDictionary()
        # By job and node of both roles: what has come to its server.
        self._summed: WeakKeyDictionary[RunningJob, dict[str, _Reports]] = WeakKeyDictionary()
        self._history: WeakKeyDictionary[RunningJob, deque[tuple[float, float]]] = WeakKeyDictionary()
        self._lock = threading.Lock()
        self._reading_lock = threading.Lock()

    # -- jobs' rates, by their agents -------------------------------------------------------------------------------

    def look(self) -> None:
        """Note every job's rate now."""
        now, when = time.monotonic(), self._clock()
        with self._lock:
            for job in self._network.jobs:
                self._history.setdefault(job, deque(maxlen=HISTORY)).append((when, self._rate(job, now)))

    def _rate(self, job: RunningJob, now: float) -> float:
        members = job.roster.members()
        workers = 0
        total = 0.0
        for node, config in job.roster.configs.items():
            member = members.get(node)
            worker = config.role == "worker"
            workers += worker
            if member is None or member.reported is None:
                continue
            reports = self._bytes.setdefault(job, {}).setdefault(node, _Reports())
            reports.add(member.reported, member.statistics.get("bytes_sent" if worker else "bytes_received", 0.0))
            if worker:
                total += reports.mbps(now)
            if config.both_roles:
                summed = self._summed.setdefault(job, {}).setdefault(node, _Reports())
                summed.add(member.reported, member.statistics.get("ingress_bytes", 0.0))
        return total / workers if workers else 0.0

    def history(self, job: RunningJob) -> list[tuple[float, float]]:
        """Return the job's rates so far, each as (seconds since 1970, Mbit/s that a worker sent on average), the latest
        last."""
        with self._lock:
            return list(self._history.get(job, ()))

    # -- links and trees, by the switches' counters -------------------------------------------------------------------

    def read(self) -> Reading:
        """Return the counters of the switches, at most a second old."""
        if not self._reading_lock.acquire(timeout=PATIENCE_SECONDS):
            return self._reading  # a switch hangs, and another caller waits for it already
        try:
            if time.monotonic() - self._taken >= FRESH_SECONDS:
                began, keepers = time.monotonic(), self._network.switches.keepers
                counted, silent = read_each(keepers, lambda target: target.read_counters(), READERS)
                passed = traffic(keepers) if self.others else {}
                with self._lock:
                    reading = self._advance(counted, silent)
                    others = self._passed.advance(passed, self._network.topology, reading.link)
                    self._reading = replace(reading, others=others)
                self._taken = began
            return self._reading
        finally:
            self._reading_lock.release()

    def _advance(self, counters: dict[str, tuple[float, Counters]], silent: dict[str, str]) -> Reading:
        network = self._network
        topology, first = network.topology, not self._taken
        numbers = {job.job_id: job for job in network.jobs}
        actions = {
            (switch, entry.ingress_port, entry.label): (entry.action, rules)
            for number in numbers
            for switch, rules in network.switches.rules(number).items()
            for entry in rules.labels
        }
        grown: dict[Link, dict[int, Flow]] = {}
        entries: dict[tuple[str, int, int], Flow] = {}

        def add(u: str, v: str, job: int, more: Flow) -> None:
            flow = grown.setdefault((u, v), {}).setdefault(job, Flow())
            flow.total += more.total
            flow.mbps += more.mbps

        now = dict(self._counted)
        for switch, (when, counted) in counters.items():
            seconds = when - self._when.get(switch, when)
            self._when[switch] = when
            nodes = {topology.port(switch, other): other for other in topology.neighbours(switch)}
            now = {key: value for key, value in now.items() if key[0] != switch}
            for (port, label), (_, count) in counted.labels.items():
                key = (switch, port, label)
                now[key] = count
                before = self._counted.get(key, count if first else 0)
                grew = count - before if count >= before else count
                more = entries[key] = Flow(grew, 8e-6 * grew / seconds if seconds > 0 else 0.0)
                job = job_of(label)
                if not grew or job not in numbers:
                    continue
                if port in nodes:
                    add(nodes[port], switch, job, more)
                action, rules = actions.get(key, (None, None))
                out: Iterable[int] = ()
                if isinstance(action, Forward):
                    out = (action.port,)
                elif isinstance(action, Replicate) and rules is not None:
                    out = next((group.ports for group in rules.groups if group.group == action.group), ())
                for one in out:
                    if one in nodes and topology.kind(nodes[one]) == "server":
                        add(switch, nodes[one], job, more)
        self._counted = now
        links = self._links(grown, numbers, topology)
        trees = self._trees(entries, numbers)
        verdicts = {switch: one.verdicts for switch, (_, one) in counters.items()}
        return Reading(self._clock(), links, trees, verdicts, silent)

    def _links(
        self, grown: dict[Link, dict[int, Flow]], numbers: dict[int, RunningJob], topology: Topology
    ) -> dict[Link, dict[int, Flow]]:
        before = self._reading.links
        links: dict[Link, dict[int, Flow]] = {}
        for link in {*before, *grown}:
            for number in {*before.get(link, {}), *grown.get(link, {})} & set(numbers):
                total = before.get(link, {}).get(number, Flow()).total
                more = grown.get(link, {}).get(number, Flow())
                links.setdefault(link, {})[number] = Flow(total + more.total, more.mbps)
        # A sum that a switch sends to a parameter server is counted by that server alone.
        now = time.monotonic()
        for number, job in numbers.items():
            for root, config in job.roster.configs.items():
                if config.root_trees and root in topology:
                    found = self._summed if config.both_roles else self._bytes
                    reports = found.get(job, {}).get(root)
                    if reports is not None and reports.readings:
                        total, mbps = int(reports.readings[-1][1]), reports.mbps(now)
                        for switch, part in _parts(config, topology).items():
                            flow = Flow(int(part * total), part * mbps)
                            links.setdefault((switch, root), {})[number] = flow
        return links

    def _trees(
        self, entries: dict[tuple[str, int, int], Flow], numbers: dict[int, RunningJob]
    ) -> dict[tuple[int, int], Flow]:
        before = self._reading.trees
        trees: dict[tuple[int, int], Flow] = {}
        topology = self._network.topology
        for number, job in numbers.items():
            sent: dict[int, list[Flow]] = {}
            for node, config in job.roster.configs.items():
                if config.role != "worker" or node not in topology:
                    continue
                for tree in config.worker_trees:
                    near = near_at(topology, node, tree.link)
                    if near is not None:
                        entry = (*access(topology, node, near), tree.up_label)
                        sent.setdefault(tree.tree, []).append(entries.get(entry, Flow()))
            for index, flows in sent.items():
                total = before.get((number, index), Flow()).total + sum(flow.total for flow in flows)
                trees[number, index] = Flow(total, sum(flow.mbps for flow in flows) / len(flows))
        return trees


def _parts(config: AgentConfig, topology: Topology) -> dict[str, float]:
    """Return, by switch, the planned part of a parameter server's traffic that comes from there; each of its trees uses
    one link."""
    rates: dict[str, float] = {}
    for tree in config.root_trees:
        near = near_at(topology, config.node, tree.link)
        if near is not None:
            switch, _ = access(topology, config.node, near)
            rates[switch] = rates.get(switch, 0.0) + (tree.rate_mbps or 1.0)
    total = sum(rates.values())
    return {switch: rate / total for switch, rate in rates.items()}
