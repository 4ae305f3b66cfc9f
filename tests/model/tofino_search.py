"""The search of :mod:`tests.model.search` over switches that run the Tofino program.

python -m tests.model.tofino_search --tree star:2 --slots 2 --chunks 3 [--history K]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from p4src.protocol import Verdict
from tests.model.merge import WORD, Values
from tests.model.packet import Packet
from tests.model.search import Core, Search, State, main, with_link
from tests.model.tofino import CLOSED, LOOPBACK, Cell, Contribution, ReadOut, ingress, install

ROUND = 1
"""Job number that marks a recirculating packet (in the search only)."""
GONE = 1 << 31
"""A generation that no slot has."""


class TofinoSearch(Search):
    """The search over switches with this program, packets of two values (one pair).

    Recirculating packets come back at once, or, with ``history``, are packets on the link like others: they may come
    late, twice or never, and anything may happen in between.
    """

    fresh = Cell()

    @cached_property
    def entries(self) -> list[dict[int, Contribution | ReadOut]]:
        """Return the entries of each aggregation point, by label."""
        made = []
        for point in range(len(self.tree.points)):
            labels = {(0, label): self.tree.action(point, label, self.slots - 1) for label in self.tree.flows(point)}
            made.append({label: entry for (_, label), (entry, _) in install(labels).items()})
        return made

    def values(self, bits: int, epoch: int, chunk: int) -> Values:
        return super().values(bits, epoch, chunk) * 2

    def check(self, bits: int, epoch: int, chunk: int, values: Values, where: str) -> None:
        super().check(bits, epoch, chunk, values[:1], where)
        super().check(bits, epoch, chunk, values[1:], where)

    def at_slot(self, slot: Any, point: int, packet: Packet) -> tuple[Any, Packet | None, Verdict | None]:
        cell, outcome = ingress(slot, packet._replace(job=0), self.entries[point][packet.label])
        verdict, leaving = outcome.verdict, outcome.packet
        if leaving is not None and outcome.port == LOOPBACK:
            if self.history is None:
                cell, outcome = ingress(cell, leaving, self.entries[point][leaving.label])
                leaving = outcome.packet
            else:
                leaving = leaving._replace(job=ROUND)
        flows = cell.flows[1]
        everyone = (1 << len(self.tree.parts(point))) - 1
        if flows and not flows & CLOSED and cell.sums:
            self.check(self.tree.workers_of(point, flows), cell.epoch[0], cell.sequence, cell.sums[0], "slot")
        if leaving is not None and leaving.job != ROUND:
            workers = self.tree.workers_of(point, leaving.bitmap)
            self.check(workers, leaving.epoch, leaving.sequence, leaving.values, "packet")
        if self.history is None and (flows & CLOSED or flows == everyone):
            # Nobody reads them any more; with them there would be many more states that are equivalent.
            cell = cell._replace(sums=(), flows=(cell.flows[0], flows & CLOSED or flows))
        if self.history is None:
            cell = cell._replace(epoch=(cell.epoch[0], min(cell.epoch[1], 1)))
        return cell, leaving, verdict

    def check_aggregates(self, core: Core) -> None:
        history, self.history = self.history, None
        try:
            super().check_aggregates(core)
        finally:
            self.history = history

    def after(self, point: int, packet: Packet) -> int:
        return point if packet.job == ROUND else super().after(point, packet)

    def successors(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield successors; what recirculates in a switch is lost when it restarts."""
        for step, following in super().successors(state):
            if step.startswith("reboot of "):
                point = int(step.removeprefix("reboot of "))
                kept = frozenset(packet for packet in following.links[point] if packet.job != ROUND)
                following = following._replace(links=with_link(following.links, point, kept))
            yield step, following

    def arrive(self, state: State, target: int, packet: Packet, source: str) -> Iterator[tuple[str, State]]:
        if packet.job != ROUND:
            for step, following in super().arrive(state, target, packet, source):
                yield step, self.of_generation_one(following)
            return
        core, leaving = self.at_point(state.core, target, packet)
        links = state.links
        if leaving is not None and len(links[target]) < (self.history or 0):
            links = with_link(links, target, links[target] | {leaving})
        yield f"round at {target}: {packet}", State(core, links, state.results)

    def of_generation_one(self, state: State) -> State:
        """Return the same state with all slots in generation 1; older recirculating packets get a generation that no
        slot has.
        """
        points, links = [], state.links
        for point, cells in enumerate(state.core.points):
            for packet in state.links[point]:
                cell = cells[packet.sequence & (self.slots - 1)]
                if packet.job == ROUND:
                    generation = 1 if packet.bitmap >> 32 == cell.epoch[1] else GONE
                    marked = packet._replace(bitmap=generation << 32 | packet.bitmap & WORD)
                    links = with_link(links, point, links[point] - {packet} | {marked})
            points.append(tuple(cell._replace(epoch=(cell.epoch[0], min(cell.epoch[1], 1))) for cell in cells))
        return state._replace(core=state.core._replace(points=tuple(points)), links=links)

    def fair_round(self, core: Core, epoch: int) -> Core:
        history, self.history = self.history, None
        try:
            return super().fair_round(core, epoch)
        finally:
            self.history = history


if __name__ == "__main__":
    sys.exit(main(TofinoSearch))
