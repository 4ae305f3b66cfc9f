"""Refuses fields of messages that this server would otherwise ignore: those of later versions of P4Runtime.

A field that the installed package ``p4runtime`` does not declare arrives as an unknown field. The fields that it
declares and that softswitch does not support are refused where their messages are handled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from importlib import metadata
from typing import Any

from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from softswitch.p4runtime.status import unimplemented

# The first version of P4Runtime with fields that softswitch does not know.
_NEXT = (1, 7)
_OLDEST = "1.4.1"

# Fields of P4Runtime 1.5 and 1.6, for an installed package of an earlier version.
_LATER = {
    ("p4.v1.ActionProfileActionSet", 2): "action_selection_mode",
    ("p4.v1.ActionProfileActionSet", 3): "size_semantics",
    ("p4.v1.ActionProfileGroup", 5): "group_action",
    ("p4.v1.CapabilitiesRequest", 1): "device_id",
    ("p4.v1.Replica", 4): "backup_replicas",
    ("p4.config.v1.ActionProfile", 8): "weights_disallowed",
}


def api_version() -> str:
    """Return the version of P4Runtime that is served: that of the installed package, below the first unknown one."""
    try:
        installed = metadata.version("p4runtime")
    except metadata.PackageNotFoundError:
        return _OLDEST
    numbers = [int(number) for number in re.findall(r"\d+", installed)[:3]]
    if tuple(numbers[:2]) >= _NEXT:
        return f"{_NEXT[0]}.{_NEXT[1] - 1}.0"
    return ".".join(map(str, numbers + [0] * (3 - len(numbers))))


API_VERSION = api_version()


def refuse_unknown(message: Message) -> None:
    """Raise UNIMPLEMENTED, with its name, if a message or one in it has an unknown field."""
    data = message.SerializeToString()
    message.DiscardUnknownFields()
    if message.ByteSize() == len(data):
        return  # This comparison costs a fraction of a walk through the message.
    message.ParseFromString(data)  # The caller's message stays as it is.
    refuse_fields(message)


def refuse_fields(message: Message) -> None:
    """Do the same by a walk through the message, which keeps its unknown fields."""
    refuse_own(message)
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        found = (value,) if isinstance(value, Message) else value.values() if hasattr(value, "values") else value
        for one in found:
            if isinstance(one, Message):
                refuse_fields(one)


def refuse_own(message: Message) -> None:
    """Raise UNIMPLEMENTED if the message itself has an unknown field, not one in it."""
    for field in _unknown(message):
        name = _LATER.get((message.DESCRIPTOR.full_name, field.field_number), f"number {field.field_number}")
        raise unimplemented(
            f"{message.DESCRIPTOR.full_name}: the field {name} is not supported (p4runtime {API_VERSION} is installed)"
        )


def later_field(message: Message, name: str) -> Any:
    """Return a field of a later version; ``None`` if the installed package does not declare it.

    In that case :func:`refuse_unknown` has refused the message.
    """
    return getattr(message, name, None)


def unknown_number(message: Message, number: int) -> int:
    """Return an unknown integer field; 0 if it is not there."""
    return next((field.data for field in _unknown(message) if field.field_number == number), 0)


def _unknown(message: Message) -> Iterable[Any]:
    """Return the unknown fields of a message, each with ``field_number`` and ``data``."""
    return UnknownFieldSet(message)  # type: ignore[return-value]  # It is a sequence, which its stub does not say.
