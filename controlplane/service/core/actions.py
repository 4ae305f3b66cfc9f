"""Actions that `membership.decide` asks for: words to agents, timers, numbers to store, lines of the log, answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from controlplane.service.core.events import Event


@dataclass(frozen=True)
class Waiting:
    """The job cannot start yet: these nodes have not joined. reason: set when it goes on without this agent."""

    missing: tuple[str, ...]
    reason: str = ""


@dataclass(frozen=True)
class Configure:
    """Work with the node's configuration of the running plan, in this epoch."""

    epoch: int


@dataclass(frozen=True)
class Abort:
    """Stop the running epoch: its operations fail with this reason. nodes: because of whom."""

    reason: str
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Dismiss:
    """The agent is not accepted, or is no longer accepted."""

    reason: str


@dataclass(frozen=True)
class Prepare:
    """Make ready for the node's configuration of the plan that is offered, in this epoch. again: as in `Handover`."""

    epoch: int
    again: bool


@dataclass(frozen=True)
class SwitchOver:
    """Operations belong to this epoch from that one on. given: as of `Handover.given`."""

    epoch: int
    first_operation: int
    given: Mapping[int, int]


@dataclass(frozen=True)
class Withdraw:
    """The change to this epoch does not take place."""

    epoch: int
    reason: str


@dataclass(frozen=True)
class Retire:
    """Tell agents that all workers have the results of all operations before this epoch."""

    epoch: int


@dataclass(frozen=True)
class End:
    """End the stream of events to an agent: nothing more follows."""


Word = Waiting | Configure | Abort | Dismiss | Prepare | SwitchOver | Withdraw | Retire | End


@dataclass(frozen=True)
class Tell:
    """Send these words to the agent of this node, on that stream."""

    node: str
    connection: int
    word: Word


@dataclass(frozen=True)
class Refuse:
    """The agent that asked to join on this connection may not."""

    connection: int
    reason: str


@dataclass(frozen=True)
class RefuseChange:
    """The change of plan that was ordered is not begun."""

    reason: str


@dataclass(frozen=True)
class ChangeFailed:
    """The change of plan to this epoch is not carried through to its end."""

    epoch: int
    reason: str


@dataclass(frozen=True)
class StoreEpoch:
    """Store the number of an epoch that begins: this one, which runs already (0: a new one), and answer with
    `EpochStored` or `EpochNotStored` before any other event."""

    carried_on: int = 0


@dataclass(frozen=True)
class After:
    """Bring the event after so many seconds."""

    seconds: float
    event: Event


@dataclass(frozen=True)
class PlanWithout:
    """The node was lost and the job still runs: find a plan without the node and migrate to it, or give up."""

    node: str
    reason: str


@dataclass(frozen=True)
class Say:
    """A line for the log. warning: an operator may have to do something about it."""

    line: str
    warning: bool = False


Action = Tell | Refuse | RefuseChange | ChangeFailed | StoreEpoch | After | PlanWithout | Say
