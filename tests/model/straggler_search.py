"""Explores every order of events of ranks that do not wait for stragglers (worker_agent/stragglers.py).

    python -m tests.model.straggler_search [--ranks 3] [--buckets 2] [--steps 3] [--most-behind 2]

Each rank computes a gradient for each bucket of a step, one after the other, or skips a step that it finds ended; it
ends a step when it has all its sums. Its stand-in contributes whenever the rules let it and `--quorum` ranks have
contributed gradients of their own to the sum: how long it waits changes no more than which of these orders occurs. In
every state: each sum has what its weight says, no gradient is in two sums, each one that was computed is in a sum or
carried, no sum is empty; and somebody can go on until all ranks have ended all steps.
"""

from __future__ import annotations

import argparse
import copy
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain

from worker_agent.stragglers import Turns

Gradient = tuple[int, int, int]
"""Rank, step, bucket."""


class Found(Exception):
    """A state that must not be."""


@dataclass
class Rank:
    """A rank: its turns, its contributions so far by sum, the gradients that it has computed."""

    turns: Turns
    given: list[tuple[Counter[Gradient], int, bool]] = field(default_factory=list)
    computed: Counter[Gradient] = field(default_factory=Counter)
    ended: int = 0  # steps


class Model:
    """All ranks, and how they go on."""

    def __init__(self, ranks: int, steps: int, quorum: int, turns: Callable[[], Turns]) -> None:
        self.steps, self.quorum = steps, quorum
        self.ranks = [Rank(turns()) for _ in range(ranks)]
        self.buckets = self.ranks[0].turns.buckets

    def key(self) -> tuple[object, ...]:
        """What tells states apart."""
        return tuple(
            (
                rank.turns.own,
                rank.turns.next,
                rank.ended,
                tuple(sorted((b, tuple(sorted(v.items())), w) for b, (v, w) in rank.turns.carried.items())),
                tuple((tuple(sorted(value.items())), weight, own) for value, weight, own in rank.given),
            )
            for rank in self.ranks
        )

    def following(self) -> Iterator[Model]:
        """The states that one event leads to."""
        for number, rank in enumerate(self.ranks):
            step, bucket = divmod(rank.turns.own, self.buckets)
            if step == rank.ended and step < self.steps:
                yield self._after(number, "arrive", (number, step, bucket))
                if not bucket and rank.turns.next >= rank.turns.own + self.buckets:
                    yield self._after(number, "skip", None)
            elif step > rank.ended and self._complete(step * self.buckets):
                yield self._after(number, "end", None)
            position = rank.turns.next
            there = sum(len(one.given) > position and one.given[position][2] for one in self.ranks)
            if position < self.steps * self.buckets and rank.turns.may_stand_in and there >= self.quorum:
                yield self._after(number, "stand in", None)

    def _complete(self, positions: int) -> bool:
        return all(len(rank.given) >= positions for rank in self.ranks)

    def _after(self, number: int, event: str, gradient: Gradient | None) -> Model:
        other = copy.deepcopy(self)
        rank = other.ranks[number]
        if event == "arrive":
            assert gradient is not None
            rank.computed[gradient] += 1
            contribution = rank.turns.arrive(Counter([gradient]))
            if contribution is not None:
                rank.given.append((*contribution, True))
        elif event == "stand in":
            value, weight = rank.turns.stand_in()
            rank.given.append((Counter() if value is None else value, weight, False))
        elif event == "skip":
            rank.turns.skip()
        else:
            rank.ended += 1
        return other

    def check(self) -> None:
        """Raise Found for what must not be."""
        for rank in self.ranks:
            if len(rank.given) != rank.turns.next:
                raise Found(f"{len(rank.given)} contributions, the next sum is {rank.turns.next}")
            if any(value.total() != weight for value, weight, _ in rank.given):
                raise Found("a weight is not the number of gradients")
            carried = chain.from_iterable(value.elements() for value, _ in rank.turns.carried.values())
            given = chain.from_iterable(value.elements() for value, _, _ in rank.given)
            if Counter(chain(given, carried)) != rank.computed:
                raise Found("a gradient is lost, or in two sums")
            for position, (value, _, _) in enumerate(rank.given):
                if any(bucket != position % self.buckets for _, _, bucket in value):
                    raise Found("a gradient is in a sum of another bucket")
        for position in range(min(len(rank.given) for rank in self.ranks)):
            if not sum(rank.given[position][1] for rank in self.ranks):
                raise Found(f"sum {position} is of nobody")


def search(ranks: int, buckets: int, steps: int, *, most_behind: int, quorum: int, turns: type[Turns] = Turns) -> int:
    """Return the number of states. Raises Found."""
    first = Model(ranks, steps, quorum, lambda: turns(buckets, most_behind))
    known, left = {first.key()}, [first]
    while left:
        model = left.pop()
        model.check()
        stuck = True
        for other in model.following():
            stuck = False
            if (key := other.key()) not in known:
                known.add(key)
                left.append(other)
        if stuck and any(rank.ended < steps for rank in model.ranks):
            raise Found("nobody can go on, and not all steps have ended")
    return len(known)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--buckets", type=int, default=1, help="of a step (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--most-behind", type=int, default=2, help="steps (default: %(default)s)")
    parser.add_argument("--quorum", type=int, default=1, help="ranks (default: %(default)s)")
    arguments = parser.parse_args(argv)
    rules = {"most_behind": arguments.most_behind, "quorum": arguments.quorum}
    states = search(arguments.ranks, arguments.buckets, arguments.steps, **rules)
    print(f"{states} states: no sum is wrong, no gradient lost, nobody stuck")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
