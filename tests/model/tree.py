"""Small aggregation trees for the model: which point adds whose contributions, with which labels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from tests.model.root import RootFlow
from tests.model.switch import Aggregate, Forward

ROOT = -1
POINT_LABELS, PARTIAL_LABELS = 10_000, 20_000


@dataclass(frozen=True)
class Tree:
    """A tree. ``points[i]`` is where aggregation point i sends (an index, or ROOT), ``workers[w]`` where worker w
    sends.

    A point's index is larger than those of the points that send to it. Labels: worker w sends with ``1 + w``, the
    complete sums of point i have ``POINT_LABELS + i``, all others ``PARTIAL_LABELS + i``, or the same label if the
    point sends to the root itself. Sets of workers are numbers with bit w for worker w.
    """

    workers: tuple[int, ...]
    points: tuple[int, ...]

    @property
    def expected(self) -> int:
        """Return all workers' bits."""
        return (1 << len(self.workers)) - 1

    @cache  # noqa: B019 (few trees, of few points)
    def below(self, point: int) -> int:
        """Return the workers that reach aggregation point ``point`` (or ROOT)."""
        bits = sum(1 << w for w, at in enumerate(self.workers) if at == point)
        for index, target in enumerate(self.points):
            if target == point:
                bits |= self.below(index)
        return bits

    def worker_label(self, worker: int) -> int:
        return 1 + worker

    def point_label(self, point: int) -> int:
        """Return the label of the complete sums of ``point``."""
        return POINT_LABELS + point

    def partial_label(self, point: int) -> int:
        """Return the label of everything else that leaves ``point``, which is not added before the root."""
        return self.point_label(point) if self.points[point] == ROOT else PARTIAL_LABELS + point

    @cache  # noqa: B019
    def flows(self, point: int) -> tuple[int, ...]:
        """Return the labels that are added at ``point``, by their bits."""
        return (
            *(self.worker_label(w) for w, at in enumerate(self.workers) if at == point),
            *(self.point_label(p) for p, at in enumerate(self.points) if at == point),
        )

    @cache  # noqa: B019
    def parts(self, point: int) -> tuple[int, ...]:
        """Return whose contributions each bit of the bitmaps of ``point`` stands for."""
        return tuple(
            1 << label - 1 if label < POINT_LABELS else self.below(label - POINT_LABELS) for label in self.flows(point)
        )

    def workers_of(self, point: int, bitmap: int) -> int:
        """Return whose contributions a bitmap of ``point`` stands for."""
        return sum(part for bit, part in enumerate(self.parts(point)) if bitmap >> bit & 1)

    def action(self, point: int, label: int, slot_mask: int) -> Aggregate | Forward:
        """Return the label table entry of ``label`` at the switch of aggregation point ``point``; it leaves by port
        0.
        """
        if label >= PARTIAL_LABELS:
            return Forward(0)
        flows = self.flows(point)
        everyone = (1 << len(flows)) - 1
        next_label, partial_label = self.point_label(point), self.partial_label(point)
        return Aggregate(0, slot_mask, 1 << flows.index(label), everyone, next_label, partial_label, 0)

    def passing(self, point: int) -> Iterator[tuple[int, int]]:
        """Yield (label, point below from which it comes) of all that passes the switch of ``point`` on its way to the
        root.
        """
        for below, target in enumerate(self.points):
            if target == point:
                yield PARTIAL_LABELS + below, below
                for label, _ in self.passing(below):
                    yield label, below

    def root_flow(self, label: int) -> RootFlow:
        """Return the meaning of ``label`` at the root."""
        if label >= POINT_LABELS:
            return RootFlow(self.parts(label % POINT_LABELS), True)
        return RootFlow((1 << (label - 1),), False)


def star(workers: int) -> Tree:
    """Return a tree with one aggregation point below the root."""
    return Tree((0,) * workers, (ROOT,))


def with_direct(workers: int) -> Tree:
    """Return a tree with one aggregation point for all but the last worker, which sends to the root directly."""
    return Tree((0,) * (workers - 1) + (ROOT,), (ROOT,))


def two_level(below: int, above: int) -> Tree:
    """Return a tree with ``below`` workers at a first point, whose sums meet ``above`` more workers at a second."""
    return Tree((0,) * below + (1,) * above, (1, ROOT))


def racks(count: int, workers: int) -> Tree:
    """Return a tree with ``count`` points of ``workers`` each, whose sums meet at one more."""
    return Tree(tuple(w // workers for w in range(count * workers)), (count,) * count + (ROOT,))
