"""The watch over a network: what the controller does by itself when something fails, and when it is back.

A switch that does not answer, and a link behind which nothing arrives any more, are disabled: every job is rerouted
around them in place (planner/plan/reroute.py), so that operations under way go on, and is then replanned for what is
left. A switch that did not answer is used again when it has been back for some time. What was found silent is tried
again after some time, which doubles each time that it is silent again, or when an operator says so.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from controlplane.common.agentconfig import link_key
from controlplane.common.log_lines import SILENT, Log
from controlplane.planner.topology_cables import access, link_of
from controlplane.service.core import mending
from controlplane.service.core.disabled import Why
from controlplane.service.core.parts import found_silent, ports_seen, switches_seen
from controlplane.service.culprits import Culprits
from controlplane.service.hops import Entry, Hop, hops_of, packets
from controlplane.service.keeper import read_each
from controlplane.service.network import Network
from controlplane.service.running import RunningJob
from controlplane.service.threads import Periodic
from controlplane.service.trees import TreeWatch
from controlplane.service.versions import Version

STALLED_SECONDS = 0.3
"""Seconds for which a tree may make no progress before its packets are followed. Agents report at once when a tree
makes no progress."""
FOLLOW_SECONDS = 0.15
FOLLOW_SLOWLY_SECONDS = 2.0
"""Longest time between two looks at the counters, in seconds; it begins at FOLLOW_SECONDS and grows, since a worker may
be late for long."""
FOLLOWED_AT_MOST_SECONDS = 4.0
LOOK_SECONDS = 0.1
LOOK_AT_PORTS_SECONDS = 0.2
READ_PORTS_SECONDS = 2.0
"""Longest wait for a switch to say which ports are up, in seconds; its heartbeat tells whether the switch is alive."""
READ_COUNTERS_SECONDS = 1.0
"""Maximum time to wait for the counters of a switch, in seconds."""
SENT_AT_LEAST = 2
"""Packets, of all flows together, that must have gone into a link without any coming out, before the link counts as
lost. Each flow resends what it lacks less and less often, and a link has many flows."""


@dataclass
class Followed:
    """A job whose packets are being followed.

    Switches are not read all at the same time. So what came out of links is counted from the first look on, and what
    went in from the second, which follows at once: no packet that counts as gone in has come out before.

    Attributes:
        looks: for each look, when it ended and what the entries had counted then.
        took: seconds that the last look took. A machine on which switches answer late may be as late with packets.
        began: when the job was first looked at, in seconds. What it waits for, it has waited for since before that.
        pause: seconds until the next look.
    """

    versions: tuple[Version, ...]
    looks: list[tuple[float, dict[Entry, int]]]
    took: float
    began: float
    pause: float = FOLLOW_SECONDS


class PortWatch(Periodic):
    """Asks from a thread of its own those switches which of their ports are up that can tell it (core/ports.py decides
    what follows).

    P4Runtime has no state of ports: such a switch answers None, and is not asked again. A Tofino has one ($PORT_UP,
    over BRI).
    """

    def __init__(self, network: Network, log: Log = SILENT) -> None:
        super().__init__("watching ports", LOOK_AT_PORTS_SECONDS, log)
        self.network = network
        self._silent: set[str] = set()  # switches that have no state of ports

    def look(self) -> None:
        """Ask every switch that can tell, and report its answer to the core. End where no switch will ever answer."""
        keepers = self.network.switches.keepers
        asked = [keeper for keeper in keepers if keeper.ready and keeper.target.name not in self._silent]
        states, _ = read_each(asked, lambda target: target.read_ports(READ_PORTS_SECONDS))
        self._silent.update(name for name, (_, up) in states.items() if up is None)
        self.network.failover.take(ports_seen, {name: up for name, (_, up) in states.items() if up})
        if len(self._silent) == len(keepers):
            self.end()


class Following(Periodic):
    """Looks at the jobs' trees from a thread of its own, since it reads switches, of which one may not answer."""

    def __init__(self, network: Network, log: Log = SILENT) -> None:
        super().__init__("following packets", LOOK_SECONDS, log)
        self.network = network
        self._followed: WeakKeyDictionary[RunningJob, Followed] = WeakKeyDictionary()
        self._trees = TreeWatch(network, log)
        self.culprits = Culprits(network, log)

    def look(self) -> None:
        """Look at all trees once, which the thread does every LOOK_SECONDS."""
        self.look_at_trees()
        self._trees.look()
        self.culprits.look()

    def look_at_trees(self) -> None:
        """Follow the packets of stalled jobs, by the counters of switches, to the place where they are lost."""
        for job in self.network.jobs:
            since = job.roster.stalled(STALLED_SECONDS)
            if since is None:
                self._followed.pop(job, None)
                continue
            now = time.monotonic()
            versions = job.migrator.versions
            followed = self._followed.get(job)
            if followed is not None and followed.versions != versions:
                del self._followed[job]
                continue
            if followed is not None and since > followed.began:
                followed = None  # it waits for another chunk now, to which the earlier looks do not apply
            if followed is not None and now - followed.looks[-1][0] < max(followed.pause, followed.took):
                continue
            topology = self.network.topology
            hops = [hop for version in versions for hop in hops_of(version.plan, version.deployment, topology)]
            switches = {entry[0] for hop in hops for entry in (*hop.into, hop.out)}
            counted = self.counted_packets(switches)
            if followed is None:
                began, first = time.monotonic(), counted
                counted = self.counted_packets(switches)
                ended = time.monotonic()
                self._followed[job] = Followed(versions, [(began, first), (ended, counted)], ended - began, now)
                continue
            looks = [*followed.looks, (time.monotonic(), counted)]
            followed.took = looks[-1][0] - now
            if len(looks) > 3:
                (_, first), (_, second), (_, last_but_one) = looks[0], looks[1], looks[-2]
                dead = silent(hops, first, counted, last_but_one, second) - set(self.network.state.off)
                # Where no packet at all has moved since, the whole machine may be standing still.
                if dead and any(count > last_but_one.get(entry, count) for entry, count in counted.items()):
                    self._followed.pop(job)
                    self.network.failover.take(found_silent, sorted(dead))
                    continue
                followed.pause = min(1.5 * followed.pause, FOLLOW_SLOWLY_SECONDS)
            while len(looks) > 3 and looks[-1][0] - looks[1][0] > FOLLOWED_AT_MOST_SECONDS:
                del looks[0]
            followed.looks = looks

    def counted_packets(self, switches: Iterable[str]) -> dict[Entry, int]:
        """Return what these switches' entries have counted. Entries of a switch that does not answer within
        READ_COUNTERS_SECONDS are missing."""
        asked = [one for one in self.network.switches.keepers if one.target.name in switches and one.ready]
        return packets(read_each(asked, lambda target: target.read_counters(READ_COUNTERS_SECONDS))[0])


class Watch(Periodic):
    """Watches a network from a thread, from `start` to `close`. `log` gets one line per event.

    This thread only reads what is known already. What reads switches has threads of its own (`PortWatch`, `Following`),
    so that a switch that does not answer delays nothing here.
    """

    def __init__(self, network: Network, log: Log = SILENT) -> None:
        super().__init__("watching for failures", LOOK_SECONDS, log)
        self.network = network
        self.following = Following(network, log)
        self._ports = PortWatch(network, log)

    def start(self) -> None:
        self._ports.start()
        self.following.start()
        super().start()

    def close(self) -> None:
        self.end()
        self.following.end()
        self._ports.close()
        self.following.close()
        super().close()

    def look(self) -> None:
        """Look at everything else once, which the thread does every LOOK_SECONDS."""
        self.look_at_switches()
        self.look_at_links()
        self.look_at_lost_agents()
        self.network.failover.look()

    def look_at_switches(self) -> None:
        """Report to the core which switches answer, which do not, and which have answered promptly."""
        keepers = {keeper.target.name: keeper for keeper in self.network.switches.keepers}
        ready = {name: keeper.ready for name, keeper in keepers.items()}
        timed_out = {name for name, keeper in keepers.items() if keeper.timed_out}
        prompt = {name: keeper.prompt for name, keeper in keepers.items() if ready[name]}
        self.network.failover.take(switches_seen, ready, timed_out, prompt)
        away, off = self.network.state.parts.trust.away, self.network.state.off
        asked_since = max((away[name] for name in timed_out if name in away and name not in off), default=-math.inf)
        for name, asked in prompt.items():
            if asked <= asked_since:  # its answer tells whether this machine is slow
                keepers[name].wake()

    def look_at_links(self) -> None:
        """Tell the core which links are up of hosts that have several, as their agents report it. A link has the name
        that ports have: the switch that it leads to, and the port there."""
        topology = self.network.topology
        states: dict[str, dict[int, bool]] = {}
        for job in self.network.jobs:
            several = [node for node, config in job.roster.configs.items() if config.links and node in topology]
            members = job.roster.members() if several else {}
            for node in several:
                reported = members[node].statistics if node in members else {}
                for near in topology.neighbours(node):
                    up = reported.get(link_key(link_of(topology, node, near)))
                    if up is not None:
                        switch, port = access(topology, node, near)
                        states.setdefault(switch, {})[port] = bool(up)
        if states:
            self.network.failover.take(ports_seen, states)

    def look_at_lost_agents(self) -> None:
        """Use again each lost parameter server that has joined again and has stayed, and no server that is absent. A
        worker is not used again by itself: it lacks what the others have, and an operator says when the job begins
        anew."""
        for job in self.network.jobs:
            job.roster.look_for_hanging()
            lost = [node for node, why in job.without.items() if why == Why.LOST]
            others = {*job.migrator.job.workers, *self.network.state.off}
            servers = [node for node in job.migrator.job.parameter_servers if node not in others]
            use = mending.servers_to_use(job.roster.state, servers, lost, job.losses, time.monotonic())
            self.network.failover.use(job, use)


def dead_links(
    hops: Iterable[Hop],
    before: Mapping[Entry, int],
    after: Mapping[Entry, int],
    between: Mapping[Entry, int] | None = None,
    since: Mapping[Entry, int] | None = None,
) -> set[str]:
    """Return the links into which packets went, and out of which none came.

    This is judged by what the entries counted: packets of any flows went in, and none of any flow came out, as a queue
    may hold one flow's packets back for long.

    Args:
        before, after: what the entries had counted at the first look and at the last.
        between: what they had counted some time before `after`, longer than a packet may be under way: only packets
            that went in until then count.
        since: what they had counted some time after `before`: only packets that went in from then on count.
    """
    sent, begin = after if between is None else between, before if since is None else since
    # Counters of a switch that has restarted begin anew, and are ignored.
    arrived = {entry[:2] for entry, count in after.items() if count != before.get(entry, count)}
    alive: set[str] = set()
    lost: Counter[str] = Counter()
    for into, out, link in {(hop.into, hop.out, hop.link): None for hop in hops}:  # two plans may have a flow in common
        if any(entry not in counts for entry in (*into, out) for counts in (before, begin, sent, after)):
            continue
        if out[:2] in arrived:
            alive.add(link)
        # While the packets of one flow are lost elsewhere, an aggregation point keeps those of its other flows, whose
        # single packets may belong to several chunks: none of them comes out, though no link has lost them.
        least = min(sent[entry] - begin[entry] for entry in into)
        if len(into) == 1 or least >= SENT_AT_LEAST:
            lost[link] += least
    return {link for link, packets_lost in lost.items() if packets_lost >= SENT_AT_LEAST and link not in alive}


def silent(
    hops: Sequence[Hop],
    before: Mapping[Entry, int],
    after: Mapping[Entry, int],
    between: Mapping[Entry, int] | None = None,
    since: Mapping[Entry, int] | None = None,
) -> set[str]:
    """Return the links of `dead_links`. Where packets went into a switch over several links and it counted none, return
    the switch instead of these links."""
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
