"""State of one tree of a task at one agent: its place in the tree, the sums it holds, the results it has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from controlplane.planner.plan.task import Edge, Op, Task
from overlay.core.message import Values

TIMER_SECONDS = 0.0005
"""A chunk that may be sent within this time is sent at once, because timers are no finer."""


Combine = Callable[[Values, Values], None]
"""Adds the second array to the first one, in place."""


def _add(total: Values, values: Values) -> None:
    np.add(total, values, out=total)


def _raise_to(total: Values, values: Values) -> None:
    np.maximum(total, values, out=total)


def _add_words(total: Values, values: Values) -> None:
    words = total.view(np.uint64)
    np.add(words, values.view(np.uint64), out=words)


def combine_of(op: Op) -> Combine:
    """Return the function that "adds" for a task's operation."""
    return {"maximum": _raise_to, "words": _add_words}.get(op, _add)


@dataclass
class PartialSum:
    """The sum of one chunk's values, as far as they have arrived. contributors: a bit for each agent in it."""

    contributors: int = 0
    total: Values | None = None
    sent: bool = False

    def add(self, values: Values, contributors: int, combine: Combine = _add) -> None:
        """Adds values; the first ones become the memory of the sum."""
        if self.total is None:
            self.total = values
        else:
            combine(self.total, values)
        self.contributors |= contributors

    def taken(self) -> Values:
        """The sum, which is complete and belongs to the caller from now on."""
        assert self.total is not None, "a sum is sent once, and not before it has values"
        self.sent, total, self.total = True, self.total, None
        return total


@dataclass
class Pace:
    """Pace of a tree: when its next chunk may be sent, in seconds of the execution's clock."""

    next_at: float = 0.0

    def wait(self, now: float, seconds: float) -> float:
        """Return the seconds to wait before a chunk may be sent that takes so many seconds at the tree's rate. 0: it is
        sent now, and the next one waits for its end. Unused time is lost, except for one chunk's: a late timer must not
        slow the tree down."""
        if self.next_at > now + TIMER_SECONDS:
            return self.next_at - now
        self.next_at = max(self.next_at, now - seconds) + seconds
        return 0.0

    def hasten(self, at: float) -> None:
        """The next chunk may be sent at this time, or earlier."""
        self.next_at = min(self.next_at, at)


@dataclass
class TreeState:
    """One tree of a task, as one agent has it. Sets of contributors are bits, by position in the tree's list.

    own_bit: this agent's bit; 0: it contributes nothing. expected: all bits that pass this agent on the way up; 0: it
    adds nothing. child_bits: the bits below each child, which is what each child's partial sums must contain.
    first_missing: the lowest chunk without a result. next_chunk, pace, timers (how many have been set: only the last
    one counts) and sending (the send loop is on the stack): for an agent without children, which begins the tree's
    sums.
    """

    chunks: int
    own_bit: int
    expected: int
    child_bits: tuple[int, ...]
    is_leaf: bool
    up: Edge | None
    down: tuple[Edge, ...]
    is_receiver: bool
    sums: dict[int, PartialSum] = field(default_factory=dict)
    results: set[int] = field(default_factory=set)
    first_missing: int = 0
    next_chunk: int = 0
    pace: Pace = field(default_factory=Pace)
    timers: int = 0
    sending: bool = False

    @classmethod
    def of(cls, task: Task, index: int, node: str) -> TreeState:
        """The tree with this index in the task, before anything has been sent."""
        tree = task.trees[index]
        own_bit = 1 << tree.contributors.index(node) if node in tree.contributors else 0
        child_bits = tuple(tree.bits(child) for child in tree.children(node))
        return cls(
            chunks=task.chunks(index),
            own_bit=own_bit,
            expected=tree.bits(node),
            child_bits=child_bits,
            is_leaf=not child_bits and own_bit != 0,
            up=tree.parent.get(node),
            down=tuple(edge for edge in tree.down if edge.sender == node),
            is_receiver=node in tree.receivers,
        )

    def add_result(self, chunk: int) -> None:
        """The chunk's result is known: its partial sum is needed no more."""
        self.results.add(chunk)
        self.sums.pop(chunk, None)
        while self.first_missing in self.results:
            self.first_missing += 1

    def missing(self) -> list[int]:
        """The chunks of which this agent has no result."""
        return [chunk for chunk in range(self.first_missing, self.chunks) if chunk not in self.results]
