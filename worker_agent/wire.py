"""The packet for people, tests and captures: Scapy's definition, built from ``p4src/protocol.json``.

    from worker_agent.wire import InArt, packet
    rdpcap("x.pcap")[0].show()
    packet(label=7, epoch=1, sequence=0, values=[1, 2, 3])

The engines have their own C code for the same format (native/packet_io.h); a test compares them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scapy.fields import BitField, FieldListField, FlagsField, SignedIntField
from scapy.layers.l2 import Ether
from scapy.packet import Packet, bind_layers

from p4src.protocol import ETHERTYPE, GROUP_MAC, PROTOCOL, VERSION


def _field(name: str, bits: int) -> Any:
    if name == "flags":
        names = {value.bit_length() - 1: flag for flag, value in PROTOCOL.flags.items()}
        return FlagsField(name, 0, bits, [names.get(bit, f"bit{bit}") for bit in range(bits)])
    return BitField(name, VERSION if name == "version" else 0, bits)


class InArt(Packet):
    """The aggregation header and its values (signed 32-bit; as many as the frame holds)."""

    name = "InArt"
    fields_desc = [  # noqa: RUF012 (Scapy's way)
        *(_field(field.name, field.bits) for field in PROTOCOL.header),
        FieldListField("values", [], SignedIntField("value", 0), max_count=1 << 16),
    ]


bind_layers(Ether, InArt, type=ETHERTYPE)


def packet(values: Sequence[int], *, source: str = "02:00:00:00:00:01", **fields: int) -> Packet:
    """A whole frame: Ethernet to the group address, the header's `fields`, the values."""
    header: Any = InArt
    return Ether(dst=GROUP_MAC.hex(":"), src=source, type=ETHERTYPE) / header(values=list(values), **fields)
