"""Which sites must be connected to a coordinator of sites that may not be the only one (docs/sites.md).

Sites come and go, so there is no fixed number of which to have more than half. What counts is the *history*: the sites
of each of the last two rounds. A round may be done by sites among which are more than half of each of these (exactly
half, if the first name is among them). Each site gets the history with the state that it goes on from, and tells it
to every coordinator that it joins; the one with the highest round counts, and of two that say different things of the
same round the one that was done under the coordinator with the higher term.

So two coordinators that cannot reach each other never do rounds side by side. Suppose one has done round r + 1 with
the sites Q, among which are more than half of the sites P of round r. Before all of Q know of that, the other one may
gather more than half of P; it goes on from round r, and the first one, which needs more than half of P and of Q for
its next round, cannot. Once it has done the next round, more than half of P know of Q, so at least one of those that
the other one gathers does, and it needs more than half of Q.

A site whose process was restarted has forgotten the history, and does not count until it has a state again, unless all
sites of the last two rounds are connected.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from overlay.core.quorum import Quorum

History = tuple[tuple[int, int, tuple[str, ...]], ...]
"""(round, the coordinator's term, the round's sites) of the last two rounds, or of as many as there were."""


def history_of(given: Iterable[Sequence[Any]]) -> History:
    """From a message. Raises ValueError or TypeError for one that is not well formed."""
    return tuple((int(round_), int(term), tuple(str(site) for site in sites)) for round_, term, sites in given)[-2:]


def newer(one: History, other: History) -> History:
    """The one with the higher round and term; `one` where both are equal."""
    return other if other and (not one or other[-1][:2] > one[-1][:2]) else one


class SiteQuorum(Quorum):
    """history: as far as this coordinator knows."""

    def __init__(self, *, contested: bool) -> None:
        super().__init__(0, contested=contested)
        self.history: History = ()
        self._terms: dict[str, int] = {}  # of the last round, by site; of sites that know a history

    @property
    def fresh(self) -> bool:
        """No round has been done yet, as far as is known here."""
        return not self.history

    def observe(self, message: Mapping[str, Any]) -> bool:
        self._terms.pop(str(message.get("node")), None)  # its process may be another one
        self.learn(str(message.get("node")), history_of(message.get("history", ())))
        return super().observe(message)

    def learn(self, site: str, history: History) -> None:
        """A site has told its history."""
        if history:
            self._terms[site] = history[-1][1]
            self.history = newer(self.history, history)

    def did(self, round_: int, sites: Sequence[str]) -> None:
        """A round was done by these sites."""
        self.history = (*self.history[-1:], (round_, self.term, tuple(sites)))
        self._terms.update(dict.fromkeys(sites, self.term))

    def term_of(self, site: str) -> int:
        """The term in which a site's last round was done; 0: it has told none."""
        return self._terms.get(site, 0)

    def allows(self, sites: Collection[str]) -> bool:
        """Whether these sites, which all have the last state, may do a round."""
        return not self.contested or all(_most(names, sites) for *_, names in self.history)

    def reached_by(self, agents: Collection[str]) -> bool:
        knowing = self._terms.keys() & set(agents)
        everybody = all(self._within(names, agents) for *_, names in self.history)
        return everybody or not self.contested or all(_most(names, knowing) for *_, names in self.history)

    def all_here(self, agents: Collection[str]) -> bool:
        return self.fresh or self._within(self.history[-1][2], agents)

    @staticmethod
    def _within(names: Collection[str], agents: Collection[str]) -> bool:
        return set(names) <= set(agents)


def _most(names: Collection[str], present: Collection[str]) -> bool:
    twice = 2 * len(set(names).intersection(present))
    return twice > len(names) or (twice == len(names) and min(names) in present)
