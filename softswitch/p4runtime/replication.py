"""Multicast groups and clone sessions: the entries of the packet replication engine.

The P4Runtime specification describes this in "PacketReplicationEngineEntry". The data plane cannot be asked for its
groups, so this module keeps the entries as they were written, for reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from google.rpc import code_pb2

from softswitch.dataplane.device import Device
from softswitch.p4runtime import bytestring
from softswitch.p4runtime.status import P4RuntimeError, invalid, not_found, out_of_range, unimplemented
from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt
from softswitch.p4runtime.undo import Journal
from softswitch.p4runtime.unknown import later_field

# v1model's types: bit<16> mcast_grp and egress_rid, bit<9> ports.
MAX_GROUP = (1 << 16) - 1
MAX_INSTANCE = (1 << 16) - 1
PORT_BITS = 9


_Apply = Callable[[int, Any], None]


class _Collection:
    """The entries by number. ``apply`` passes an entry, or ``None`` to delete it, to the data plane."""

    def __init__(self, noun: str, apply: _Apply) -> None:
        self.noun = noun
        self._apply = apply
        self._entries: dict[int, Any] = {}

    def write(self, kind: int, number: int, entry: Any, journal: Journal) -> None:
        old = self._entries.get(number)
        if kind == p4rt.Update.INSERT:
            if old is not None:
                raise P4RuntimeError(code_pb2.ALREADY_EXISTS, f"{self.noun} {number} exists already")
        elif old is None:
            raise not_found(f"there is no {self.noun} {number}")
        new = None
        if kind != p4rt.Update.DELETE:
            new = type(entry)()
            new.CopyFrom(entry)  # The entry is copied, so that it does not keep the whole request in memory.
        self._put(number, new)
        journal.add(lambda: self._put(number, old))

    def choose(self, number: int) -> list[Any]:
        """Return the entry with this number, if it exists; all entries for 0."""
        if number == 0:
            return list(self._entries.values())
        return [self._entries[number]] if number in self._entries else []

    def _put(self, number: int, entry: Any) -> None:
        self._apply(number, entry)
        if entry is None:
            del self._entries[number]
        else:
            self._entries[number] = entry


class ReplicationAccess:
    """Groups and sessions of one device; the caller holds the device's lock during calls."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._groups = _Collection("multicast group", self._apply_group)
        self._sessions = _Collection("clone session", self._apply_session)

    def write(self, kind: int, entry: p4rt.PacketReplicationEngineEntry, journal: Journal) -> None:
        """Apply one INSERT, MODIFY or DELETE; a refusal changes nothing."""
        which = entry.WhichOneof("type")
        if which == "multicast_group_entry":
            group = entry.multicast_group_entry
            if group.multicast_group_id == 0:
                raise invalid("the multicast group id is 0, which is not valid here")
            if group.multicast_group_id > MAX_GROUP:
                raise out_of_range(f"multicast group id {group.multicast_group_id} is above {MAX_GROUP}")
            self._groups.write(kind, group.multicast_group_id, group, journal)
        elif which == "clone_session_entry":
            session = entry.clone_session_entry
            if session.session_id == 0:
                raise invalid("the clone session id is 0, which is not valid here")
            self._sessions.write(kind, session.session_id, session, journal)
        else:
            raise invalid("packet_replication_engine_entry: set multicast_group_entry or clone_session_entry")

    def read(self, query: p4rt.PacketReplicationEngineEntry) -> Iterator[p4rt.Entity]:
        """Yield the groups or sessions that an entry in a ReadRequest selects; id 0 selects all of a type, and an entry
        without a type selects all of both types.
        """
        which = query.WhichOneof("type")
        found: list[p4rt.PacketReplicationEngineEntry] = []
        if which in (None, "multicast_group_entry"):
            groups = self._groups.choose(query.multicast_group_entry.multicast_group_id)
            found += [p4rt.PacketReplicationEngineEntry(multicast_group_entry=group) for group in groups]
        if which in (None, "clone_session_entry"):
            sessions = self._sessions.choose(query.clone_session_entry.session_id)
            found += [p4rt.PacketReplicationEngineEntry(clone_session_entry=session) for session in sessions]
        return (p4rt.Entity(packet_replication_engine_entry=one) for one in found)

    def _apply_group(self, number: int, entry: p4rt.MulticastGroupEntry | None) -> None:
        if entry is None:
            self._device.multicast_delete(number)
        else:
            self._device.multicast_set(number, _replicas(entry.replicas, f"multicast group {number}"))

    def _apply_session(self, number: int, entry: p4rt.CloneSessionEntry | None) -> None:
        if entry is None:
            self._device.clone_delete(number)
            return
        noun = f"clone session {number}"
        if entry.class_of_service:
            raise invalid(f"{noun}: class of service {entry.class_of_service} does not exist; there is only class 0")
        if entry.packet_length_bytes < 0:
            raise invalid(f"{noun}: packet_length_bytes is negative")
        self._device.clone_set(number, _replicas(entry.replicas, noun), entry.packet_length_bytes)


def _replicas(replicas: Sequence[p4rt.Replica], noun: str) -> list[tuple[int, int]]:
    chosen: dict[tuple[int, int], None] = {}  # A dictionary is a set that keeps the order.
    for replica in replicas:
        port, instance = replica.egress_port, replica.instance
        if later_field(replica, "backup_replicas"):
            raise unimplemented(f"{noun}: backup_replicas are not supported")
        if not port:  # The port is 0, or given in another field.
            kind = replica.WhichOneof("port_kind")
            if kind == "port":
                port = bytestring.decode(replica.port, PORT_BITS, f"{noun}: port")
            elif kind is None:
                raise invalid(f"{noun}: a replica has no port")
        if port >> PORT_BITS:
            raise out_of_range(f"{noun}: port {port} does not fit in {PORT_BITS} bits")
        if instance > MAX_INSTANCE:
            raise out_of_range(f"{noun}: instance {instance} is above {MAX_INSTANCE}")
        if (port, instance) in chosen:
            raise invalid(f"{noun}: port {port} with instance {instance} is given twice")
        chosen[port, instance] = None
    return list(chosen)
