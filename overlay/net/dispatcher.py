"""Hands each message from other agents to the execution, or to the part of the agent, for which it is meant."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable

from overlay.core.errors import MessageError
from overlay.core.execution import Execution
from overlay.core.measurement import ThroughputEstimator
from overlay.core.message import Header, Kind, Values
from overlay.net.multicast import Packet
from overlay.net.reliable_multicast import NOTHING
from overlay.net.site_services import SiteServices
from overlay.net.tasks import AgentParts, Tasks

THROUGH_PRIORITY = -1
"""Priority of messages that a chunk is at its detour's end: chunks of tasks, whose priority is 0, go after them."""


class Dispatcher:
    """The receiver (transport.Receiver) of one agent's connections, in the agent's loop.

    Attributes:
        probe_values: chunks of at least this many values report their throughput to the coordinator; None where no
            chunk does.
    """

    def __init__(
        self, parts: AgentParts, tasks: Tasks, site: SiteServices, *, counters: Counter[str],
        log: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._membership, self._neighbours, self._multicast = parts.membership, parts.neighbours, parts.multicast
        self._eager_scatter, self._pending_messages = parts.eager_scatter, parts.pending_messages
        self._buffers = parts.buffers
        self._tasks, self._site, self._counters, self._log = tasks, site, counters, log
        self.probe_values: int | None = None
        self._neighbours.reverse_with(self)
        self._throughputs: dict[str, ThroughputEstimator] = {}

    # --- messages that arrived before their task was announced ---

    def begun(self, execution: Execution) -> None:
        """Give the execution of a task that has begun what has arrived for it already."""
        self._eager_scatter.collect(execution)
        for packet in self._pending_messages.take_packets(self._neighbours.epoch, execution.task.number):
            self.packet_received(packet)
        self.mended(execution)

    def mended(self, execution: Execution) -> None:
        """Give the execution of a task that has new trees the messages that have arrived for them already."""
        for header, values in self._pending_messages.take(self._neighbours.epoch, execution.task.number):
            self.deliver(execution, header, values)

    # --- over TCP ---

    def connected(self, header: Header, transport: asyncio.BaseTransport) -> None:
        """Check the first message of a connection, which says which agent opened it. Raise MessageError where that is
        not true.
        """
        self._neighbours.check(header, transport)

    def reversed(self, header: Header, transport: asyncio.BaseTransport) -> None:
        """Take a connection over which this agent is to send to the agent that opened it. Raise MessageError where it
        is refused.
        """
        self._neighbours.take(header, transport)

    def rejected(self, peer: str, error: MessageError) -> None:
        """Take note that a connection was closed because of what arrived over it."""
        self._counters["malformed"] += 1
        self._log(f"closed the connection from {peer}: {error}")

    def buffer_for(self, header: Header) -> Values:
        """Return memory for the values of the message that begins with this header."""
        of_no_task = (Kind.EAGER, Kind.MISSING, Kind.PROBE, Kind.PIECE)
        known = header.epoch == self._neighbours.epoch and header.kind not in of_no_task
        execution = self._tasks.running.get(header.task) if known else None
        if execution is not None and header.last and execution.has_chunk(header.tree, header.chunk, header.values):
            return execution.buffer_for(header.kind, header.tree, header.chunk)
        return self._buffers.take(header.values)

    def received(self, header: Header, values: Values) -> None:
        """Hand on a whole message that has arrived."""
        current = header.epoch == self._neighbours.epoch
        if header.kind in (Kind.PROBE, Kind.FETCH, Kind.PIECE):
            sender = self._neighbours.name(header.path[0])
            if current and sender is not None:
                self._site.received(sender, header, values)
            return
        if header.kind == Kind.THROUGH:
            sender = self._neighbours.name(header.path[0])
            if current and sender is not None:
                self._tasks.detours.ended(header.task, header.tree, header.chunk, sender)
            return
        if current and header.last and len(header.path) > 2:
            self._say_through(header)
        if current and self.probe_values is not None and header.values:
            self._measure(header, values.nbytes * 8e-6, self.probe_values)
        if header.kind == Kind.EAGER:
            self._eager_scatter.received(header, values, self._tasks.running)
            return
        execution = self._tasks.running.get(header.task) if current else None
        if execution is not None:
            self.deliver(execution, header, values)
        elif self._tasks.may_come(header.epoch, header.task):
            self._pending_messages.hold(header, values)
        else:
            self._counters["old task"] += 1

    def deliver(self, execution: Execution, header: Header, values: Values) -> None:
        """Hand a message to the execution of its task, or pass it on to the next agent of its path."""
        if header.kind == Kind.DISCARD:
            self._tasks.discard(execution.task.number, "another agent has given it up", pass_on=False)
        elif not header.last:
            if self._neighbours.name(max(header.path)) is not None:
                self._neighbours.send(execution.task.priority, header.onward(), values)
        elif header.tree >= len(execution.trees):
            self._pending_messages.hold(header, values)
        elif header.kind in (Kind.SENT, Kind.MISSING):
            sender = self._neighbours.name(header.path[0])
            if sender is not None:
                if header.kind == Kind.SENT:
                    self._multicast.request_missing(execution, header.tree, sender)
                else:
                    self._multicast.resend(execution, header.tree, values, sender)
        elif not execution.has_chunk(header.tree, header.chunk, header.values):
            self._counters["no such chunk"] += 1
        elif header.kind == Kind.UP:
            execution.partial(header.tree, header.chunk, header.contributors, values)
        else:
            self._multicast.arrived_over_tcp(header.task, header.tree, header.chunk)
            execution.result(header.tree, header.chunk, values)

    def _say_through(self, header: Header) -> None:
        """Tell the agent that has sent a chunk over a detour that the chunk is at the detour's end."""
        if self._neighbours.name(header.path[0]) in self._neighbours.members:
            path, number, tree = (header.path[-1], header.path[0]), header.task, header.tree
            through = Header(Kind.THROUGH, header.epoch, number, path, 1, tree, header.chunk)
            self._neighbours.send(THROUGH_PRIORITY, through, NOTHING)

    def _measure(self, header: Header, megabits: float, probe_values: int) -> None:
        """Report the throughput of the last hop of this message, from the agent before this one on its path."""
        now, sender = self._membership.now(), self._neighbours.name(header.path[header.hop - 1])
        if math.isnan(now) or math.isnan(header.stamp) or sender is None:
            return
        throughput = self._throughputs.setdefault(sender, ThroughputEstimator())
        mbps = throughput.arrived(header.stamp, now, megabits, counts=header.values >= probe_values)
        if mbps is not None:
            self._membership.tell(type="measured", sender=sender, mbps=mbps)

    # --- copied by switches ---

    def packet_received(self, packet: Packet) -> None:
        """Hand on a packet that switches have copied."""
        execution = self._tasks.running.get(packet.task) if packet.epoch == self._neighbours.epoch else None
        if execution is not None:
            self._multicast.packet_arrived(execution, packet)
        elif self._tasks.may_come(packet.epoch, packet.task):
            self._pending_messages.hold_packet(packet)
        else:
            self._counters["old task"] += 1
