"""Parts of a client's `p4_device_config`: the bmv2 JSON, or bmv2's older message around it.

bmv2's P4Runtime server takes both, and p4lang's tutorials send the message: `p4.tmp.P4DeviceConfig` (PI,
proto/p4/tmp/p4config.proto), whose third field has the JSON. This module parses the message by itself, because no
package on PyPI has it.
"""

from __future__ import annotations

from softswitch.errors import BadProgram

_VARINT, _BYTES = 0, 2
_DATA = 3
_FIELDS = (1 << 3 | _VARINT, 2 << 3 | _BYTES, _DATA << 3 | _BYTES)
"""The first bytes of the fields `reassign`, `extras` and `device_data`. No JSON begins with one of these bytes."""


def program_of(device_config: bytes) -> bytes:
    """Return the bmv2 JSON. Raise BadProgram when bmv2's message is cut short or has other fields."""
    if not device_config or device_config[0] not in _FIELDS:
        return device_config
    found, at = b"", 0
    while at < len(device_config):
        field = device_config[at]
        if field not in _FIELDS:
            raise BadProgram(f"p4_device_config is neither bmv2 JSON nor a P4DeviceConfig: byte {at} is {field:#04x}")
        number, at = _varint(device_config, at + 1)
        if field & 7 == _BYTES:
            if at + number > len(device_config):
                raise BadProgram("p4_device_config is a P4DeviceConfig that is cut short")
            found = device_config[at : at + number] if field >> 3 == _DATA else found
            at += number
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number that begins at this byte, and the place where the next field begins."""
    number = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return number, at
    raise BadProgram("p4_device_config is a P4DeviceConfig that is cut short")
