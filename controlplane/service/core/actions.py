"""Actions that `membership.decide` asks for: messages to agents, timers, numbers to store, lines of the log."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from controlplane.service.core.events import Event


@dataclass(frozen=True)
class Waiting:
    """The agent must wait, because the nodes in `missing` have not joined. The `reason` is set where the job runs
    without this agent."""

    missing: tuple[str, ...]
    reason: str = ""


@dataclass(frozen=True)
class Configure:
    """The agent is to work with its node's configuration of the running plan, in this epoch."""

    epoch: int


@dataclass(frozen=True)
class Abort:
    """The agent is to stop the running epoch, whose operations fail with this reason. The `nodes` are the ones that
    caused it."""

    reason: str
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Dismiss:
    """The agent is not accepted, or is no longer accepted."""

    reason: str


@dataclass(frozen=True)
class Prepare:
    """The agent is to make ready for its node's configuration of the plan that is offered, in this epoch. `again` and
    `Migration.again` are the same."""

    epoch: int
    again: bool


@dataclass(frozen=True)
class SwitchOver:
    """Operations belong to this epoch from number `first_operation` on. `given` is what `Migration.given` returns."""

    epoch: int
    first_operation: int
    given: Mapping[int, int]


@dataclass(frozen=True)
class Withdraw:
    """The migration that was to begin this epoch does not take place."""

    epoch: int
    reason: str


@dataclass(frozen=True)
class Retire:
    """All workers have the results of all operations before this epoch."""

    epoch: int


@dataclass(frozen=True)
class End:
    """The stream of events to an agent ends here: nothing more follows."""


Word = Waiting | Configure | Abort | Dismiss | Prepare | SwitchOver | Withdraw | Retire | End


@dataclass(frozen=True)
class Tell:
    """Send this message (`word`) to the agent of this node, on the stream with the number `connection`."""

    node: str
    connection: int
    word: Word


@dataclass(frozen=True)
class Refuse:
    """Refuse the agent that asked to join on this connection, for this reason."""

    connection: int
    reason: str


@dataclass(frozen=True)
class RefuseMigration:
    """Answer that the migration that was ordered is not begun, for this reason."""

    reason: str


@dataclass(frozen=True)
class MigrationFailed:
    """Answer that the migration to this epoch has ended early, for this reason."""

    epoch: int
    reason: str


@dataclass(frozen=True)
class StoreEpoch:
    """Store the number of an epoch that begins, and answer with `EpochStored` or `EpochNotStored` before any other
    event. The number is a new one, or `carried_on`, where that is not 0, for an epoch that agents run already."""

    carried_on: int = 0


@dataclass(frozen=True)
class After:
    """Bring this event after so many seconds."""

    seconds: float
    event: Event


@dataclass(frozen=True)
class PlanWithout:
    """The node was lost and the job still runs: find a plan without the node and migrate to it, or give up."""

    node: str
    reason: str


@dataclass(frozen=True)
class Say:
    """Write a line to the log. With `warning`, an operator may have to do something about it."""

    line: str
    warning: bool = False


Action = Tell | Refuse | RefuseMigration | MigrationFailed | StoreEpoch | After | PlanWithout | Say
