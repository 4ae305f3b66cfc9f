"""The search of :mod:`tests.model.search` over switches that run the Tofino program.

python -m tests.model.tofino_search --tree star:2 --slots 2 --chunks 3 [--history K]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from tests.model.merge import Values
from tests.model.packet import Packet
from tests.model.search import Core, Search, State, main, with_link
from tests.model.tofino import CLOSED, LOOPBACK, Cell, Contribution, ReadOut, ingress, install
from tests.model.tree import Tree

ROUND = 1
"""Job number that marks a packet as one that goes round (the search only)."""


class TofinoSearch(Search):
    """The search of :mod:`tests.model.search` over switches with this program, packets of two values (one pair).

    What goes round comes back at once, or, with ``history``, is a packet on the link like others: it may come late,
    twice or never, and anything may happen in between.
    """

    fresh = Cell()

    def __init__(self, tree: Tree, slots: int, chunks: int, epochs: int = 1, history: int | None = None) -> None:
        super().__init__(tree, slots, chunks, epochs, history)
        self.entries: list[dict[int, Contribution | ReadOut]] = []
        for point in range(len(tree.points)):
            labels = {
                (0, label): tree.action(point, label, slots - 1)
                for label in [
                    *(tree.worker_label(w) for w, at in enumerate(tree.workers) if at == point),
                    *(tree.point_label(p) for p, at in enumerate(tree.points) if at == point),
                ]
            }
            self.entries.append({label: entry for (_, label), (entry, _) in install(labels).items()})

    def worker_packet(self, worker: int, epoch: int, chunk: int, flags: int) -> Packet:
        packet = super().worker_packet(worker, epoch, chunk, flags)
        return packet._replace(values=packet.values * 2)

    def possible(self, core: Core) -> Iterator[tuple[int, Packet]]:
        for point, packet in super().possible(core):
            yield point, packet._replace(values=packet.values * 2)

    def check(self, bits: int, epoch: int, chunk: int, values: Values, where: str) -> None:
        super().check(bits, epoch, chunk, values[:1], where)
        super().check(bits, epoch, chunk, values[1:], where)

    def at_point(self, core: Core, point: int, packet: Packet) -> tuple[Core, Packet | None]:
        cells = core.points[point]
        index = packet.sequence & (self.slots - 1)
        cell = cells[index]
        cell, outcome = ingress(cell, packet._replace(job=0), self.entries[point][packet.label])
        leaving = outcome.packet
        if leaving is not None and outcome.port == LOOPBACK:
            if self.history is None:
                cell, outcome = ingress(cell, leaving, self.entries[point][leaving.label])
                leaving = outcome.packet
            else:
                leaving = leaving._replace(job=ROUND)
        flows = cell.flows[1]
        if flows and not flows & CLOSED and cell.sums:
            bitmap = cell.bitmap[1] << 32 | cell.bitmap[0]
            self.check(bitmap, cell.epoch - 1, cell.sequence, cell.sums[0], "slot")
        if leaving is not None and leaving.job != ROUND:
            self.check(leaving.bitmap, leaving.epoch - 1, leaving.sequence, leaving.values, "packet")
        if self.history is None and (flows & CLOSED or cell.bitmap == (self.tree.below(point), 0)):
            # Nobody reads them any more; without that there are many more states that are the same.
            cell = cell._replace(bitmap=(0, 0), sums=(), flows=(cell.flows[0], flows & CLOSED or flows))
        cells = (*cells[:index], cell, *cells[index + 1 :])
        return core._replace(points=(*core.points[:point], cells, *core.points[point + 1 :])), leaving

    def successors(self, state: State) -> Iterator[tuple[str, State]]:
        """What goes round in a switch is lost when it restarts."""
        for step, following in super().successors(state):
            if step.startswith("reboot of "):
                point = int(step.removeprefix("reboot of "))
                kept = frozenset(packet for packet in following.links[point] if packet.job != ROUND)
                following = following._replace(links=with_link(following.links, point, kept))
            yield step, following

    def arrive(self, state: State, target: int, packet: Packet, source: str) -> Iterator[tuple[str, State]]:
        if packet.job != ROUND:
            yield from super().arrive(state, target, packet, source)
            return
        point = packet.label - 100
        core, leaving = self.at_point(state.core, point, packet)
        links = state.links
        if leaving is not None and len(links[point]) < (self.history or 0):
            links = with_link(links, point, links[point] | {leaving})
        yield f"round at {point}: {packet}", State(core, links, state.results)

    def fair_round(self, core: Core, epoch: int) -> Core:
        history, self.history = self.history, None
        try:
            return super().fair_round(core, epoch)
        finally:
            self.history = history


if __name__ == "__main__":
    sys.exit(main(TofinoSearch))
