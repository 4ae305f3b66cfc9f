"""Sends the chunks of trees in which an agent is a leaf, in order, as fast as the tree's window and rate allow."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from overlay.core.tree_state import TreeState


@dataclass(frozen=True)
class Leaf:
    """A tree in which this agent is a leaf, so that sums begin here, as the task has it at present.

    Attributes:
        tree: the tree's state at this agent.
        window: number of chunks that may be without a result.
        seconds: called as seconds(chunk); returns how long the chunk takes at the tree's rate, or 0 where it is not
            paced.
        post: called as post(chunk); sends the chunk and returns whether the task still goes on.
        again: sends more of the tree; called when its rate allows that.
    """

    tree: TreeState
    window: int
    seconds: Callable[[int], float]
    post: Callable[[int], bool]
    again: Callable[[], None]


class LeafSender:
    """Sends the chunks of one agent's leaves.

    Args:
        clock: returns the time in seconds.
        later: called as later(seconds, callback); calls back after so many seconds.
    """

    def __init__(self, clock: Callable[[], float], later: Callable[[float, Callable[[], None]], object]) -> None:
        self._clock, self._later = clock, later

    def send(self, leaf: Leaf) -> None:
        """Post as many chunks as window and rate allow."""
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
        if timer == leaf.tree.timers:  # no other timer has been set since
            leaf.again()
