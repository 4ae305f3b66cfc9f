"""The workers of an aggregation tree and their routes, without a tuple of nodes for each worker.

The workers of a rack that are added at one place go the same way behind their own links. A plan of 1,000 workers has
hundreds of trees, so these ways are stored once a tree, and for each worker the number of its way. A worker's
Assignment is made when it is asked for; code that counts looks at the ways (`Assignments.counts`).
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple, overload


class Assignment(NamedTuple):
    """Assignment of a worker to the point where its gradients are added, and its route there. Where the point is the
    tree's root, the worker sends directly to it. A worker on the host of its own point has itself alone as route, which
    crosses no link.
    """

    worker: str
    point: str
    route: tuple[str, ...]


class Way(NamedTuple):
    """The way of a worker's gradients: the point where they are added, and the nodes of the route there after the
    worker.
    """

    point: str
    behind: tuple[str, ...]


class Assignments(Sequence[Assignment]):
    """A sequence of assignments, equal to every other sequence of the same ones.

    Attributes:
        which: For each worker the number of its way.
        starts: The first node of each worker's route, which is the worker itself in every plan that `Plan.check`
            accepts (a plan that was read from a file may be wrong, and is kept as it is).
    """

    __slots__ = ("starts", "ways", "which", "workers")

    def __init__(
        self, workers: tuple[str, ...], ways: tuple[Way, ...], which: array[int], starts: tuple[str, ...] | None = None
    ) -> None:
        self.workers, self.ways, self.which = workers, ways, which
        self.starts = workers if starts is None else starts

    @classmethod
    def of(cls, assignments: Iterable[Assignment]) -> Assignments:
        """Return these assignments with the ways that they share stored once."""
        if isinstance(assignments, Assignments):
            return assignments
        listed = list(assignments)
        workers = tuple([a.worker for a in listed])
        starts = tuple([a.route[0] if a.route else "" for a in listed])
        ways, which = numbered(Way(a.point, a.route[1:]) for a in listed)
        return cls(workers, ways, which, None if starts == workers else starts)

    def counts(self) -> list[tuple[Way, int]]:
        """Return every way with the number of workers that go it."""
        workers = Counter(self.which)
        return [(way, workers[number]) for number, way in enumerate(self.ways)]

    def ends(self) -> Counter[str]:
        """Return how many workers are added at each point."""
        found: Counter[str] = Counter()
        for way, count in self.counts():
            found[way.point] += count
        return found

    def first_nodes(self) -> tuple[str, ...]:
        """Return for each worker the node behind its own link; the worker itself where its route crosses none."""
        behind = [way.behind[0] if way.behind else None for way in self.ways]
        if None in behind:
            return tuple([behind[n] or start for n, start in zip(self.which, self.starts, strict=True)])
        return tuple(map(behind.__getitem__, self.which))  # type: ignore[arg-type]

    def inner_links(self) -> Counter[tuple[str, str]]:
        """Return the number of flows over each link behind the workers' own ones."""
        found: Counter[tuple[str, str]] = Counter()
        for way, count in self.counts():
            for pair in pairwise(way.behind):
                found[pair] += count
        return found

    def __len__(self) -> int:
        return len(self.workers)

    def __iter__(self) -> Iterator[Assignment]:
        ways = self.ways
        for worker, start, number in zip(self.workers, self.starts, self.which, strict=True):
            point, behind = ways[number]
            yield Assignment(worker, point, (start, *behind))

    @overload
    def __getitem__(self, index: int) -> Assignment: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Assignment, ...]: ...

    def __getitem__(self, index: int | slice) -> Assignment | tuple[Assignment, ...]:
        if isinstance(index, slice):
            return tuple([self[i] for i in range(*index.indices(len(self)))])
        point, behind = self.ways[self.which[index]]
        return Assignment(self.workers[index], point, (self.starts[index], *behind))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(other) != len(self):
            return NotImplemented if not isinstance(other, Sequence) else False
        if isinstance(other, Assignments):
            if (self.workers, self.starts) != (other.workers, other.starts):
                return False
            if self.ways == other.ways:
                return self.which == other.which
        return all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.workers, self.ways, self.which, self.starts)


def numbered(ways: Iterable[Way]) -> tuple[tuple[Way, ...], array[int]]:
    """Return the different ways in the order of their first appearance, and for each given way its number among
    these.
    """
    numbers: dict[Way, int] = {}
    which = array("I", [numbers.setdefault(way, len(numbers)) for way in ways])
    return tuple(numbers), which
