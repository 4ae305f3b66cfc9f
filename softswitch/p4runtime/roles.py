"""Permissions of a role: ``role.config`` in the scheme of the Stratum project, ``stratum.P4RoleConfig``.

P4Runtime leaves the scheme open ("Role Config"). This one is public and has an implementation, so clients for it
exist. The message is described here field by field, since only its wire format matters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from google.protobuf import any_pb2, descriptor_pb2, message_factory
from google.protobuf.message import DecodeError

from softswitch.p4runtime.status import invalid
from softswitch.p4runtime.stubs import p4runtime_pb2 as p4rt

TYPE_NAME = "stratum.P4RoleConfig"


def _message_class() -> Callable[[], Any]:
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="softswitch/role_config.proto", package="stratum", syntax="proto3")
    message = file.message_type.add(name="P4RoleConfig")
    packet_filter = message.nested_type.add(name="PacketFilter")

    def field(to: descriptor_pb2.DescriptorProto, name: str, number: int, kind: int, repeated: bool = False) -> None:
        label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
        one = to.field.add(name=name, number=number, type=kind, label=label)
        if kind == kinds.TYPE_MESSAGE:
            one.type_name = f".{TYPE_NAME}.PacketFilter"

    field(packet_filter, "metadata_id", 1, kinds.TYPE_UINT32)
    field(packet_filter, "value", 2, kinds.TYPE_BYTES)
    field(message, "exclusive_p4_ids", 1, kinds.TYPE_UINT32, repeated=True)
    field(message, "shared_p4_ids", 2, kinds.TYPE_UINT32, repeated=True)
    field(message, "packet_in_filter", 3, kinds.TYPE_MESSAGE)
    field(message, "receives_packet_ins", 4, kinds.TYPE_BOOL)
    field(message, "can_push_pipeline", 5, kinds.TYPE_BOOL)
    return message_factory.GetMessages([file])[TYPE_NAME]


P4RoleConfig = _message_class()


@dataclass(frozen=True)
class Scope:
    """The objects that clients of a role may write, read and receive; ``ids`` is ``None`` for all."""

    ids: frozenset[int] | None = None
    exclusive: frozenset[int] = frozenset()
    packet_ins: bool = True
    packet_in_filter: tuple[int, bytes] | None = None  # metadata id and its required value
    can_push_pipeline: bool = True

    def may_use(self, p4_id: int | None) -> bool:
        """Return whether the object with this id is in the scope; an object without an id has ``None``."""
        return self.ids is None or p4_id in self.ids

    def wants(self, packet: p4rt.PacketIn) -> bool:
        """Return whether a packet-in is for this role."""
        if not self.packet_ins or self.packet_in_filter is None:
            return self.packet_ins
        wanted_id, value = self.packet_in_filter
        return any(one.metadata_id == wanted_id and one.value.lstrip(b"\0") == value for one in packet.metadata)


EVERYTHING = Scope()


def parse(config: any_pb2.Any) -> Scope:
    """Return the scope that a ``role.config`` describes. Raise INVALID_ARGUMENT if it is of another scheme or
    malformed.
    """
    if config.TypeName() != TYPE_NAME:
        raise invalid(f"role.config is a {config.TypeName() or 'nothing'}; this server takes {TYPE_NAME} only")
    message = P4RoleConfig()
    try:
        message.ParseFromString(config.value)
    except DecodeError as error:
        raise invalid(f"role.config is not a {TYPE_NAME}: {error}") from None
    exclusive, shared = frozenset(message.exclusive_p4_ids), frozenset(message.shared_p4_ids)
    if exclusive & shared:
        raise invalid(f"role.config: id {min(exclusive & shared)} is both exclusive and shared")
    wanted = None
    if message.HasField("packet_in_filter"):
        if not message.receives_packet_ins:
            raise invalid("role.config: packet_in_filter without receives_packet_ins")
        wanted = (message.packet_in_filter.metadata_id, message.packet_in_filter.value.lstrip(b"\0"))
    return Scope(exclusive | shared, exclusive, message.receives_packet_ins, wanted, message.can_push_pipeline)


def id_of(entity: p4rt.Entity) -> int | None:
    """Return the P4Info id of an entity's object; 0 if a read asks for all, ``None`` if the object has no id."""
    which = entity.WhichOneof("entity")
    if which is None or which == "packet_replication_engine_entry":
        return None
    body = getattr(entity, which)
    if which in ("direct_counter_entry", "direct_meter_entry"):
        return body.table_entry.table_id
    name = {
        "table_entry": "table_id",
        "action_profile_member": "action_profile_id",
        "action_profile_group": "action_profile_id",
        "counter_entry": "counter_id",
        "meter_entry": "meter_id",
        "register_entry": "register_id",
        "digest_entry": "digest_id",
        "value_set_entry": "value_set_id",
        "extern_entry": "extern_id",
    }.get(which)
    return None if name is None else getattr(body, name)
