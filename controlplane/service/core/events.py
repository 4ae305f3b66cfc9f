"""Events that `membership.decide` is told about a job's agents. Each is data that JSON can hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, get_args

from controlplane.service.core.state import Place


@dataclass(frozen=True)
class Joined:
    """An agent wants to join. connection: a number that no other stream has. node: "" where the controller is to find
    it by `addresses`. running_epoch, running_digest: what it runs already, after a restart of the controller."""

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
    """An agent is about to end its stream: because it is done, or because of a failure."""

    agent: str
    failure: str


@dataclass(frozen=True)
class Left:
    """An agent's stream of events has ended."""

    connection: int


@dataclass(frozen=True)
class Silent:
    """A member has not reported for so many seconds, while others have."""

    node: str
    seconds: float


@dataclass(frozen=True)
class Prepared:
    """An agent is ready to change over to the plan of this epoch, or (failure) cannot. next_operation, done: as
    `Handover` has them."""

    agent: str
    epoch: int
    next_operation: int
    done: tuple[int, ...] = ()
    failure: str = ""


@dataclass(frozen=True)
class Drained:
    """A worker has all results of the epoch before this one, and has started so many operations and bytes again."""

    agent: str
    epoch: int
    operations: int = 0
    nbytes: int = 0
    failure: str = ""


@dataclass(frozen=True)
class PlanReplaced:
    """The job has another plan, while it does not run."""

    places: tuple[Place, ...]


@dataclass(frozen=True)
class PlanRestarted:
    """The job has another plan, and what runs is to stop: all begin anew with it."""

    places: tuple[Place, ...]
    reason: str


@dataclass(frozen=True)
class ChangeOrdered:
    """The job is to change over to another plan while it runs. again: operations under way are started again."""

    places: tuple[Place, ...]
    again: bool


@dataclass(frozen=True)
class ChangeLate:
    """Agents were told `seconds` ago to prepare this epoch, and not all of them are ready."""

    epoch: int
    seconds: float


@dataclass(frozen=True)
class SwitchOrdered:
    """All agents are ready for this epoch, and the switches are: change over."""

    epoch: int


@dataclass(frozen=True)
class RetireOrdered:
    """The old plan is to be dropped: all workers have all results of what ran before this epoch."""

    epoch: int


@dataclass(frozen=True)
class DrainBroken:
    """Operations of the plan before this epoch cannot end: they need a switch or a link that is gone, and cannot be led
    around it."""

    epoch: int
    reason: str


@dataclass(frozen=True)
class GivenUp:
    """No plan was found with which the job could go on without those who are lost."""

    reason: str


@dataclass(frozen=True)
class Closed:
    """The controller ends, or (refusal) the job was removed."""

    refusal: str


@dataclass(frozen=True)
class GraceOver:
    """Some time ago, this node's agent was done and left this epoch."""

    epoch: int
    node: str


@dataclass(frozen=True)
class ReturnOver:
    """Some time has passed since the first agent that still works joined a controller that has started again."""


@dataclass(frozen=True)
class EpochStored:
    """The number of the epoch that begins is stored, so that it is never used again."""

    epoch: int


@dataclass(frozen=True)
class EpochNotStored:
    """No number could be stored (the disk is full): no epoch can begin."""

    reason: str


@dataclass(frozen=True)
class EpochRetried:
    """Some time has passed since no number could be stored."""


Event = (
    Joined
    | LeaveAnnounced
    | Left
    | Silent
    | Prepared
    | Drained
    | PlanReplaced
    | PlanRestarted
    | ChangeOrdered
    | ChangeLate
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

KINDS: Mapping[str, type[Event]] = {kind.__name__: kind for kind in get_args(Event)}


def to_json(event: Event) -> dict[str, Any]:
    """An event as an object of JSON: its kind and its fields."""
    return {"kind": type(event).__name__, **asdict(event)}


def from_json(data: Mapping[str, Any]) -> Event:
    """The event that `to_json` has written. Raises ValueError when it is none."""
    kind = KINDS.get(data.get("kind", ""))
    if kind is None:
        raise ValueError(f"{data.get('kind')!r} is not an event; events are {', '.join(KINDS)}")
    fields: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
    del fields["kind"]
    if "places" in fields:
        fields["places"] = tuple(Place(*place) for place in fields["places"])
    try:
        return kind(**fields)
    except TypeError as error:
        raise ValueError(f"not an event: {error}") from None
