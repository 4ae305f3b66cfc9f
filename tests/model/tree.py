"""Small aggregation trees for the model: who adds whose contributions, with which labels."""

from __future__ import annotations

from dataclasses import dataclass

from tests.model.root import RootFlow
from tests.model.switch import Aggregate

ROOT = -1


@dataclass(frozen=True)
class Tree:
    """``points[i]`` is where aggregation point i sends (an index, or ROOT), ``workers[w]`` where worker w sends.

    A point's index is larger than those of the points that send to it. Labels: worker w sends with ``1 + w``, point i
    with ``100 + i``.
    """

    workers: tuple[int, ...]
    points: tuple[int, ...]

    @property
    def expected(self) -> int:
        """All workers' bits."""
        return (1 << len(self.workers)) - 1

    def below(self, point: int) -> int:
        """The bits that reach aggregation point ``point`` (or ROOT)."""
        bits = sum(1 << w for w, at in enumerate(self.workers) if at == point)
        for index, target in enumerate(self.points):
            if target == point:
                bits |= self.below(index)
        return bits

    def worker_label(self, worker: int) -> int:
        return 1 + worker

    def point_label(self, point: int) -> int:
        return 100 + point

    def action(self, point: int, label: int, slot_mask: int) -> Aggregate:
        """The label table entry of ``label`` at aggregation point ``point``; it leaves by port 0."""
        contributor = 0 if label >= 100 else 1 << (label - 1)
        return Aggregate(0, slot_mask, contributor, self.below(point), self.point_label(point), 0)

    def root_flow(self, label: int) -> RootFlow:
        """What ``label`` means to the root."""
        if label >= 100:
            return RootFlow(self.below(label - 100), True)
        return RootFlow(1 << (label - 1), False)


def star(workers: int) -> Tree:
    """One aggregation point below the root."""
    return Tree((0,) * workers, (ROOT,))


def with_direct(workers: int) -> Tree:
    """One aggregation point for all but the last worker, who sends to the root directly."""
    return Tree((0,) * (workers - 1) + (ROOT,), (ROOT,))


def two_level(below: int, above: int) -> Tree:
    """``below`` workers at a first point, whose partial sums meet ``above`` more workers at a second."""
    return Tree((0,) * below + (1,) * above, (1, ROOT))
