"""The state of one tree of a task at one agent: its place in the tree, the sums it holds, the results it has."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from controlplane.planner.plan.task import Edge, Op, Task
from overlay.core.message import Values

TIMER_SECONDS = 0.0005
"""Longest wait, in seconds, that is skipped: a chunk that may be sent so soon is sent at once, because timers are no
finer.
"""


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
    """The sum of one chunk's values, as far as they have arrived.

    Attributes:
        contributors: a bit for each agent whose values are in the sum.
    """

    contributors: int = 0
    total: Values | None = None
    sent: bool = False

    def add(self, values: Values, contributors: int, combine: Combine = _add) -> None:
        """Add values; the first ones become the memory of the sum."""
        if self.total is None:
            self.total = values
        else:
            combine(self.total, values)
        self.contributors |= contributors

    def taken(self) -> Values:
        """Return the sum, which is complete and belongs to the caller from now on."""
        assert self.total is not None, "a sum is sent once, and not before it has values"
        self.sent, total, self.total = True, self.total, None
        return total


@dataclass
class Pace:
    """Pace of a tree.

    Attributes:
        next_at: when the tree's next chunk may be sent, in seconds of the execution's clock.
    """

    next_at: float = 0.0

    def wait(self, now: float, seconds: float) -> float:
        """Return the seconds to wait before a chunk may be sent that takes `seconds` at the tree's rate. Where that is
        0, the chunk counts as sent now, and the next one waits for its end. Unused time is lost, except for one
        chunk's: a late timer must not slow the tree down.
        """
        if self.next_at > now + TIMER_SECONDS:
            return self.next_at - now
        self.next_at = max(self.next_at, now - seconds) + seconds
        return 0.0

    def hasten(self, at: float) -> None:
        """Allow the next chunk to be sent at this time, or earlier."""
        self.next_at = min(self.next_at, at)


@dataclass
class TreeState:
    """One tree of a task, as one agent has it. Sets of contributors are bits, by position in the tree's list of
    contributors.

    Attributes:
        chunks: number of chunks of the tree.
        own_bit: this agent's bit; 0 where it contributes nothing.
        expected: all bits that pass this agent on the way up; 0 where it adds nothing.
        child_bits: for each child the bits below it, which each of its partial sums must contain.
        is_leaf: the tree's sums begin at this agent, which contributes and has no children.
        up: edge to the parent; None at the root.
        down: edges on which this agent passes results on.
        is_receiver: the agent's trainer gets the results.
        sums: partial sums by chunk.
        results: chunks whose results are known.
        first_missing: the lowest chunk without a result.
        next_chunk: at a leaf, the next chunk to send.
        pace: at a leaf, when that chunk may be sent.
        timers: at a leaf, how many timers have been set; only the last one counts.
        sending: at a leaf, whether the loop that sends is on the stack.
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
        """Return the tree with this index in the task, before anything has been sent."""
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
        """Take note that the chunk's result is known: its partial sum is needed no more."""
        self.results.add(chunk)
        self.sums.pop(chunk, None)
        while self.first_missing in self.results:
            self.first_missing += 1

    def missing(self) -> list[int]:
        """Return the chunks of which this agent has no result."""
        return [chunk for chunk in range(self.first_missing, self.chunks) if chunk not in self.results]
