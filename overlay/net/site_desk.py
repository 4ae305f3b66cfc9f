"""The coordinator's work for sites beside rounds: it surveys the network, and says whose state each site is to take."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from controlplane.common.numbers import short
from controlplane.planner.plan.task import Task
from controlplane.planner.strategies.wan.policy import Tick
from controlplane.planner.strategies.wan.site_rounds import SiteRounds
from overlay.core.growth import Growth
from overlay.core.site_network import Pair, SiteNetwork, direct_pairs
from overlay.core.site_quorum import SiteQuorum, history_of
from overlay.net.members import Members
from overlay.net.policy_driver import PolicyDriver
from overlay.net.site_status import Record, status_of
from overlay.net.survey import ANSWER_SECONDS, Survey

SETTLE_SECONDS = 0.5
"""Seconds between the last site's joining and a survey, so that several that join together are measured at once."""

SLOW_PART = 1.5
SLOW_ROUNDS = 3
"""Number of rounds one after the other after which the network is measured again, if each took over SLOW_PART of the
time that the plan says.
"""

SLOW_LEAST_SECONDS = 0.3
"""Planned time, in seconds, below which a round says nothing about links: it takes what processes need."""

AGAIN_SECONDS = 60.0
"""Least seconds after a survey before the next one; twice as long each time when no rate has changed by more than
CHANGE_PART.
"""

CHANGE_PART = 0.2


PROBLEMS = "not finite", "bounded"
"""Problems of a site's change that sites report: it has values that are not finite, or its norm was reduced."""

MOST_WORDS = 400
"""Maximum number of characters of a site's report."""

RETURN_SECONDS = 5.0
"""Seconds that sites of the group have to join a coordinator that was restarted, before it goes on."""


class SiteDesk:
    """The work of one coordinator for its sites beside rounds; everything is called in the coordinator's loop.

    Args:
        policy: the policy of rounds.
        network: rates between sites.
        probe_seconds: duration of one measurement between two sites; 0 where nothing is measured.
        all_pairs: measure also pairs whose round trip is that of a way over a third site.
        quorum: the rule by which this coordinator acts.
        log: gets each line of log.

    Attributes:
        states: for each site, the round before which its state is, and the state's digest.
        survey: the measurement that is under way, or None.
        surveyed: the sites whose links have been measured.
        growth: finds links that may have become faster.
        record: the events and counts that the status shows.
    """

    def __init__(
        self,
        policy: SiteRounds,
        network: SiteNetwork,
        *,
        probe_seconds: float = 1.0,
        all_pairs: bool = False,
        quorum: SiteQuorum | None = None,
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._policy, self.network, self._write = policy, network, log
        self.record = Record()
        self._quorum = quorum or SiteQuorum()
        self._probe_seconds, self._all_pairs = probe_seconds, all_pairs
        self.states: dict[str, tuple[int, str]] = {}
        self._taking: set[str] = set()  # sites that have been told whose state to take, and have done no round since
        self._abouts: dict[str, tuple[str, str]] = {}  # for each site, its description's digest, and the description
        self._returning: set[str] = set()  # sites that took part before this coordinator was started
        self._asking: dict[str, None] = {}  # sites that wait to be told whose state is right, in order
        self.survey: asyncio.Task[None] | None = None
        self.surveyed: set[str] = set()
        self._returned: asyncio.TimerHandle | None = None
        self._waits = ""  # the last line of log about a state for which sites wait
        self._slow = 0  # number of slow rounds one after the other
        self.measured_at, self._patience, self.growth = 0.0, AGAIN_SECONDS, Growth()
        self._meanwhile = ""  # reason for a measurement that could not begin when it was wanted
        policy.held = probe_seconds > 0

    def attach(self, loop: asyncio.AbstractEventLoop, members: Members, driver: PolicyDriver) -> None:
        self._loop, self._members, self._driver = loop, members, driver
        self._sites = Survey(loop, members, self._probe_seconds)

    # --- members ---

    def joined(self, node: str) -> None:
        if not self._members[node].state.epoch:
            self.network.restarted(node)
        self.network.reached(self._members.reachability())
        self._tell_network((node,))
        if not self.surveyed and self._probe_seconds > 0 and self._members[node].state.epoch:
            # The site has followed an earlier coordinator, which may have measured the network.
            self._members.tell((node,), type="site", what="tell network")
        self._consider_survey()

    def _tell_network(self, nodes: Iterable[str]) -> None:
        """Tell these sites what a deputy of this coordinator needs for the same plans (deputy.py)."""
        self._members.tell(
            nodes, type="site", what="network", network=self.network.to_json(), surveyed=sorted(self.surveyed),
            mtu=self.network.mtu, chunk_values=self.network.chunk_values,
        )  # fmt: skip

    def log(self, line: str) -> None:
        """Log a line, and show it on the coordinator's page."""
        self.record.add(line)
        self._write(line)

    def reachability_changed(self) -> None:
        """Plan without pairs of sites of which neither can connect to the other, and measure pairs that now can."""
        unlinked = self.network.unlinked(self._members)
        self.network.reached(self._members.reachability())
        for pair in unlinked - self.network.unlinked(self._members):
            self.surveyed.difference_update(pair)
        self._driver.handle(Tick())
        self._consider_survey()

    def left(self, node: str) -> None:
        self.record.counts["lost"] += 1
        self.states.pop(node, None)
        self._abouts.pop(node, None)
        self._returning.discard(node)
        self._asking.pop(node, None)
        self._taking.discard(node)
        self._sites.left(node)
        self._answer()

    def ended(self) -> None:
        for node in self.states.keys() | self.surveyed:
            self._sites.left(node)
        self.network.none_broken()
        self.states.clear()
        self._abouts.clear()
        self._returning.clear()
        self._asking.clear()
        self._taking.clear()
        if self._returned is not None:
            self._returned.cancel()
            self._returned = None

    def told(self, shared: dict[str, Any]) -> None:
        """Take the measured network that an earlier coordinator has told its sites."""
        self.network.adopt(shared["network"])
        self.surveyed = {str(site) for site in shared["surveyed"]}
        self._policy.held = False

    def task_done(self, task: Task, seconds: float) -> None:
        """Take note of a task that is done, for which the slowest site took so many seconds; measure the network where
        that shows that links have changed.
        """
        self.record.busy_seconds += seconds
        self.growth.carried(task)
        pairs = self.growth.due(self._probe_seconds, self._members.keys(), self.network.known)
        if pairs and self._may_measure_again():
            self._meanwhile = ""
            self.survey = asyncio.ensure_future(self._look(pairs))
        if task.op == "maximum":
            return
        self.record.counts["rounds"] += 1
        self.record.finished = {"round": task.round, "seconds": seconds, "sites": task.participants}
        expected = self.network.expected_seconds(tuple(sorted(task.participants)), task.values)
        if expected < SLOW_LEAST_SECONDS:
            return
        self._slow = self._slow + 1 if seconds > SLOW_PART * expected else 0
        if self._slow >= SLOW_ROUNDS:
            self.again(f"{self._slow} rounds took more than {SLOW_PART:g} times what is planned, the last one "
                        f"{seconds:.2f} s instead of {expected:.2f}")  # fmt: skip

    def _losses(self, node: str, losses: dict[str, float]) -> None:
        """Take note of the parts of a site's packets to others that were lost."""
        for other, part in losses.items():
            if self.network.lost(node, str(other), float(part)):
                self.again(f"{float(part):.1%} of the packets from {node} to {other} are lost")

    def again(self, why: str) -> None:
        """Measure the network again, unless that was done a short while ago."""
        if self._may_measure_again():
            self.log(f"{why}: the network is measured again")
            self.survey = asyncio.ensure_future(self._measure(again=True))
        else:
            self._meanwhile = why

    def _may_measure_again(self) -> bool:
        late_enough = self._loop.time() > self.measured_at + self._patience
        return bool(late_enough and self.survey is None and self._probe_seconds > 0 and self.surveyed)

    async def _look(self, pairs: Iterable[Pair]) -> None:
        """Measure the network again if these pairs have become faster, or if that was wanted meanwhile."""
        try:
            grown = self.growth.looked(await self._sites.probe(pairs), self._probe_seconds)
        finally:
            self.survey = None
        if why := grown or self._meanwhile:
            self.again(why)
        self._consider_survey()

    def said(self, node: str, message: dict[str, Any]) -> None:
        what = message["what"]
        if what in ("state", "here"):
            self._quorum.learn(node, history_of(message.get("history", ())))
        if what in ("trips", "probed"):
            self._sites.said(node, message)
        elif what == "network" and not self.surveyed:
            self.told(message)
            self.log(f"{node} knows what was measured of {len(self.surveyed)} sites")
            self._driver.handle(Tick())
        elif what == "state":
            self._taking.discard(node)
            self.states[node] = int(message["round"]), str(message["digest"])
            self._losses(node, message.get("losses", {}))
            self._compare(node)
            self._answer()
        elif what == "problem" and message["kind"] in PROBLEMS:
            self.record.counts[message["kind"]] += 1
            line = f"{node}: {' '.join(str(message['words']).split())[:MOST_WORDS]}"
            (self.log if message["kind"] == "not finite" else self.record.add)(line)  # others are in the log already
        elif what == "here":
            self.states[node] = int(message["round"]), str(message["digest"])
            self._abouts[node] = str(message.get("model", "")), str(message.get("about", ""))
            if message.get("active"):
                self._returning.add(node)
            self._asking[node] = None
            if message.get("active") and not self._policy.started and self._returned is None:
                self._returned = self._loop.call_later(RETURN_SECONDS, self._all_returned)
            self._answer()

    # --- the state that sites take ---

    def _all_returned(self) -> None:
        """Begin with the sites that have joined a coordinator that knows nothing of their group, as they have had
        RETURN_SECONDS.
        """
        self._returned = None
        if not self._policy.started and self._asking:
            self._policy.sites = min(self._policy.sites, len(self._asking))
            self._answer()
            self._consider_survey()

    def _begin_together(self) -> None:
        """Have the sites that have asked begin with the state of the one that has done the most rounds."""
        lead = min(self._asking, key=lambda node: (-self.states[node][0], -self._quorum.term_of(node), node))
        if not self._quorum.may_begin(self.states[lead][0], self._asking):
            self._wait_for_state(lead)
            return
        unlike = [node for node in self._asking if self._abouts[node][0] != self._abouts[lead][0]]
        if unlike and not self._returning:
            for node in [each for each in self._asking if each not in unlike]:
                self._refuse(node, unlike[0])
        for node in unlike:
            self._refuse(node, lead)
        if lead not in self._asking:
            return
        self._quorum.begin_at(self.states[lead][0])
        self._policy.begin_at(self.states[lead][0], self._asking)
        self._reply(lead, None)
        self.log(f"{len(self._asking) + 1} sites begin before round {self._policy.round}, with the state of {lead}")
        self._answer()

    def _wait_for_state(self, lead: str) -> None:
        """Log, once for each round, that sites wait for one that has the state after the last round."""
        last, _, sites = self._quorum.history[-1]
        line = (f"the sites wait for the state after round {last}: {lead} has only that before round "
                f"{self.states[lead][0]}; start the sites of that round ({', '.join(sites)})")  # fmt: skip
        if line != self._waits:
            self._waits = line
            self.log(line)

    def _answer(self) -> None:
        """Tell the sites that have asked whose state to take, where that is known by now."""
        if not self._policy.started:
            if len(self._asking) >= self._policy.sites:
                self._begin_together()
            return
        for node in list(self._asking):
            round_, digest = self.states[node]
            others = [each for each in self._abouts if each in self._policy.active and each != node]
            if others and self._abouts[others[0]][0] != self._abouts[node][0]:
                self._refuse(node, others[0])
                continue
            having = [
                each for each in self._policy.active
                if each != node and self.states.get(each, (-1, ""))[0] == self._policy.round
            ]  # fmt: skip
            sources = [each for each in having if self.network.linked(each, node)]
            if any(self.states[each] == (round_, digest) for each in having) or not self._policy.active:
                self._reply(node, None)
            elif sources:
                self._reply(node, max(sources, key=lambda each: (self.network.rate(each, node), each)))
        self._driver.handle(Tick())

    def _reply(self, node: str, source: str | None) -> None:
        """Tell a site whose state it is to take: that of `source`, or its own (None)."""
        self._asking.pop(node, None)
        if source is None:
            refused = self._policy.activate(node)
            if refused is not None:
                self.log(f"{node} cannot take part: {refused}")
                return
            self.log(f"{node} takes part from round {self._policy.round} on")
            self._tell_to_take(node, None, round=self._policy.round)
            return
        round_, digest = self.states[source]
        if node in self._taking:  # a round was done while the state was on its way, or had begun: the next one waits
            self._policy.fetching.add(node)
        self._taking.add(node)
        self.log(f"{node} takes the state of {source} before round {round_}")
        self._tell_to_take(node, source, round=round_, digest=digest)

    def _refuse(self, node: str, other: str) -> None:
        """Refuse a site whose description differs from that of another one, which it is told."""
        self._asking.pop(node, None)
        self.log(f"{node} cannot take part: it trains another model than {other}, or with other settings")
        self._tell_to_take(node, other, about=self._abouts[other][1])

    def _tell_to_take(self, node: str, source: str | None, **about: object) -> None:
        history = self._quorum.history
        self._members.tell((node,), type="site", what="take", **{"from": source}, history=history, **about)
        if source is None:
            self._quorum.learn(node, history)  # else the site does not have the state yet

    def _compare(self, node: str) -> None:
        """Check that sites before the same round have the same state; whoever differs from most has to take theirs."""
        own = self.states[node]
        same_round = {each: self.states[each] for each in self._policy.active
                      if each in self.states and self.states[each][0] == own[0]}  # fmt: skip
        counts = Counter(same_round.values())
        if len(counts) < 2:
            return
        most = max(counts, key=lambda state: (counts[state], state))
        for each, state in same_round.items():
            if state != most:
                self.log(f"{each} has another state than most before round {own[0]}: it is to take theirs")
                self._policy.active.discard(each)

    # --- surveys ---

    def _consider_survey(self) -> None:
        """Begin a survey when enough sites have joined, and again when sites have come that no survey has measured."""
        new = self._members.keys() - self.surveyed
        enough = len(self._members) >= max(2, self._policy.sites) or self.surveyed
        if self._probe_seconds <= 0 or self.survey is not None or not new or not enough:
            if self._policy.sites < 2 and not self.surveyed:
                self._policy.held = False  # a site alone may begin
            return
        self.survey = asyncio.ensure_future(self._measure())

    async def _measure(self, *, again: bool = False) -> None:
        """Measure the network. With `again`, measure pairs again that have been measured before, and let no round begin
        meanwhile.
        """
        try:
            self._policy.held = self._policy.held or again
            await self._rest() if again else await asyncio.sleep(SETTLE_SECONDS)
            if not again and self._members.keys() <= self.surveyed:
                return  # meanwhile a site has reported the measurements of an earlier coordinator
            nodes = sorted(self._members)
            began = time.monotonic()
            trips = await self._sites.round_trips(nodes)
            pairs = [(a, b) for a in nodes for b in nodes if a != b and self.network.linked(a, b)]
            if not self._all_pairs:
                pairs = direct_pairs(trips) or pairs
            skip = self.network.known if again else self.network.known | self.network.pairs.keys()
            alone = await self._sites.alone(pair for pair in pairs if pair not in skip)
            together = await self._sites.probe(pairs) if len(nodes) > 2 else {}
            before = self.network.rates()
            self.network.surveyed(alone, together, trips)
            self.growth.surveyed(together or alone)
            same = all(abs(mbps - before.get(pair, 0.0)) <= CHANGE_PART * mbps for pair, mbps in alone.items())
            self._patience = 2 * self._patience if same else AGAIN_SECONDS
            self.measured_at, self._slow = self._loop.time(), 0
            self.surveyed.update(nodes)
            self._tell_network(self._members)
            self.log(f"measured {len(alone)} of {len(nodes) * (len(nodes) - 1)} pairs of sites in "
                      f"{time.monotonic() - began:.1f} s: {_words(alone)}")  # fmt: skip
        finally:
            self.survey = None
            self._policy.held = False
            self._driver.handle(Tick())
        self._consider_survey()

    async def _rest(self) -> None:
        """Wait until no task is under way any more, or for ANSWER_SECONDS."""
        end = self._loop.time() + ANSWER_SECONDS
        while self._policy.running and self._loop.time() < end:
            await asyncio.sleep(SETTLE_SECONDS / 10)

    # --- for people ---

    def status(self) -> dict[str, Any]:
        return status_of(
            self._policy, self.network, self._members,
            states=self.states, asking=self._asking, measuring=self.survey is not None, record=self.record,
        )  # fmt: skip


def _words(rates: Mapping[Pair, float]) -> str:
    return ", ".join(f"{a} -> {b} {short(mbps)} Mbit/s" for (a, b), mbps in sorted(rates.items())[:12]) or "none anew"
