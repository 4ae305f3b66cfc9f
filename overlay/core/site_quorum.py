"""The quorum of sites: which of them must be connected to a coordinator that may not be the only one (docs/sites.md).

Sites come and go, so a majority of a fixed number has no meaning. The rule uses the *history*: the sites of each of the
last two rounds. A round may be done by sites among which are more than half of each of these (exactly half, if the
first name is among them). Each site gets the history with the state that it goes on from, and tells it to every
coordinator that it joins. The history with the highest round counts; of two that differ about the same round, the one
that was done under the coordinator with the higher term.

So two coordinators that cannot reach each other never do rounds side by side. Suppose one has done round r + 1 with the
sites Q, among which are more than half of the sites P of round r. Before all of Q know of that, the other one may
gather more than half of P; it goes on from round r, and the first one, which needs more than half of P and of Q for its
next round, cannot. Once it has done the next round, more than half of P know of Q, so at least one of those that the
other one gathers does, and it needs more than half of Q.

A site whose process was restarted has forgotten the history, and does not count until it has a state again, unless all
sites of the last two rounds are connected.

**While no coordinator answers** the sites of the last round go on by themselves: one of them coordinates in its place
(its *deputy*, overlay/net/deputy.py), and only rounds of exactly all of these sites. So a coordinator that reaches one
of them knows that they are not going on elsewhere. From that follow the rules of a coordinator that is the only one:

- As long as its process lives it knows every round but those of deputies. It goes on with the sites that are
  connected, if among them is at least one site of each round of the history, which has been connected since that round
  or still knows it.
- After a restart it knows only what sites tell, and needs more than half of each round of the history, as one of two
  coordinators does.
- It may go on with fewer than half of the sites of a round. Then the other sites could be more than half for a
  coordinator that is restarted, and must not go on without one: that round stays in the history until more
  than half of its sites are in a round again, and sites whose last round has not more than half of the sites of *each*
  round of their history wait for a coordinator. In that case a coordinator that was restarted needs no particular
  site: nobody goes on elsewhere.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from overlay.core.quorum import Quorum

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


class SiteQuorum(Quorum):
    """The quorum of a coordinator of sites that come and go.

    Attributes:
        history: the history, as far as this coordinator knows it.
    """

    def __init__(self, *, contested: bool) -> None:
        self._others = self._lived = False  # other coordinators exist; this process has done a round
        super().__init__(0, contested=contested)
        self.history: History = ()
        self._terms: dict[str, int] = {}  # term of the last round of each site that knows a history
        self._vouching: set[str] = set()  # sites that know every round that they have done

    @property
    def contested(self) -> bool:
        """Whether rounds may have been done, or are being done now, of which this coordinator does not know."""
        return self._others or (not self._lived and bool(alone_among(self.history)))

    @contested.setter
    def contested(self, others: bool) -> None:
        self._others = self._others or others

    @property
    def fresh(self) -> bool:
        """Whether no round has been done yet, as far as this coordinator knows."""
        return not self.history

    def observe(self, message: Mapping[str, Any]) -> bool:
        site, history = str(message.get("node")), history_of(message.get("history", ()))
        self._terms.pop(site, None)  # the site's process may be another one, which has forgotten its history
        self._vouching.discard(site)
        self.learn(site, history)
        if history:
            self._vouching.add(site)
        return super().observe(message)

    def learn(self, site: str, history: History) -> None:
        """Take note of the history that a site has told."""
        if history:
            self._terms[site] = history[-1][1]
            self.history = newer(self.history, history)

    def did(self, round_: int, sites: Sequence[str]) -> None:
        """Take note of a round that these sites have done under this coordinator."""
        self.history = after(self.history, round_, self.term, sites)
        self._terms.update(dict.fromkeys(sites, self.term))
        self._vouching.update(sites)
        self._lived = True

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
        knowing = self._terms.keys() & set(agents)
        if all(self._within(names, agents) for *_, names in self.history):
            return True
        if not self.contested:
            return self._lived or bool(knowing)  # else no connected site has the state any more
        return all(_most(names, knowing) for *_, names in self.history)

    def all_here(self, agents: Collection[str]) -> bool:
        return self.fresh or self._within(self.history[-1][2], agents)

    @staticmethod
    def _within(names: Collection[str], agents: Collection[str]) -> bool:
        return set(names) <= set(agents)


class DeputyQuorum(SiteQuorum):
    """The quorum of a site that coordinates while no coordinator answers.

    Args:
        history: the site's own history.
    """

    def __init__(self, history: History) -> None:
        super().__init__(contested=True)
        self.history = history

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

    def all_here(self, agents: Collection[str]) -> bool:
        return self.reached_by(agents)


def _most(names: Collection[str], present: Collection[str]) -> bool:
    twice = 2 * len(set(names).intersection(present))
    return twice > len(names) or (twice == len(names) and min(names) in present)
