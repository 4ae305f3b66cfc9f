"""The search of :mod:`tests.model.search` over switches that run the folded program of Tofino 1.

python -m tests.model.folded_flows_search --tree star:2 --slots 1 --chunks 2 [--history K]
"""

from __future__ import annotations

import sys
from functools import cached_property
from typing import Any

from tests.model import folded_flows
from tests.model.fold_search import FoldSearch
from tests.model.folded_flows import FoldedFlows
from tests.model.merge import WORD, Values
from tests.model.search import Search, State, main, with_link
from tests.model.tofino import CLOSED, StaticTable
from tests.model.tofino_search import GONE, ROUND


class FoldedFlowsSearch(FoldSearch):
    """The search over switches with this program, packets of four values."""

    fresh: Any = FoldedFlows()
    ingress = staticmethod(folded_flows.ingress)

    @cached_property
    def tables(self) -> dict[str, StaticTable]:
        return folded_flows.tables()

    def values(self, bits: int, epoch: int, chunk: int) -> Values:
        return Search.values(self, bits, epoch, chunk) * 4

    def check(self, bits: int, epoch: int, chunk: int, values: Values, where: str) -> None:
        for value in values:
            Search.check(self, bits, epoch, chunk, (value,), where)

    def checked(self, cell: FoldedFlows, point: int) -> FoldedFlows:
        """Check that each half holds the sum of the flows that it names; returns the cell without what nobody reads any
        more.
        """
        slot, (first, second) = cell.slot, cell.sums
        flows = slot.flows[1]
        if flows and not flows & CLOSED and first:
            workers = self.tree.workers_of(point, flows)
            self.check(workers, slot.epoch[0], slot.sequence, sum(first, ()), "slot")
        if second:
            workers = self.tree.workers_of(point, cell.flows)
            self.check(workers, *cell.owner, sum(second, ()), "second half")
        if self.history is None:
            everyone = (1 << len(self.tree.parts(point))) - 1
            if flows & CLOSED or flows == everyone:
                slot = slot._replace(flows=(slot.flows[0], flows & CLOSED or flows))
                cell = FoldedFlows(slot)
            slot = slot._replace(epoch=(slot.epoch[0], min(slot.epoch[1], 1)))
        return cell._replace(slot=slot)

    def of_generation_one(self, state: State) -> State:
        """Return the state as :class:`TofinoSearch` does."""
        points, links = [], state.links
        for point, cells in enumerate(state.core.points):
            for packet in state.links[point]:
                if packet.job == ROUND:
                    newest = cells[packet.sequence & (self.slots - 1)].slot.epoch[1]
                    generation = packet.bitmap >> 32 and (1 if packet.bitmap >> 32 == newest else GONE)
                    marked = packet._replace(bitmap=generation << 32 | packet.bitmap & WORD)
                    links = with_link(links, point, links[point] - {packet} | {marked})
            made = []
            for cell in cells:
                epoch = cell.slot.epoch[0], min(cell.slot.epoch[1], 1)
                made.append(cell._replace(slot=cell.slot._replace(epoch=epoch)))
            points.append(tuple(made))
        return state._replace(core=state.core._replace(points=tuple(points)), links=links)


if __name__ == "__main__":
    sys.exit(main(FoldedFlowsSearch))
