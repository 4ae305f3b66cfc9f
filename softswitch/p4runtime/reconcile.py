"""RECONCILE_AND_COMMIT: writes the forwarding state of one pipeline to another.

The P4Runtime specification describes this in "SetForwardingPipelineConfig RPC". It keeps the objects that a client
could write again: entries and default actions, groups and sessions, members, value sets, meter and digest
configurations. Counters and registers belong to the data plane and start afresh.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from softswitch import errors
from softswitch.p4runtime.schema import Schema
from softswitch.p4runtime.status import P4RuntimeError, from_data_plane, invalid
from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt
from softswitch.p4runtime.undo import Journal

Readers = Mapping[str, Callable[[Any], Iterator[p4rt.Entity]]]
Writers = Mapping[str, Callable[[int, Any, Journal], None]]


def carry_over(readers: Readers, writers: Writers, schema: Schema) -> None:
    """Write the state that ``readers`` find in the old pipeline, with the given schema, by the ``writers`` of the new
    one.

    Raise INVALID_ARGUMENT, naming the object, if the new pipeline cannot hold it; earlier writes stay.
    """
    journal = Journal(active=False)
    for kind, query in _queries(readers, schema):
        for entity in readers[query.WhichOneof("entity") or ""](_body(query)):
            body = _body(entity)
            if getattr(body, "is_const", False) and kind != p4rt.Update.MODIFY:
                continue  # The entry comes from the program itself.
            try:
                _write(writers[entity.WhichOneof("entity") or ""], kind, body, journal)
            except P4RuntimeError as error:
                raise _cannot(body, error.message) from error
            except errors.SoftswitchError as error:
                raise _cannot(body, from_data_plane(error).message) from error


def _write(writer: Callable[[int, Any, Journal], None], kind: int, body: Any, journal: Journal) -> None:
    """Write an object; one that the new pipeline has from its program is changed to the client's."""
    try:
        writer(kind, body, journal)
    except errors.AlreadyExists:
        writer(p4rt.Update.MODIFY, body, journal)


def _queries(readers: Readers, schema: Schema) -> Iterator[tuple[int, p4rt.Entity]]:
    """Yield (kind of update, query) for each kind of state; objects that others refer to come first."""
    insert, modify = p4rt.Update.INSERT, p4rt.Update.MODIFY
    engine = p4rt.PacketReplicationEngineEntry
    wanted = [
        (insert, p4rt.Entity(action_profile_member=p4rt.ActionProfileMember())),
        (insert, p4rt.Entity(action_profile_group=p4rt.ActionProfileGroup())),
        (insert, p4rt.Entity(table_entry=p4rt.TableEntry())),
        *(
            (modify, p4rt.Entity(table_entry=p4rt.TableEntry(table_id=table.id, is_default_action=True)))
            for table in schema.tables.values()
            if not table.default_const
        ),
        (modify, p4rt.Entity(meter_entry=p4rt.MeterEntry())),
        (modify, p4rt.Entity(direct_meter_entry=p4rt.DirectMeterEntry())),
        (insert, p4rt.Entity(packet_replication_engine_entry=engine(multicast_group_entry=p4rt.MulticastGroupEntry()))),
        (insert, p4rt.Entity(packet_replication_engine_entry=engine(clone_session_entry=p4rt.CloneSessionEntry()))),
        (modify, p4rt.Entity(value_set_entry=p4rt.ValueSetEntry())),
        (insert, p4rt.Entity(digest_entry=p4rt.DigestEntry())),
    ]
    return ((kind, query) for kind, query in wanted if query.WhichOneof("entity") in readers)


def _body(entity: p4rt.Entity) -> Any:
    return getattr(entity, entity.WhichOneof("entity") or "")


def _cannot(body: Any, why: str) -> P4RuntimeError:
    text = " ".join(str(body).split())
    return invalid(f"the new pipeline cannot hold what the old one has: {why} ({text[:200]})")
