"""Sends the chunks of trees whose sums begin at this agent, in order, as fast as the tree's window and rate allow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from overlay.core.tree_state import TreeState


@dataclass(frozen=True)
class Leaf:
    """A tree whose sums begin at this agent, as the task has it now.

    window: how many chunks may be without a result. seconds(chunk): how long the chunk takes at the tree's rate; 0: it
    is not paced. post(chunk): sends the chunk; returns whether the task still goes on. again(): sends more of the tree,
    when its rate allows it.
    """

    tree: TreeState
    window: int
    seconds: Callable[[int], float]
    post: Callable[[int], bool]
    again: Callable[[], None]


class LeafSender:
    """clock(): seconds. later(seconds, callback): calls back then."""

    def __init__(self, clock: Callable[[], float], later: Callable[[float, Callable[[], None]], object]) -> None:
        self._clock, self._later = clock, later

    def send(self, leaf: Leaf) -> None:
        """Posts as many chunks as window and rate allow."""
        if leaf.tree.sending:
            return  # this agent is the root, too, and sending gave a result: the loop further up the stack continues
        leaf.tree.sending = True
        try:
            self._send(leaf)
        finally:
            leaf.tree.sending = False

    def _send(self, leaf: Leaf) -> None:
        tree = leaf.tree
        while tree.next_chunk < min(tree.chunks, tree.first_missing + leaf.window):
            seconds = leaf.seconds(tree.next_chunk)
            wait = tree.pace.wait(self._clock(), seconds) if seconds > 0 else 0.0
            if wait:
                tree.timers += 1
                self._later(wait, partial(self._wake, leaf, tree.timers))
                return
            chunk, tree.next_chunk = tree.next_chunk, tree.next_chunk + 1
            if not leaf.post(chunk):
                return

    def _wake(self, leaf: Leaf, timer: int) -> None:
        if timer == leaf.tree.timers:  # none has been set since
            leaf.again()
