"""Finds out which port of which switch each cable leads to, by packets that the switches themselves send.

Every port that leads to another switch has a number. For each bit of the numbers there are two rounds: in the first,
the ports whose number has the bit send, and in the second the others, all at once. So each port hears the number of the
port at the other end of its cable, bit by bit, in 2 log2(ports) rounds for the whole network. It hears something in
exactly one of the two rounds of each bit; anything else is no answer but a fault.

A packet enters a switch by its CPU port (P4Runtime's packet-out), a multicast group sends it out of this round's ports,
and the counters of one label, which nothing else uses, say where it comes in. Jobs on the switches go on, and their
entries are not touched.
"""

from __future__ import annotations

import secrets
import struct
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Protocol as Interface

from controlplane.planner.entries import Forward, Item, LabelEntry, MulticastGroup, Replicate
from controlplane.planner.topology import Topology
from controlplane.planner.topology_cables import beyond, port_back
from controlplane.targets.base import Change, Counters, Operation
from p4src.protocol import GROUP, GROUP_MAC, PROTOCOL, VERSION, udp_port

GROUP_NUMBER = 0x7FFF
"""The multicast group of this round's ports; groups of jobs and of floods have lower numbers."""
DISCARD = 511
"""The egress port of packets that came over a cable: v1model's switches drop what is sent there."""
COPIES = 3
"""Packets that each port sends in a round, so that the loss of one changes nothing."""
PATIENCE_SECONDS = 1.0
"""Seconds that a round waits for ports that should hear something."""
LOOK_SECONDS = 0.02

IPV4 = struct.Struct("!BBHHHBBH4s4s")
UDP = struct.Struct("!HHHH")
UDP_NUMBER = 17


@dataclass(frozen=True, order=True)
class End:
    """A port of a switch."""

    switch: str
    port: int

    def __str__(self) -> str:
        return f"{self.switch} port {self.port}"


@dataclass(frozen=True)
class Fault:
    """A direction of a cable that is not as the topology says. `leads` are the ports that hear `sender` instead of
    `wanted`; it is empty where none does."""

    sender: End
    wanted: End
    leads: tuple[End, ...]

    def __str__(self) -> str:
        there = f"leads to {', '.join(map(str, self.leads))}" if self.leads else "leads to no port of these switches"
        return f"{self.sender} should lead to {self.wanted}, and {there}"


class Probe(Interface):
    """A connected switch: a part of SwitchTarget, and packets that enter by the switch's CPU port."""

    name: str

    def apply(self, changes: list[Change]) -> None: ...
    def read_counters(self) -> Counters: ...
    def packet_out(self, frame: bytes) -> None: ...


def cables_of(topology: Topology) -> dict[End, End]:
    """Return where each port that leads to another switch leads, as the topology says."""
    return {
        End(switch, topology.port(switch, near)): End(other, port_back(topology, switch, near))
        for switch in topology.devices
        for near in topology.neighbours(switch)
        if topology.kind(other := beyond(topology, switch, near)) == "switch"
    }


def ends_of(topology: Topology) -> list[End]:
    """Return all ports of switches that the topology names, including those to hosts."""
    return [End(switch, topology.port(switch, other)) for switch in topology.devices
            for other in topology.neighbours(switch)]  # fmt: skip


def faults(wanted: Mapping[End, End], heard: Mapping[End, End | None]) -> list[Fault]:
    """Return the directions that are not as wanted. `heard` is the port that each port hears; None where it hears none,
    or no clear answer."""
    return [
        Fault(sender, receiver, tuple(sorted(end for end, who in heard.items() if who == sender)))
        for sender, receiver in sorted(wanted.items())
        if heard.get(receiver) != sender
    ]


def frame(label: int, values: int) -> bytes:
    """Return a packet of the protocol with this label and as many values, all 0, as the switches' program takes."""
    length = PROTOCOL.ipv4_length(values)
    header = b"".join(
        {"version": VERSION, "label": label}.get(field.name, 0).to_bytes(field.size, "big") for field in PROTOCOL.header
    )
    source = IPv4Address("192.0.2.1").packed  # an address for documentation: no host answers
    parts = [0x45, 0, length, 0, 0, PROTOCOL.ttl, UDP_NUMBER, 0, source, GROUP.packed]
    parts[7] = _checksum(IPV4.pack(*parts))
    udp = UDP.pack(udp_port(0, 0), udp_port(0, 0), PROTOCOL.udp_length(values), 0)
    packet = IPV4.pack(*parts) + udp + header + bytes(4 * values)
    return GROUP_MAC + PROTOCOL.gateway_mac + b"\x08\x00" + packet


def _checksum(header: bytes) -> int:
    total = sum(struct.unpack(f"!{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def trace(
    probes: Sequence[Probe], listening: Iterable[End], wanted: Mapping[End, End], *, cpu_port: int, values: int
) -> dict[End, End | None]:
    """Return which port each listening port hears; None where it hears none, or no clear answer.

    Args:
        wanted: the ports that send, and where the topology says they lead.

    Raise TargetError where a switch fails; the switches' entries are as before in any case.
    """
    label = secrets.randbits(32)
    senders = sorted(wanted)
    numbers = {sender: number for number, sender in enumerate(senders, 1)}
    by_switch = {probe.name: [end for end in listening if end.switch == probe.name] for probe in probes}
    ears = [end for ends in by_switch.values() for end in ends]
    number, unclear = dict.fromkeys(ears, 0), set()
    with _entries(probes, by_switch, label, cpu_port):
        for bit in range(len(senders).bit_length()):
            heard = []
            for side in (1, 0):
                sending = {end for end in senders if numbers[end] >> bit & 1 == side}
                heard.append(_round(probes, sending, {wanted[end] for end in sending}, label, frame(label, values)))
            for end in ears:
                number[end] |= (end in heard[0]) << bit
                if (end in heard[0]) == (end in heard[1]):
                    unclear.add(end)
    return {end: senders[number[end] - 1] if end not in unclear and number[end] else None for end in ears}


@contextmanager
def _entries(probes: Sequence[Probe], ends: Mapping[str, list[End]], label: int, cpu_port: int) -> Iterator[None]:
    """Install, while the context lasts, an entry that counts at every port, and one that sends what comes in by the
    CPU's port to the group."""
    installed = []
    try:
        for probe in probes:
            items: list[Item] = [
                MulticastGroup(GROUP_NUMBER, ()),
                LabelEntry(cpu_port, label, Replicate(GROUP_NUMBER)),
                *(LabelEntry(end.port, label, Forward(DISCARD)) for end in ends[probe.name]),
            ]
            installed.append((probe, items))
            probe.apply([Change(Operation.INSERT, item) for item in items])
        yield
    finally:
        for probe, items in installed:
            probe.apply([Change(Operation.DELETE, item) for item in reversed(items)])


def _round(probes: Sequence[Probe], sending: set[End], waited: set[End], label: int, packet: bytes) -> set[End]:
    """Send by these ports, and return the ports that hear something. `waited` are the ports that should."""
    before = _counted(probes, label)
    for probe in probes:
        ports = tuple(sorted(end.port for end in sending if end.switch == probe.name))
        if ports:
            probe.apply([Change(Operation.MODIFY, MulticastGroup(GROUP_NUMBER, ports))])
            for _ in range(COPIES):
                probe.packet_out(packet)
    deadline = time.monotonic() + PATIENCE_SECONDS
    last: dict[End, int] = {}
    while True:
        now = _counted(probes, label)
        heard = {end for end, count in now.items() if count > before[end]}
        whole = all(now[end] - before[end] >= COPIES for end in waited if end in now)
        if now == last and (whole or time.monotonic() > deadline):
            return heard
        last = now
        time.sleep(LOOK_SECONDS)


def _counted(probes: Sequence[Probe], label: int) -> dict[End, int]:
    return {
        End(probe.name, port): packets
        for probe in probes
        for (port, entry), (packets, _) in probe.read_counters().labels.items()
        if entry == label
    }
