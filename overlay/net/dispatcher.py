"""What comes from other agents, and which execution it is for."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable

import numpy as np

from overlay.core.errors import MessageError
from overlay.core.execution import Execution, Values
from overlay.core.measurement import ThroughputEstimator
from overlay.core.message import Header, Kind
from overlay.net.eager_scatter import EagerScatter
from overlay.net.membership import Membership
from overlay.net.multicast import Packet
from overlay.net.neighbours import Neighbours
from overlay.net.pending_messages import PendingMessages
from overlay.net.reliable_multicast import ReliableMulticast
from overlay.net.tasks import Tasks


class Dispatcher:
    """Of one agent, in its loop; a transport.Receiver.

    probe_values: chunks of at least so many values tell the coordinator of the throughput; None: none does.
    """

    def __init__(
        self,
        *,
        membership: Membership,
        neighbours: Neighbours,
        multicast: ReliableMulticast,
        tasks: Tasks,
        eager_scatter: EagerScatter,
        pending_messages: PendingMessages,
        counters: Counter[str],
        log: Callable[[str], None],
    ) -> None:
        self._membership, self._neighbours, self._multicast = membership, neighbours, multicast
        self._tasks, self._eager_scatter, self._pending_messages = tasks, eager_scatter, pending_messages
        self._counters, self._log = counters, log
        self.probe_values: int | None = None
        self._throughputs: dict[str, ThroughputEstimator] = {}

    # --- what came before the coordinator's word ---

    def begun(self, execution: Execution) -> None:
        """A task has been announced: what is here of it already is its execution's."""
        self._eager_scatter.collect(execution)
        for packet in self._pending_messages.take_packets(self._neighbours.epoch, execution.task.number):
            self.copied(packet)
        self.mended(execution)

    def mended(self, execution: Execution) -> None:
        """The same of new trees."""
        for header, values in self._pending_messages.take(self._neighbours.epoch, execution.task.number):
            self._arrived(execution, header, values)

    # --- over TCP ---

    def met(self, header: Header, transport: asyncio.BaseTransport) -> None:
        """The first message of a connection says who speaks there."""
        self._neighbours.check(header, transport)

    def refused(self, peer: str, error: MessageError) -> None:
        self._counters["malformed"] += 1
        self._log(f"closed the connection of {peer}: {error}")

    def place(self, header: Header) -> Values:
        known = header.epoch == self._neighbours.epoch and header.kind not in (Kind.EAGER, Kind.MISSING)
        execution = self._tasks.running.get(header.task) if known else None
        if execution is not None and header.last and execution.takes(header.tree, header.chunk, header.values):
            return execution.place(header.kind, header.tree, header.chunk)
        return np.empty(header.values, np.float32)

    def received(self, header: Header, values: Values) -> None:
        now = header.epoch == self._neighbours.epoch
        if now and self.probe_values is not None and header.values:
            self._measure(header, values.nbytes * 8e-6, self.probe_values)
        if header.kind == Kind.EAGER:
            self._eager_scatter.came(header, values, self._tasks.running)
            return
        execution = self._tasks.running.get(header.task) if now else None
        if execution is not None:
            self._arrived(execution, header, values)
        elif self._tasks.to_come(header.epoch, header.task):
            self._pending_messages.hold(header, values)
        else:
            self._counters["old task"] += 1

    def _arrived(self, execution: Execution, header: Header, values: Values) -> None:
        if header.kind == Kind.DISCARD:
            self._tasks.discard(execution.task.number, "another agent has given it up", pass_on=False)
        elif not header.last:
            if self._neighbours.name(max(header.path)) is not None:
                self._neighbours.send(execution.task.priority, header.onward(), values)
        elif header.tree >= len(execution.parts):
            self._pending_messages.hold(header, values)
        elif header.kind in (Kind.SENT, Kind.MISSING):
            sender = self._neighbours.name(header.path[0])
            if sender is not None:
                if header.kind == Kind.SENT:
                    self._multicast.ask(execution, header.tree, sender)
                else:
                    self._multicast.again(execution, header.tree, values, sender)
        elif not execution.takes(header.tree, header.chunk, header.values):
            self._counters["no such chunk"] += 1
        elif header.kind == Kind.UP:
            execution.partial(header.tree, header.chunk, header.contributors, values)
        elif header.kind == Kind.STATE:
            execution.kept(header.tree, header.chunk, values)
        else:
            self._multicast.unicast(header.task, header.tree, header.chunk)
            execution.result(header.tree, header.chunk, values)

    def _measure(self, header: Header, megabits: float, probe_values: int) -> None:
        now, sender = self._membership.now(), self._neighbours.name(header.path[header.hop - 1])
        if math.isnan(now) or math.isnan(header.stamp) or sender is None:
            return
        mbps = self._throughputs.setdefault(sender, ThroughputEstimator()).arrived(header.stamp, now, megabits)
        if mbps is not None and header.values >= probe_values:
            self._membership.tell(type="measured", sender=sender, mbps=mbps)

    # --- by switches ---

    def copied(self, packet: Packet) -> None:
        """A packet that switches have copied."""
        execution = self._tasks.running.get(packet.task) if packet.epoch == self._neighbours.epoch else None
        if execution is not None:
            self._multicast.arrived(execution, packet)
        elif self._tasks.to_come(packet.epoch, packet.task):
            self._pending_messages.hold_packet(packet)
        else:
            self._counters["old task"] += 1
