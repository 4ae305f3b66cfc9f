"""The search of :mod:`tests.model.search` over switches that run the folded Tofino program.

python -m tests.model.folded_search --tree star:2 --slots 1 --chunks 2 [--history K]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from tests.model import folded
from tests.model.fold_search import FoldSearch
from tests.model.folded import Fold, Folded
from tests.model.packet import Packet
from tests.model.search import State, main, with_link
from tests.model.tofino import CLOSED, StaticTable
from tests.model.tofino_search import ROUND

APART = 2
"""Tickets that differ by more than this are treated as if they differed by this."""
NEWEST = 64
"""The ticket of every slot's first half in a state, so that states that differ only by a number are one."""


class FoldedSearch(FoldSearch):
    """The search over switches with this program, packets of two values."""

    fresh: Any = Folded(tickets=(NEWEST, NEWEST))
    ingress = staticmethod(folded.ingress)

    @cached_property
    def tables(self) -> dict[str, StaticTable]:
        return folded.tables()

    def checked(self, cell: Folded, point: int) -> Folded:
        """Check that both halves of an open slot hold its flows; returns the cell without what nobody reads any
        more.
        """
        flows, slot = cell.slot.flows[1], cell.slot
        if flows and not flows & CLOSED and cell.sums[0]:
            workers = self.tree.workers_of(point, flows)
            for half in cell.sums if cell.tickets[0] == cell.tickets[1] else cell.sums[:1]:
                for value in half:
                    self.check(workers, slot.epoch[0], slot.sequence, (value, value), "slot")
        if self.history is None:
            everyone = (1 << len(self.tree.parts(point))) - 1
            if flows & CLOSED or flows == everyone:
                slot = slot._replace(flows=(slot.flows[0], flows & CLOSED or flows))
                cell = cell._replace(sums=((), ()))
            behind = min(cell.tickets[0] - cell.tickets[1], APART)
            cell = cell._replace(tickets=(NEWEST, NEWEST - behind))
        return cell._replace(slot=slot._replace(epoch=(slot.epoch[0], min(slot.epoch[1], 1))))

    def arrive(self, state: State, target: int, packet: Packet, source: str) -> Iterator[tuple[str, State]]:
        for step, following in super().arrive(state, target, packet, source):
            yield step, self.renumbered(following)

    def of_generation_one(self, state: State) -> State:
        """Return the state unchanged: generations are not renumbered here."""
        return state

    def renumbered(self, state: State) -> State:
        """Return the same state with the tickets of every slot near NEWEST; their order and differences are kept."""
        points, links = [], state.links
        for point, cells in enumerate(state.core.points):
            made = []
            for index, cell in enumerate(cells):
                ways = [p for p in links[point] if p.job == ROUND and p.sequence & (self.slots - 1) == index]
                folds = {p: Fold(*folded.FOLD.unpack(p.outer)) for p in ways}
                there = {*cell.tickets, *(n for fold in folds.values() for n in (fold.ticket, fold.ticket - 1))}
                ordered = sorted(there, reverse=True)
                number, at = {}, NEWEST + ordered[0] - cell.tickets[0]
                for before, ticket in zip([ordered[0], *ordered], ordered, strict=False):
                    at -= min(before - ticket, APART)
                    number[ticket] = at
                made.append(cell._replace(tickets=(number[cell.tickets[0]], number[cell.tickets[1]])))
                for way, fold in folds.items():
                    again = fold._replace(ticket=number[fold.ticket])
                    marked = way._replace(outer=folded.FOLD.pack(*again))
                    links = with_link(links, point, links[point] - {way} | {marked})
            points.append(tuple(made))
        return state._replace(core=state.core._replace(points=tuple(points)), links=links)


if __name__ == "__main__":
    sys.exit(main(FoldedSearch))
