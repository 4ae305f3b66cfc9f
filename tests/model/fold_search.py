"""The part of the search over the folded program that is about packets that recirculate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from p4src.protocol import Verdict
from tests.model.folded import FOLD, Fold, Outcome
from tests.model.packet import Packet
from tests.model.tofino_search import ROUND, TofinoSearch


class FoldSearch(TofinoSearch):
    """A search in which recirculating packets go through at once, or, with ``history``, are packets on the link.

    They may then come late, twice or never. ingress: one pass of the program.
    """

    ingress: Callable[..., tuple[Any, Outcome]]

    def at_slot(self, slot: Any, point: int, packet: Packet) -> tuple[Any, Packet | None, Verdict | None]:
        fold = Fold(*FOLD.unpack(packet.outer)) if packet.job == ROUND else None
        cell, leaving, verdict = slot, packet._replace(job=0, outer=b""), None
        while True:
            entry = self.entries[point][leaving.label]
            cell, outcome = self.ingress(cell, leaving, fold, entry, self.tables)
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

    def checked(self, cell: Any, point: int) -> Any:
        """Return the cell without what nobody reads any more; raises Found if it has a wrong sum."""
        raise NotImplementedError
