"""Events about a job's agents, which `membership.decide` takes. Each consists of values that JSON can hold."""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.service.core.state import Place


@dataclass(frozen=True)
class Joined:
    """An agent asks to join.

    Attributes:
        connection: the number of its stream of events, which no other stream has.
        node: the node that it wants to be; "" where the controller is to find the node by `addresses`.
        version: of the packets' encoding.
        process, peer: the process and where it connects from, for people.
        running_epoch, running_digest: the epoch and the digest of the configuration that it works with already, after a
            restart of the controller; 0 and "" without one.
        take_over: it may replace another process that has joined for the node.
    """

    connection: int
    node: str
    addresses: tuple[str, ...]
    role: str
    version: int
    agent: str = ""
    process: str = ""
    peer: str = ""
    running_epoch: int = 0
    running_digest: str = ""
    take_over: bool = False


@dataclass(frozen=True)
class LeaveAnnounced:
    """An agent is about to end its stream of events: because of a failure, or, where `failure` is "", because it is
    done."""

    agent: str
    failure: str


@dataclass(frozen=True)
class Left:
    """An agent's stream of events has ended, so many seconds after its last report (0: not known)."""

    connection: int
    silent: float = 0.0


@dataclass(frozen=True)
class Silent:
    """A member has sent no report for so many seconds, while others have."""

    node: str
    seconds: float


@dataclass(frozen=True)
class Prepared:
    """An agent is ready for the plan of this epoch, or, where `failure` is set, cannot use it. `next_operation` and
    `done` are what `Migration.next_operations` and `Migration.done` keep for each node."""

    agent: str
    epoch: int
    next_operation: int
    done: tuple[int, ...] = ()
    failure: str = ""


@dataclass(frozen=True)
class Drained:
    """A worker has all results of the epoch before this one. It has started so many operations, of so many bytes
    together, again, or could not finish them (`failure`)."""

    agent: str
    epoch: int
    operations: int = 0
    nbytes: int = 0
    failure: str = ""


@dataclass(frozen=True)
class PlanReplaced:
    """The job was given a new plan while it does not run."""

    places: tuple[Place, ...]


@dataclass(frozen=True)
class PlanRestarted:
    """The job was given a new plan, and all agents are to stop and begin anew with it."""

    places: tuple[Place, ...]
    reason: str


@dataclass(frozen=True)
class MigrationOrdered:
    """The job is to migrate to a new plan while it runs. With `again`, operations under way are started again under
    the new plan."""

    places: tuple[Place, ...]
    again: bool


@dataclass(frozen=True)
class MigrationLate:
    """Agents were told `seconds` ago to prepare this epoch, and not all of them are ready."""

    epoch: int
    seconds: float


@dataclass(frozen=True)
class SwitchOrdered:
    """All agents and all switches are ready for this epoch: the agents are to migrate now."""

    epoch: int


@dataclass(frozen=True)
class RetireOrdered:
    """The old plan is to be dropped, because all workers have all results of the operations before this epoch."""

    epoch: int


@dataclass(frozen=True)
class DrainBroken:
    """Operations of the plan before this epoch cannot end: they need a switch or a link that is gone, and cannot be
    rerouted."""

    epoch: int
    reason: str


@dataclass(frozen=True)
class GivenUp:
    """No plan was found with which the job could go on without the lost agents."""

    reason: str


@dataclass(frozen=True)
class Closed:
    """The controller ends, or, where `refusal` is set, the job was removed."""

    refusal: str


@dataclass(frozen=True)
class GraceOver:
    """The grace period has passed since this node's agent, which was done, left this epoch."""

    epoch: int
    node: str


@dataclass(frozen=True)
class ReturnOver:
    """Some time has passed since the first agent that still works has joined a controller that was started again."""


@dataclass(frozen=True)
class EpochStored:
    """The number of the epoch that begins is stored, so that it is never used for another one."""

    epoch: int


@dataclass(frozen=True)
class EpochNotStored:
    """No number could be stored for the epoch that was to begin (the disk is full, for example)."""

    reason: str


@dataclass(frozen=True)
class EpochRetried:
    """Some time has passed since an epoch could not begin because its number could not be stored."""


Event = (
    Joined
    | LeaveAnnounced
    | Left
    | Silent
    | Prepared
    | Drained
    | PlanReplaced
    | PlanRestarted
    | MigrationOrdered
    | MigrationLate
    | SwitchOrdered
    | RetireOrdered
    | DrainBroken
    | GivenUp
    | Closed
    | GraceOver
    | ReturnOver
    | EpochStored
    | EpochNotStored
    | EpochRetried
)
