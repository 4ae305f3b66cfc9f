"""What the controller does by itself when something of the network fails, and when it is back.

A switch that does not answer, and a link behind which nothing arrives any more, are kept off: every job is led around
them in place (plan/repair.py), so that what is under way goes on, and is then planned again for what is left. A switch
that did not answer and has been back for some time is used again; what was found silent is tried again after some time,
which doubles each time that it is silent still, or when an operator says so.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from controlplane.planner.topology import Topology
from controlplane.service.culprits import Culprits
from controlplane.service.disabled import Why
from controlplane.service.hops import Entry, Hop, hops_of, packets
from controlplane.service.keeper import Keeper
from controlplane.service.network import Network
from controlplane.service.only_ways import only_ways
from controlplane.service.periodic import Periodic
from controlplane.service.ports import PortWatch
from controlplane.service.residual import avoidable
from controlplane.service.slow_trees import SlowTrees
from controlplane.service.update import Version
from controlplane.targets.base import Counters, TargetError
from controlplane.targets.fabric import everywhere

LOST_SECONDS = 0.3
"""How long a switch may be away: one that restarts at once is filled again and nothing else happens."""
STEADY_SECONDS = 30.0
"""How long a switch must answer before it is used again."""
PROBATION_SECONDS = 60.0
"""How long a link, or a switch that is silent, is kept off at first; twice as long each time that it is again."""
LONGEST_PROBATION_SECONDS = 3600.0
STALLED_SECONDS = 0.4
"""How long a tree may make no progress before its packets are followed. Agents report at once when one does not."""
FOLLOW_SECONDS = 0.2
FOLLOW_SLOWLY_SECONDS = 2.0
"""Between two looks at the counters, at first and after some time: a worker may be late for long."""
FOLLOWED_AT_MOST_SECONDS = 4.0
LOOK_SECONDS = 0.1
SENT_AT_LEAST = 2
"""Packets that must have gone into a link, of which none came out, before it counts as lost."""
NO_WAY_SECONDS = 1.0
"""As PROBATION_SECONDS, where a job has no way without what was found silent: better tried than given up. Twice as long
each time that it is silent still."""
LONGEST_NO_WAY_SECONDS = 4.0


@dataclass
class Followed:
    """A job whose packets are being followed: when entries had been looked at, and what they had counted then.

    Switches are not read all at the same time. So what came out of links is counted from the first look on, and what
    went in from the second, which follows at once: nothing that counts as gone in had come out before.

    took: how long the last look took, seconds. A machine on which switches answer late may be as late with packets.
    """

    versions: tuple[Version, ...]
    looks: list[tuple[float, dict[Entry, int]]]
    took: float
    pause: float = FOLLOW_SECONDS


@dataclass
class Watch:
    """Watches a network from a thread, from `start` to `close`.

    log: gets one line per event.
    """

    network: Network
    log: Callable[[str], None] = lambda line: None
    _away: dict[str, float] = field(default_factory=dict)
    _back: dict[str, float] = field(default_factory=dict)
    _followed: dict[str, Followed] = field(default_factory=dict)
    _probation: dict[str, tuple[float, float]] = field(default_factory=dict)  # what was silent: until when, how long
    _tried_early: Counter[str] = field(default_factory=Counter)  # what was silent: how often, as the only way

    def __post_init__(self) -> None:
        self._slow_trees = SlowTrees(self.network, self.log)
        self._culprits = Culprits(self.network, self.log)
        self._ports = PortWatch(self.network, self.log)
        self._thread = Periodic("watching for failures", LOOK_SECONDS, self._look, self.log)

    def start(self) -> None:
        self._ports.start()
        self._thread.start()

    def close(self) -> None:
        self._thread.end()
        self._ports.close()
        self._thread.close()

    def _look(self) -> None:
        self._look_at_switches()
        self._look_at_trees()
        self._look_at_lost_agents()
        self._end_probation()
        self._take_only_ways()
        self._slow_trees.look()
        self._culprits.look()

    def _look_at_switches(self) -> None:
        now = time.monotonic()
        lost, steady = [], []
        for keeper in self.network.switches.keepers:
            name = keeper.target.name
            if keeper.ready:
                self._away.pop(name, None)
                since = self._back.setdefault(name, now)
                if self.network.state.off.get(name) == Why.LOST and now - since >= STEADY_SECONDS:
                    steady.append(name)
            else:
                self._back.pop(name, None)
                if now - self._away.setdefault(name, now) >= LOST_SECONDS and name not in self.network.state.off:
                    lost.append(name)
        if lost:
            self.network.failover.lose({name: f"switch {name} does not answer" for name in lost}, Why.LOST)
        if steady:
            self.network.failover.restore(steady, f"answering for {STEADY_SECONDS:g} s")

    def _look_at_trees(self) -> None:
        for job in self.network.jobs:
            if job.updater is None or not job.roster.stalled(STALLED_SECONDS):
                self._followed.pop(job.name, None)
                continue
            now = time.monotonic()
            versions = job.updater.versions
            followed = self._followed.get(job.name)
            if followed is not None and followed.versions != versions:
                del self._followed[job.name]
                continue
            if followed is not None and now - followed.looks[-1][0] < max(followed.pause, followed.took):
                continue
            topology = self.network.topology
            hops = [hop for version in versions for hop in hops_of(version.plan, version.deployment, topology)]
            switches = {entry[0] for hop in hops for entry in (*hop.into, hop.out)}
            counted = self._count(switches)
            if followed is None:
                began, first = time.monotonic(), counted
                counted = self._count(switches)
                ended = time.monotonic()
                self._followed[job.name] = Followed(versions, [(began, first), (ended, counted)], ended - began)
                continue
            looks = [*followed.looks, (time.monotonic(), counted)]
            followed.took = looks[-1][0] - now
            if len(looks) > 3:
                (_, first), (_, second), (_, last_but_one) = looks[0], looks[1], looks[-2]
                dead = silent(hops, first, counted, last_but_one, second) - set(self.network.state.off)
                # Where nothing at all has moved since, it may be the machine that waits.
                if dead and any(count > last_but_one.get(entry, count) for entry, count in counted.items()):
                    self._followed.pop(job.name)
                    self._lose_silent(dead, topology)
                    continue
                followed.pause = min(1.5 * followed.pause, FOLLOW_SLOWLY_SECONDS)
            while len(looks) > 3 and looks[-1][0] - looks[1][0] > FOLLOWED_AT_MOST_SECONDS:
                del looks[0]
            followed.looks = looks

    def _look_at_lost_agents(self) -> None:
        """A parameter server that was lost, has joined again and has stayed is used again. A worker is not: it has not
        what the others have, and an operator says when the job shall begin anew."""
        for job in self.network.jobs:
            if job.updater is None:
                continue
            job.roster.go_on_after_restart()
            if not job.without:
                continue
            waiting = job.roster.waiting()
            lost = [node for node, why in job.without.items() if why == Why.LOST]
            there = [node for node in lost if node in waiting and node not in job.updater.job.workers]
            if there and not job.roster.running:  # all wait: for those who are not there, and need not
                members = job.roster.members()
                missing = [root for root in job.updater.plan.job.parameter_servers if root not in members]
                self.network.failover.take_back(job, there, "the job waits", instead_of=missing)
                continue
            steady = {}
            for node in there:
                wanted = min(STEADY_SECONDS * 2 ** (max(job.losses[node], 1) - 1), LONGEST_PROBATION_SECONDS)
                if waiting[node] >= wanted:
                    steady[node] = wanted
            if steady:
                self.network.failover.take_back(job, list(steady), f"there for {max(steady.values()):g} s")

    def _lose_silent(self, dead: set[str], topology: Topology) -> None:
        causes = {
            name: f"nothing that is sent to switch {name} comes in"
            if name in topology
            else f"nothing comes out of link {name}"
            for name in sorted(dead)
        }
        now, before = time.monotonic(), dict(self._probation)
        for name in causes:
            self._probation[name] = now + PROBATION_SECONDS, PROBATION_SECONDS
        every = self.network.failover.lose(causes, Why.SILENT) or self._take_only_ways()
        least = PROBATION_SECONDS if every else NO_WAY_SECONDS
        for name in causes:
            _, pause = before.get(name, (0.0, 0.0))
            if name not in self._tried_early:  # else its probation was not over when a job needed it
                pause = min(max(2 * pause, least), LONGEST_PROBATION_SECONDS)
            self._probation[name] = now + pause, pause

    def _end_probation(self) -> None:
        """What was silent is tried again after some time: nothing but a job's own packets tells whether it carries."""
        now = time.monotonic()
        over = [
            name
            for name, (until, _) in self._probation.items()
            if now >= until and self.network.state.off.get(name) == Why.SILENT
        ]
        if over:
            longest = max(self._probation[name][1] for name in over)
            self.network.failover.restore(over, f"tried again after {longest:g} s")
        for name, (until, pause) in list(self._probation.items()):
            if now >= until + 2 * pause and name not in self.network.state.off:
                del self._probation[name]  # it has carried for so long: it is as good as any
                self._tried_early.pop(name, None)

    def _take_only_ways(self) -> bool:
        """What is on probation is used at once where the agents of a job do not reach each other without it: the job
        stands, so that trying costs nothing. Whether anything is, and every job has a way with it."""
        state, topology = self.network.state, self.network.topology
        probation = self._may_carry() if state.off else []
        if not probation:
            return False
        jobs = []
        for job in self.network.jobs:
            if job.updater is not None:
                plan = job.updater.plan.job
                nodes = [node for node in (*plan.workers, *plan.parameter_servers) if node not in job.without]
                jobs.append((nodes, avoidable(state.off, topology, [plan])))
        names = only_ways(topology, jobs, probation)
        if not names:
            return False
        self._tried_early.update(name for name in names if state.off.get(name) == Why.SILENT)
        return self.network.failover.restore(names, "a job has no other way")

    def _may_carry(self) -> list[str]:
        """What is kept off and may carry again, the likeliest first."""
        now, found = time.monotonic(), list(self.network.state.off.items())
        answering = [name for name, why in found if why == Why.LOST and name in self._back]
        up = [name for name, why in found if why == Why.PORT_DOWN and self._ports.is_up(name)]
        silent_since: dict[str, float] = {}
        for name, why in found:
            if why == Why.SILENT:
                until, pause = self._probation.get(name, (now, PROBATION_SECONDS))
                wait = min(NO_WAY_SECONDS * 2 ** self._tried_early[name], LONGEST_NO_WAY_SECONDS)
                if now - (until - pause) >= wait:
                    silent_since[name] = until - pause
        return [*answering, *up, *sorted(silent_since, key=lambda name: silent_since[name])]

    def _count(self, switches: Iterable[str]) -> dict[Entry, int]:
        """What the entries of these switches have counted; of one that does not answer, nothing."""
        return packets(self._read(switches))

    def _read(self, switches: Iterable[str]) -> dict[str, tuple[float, Counters]]:
        def read(keeper: Keeper) -> tuple[float, Counters] | None:
            try:
                return time.monotonic(), keeper.target.read_counters()
            except TargetError:
                return None

        asked = [keeper for keeper in self.network.switches.keepers if keeper.target.name in switches and keeper.ready]
        return {keeper.target.name: one for keeper, one in everywhere(asked, read).items() if one is not None}


def dead_links(
    hops: Iterable[Hop],
    before: Mapping[Entry, int],
    after: Mapping[Entry, int],
    between: Mapping[Entry, int] | None = None,
    since: Mapping[Entry, int] | None = None,
) -> set[str]:
    """Links into which packets went and out of which none came, by what the entries counted meanwhile: none of any
    flow, as a queue may hold one flow's packets back for long.

    between: counted before `after`, by the time that a packet may be under way: what went in until then counts.
    since: counted after `before`: what went in from then on counts (default: from `before` on).
    """
    sent, begin = after if between is None else between, before if since is None else since
    # A switch that has begun to count anew says nothing.
    arrived = {entry[:2] for entry, count in after.items() if count != before.get(entry, count)}
    found: dict[str, bool] = {}
    for hop in hops:
        if any(entry not in counts for entry in (*hop.into, hop.out) for counts in (before, begin, sent, after)):
            continue
        if hop.out[:2] in arrived:
            found[hop.link] = False
        # A point of aggregation keeps what the others send while one's packets are lost elsewhere.
        elif min(sent[entry] - begin[entry] for entry in hop.into) >= SENT_AT_LEAST:
            found.setdefault(hop.link, True)
    return {link for link, dead in found.items() if dead}


def silent(
    hops: Sequence[Hop],
    before: Mapping[Entry, int],
    after: Mapping[Entry, int],
    between: Mapping[Entry, int] | None = None,
    since: Mapping[Entry, int] | None = None,
) -> set[str]:
    """As `dead_links`; instead of its links, a switch into which packets went over several and that counted none."""
    dead = dead_links(hops, before, after, between, since)
    into: dict[str, set[str]] = {}
    for hop in hops:
        if hop.link in dead:
            into.setdefault(hop.out[0], set()).add(hop.link)
    alive = {entry[0] for entry, count in after.items() if count > before.get(entry, 0)}
    for switch, links in into.items():
        if len(links) > 1 and switch not in alive:
            dead = (dead - links) | {switch}
    return dead
