"""Journal of the events of one job's agents, orders and timers, with who ordered them. It can be replayed. What
differs for a network's switches and links is in parts_journal.py.

A journal is a list of records, each an object of JSON: the whole state at the beginning, then one record for each
event. After `KEPT` events it begins anew with a state, and only the part before that is kept beside it: the journal
stays bounded, and `replay` needs no part that was dropped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from enum import StrEnum
from itertools import repeat
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from controlplane.service.core import events as ev
from controlplane.service.core.membership import decide
from controlplane.service.core.state import State

KEPT = 5000
"""Most events in one part of the journal."""

ordered_by: ContextVar[str] = ContextVar("ordered_by", default="the controller")
"""Name, for the journal, of the person or program whose order is being carried out."""

Record = dict[str, Any]
Whole = TypeVar("Whole")
KINDS: Mapping[str, type[ev.Event]] = {kind.__name__: kind for kind in get_args(ev.Event)}


@contextmanager
def orders_of(who: str) -> Iterator[None]:
    """Have journals name `who` ("operator alice") for the orders that are given in the `with` block."""
    token = ordered_by.set(who)
    try:
        yield
    finally:
        ordered_by.reset(token)


class Journal:
    """The journal of one job. It is not thread-safe.

    `write` gets every record, and whether a new part begins with it. The records of whole states name who had the
    journal made. The attribute `heard` is a function that gets every event's record, too.
    """

    def __init__(self, write: Callable[[Record, bool], None] = lambda record, first: None) -> None:
        self._write = write
        self._by = ordered_by.get()
        self.heard: Callable[[Record], None] = lambda record: None
        self._before: list[Record] = []
        self._now: list[Record] = []

    def add(self, state: State, event: ev.Event, now: float, clock: float) -> None:
        """Record an event that is decided in this state. `now` is the time that `decide` gets, `clock` the seconds
        since 1970."""
        kind, by = type(event).__name__, who(state, event)
        self.keep(state, {"time": round(clock, 3), "now": now, "by": by, "kind": kind, **to_json(event)})

    def keep(self, state: object, record: Record) -> None:
        """Add the record of an event that is decided in this state."""
        if not self._now or len(self._now) > KEPT:
            self._before, self._now = self._now, []
            self._append({"kind": "State", "by": self._by, **to_json(state)})
        self._append(record)
        self.heard(record)

    def records(self) -> list[Record]:
        """Return the records that are kept, the oldest first."""
        return [*self._before, *self._now]

    def _append(self, record: Record) -> None:
        self._now.append(record)
        self._write(record, len(self._now) == 1)


def replay(records: Iterable[Mapping[str, Any]]) -> State:
    """Return the state after all events of these records; raise ValueError where the records do not begin with a state
    or contain something that is no event."""
    return replayed(
        records,
        State,
        lambda state, record: decide(
            state, event_from_json({"kind": record["kind"], **content(record)}), record["now"]
        )[0],
    )


def replayed(
    records: Iterable[Mapping[str, Any]], kind: type[Whole], after: Callable[[Whole, Mapping[str, Any]], Whole]
) -> Whole:
    """Return the state of this kind after all events of these records, where `after(state, record)` is the one after an
    event. Raise ValueError where the records do not begin with a state."""
    state: Whole | None = None
    for record in records:
        if record.get("kind") == "State":
            state = from_json(kind, content(record))
        elif state is None:
            raise ValueError("a journal begins with the state in which its first event was decided")
        else:
            state = after(state, record)
    if state is None:
        raise ValueError("the journal is empty")
    return state


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


def content(record: Mapping[str, Any]) -> Record:
    """Return what a record has beside its kind, its times and who has caused the event."""
    return {name: value for name, value in record.items() if name not in ("time", "now", "by", "kind")}


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


def event_from_json(data: Mapping[str, Any]) -> ev.Event:
    """Return the event of a record's kind and fields; raise ValueError where the data is no event."""
    kind = KINDS.get(data.get("kind", ""))
    if kind is None:
        raise ValueError(f"{data.get('kind')!r} is not an event; events are {', '.join(KINDS)}")
    event: ev.Event = from_json(kind, {name: value for name, value in data.items() if name != "kind"})
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
