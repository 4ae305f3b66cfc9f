"""Entries of a controller's journal (service/journal.py), and the replay of those that are events of the core.

An event of the core has the field `now`, and in `data` the fields of the event: of a job's agents a class of events.py,
of a network's switches and links a function of parts.py (`EVENTS`), with job "". An entry of the kind STATE has the
whole state of a job or of the network. It precedes their first event, and begins every segment of the journal: a
segment can be replayed alone.

Events of the network that change nothing and have no consequence, as most polls of switches do, are left out: without
them a replay ends with the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, is_dataclass
from enum import StrEnum
from inspect import signature
from itertools import repeat
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from controlplane.service.core import events as ev
from controlplane.service.core import parts
from controlplane.service.core.membership import decide
from controlplane.service.core.parts import Decided, Parts
from controlplane.service.core.state import State

ordered_by: ContextVar[str] = ContextVar("ordered_by", default="the controller")
"""Name, for the journal, of the person or program whose order is being carried out."""

STATE = "State"
KINDS: Mapping[str, type[ev.Event]] = {kind.__name__: kind for kind in get_args(ev.Event)}
EVENTS: Mapping[str, Callable[..., Decided]] = {
    event.__name__: event
    for event in (
        parts.found_silent,
        parts.failed,
        parts.mended,
        parts.ordered,
        parts.rerouted,
        parts.relaid,
        parts.switches_seen,
        parts.ports_seen,
        parts.looked,
    )
}
HIDDEN = frozenset({STATE, "Prepared", "Drained", *EVENTS})
"""Kinds that are for the replay only. Each agent sends a `Prepared` and a `Drained` per migration, and an entry "parts"
shows the changes that the network's events made."""

Whole = TypeVar("Whole")


@dataclass(frozen=True)
class Entry:
    """An entry of the journal: something that has happened.

    Attributes:
        number: consecutive number of the entries that `inart log` shows; 0 for those that it hides.
        time: seconds since 1970.
        by: name of the person, agent or program that caused it.
        job: name of the job that it is about; "" for the network or for all jobs.
        kind: "order", "entries", "parts", "line", STATE, or an event of the core.
        text: description for people.
        data: further fields; of a STATE that is in memory, the core's state itself.
        level: "info", "warning" or "error".
        now: time in seconds at which the core decided on the event; None for other entries.
    """

    number: int
    time: float
    by: str
    job: str
    kind: str
    text: str = ""
    data: Any = field(default_factory=dict)
    level: str = "info"
    now: float | None = None


@contextmanager
def orders_of(who: str) -> Iterator[None]:
    """Name `who` ("operator alice") in the journal as the source of the orders in the `with` block."""
    token = ordered_by.set(who)
    try:
        yield
    finally:
        ordered_by.reset(token)


def event_of_job(job: str, state: State, event: ev.Event, *, now: float, clock: float) -> Entry:
    """Return the entry of an event of a job's agents that is decided in this state. `now` is the time that `decide`
    gets, `clock` the seconds since 1970."""
    return Entry(0, round(clock, 3), who(state, event), job, type(event).__name__, data=to_json(event), now=now)


def event_of_network(
    state: Parts,
    event: Callable[..., Decided],
    args: Sequence[Any],
    more: Mapping[str, Any],
    *,
    now: float,
    clock: float,
) -> Entry:
    """Return the entry of an event of switches and links that is decided in this state with these arguments."""
    given = signature(event).bind(state, now, *args, **more).arguments
    del given["state"], given["now"]
    return Entry(0, round(clock, 3), ordered_by.get(), "", event.__name__, data=to_json(given), now=now)


def replay(records: Iterable[Mapping[str, Any]], job: str) -> State:
    """Return the state of a job after all its events among these entries (as JSON objects). Raise ValueError if they
    begin without a state, or have something else than an event."""
    return _replayed(
        records, job, State, lambda state, record: decide(state, event_from_json(record), record["now"])[0]
    )


def replay_network(records: Iterable[Mapping[str, Any]]) -> Parts:
    """Return the state of switches and links after all their events among these entries. Raise ValueError as `replay`
    does."""
    return _replayed(records, "", Parts, _after)


def _replayed(
    records: Iterable[Mapping[str, Any]],
    job: str,
    kind: type[Whole],
    after: Callable[[Whole, Mapping[str, Any]], Whole],
) -> Whole:
    """Return the state of this kind after all events of these entries; `after(state, record)` is the state after one
    event."""
    state: Whole | None = None
    for record in records:
        if record.get("job") != job:
            continue
        if record.get("kind") == STATE:
            state = from_json(kind, record["data"])
        elif record.get("now") is not None:
            if state is None:
                raise ValueError("a journal begins with the state in which its first event was decided")
            state = after(state, record)
    if state is None:
        raise ValueError(f"the journal has no entry of {f'job {job}' if job else 'the network'}: it is empty")
    return state


def _after(state: Parts, record: Mapping[str, Any]) -> Parts:
    event = EVENTS.get(record.get("kind", ""))
    if event is None:
        raise ValueError(f"{record.get('kind')!r} is no event of a network; events are {', '.join(EVENTS)}")
    types = get_type_hints(event)
    given = {name: from_json(types[name], value) for name, value in record["data"].items()}
    return event(state, record["now"], **given)[0]


def who(state: State, event: ev.Event) -> str:
    """Return who caused an event: an agent, the clock, the file of epochs, or whoever gave an order."""
    match event:
        case ev.Joined():
            return f"agent of {event.node or ', '.join(event.addresses)}"
        case ev.Left(connection):
            nodes = [node for node, entry in state.nodes.items() if entry.connection == connection]
        case ev.LeaveAnnounced(agent=agent) | ev.Prepared(agent=agent) | ev.Drained(agent=agent):
            nodes = [node for node, entry in state.nodes.items() if entry.agent == agent]
        case ev.Silent() | ev.MigrationLate() | ev.GraceOver() | ev.ReturnOver() | ev.EpochRetried():
            return "the clock"
        case ev.EpochStored() | ev.EpochNotStored():
            return "the file of epochs"
        case _:
            return ordered_by.get()
    return f"agent of {', '.join(nodes)}" if nodes else "an agent that is out"


def to_json(value: Any) -> Any:
    """Return a value of the core as JSON has it: a dataclass as an object, and a mapping as one where all its keys are
    strings, otherwise as a list of pairs."""
    if is_dataclass(value):
        return {one.name: to_json(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: to_json(one) for key, one in value.items()}
        return [[to_json(key), to_json(one)] for key, one in value.items()]
    if isinstance(value, Collection) and not isinstance(value, str):
        return [to_json(one) for one in (sorted(value) if isinstance(value, frozenset) else value)]
    return value


def event_from_json(record: Mapping[str, Any]) -> ev.Event:
    """Return the event of a job's agents that an entry has. Raise ValueError if it has none."""
    kind = KINDS.get(record.get("kind", ""))
    if kind is None:
        raise ValueError(f"{record.get('kind')!r} is not an event; events are {', '.join(KINDS)}")
    event: ev.Event = from_json(kind, record.get("data", {}))
    return event


def from_json(kind: Any, data: Any) -> Any:
    """Return the value of a type of the core that `to_json` has made `data` of, also after a way through JSON.

    The type is a dataclass, a NamedTuple, an enum, a tuple, a frozenset or a mapping of such, or one or None of them;
    any other collection becomes a tuple. Raise ValueError where the data is none.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is UnionType:
        return None if data is None else from_json(arguments[0], data)
    if origin in (tuple, frozenset):
        kinds = arguments if origin is tuple and arguments[-1] is not ... else repeat(arguments[0])
        return origin(from_json(one, value) for one, value in zip(kinds, data, strict=False))
    if origin is Mapping:
        pairs = data.items() if isinstance(data, Mapping) else data
        return {from_json(arguments[0], key): from_json(arguments[1], value) for key, value in pairs}
    if origin in (Iterable, Collection):
        return tuple(from_json(arguments[0], value) for value in data)
    hints = get_type_hints(kind) if hasattr(kind, "__annotations__") else {}
    try:
        if issubclass(kind, tuple):
            return kind(*(from_json(hint, value) for hint, value in zip(hints.values(), data, strict=True)))
        if isinstance(data, Mapping):
            return kind(**{name: from_json(hints.get(name, str), value) for name, value in data.items()})
        return kind(data) if issubclass(kind, StrEnum) else data
    except TypeError as error:
        raise ValueError(f"not an event, or no state, of this version: {error}") from None
