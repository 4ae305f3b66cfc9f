"""Every event that one job's agents, orders and the clock have brought, with who ordered it; it can be played again.

A journal is a list of records, each an object of JSON: the whole state at the beginning, then one record for each
event. After `KEPT` events it begins anew, and the part before that is the only one that is kept beside it: nothing
grows without bounds, and `replay` needs no part that is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict
from typing import Any

from controlplane.service.core import events as ev
from controlplane.service.core.membership import decide
from controlplane.service.core.state import Handover, Known, Node, NodeState, Phase, Place, Stage, Starting, State

KEPT = 5000
"""Events in one part of the journal."""

ordered_by: ContextVar[str] = ContextVar("ordered_by", default="the controller")
"""Name, for the journal, of whoever has given the order that is being carried out."""

Record = dict[str, Any]


@contextmanager
def orders_of(who: str) -> Iterator[None]:
    """Name `who` ("operator alice") in journals as who gives the orders of the `with` block."""
    token = ordered_by.set(who)
    try:
        yield
    finally:
        ordered_by.reset(token)


class Journal:
    """The journal of one job. Not thread-safe. write: gets every record, and whether a new part begins with it; the
    records of whole states name who orders the job, and has this made. heard: gets every event's record, too."""

    def __init__(self, write: Callable[[Record, bool], None] = lambda record, first: None) -> None:
        self._write = write
        self._by = ordered_by.get()
        self.heard: Callable[[Record], None] = lambda record: None
        self._before: list[Record] = []
        self._now: list[Record] = []

    def add(self, state: State, event: ev.Event, now: float, clock: float) -> None:
        """An event that is decided in this state. now: as of `decide`. clock: seconds since 1970."""
        if not self._now or len(self._now) > KEPT:
            self._before, self._now = self._now, []
            self._append({"kind": "State", "by": self._by, **state_to_json(state)})
        record = {"time": round(clock, 3), "now": now, "by": who(state, event), **ev.to_json(event)}
        self._append(record)
        self.heard(record)

    def records(self) -> list[Record]:
        """Return the records that are kept, the oldest first."""
        return [*self._before, *self._now]

    def _append(self, record: Record) -> None:
        self._now.append(record)
        self._write(record, len(self._now) == 1)


def replay(records: Iterable[Mapping[str, Any]]) -> State:
    """The state after all of these events. Raises ValueError when the records do not begin with a state, or hold what
    is no event."""
    state: State | None = None
    for record in records:
        if record.get("kind") == "State":
            state = state_from_json(record)
        elif state is None:
            raise ValueError("a journal begins with the state in which its first event was decided")
        else:
            fields = {name: value for name, value in record.items() if name not in ("time", "now", "by")}
            state, _ = decide(state, ev.from_json(fields), record["now"])
    if state is None:
        raise ValueError("the journal is empty")
    return state


def who(state: State, event: ev.Event) -> str:
    """Return who brought an event: an agent, the clock, the file of epochs, or who has given an order."""
    match event:
        case ev.Joined():
            return f"agent of {event.node or ', '.join(event.addresses)}"
        case ev.Left(connection):
            nodes = [node for node, entry in state.nodes.items() if entry.connection == connection]
        case ev.LeaveAnnounced(agent=agent) | ev.Prepared(agent=agent) | ev.Drained(agent=agent):
            nodes = [node for node, entry in state.nodes.items() if entry.agent == agent]
        case ev.Silent() | ev.ChangeLate() | ev.GraceOver() | ev.ReturnOver() | ev.EpochRetried():
            return "the clock"
        case ev.EpochStored() | ev.EpochNotStored():
            return "the file of epochs"
        case _:
            return ordered_by.get()
    return f"agent of {', '.join(nodes)}" if nodes else "an agent that is out"


def state_to_json(state: State) -> Record:
    """A state as an object of JSON. Keys of objects in JSON are strings, and all keys of a state are names."""
    return {**asdict(state), "handover": None if state.handover is None else _handover_to_json(state.handover)}


def _handover_to_json(handover: Handover) -> Record:
    return {**asdict(handover), "drained": sorted(handover.drained)}


def state_from_json(data: Mapping[str, Any]) -> State:
    """The state that `state_to_json` has written."""
    fields = {name: value for name, value in data.items() if name not in ("kind", "by")}
    starting, handover = data["starting"], data["handover"]
    fields["known"] = {node: Known(**known) for node, known in data["known"].items()}
    fields["nodes"] = {
        node: Node(**{**one, "state": NodeState(one["state"]), "running": tuple(one["running"])})
        for node, one in data["nodes"].items()
    }
    fields["phase"] = Phase(data["phase"])
    if starting is not None:
        fields["starting"] = Starting(
            starting["carried_on"],
            tuple(starting["without"]),
            starting["joined"],
            Phase(starting["before"]),
            starting["retried"],
        )
    if handover is not None:
        fields["handover"] = Handover(
            **{
                **handover,
                "stage": Stage(handover["stage"]),
                "places": tuple(Place(*place) for place in handover["places"]),
                "done": {node: tuple(done) for node, done in handover["done"].items()},
                "drained": frozenset(handover["drained"]),
                "repeated": tuple(handover["repeated"]),
            }
        )
    return State(**fields)
