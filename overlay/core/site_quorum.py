"""Decides whether a coordinator may act: the only rule of that kind, for sites and for systems (docs/sites.md).

A coordinator that has ended is restarted, and meanwhile one of the sites coordinates (its *deputy*,
overlay/net/deputy.py). So there may be rounds that a coordinator does not know. Sites come and go, so a majority of a
fixed number has no meaning. The rule uses the *history*: the sites of each of the last two rounds. Each site gets the
history with the state that it goes on from, and reports it to every coordinator that it joins. The history with the
highest round counts; of two that differ about the same round, the one that was done under the coordinator with the
higher term. A coordinator that begins to act takes a *term* (a number) above every term that its agents know. An agent
never returns to a lower term, and a coordinator that learns of a higher term than its own steps down.

A deputy coordinates only rounds of exactly all sites of the last round. So a coordinator that reaches one of these
sites knows that they are not going on elsewhere. From that follow the rules of the coordinator:

- As long as its process lives it knows every round but those of deputies. It goes on with the sites that are
  connected, if among them is at least one site of each round of the history, which has been connected since that round
  or still knows it.
- After a restart it is *contested*: it knows only what sites report. It needs more than half of each round of the
  history (exactly half, if the first name is among them).
- It may go on with fewer than half of the sites of a round. Then the other sites could be more than half for a
  coordinator that is restarted, and must not go on without one: that round stays in the history until more
  than half of its sites are in a round again, and sites whose last round has not more than half of the sites of *each*
  round of their history wait for a coordinator. In that case a coordinator that was restarted needs no particular
  site: nobody goes on elsewhere.

A site whose process was restarted has forgotten the history, and does not count until it has a state again, unless all
sites of the last two rounds are connected. Sites that have forgotten begin together only if no state is known beside
theirs (`may_begin`). If a site that has state joins after they have begun, the coordinator steps down, and all of them
begin again with that state (`observe`).

Agents of the papers' systems have no history: their coordinator acts with those that are connected.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

History = tuple[tuple[int, int, tuple[str, ...]], ...]
"""(round, the coordinator's term, the round's sites) of the last two rounds, or of as many as there were. Before them
stand earlier rounds of which no later round has had more than half of the sites.
"""


def history_of(given: Iterable[Sequence[Any]]) -> History:
    """Return the history in a message. Raise ValueError or TypeError for one that is not well formed."""
    return tuple((int(round_), int(term), tuple(str(site) for site in sites)) for round_, term, sites in given)


def after(history: History, round_: int, term: int, sites: Sequence[str]) -> History:
    """Return the history after one more round, which these sites did in this term."""
    earlier = tuple(each for each in history[:-1] if not _most(each[2], sites))
    return (*earlier, *history[-1:], (round_, term, tuple(sites)))


def alone_among(history: History) -> tuple[str, ...]:
    """Return the sites that may go on, all together, without a coordinator; none where they have to wait for one."""
    if not history:
        return ()
    sites = history[-1][2]
    return sites if all(_most(names, sites) for *_, names in history) else ()


def newer(one: History, other: History) -> History:
    """Return the history with the higher round and term; `one` where both are equal."""
    return other if other and (not one or other[-1][:2] > one[-1][:2]) else one


class SiteQuorum:
    """The rule and the term of one coordinator.

    Attributes:
        history: the history, as far as this coordinator knows it.
        term: number of this coordinator's latest time as the acting one; 0: it has never acted.
    """

    def __init__(self) -> None:
        self.history: History = ()
        self.term = 0
        self._highest_known = 0  # of the terms that agents have reported
        self._lived = False  # this process has done a round
        self._terms: dict[str, int] = {}  # term of the last round of each site that knows a history
        self._vouching: set[str] = set()  # sites that know every round that they have done
        self._next: int | None = None  # the first round that is not done; None before sites have begun in this term

    @property
    def contested(self) -> bool:
        """Whether rounds may have been done, or are being done now, that this coordinator does not know."""
        return not self._lived and bool(alone_among(self.history))

    def start_term(self) -> None:
        """Begin a term of acting, with a number above all terms that this coordinator knows."""
        self.term = self._highest_known = max(self.term, self._highest_known) + 1
        self._next = None

    def observe(self, message: Mapping[str, Any]) -> bool:
        """Record the term and the history in an agent's message "join". Return whether another coordinator has begun to
        act since this one did, or the agent knows a round that the sites of this coordinator have yet to do. Raise
        ValueError or TypeError for a message that is not well formed.
        """
        site, history = str(message.get("node")), history_of(message.get("history", ()))
        self._terms.pop(site, None)  # the site's process may be another one, which has forgotten its history
        self._vouching.discard(site)
        self.learn(site, history)
        if history:
            self._vouching.add(site)
        self._highest_known = max(self._highest_known, int(message.get("term", 0)))
        if self._highest_known > self.term:
            return True
        # While this process lives, a site may have the result of the next round, which the others do again.
        return bool(history) and self._next is not None and history[-1][0] >= self._next + self._lived

    def admits(self, agent: str) -> bool:
        """Return whether this coordinator would act for this agent; else the agent looks for another one."""
        return True

    def learn(self, site: str, history: History) -> None:
        """Record the history that a site has reported."""
        if history:
            self._terms[site] = history[-1][1]
            self.history = newer(self.history, history)

    def did(self, round_: int, sites: Sequence[str]) -> None:
        """Record a round that these sites have done under this coordinator."""
        self.history = after(self.history, round_, self.term, sites)
        self._terms.update(dict.fromkeys(sites, self.term))
        self._vouching.update(sites)
        self._lived, self._next = True, round_ + 1

    def may_begin(self, round_: int, sites: Collection[str]) -> bool:
        """Return whether these sites may begin together before this round, for which one of them has the state: no
        other site has a later state, as far as is known, or all sites of the last rounds have forgotten it.
        """
        if not self.history or all(self._within(names, sites) for *_, names in self.history):
            return True
        # A coordinator that lives may do the last round again without the only site that had its result.
        return round_ > self.history[-1][0] - (not self.contested)

    def begin_at(self, round_: int) -> None:
        """Record that sites begin together before this round: no site has the results of later ones any more."""
        self._next = round_
        self.history = tuple(each for each in self.history if each[0] < round_)

    def term_of(self, site: str) -> int:
        """Return the term in which a site's last round was done; 0 where the site has told none."""
        return self._terms.get(site, 0)

    def allows(self, sites: Collection[str]) -> bool:
        """Return whether these sites, which all have the last state, may do a round."""
        if self.contested:
            return all(_most(names, sites) for *_, names in self.history)
        if not alone_among(self.history):
            return True
        return all(self._vouches(names, sites) for *_, names in self.history)

    def _vouches(self, names: Collection[str], sites: Collection[str]) -> bool:
        return bool(self._vouching.intersection(names, sites)) or self._within(names, sites)

    def reached_by(self, agents: Collection[str]) -> bool:
        """Return whether a coordinator with these agents connected may act."""
        knowing = self._terms.keys() & set(agents)
        if all(self._within(names, agents) for *_, names in self.history):
            return True
        if not self.contested:
            return self._lived or bool(knowing)  # else no connected site has the state any more
        return all(_most(names, knowing) for *_, names in self.history)

    def all_here(self, agents: Collection[str], everyone: Collection[str]) -> bool:
        """Return whether this coordinator, to which these agents are connected, need not wait for others before it
        acts: they include the sites of the last round or, without a history, everyone.
        """
        return self._within(self.history[-1][2] if self.history else everyone, agents)

    @staticmethod
    def _within(names: Collection[str], agents: Collection[str]) -> bool:
        return set(names) <= set(agents)


class DeputyQuorum(SiteQuorum):
    """The quorum of a site that coordinates while no coordinator answers.

    Args:
        history: the site's own history.
    """

    def __init__(self, history: History) -> None:
        super().__init__()
        self.history = history

    @property
    def contested(self) -> bool:
        return True

    @property
    def sites(self) -> tuple[str, ...]:
        """The sites all of which are needed; none where they must not go on without a coordinator."""
        return alone_among(self.history)

    def admits(self, agent: str) -> bool:
        return agent in self.sites

    def allows(self, sites: Collection[str]) -> bool:
        return bool(self.sites) and self._within(self.sites, sites)

    def reached_by(self, agents: Collection[str]) -> bool:
        return self.allows(self._vouching.intersection(agents))

    def all_here(self, agents: Collection[str], everyone: Collection[str]) -> bool:
        return self.reached_by(agents)


def _most(names: Collection[str], present: Collection[str]) -> bool:
    twice = 2 * len(set(names).intersection(present))
    return twice > len(names) or (twice == len(names) and min(names) in present)
