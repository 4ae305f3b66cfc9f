"""Journal of the events of a network's switches and links (parts.py), with who ordered them. It can be replayed, as a
job's journal can.

Events that change nothing and have no consequence, as most looks at the network do, are not in it: without them a
replay gives the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from inspect import signature
from typing import Any, get_type_hints

from controlplane.service.core import parts
from controlplane.service.core.journal import Journal, content, from_json, ordered_by, replayed, to_json
from controlplane.service.core.parts import Decided, Parts

Event = Callable[..., Decided]
EVENTS: Mapping[str, Event] = {
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


def keep(
    journal: Journal,
    state: Parts,
    event: Event,
    args: Sequence[Any],
    more: Mapping[str, Any],
    *,
    now: float,
    clock: float,
) -> None:
    """Record an event that is decided in this state with these arguments. `now` is the time that it gets, `clock` the
    seconds since 1970."""
    given = signature(event).bind(state, now, *args, **more).arguments
    del given["state"], given["now"]
    kind = {"time": round(clock, 3), "now": now, "by": ordered_by.get(), "kind": event.__name__}
    journal.keep(state, {**kind, **to_json(given)})


def replay(records: Iterable[Mapping[str, Any]]) -> Parts:
    """Return the state after all events of these records; raise ValueError where the records do not begin with a state
    or contain something that is no event."""
    return replayed(records, Parts, _after)


def _after(state: Parts, record: Mapping[str, Any]) -> Parts:
    event = EVENTS.get(record.get("kind", ""))
    if event is None:
        raise ValueError(f"{record.get('kind')!r} is no event of a network; events are {', '.join(EVENTS)}")
    types = get_type_hints(event)
    given = {name: from_json(types[name], value) for name, value in content(record).items()}
    return event(state, record["now"], **given)[0]
