"""Defines the packet for people, tests and captures in Scapy's terms, from ``p4src/protocol.json``.

    from worker_agent.wire import InArt, packet
    rdpcap("x.pcap")[0].show()
    packet(label=7, epoch=1, sequence=0, values=[1, 2, 3])

Ethernet, IPv4 and UDP are Scapy's own layers; UDP to one of InArt's ports is dissected as InArt. Other protocols that
Scapy knows on a port of that range keep it. The engines have their own C code for the same format; a test compares
them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from scapy.fields import BitField, FieldListField, FlagsField, SignedIntField
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether
from scapy.packet import Packet, bind_bottom_up, bind_top_down

from p4src.protocol import GROUP, GROUP_MAC, PROTOCOL, VERSION, is_ours, udp_port


def _field(name: str, bits: int) -> Any:
    if name == "flags":
        names = {value.bit_length() - 1: flag for flag, value in PROTOCOL.flags.items()}
        return FlagsField(name, 0, bits, [names.get(bit, f"bit{bit}") for bit in range(bits)])
    return BitField(name, VERSION if name == "version" else 0, bits)


class InArt(Packet):
    """The aggregation header and its values: signed 32-bit integers, as many as the frame holds."""

    name = "InArt"
    fields_desc = [  # noqa: RUF012 (Scapy's way)
        *(_field(field.name, field.bits) for field in PROTOCOL.header),
        FieldListField("values", [], SignedIntField("value", 0), max_count=1 << 16),
    ]


class _OurPorts:
    """An object that is equal to each UDP port of the protocol: Scapy compares a binding's value with the packet's
    field.
    """

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int) and is_ours(other)

    def __hash__(self) -> int:
        return hash(_OurPorts)


bind_bottom_up(UDP, InArt, dport=_OurPorts())
bind_top_down(UDP, InArt, dport=udp_port(0, 0))


def packet(
    values: Sequence[int],
    *,
    source: str = "02:00:00:00:00:01",
    address: str = "10.0.0.1",
    source_port: int = 49152,
    port: int = udp_port(0, 0),
    **fields: int,
) -> Packet:
    """Return a whole frame from `source` and `address` to the group: Ethernet, IPv4, UDP without checksum to `port`
    (see udp_port()), a header with `fields`, and the values.
    """
    header: Any = InArt
    ethernet = Ether(dst=GROUP_MAC.hex(":"), src=source)
    ip = IP(src=address, dst=str(GROUP), flags="DF", ttl=PROTOCOL.ttl, id=0)
    return ethernet / ip / UDP(sport=source_port, dport=port, chksum=0) / header(values=list(values), **fields)
