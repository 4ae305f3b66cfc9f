"""Decides what the controller does about a tree that has had no result since its epoch began, though every worker
waits.

No known failure looks like this for long. What is late, lost or congested brings some results. A rank that is late
keeps the other ranks' trees idle. Where a switch, a link or an agent is gone, other parts of the controller react
within seconds. So it is a defect: in the entries of a switch, in an agent, in the plan or in this program.

The steps, each when the one before has not helped: the switches of the tree are read again and get what they lack; the
job begins anew, in another epoch; the job is refused, so that its trainers get a reason and go on without the network,
instead of waiting in it for ever.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import Enum

READ_SECONDS = 5.0
"""Seconds without a result after which the switches of the tree are read again."""
ANEW_SECONDS = 25.0
"""Seconds without a result after which the job begins anew, or is refused."""
PACKETS = 64
"""Packets at its planned rate whose time a slow tree is given in any case, before a step is taken."""


class Do(Enum):
    """Step that the controller takes about a tree without a result, from the mildest to the last."""

    NOTHING = "nothing"
    READ_SWITCHES = "read its switches again"
    BEGIN_ANEW = "begin anew"
    REFUSE = "refuse the job"


@dataclass(frozen=True)
class Stand:
    """Memory of the steps that were taken for one job.

    Attributes:
        epoch: the one that was seen last.
        read: trees whose switches were read again in this epoch.
        anew: trees for which the job began anew, and which have had no result since.
    """

    epoch: int = 0
    read: frozenset[int] = frozenset()
    anew: frozenset[int] = frozenset()


def decide(
    before: Stand, epoch: int, standing: Mapping[int, float], moving: Collection[int], slowest: Mapping[int, float]
) -> tuple[Stand, Do, int]:
    """Return the memory after this step, the step to take, and the tree that it is about (-1 without a step).

    Args:
        standing: trees that every worker waits for and that have had no result in this epoch, with the seconds that
            each has waited.
        moving: trees that have had a result in this epoch.
        slowest: by tree, the seconds that a packet takes at the tree's planned rate.
    """
    now = before if before.epoch == epoch else replace(before, epoch=epoch, read=frozenset())
    now = replace(now, anew=now.anew.difference(moving))
    if not moving:  # no tree gets through: that is a matter of hosts, links or the machine, for other parts
        return now, Do.NOTHING, -1
    for tree, seconds in sorted(standing.items()):
        least = PACKETS * slowest.get(tree, 0.0)
        if seconds >= max(ANEW_SECONDS, least):
            if tree in now.anew:
                return now, Do.REFUSE, tree
            return replace(now, anew=now.anew | {tree}), Do.BEGIN_ANEW, tree
        if seconds >= max(READ_SECONDS, least) and tree not in now.read:
            return replace(now, read=now.read | {tree}), Do.READ_SWITCHES, tree
    return now, Do.NOTHING, -1
