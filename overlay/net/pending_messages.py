"""Keeps messages for tasks of which this agent has not been told yet: another agent may have heard of them before."""

from __future__ import annotations

from collections import Counter

from overlay.core.message import Header, Values
from overlay.net.multicast import Packet

HELD_BYTES = 1 << 30
"""Most bytes of such messages that an agent keeps; it drops what is beyond."""


class PendingMessages:
    """The messages that one agent keeps, by (epoch, number) of their task. Messages that are taken are kept no more."""

    def __init__(self, counters: Counter[str]) -> None:
        self._counters = counters
        self._messages: dict[tuple[int, int], list[tuple[Header, Values]]] = {}
        self._packets: dict[tuple[int, int], list[Packet]] = {}
        self._bytes = 0

    def hold(self, header: Header, values: Values) -> None:
        """Keep a message until its task begins."""
        if self._bytes + values.nbytes > HELD_BYTES:
            self._counters["held too much"] += 1
            return
        self._messages.setdefault((header.epoch, header.task), []).append((header, values))
        self._bytes += values.nbytes

    def hold_packet(self, packet: Packet) -> None:
        """Keep a packet that switches have copied. Where it is dropped, its receiver asks for it like a lost one."""
        if self._bytes + packet.values.nbytes <= HELD_BYTES:
            self._packets.setdefault((packet.epoch, packet.task), []).append(packet)
            self._bytes += packet.values.nbytes

    def forget_before(self, epoch: int) -> None:
        """Drop the messages for tasks of earlier epochs: no coordinator will announce those tasks any more."""
        for key in {*self._messages, *self._packets}:
            if key[0] < epoch:
                self.take(*key)
                self.take_packets(*key)

    def take(self, epoch: int, task: int) -> list[tuple[Header, Values]]:
        """Return the task's messages, in the order in which they arrived."""
        found = self._messages.pop((epoch, task), [])
        self._bytes -= sum(values.nbytes for _, values in found)
        return found

    def take_packets(self, epoch: int, task: int) -> list[Packet]:
        """Return the task's packets, in the order in which they arrived."""
        found = self._packets.pop((epoch, task), [])
        self._bytes -= sum(packet.values.nbytes for packet in found)
        return found
