"""The search of :mod:`tests.model.search` over switches that run the folded program of Tofino 1.

python -m tests.model.folded_flows_search --tree star:2 --slots 1 --chunks 2 [--history K]
"""

from __future__ import annotations

import sys
from functools import cached_property
from typing import Any

from p4src.protocol import Verdict
from tests.model import folded_flows
from tests.model.folded import FOLD, Fold
from tests.model.folded_flows import FoldedFlows
from tests.model.merge import WORD, Values
from tests.model.packet import Packet
from tests.model.search import Search, State, main, with_link
from tests.model.tofino import CLOSED, StaticTable
from tests.model.tofino_search import GONE, ROUND, TofinoSearch


class FoldedFlowsSearch(TofinoSearch):
    """The search over switches with this program, packets of four values. What goes round goes through at once, or,
    with ``history``, is a packet on the link like others: it may come late, twice or never.
    """

    fresh: Any = FoldedFlows()

    @cached_property
    def tables(self) -> dict[str, StaticTable]:
        return folded_flows.tables()

    def values(self, bits: int, epoch: int, chunk: int) -> Values:
        return Search.values(self, bits, epoch, chunk) * 4

    def check(self, bits: int, epoch: int, chunk: int, values: Values, where: str) -> None:
        for value in values:
            Search.check(self, bits, epoch, chunk, (value,), where)

    def at_slot(self, slot: Any, point: int, packet: Packet) -> tuple[Any, Packet | None, Verdict | None]:
        fold = Fold(*FOLD.unpack(packet.outer)) if packet.job == ROUND else None
        cell, leaving, verdict = slot, packet._replace(job=0, outer=b""), None
        while True:
            entry = self.entries[point][leaving.label]
            cell, outcome = folded_flows.ingress(cell, leaving, fold, entry, self.tables)
            verdict = outcome.verdict if verdict is None else verdict
            if outcome.packet is None:
                leaving = None
                break
            leaving, fold = outcome.packet, outcome.fold
            if fold is None:
                workers = self.tree.workers_of(point, leaving.bitmap)
                self.check(workers, leaving.epoch, leaving.sequence, leaving.values, "packet")
                break
            if self.history is not None:
                leaving = leaving._replace(job=ROUND, outer=FOLD.pack(*fold))
                break
        return self.checked(cell, point), leaving, verdict

    def checked(self, cell: FoldedFlows, point: int) -> FoldedFlows:
        """Each half holds the sum of the flows that it names; the same without what nobody reads any more."""
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
        """As of :class:`TofinoSearch`."""
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
