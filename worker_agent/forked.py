"""What a process that is forked from an agent's (a DataLoader's worker, say) leaves alone.

A fork copies memory and descriptors, but of the threads only the one that forks. Locks that others held stay held in
the child, nobody moves packets there, and what it says on a connection its parent says. So whatever has threads,
sockets or a place at an agent registers here, and is abandoned in the child: it closes its copies of descriptors, which
the parent does not notice, and from then on says that it belongs to another process. (What the C engines have open they
close themselves: native/owned.h. gRPC does the same with its connections.)
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Abandoned(Protocol):
    """What a child is not to use."""

    def abandon(self) -> None:
        """In the child, before anything else runs there. Takes no lock, and waits for nothing."""


_registered: weakref.WeakSet[Abandoned] = weakref.WeakSet()


def abandon_when_forked(one: Abandoned) -> None:
    """For as long as `one` lives, every process that is forked from this one abandons it."""
    _registered.add(one)


def why() -> str:
    """What users of something abandoned are told."""
    return f"this process was forked from process {os.getppid()}, which has the agent: only that one can use it"


def _in_child() -> None:
    registered = list(_registered)
    _registered.clear()
    for one in registered:
        one.abandon()


os.register_at_fork(after_in_child=_in_child)
