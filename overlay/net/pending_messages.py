"""What comes for tasks that have not been announced here yet: another agent may have heard of them before."""

from __future__ import annotations

from collections import Counter

from overlay.core.execution import Values
from overlay.core.message import Header
from overlay.net.multicast import Packet

HELD_BYTES = 1 << 30
"""Of one agent; what is beyond is dropped."""


class PendingMessages:
    """Of one agent. Tasks are known by (epoch, number); what is taken is held no more."""

    def __init__(self, counters: Counter[str]) -> None:
        self._counters = counters
        self._messages: dict[tuple[int, int], list[tuple[Header, Values]]] = {}
        self._packets: dict[tuple[int, int], list[Packet]] = {}
        self._bytes = 0

    def hold(self, header: Header, values: Values) -> None:
        if self._bytes + values.nbytes > HELD_BYTES:
            self._counters["held too much"] += 1
            return
        self._messages.setdefault((header.epoch, header.task), []).append((header, values))
        self._bytes += values.nbytes

    def hold_packet(self, packet: Packet) -> None:
        """One that switches have copied: where it is dropped, it is asked for as a lost one is."""
        if self._bytes + packet.values.nbytes <= HELD_BYTES:
            self._packets.setdefault((packet.epoch, packet.task), []).append(packet)
            self._bytes += packet.values.nbytes

    def forget_before(self, epoch: int) -> None:
        """What is held of earlier coordinators' tasks: nobody will announce them any more."""
        for key in {*self._messages, *self._packets}:
            if key[0] < epoch:
                self.take(*key)
                self.take_packets(*key)

    def take(self, epoch: int, task: int) -> list[tuple[Header, Values]]:
        """In the order in which they came."""
        found = self._messages.pop((epoch, task), [])
        self._bytes -= sum(values.nbytes for _, values in found)
        return found

    def take_packets(self, epoch: int, task: int) -> list[Packet]:
        """In the order in which they came."""
        found = self._packets.pop((epoch, task), [])
        self._bytes -= sum(packet.values.nbytes for packet in found)
        return found
