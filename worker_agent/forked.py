"""Makes a process that is forked from an agent's process (such as a DataLoader's worker) abandon the agent's resources.

A fork copies memory and descriptors, but only the thread that forks. Locks that other threads held stay held in the
child, no thread moves packets there, and its messages on a connection would seem to be its parent's. So objects that
have threads, sockets or a place at an agent register here and are abandoned in the child: they close their copies of
descriptors, which the parent does not notice, and from then on report that they belong to another process. (The C
engines close their descriptors themselves: native/owned.h. gRPC does the same with its connections.)
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Abandoned(Protocol):
    """An object that a forked child must not use."""

    def abandon(self) -> None:
        """Abandon the object in the child before anything else runs there, without taking a lock or waiting for
        anything.
        """


_registered: weakref.WeakSet[Abandoned] = weakref.WeakSet()


def abandon_when_forked(one: Abandoned) -> None:
    """Make every process that is forked from this one abandon `one`, for as long as it lives."""
    _registered.add(one)


def why() -> str:
    """Return the message for users of an abandoned object."""
    return f"this process was forked from process {os.getppid()}, which has the agent: only that one can use it"


def _in_child() -> None:
    registered = list(_registered)
    _registered.clear()
    for one in registered:
        one.abandon()


os.register_at_fork(after_in_child=_in_child)
