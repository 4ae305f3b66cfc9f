"""Trees that switches copy, at one agent: each chunk leaves the root once, and lost packets are replaced over TCP.

When a root has sent all of a tree, it tells each receiver (`Kind.SENT`). A receiver answers with the chunks that it
lacks (`Kind.MISSING`), and the root sends it those over TCP.
"""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

import numpy as np

from controlplane.planner.plan.task import Task
from overlay.core.errors import OverlayError
from overlay.core.execution import Execution, SendRequest
from overlay.core.message import Kind, Values
from overlay.net.multicast import Assembly, Carrier, Multicast, Packet, Seal

NOTHING = np.empty(0, np.float32)
QUIET_SECONDS = 0.1
"""Seconds without a packet of a tree after which no packet of it is on its way any more."""

Control = Callable[[Kind, Task, str, int, Values], None]
"""Sends a message without a chunk over TCP, given its kind, task, receiver, tree and content."""


class ReliableMulticast:
    """The multicasts of one agent, in its loop.

    Args:
        node: the agent's name.
        address: IPv4 address of its interface.
        loop: its event loop.
        received: called with each packet of some task that has arrived.
        control: sends messages about trees.
        counters: the agent's counters.
        log: gets each line of log.

    Attributes:
        copied: bytes of all frames that this agent's multicasts have caused, by link of the network ("u->v").
    """

    def __init__(
        self,
        node: str,
        address: str,
        loop: asyncio.AbstractEventLoop,
        *,
        received: Callable[[Packet], None],
        control: Control,
        counters: Counter[str],
        log: Callable[[str], None],
    ) -> None:
        self._node, self._address, self._loop = node, address, loop
        self._received, self._control, self._counters, self._log = received, control, counters, log
        self._socket: Multicast | None = None  # None where no switch copies
        self._assembling: dict[tuple[int, int], Assembly] = {}  # by task and tree
        self.copied: Counter[str] = Counter()

    def configure(self, carrier: Carrier | None, key: bytes = b"") -> None:
        """Take the form of packets from the coordinator, None where no switch copies, and the key with which they are
        sealed.
        """
        if self._socket is not None and self._socket.carrier != carrier:
            self.close()
        if carrier is not None and self._socket is None:
            try:
                self._socket = Multicast(self._loop, self._address, carrier, self._received)
            except OSError as error:
                self._log(f"cannot send multicasts from {self._address}: {error}")
        if self._socket is not None and carrier is not None and carrier.sealed:
            self._socket.sealed(Seal(key))

    def close(self) -> None:
        """Send and receive nothing from now on."""
        if self._socket is not None:
            self._counters.update({"forged": self._socket.forged} if self._socket.forged else {})
            self._socket.close()
            self._socket = None

    # --- as a root ---

    def send(self, execution: Execution, request: SendRequest, epoch: int) -> None:
        """Send a chunk to all receivers of its tree, in packets with the coordinator's epoch. Raise OverlayError when
        this agent has no socket for multicasts.
        """
        task, tree = execution.task, execution.task.trees[request.tree]

        def sent() -> None:
            execution.sent(request)
            if request.chunk == task.chunks(request.tree) - 1 and not execution.closed:
                for edge in execution.trees[request.tree].down:
                    self._control(Kind.SENT, task, edge.receiver, request.tree, NOTHING)

        if self._socket is None:
            raise OverlayError(f"{self._node} has no socket for multicasts: see its log for the reason")
        carrier = self._socket.carrier
        first = request.chunk * carrier.packets(task.chunk_values)
        self._socket.send(Packet(tree.label, epoch, task.number, first, request.values), tree.rate_mbps, sent)
        size = carrier.bytes(len(request.values))
        for u, v in {pair for route in tree.routes for pair in pairwise(route)}:
            self.copied[f"{u}->{v}"] += size

    def pace(self, execution: Execution, mbps: float) -> None:
        """Send all trees of the task at this rate from now on, in Mbit/s of values."""
        execution.pace(mbps)
        for tree in execution.task.trees:
            if self._socket is not None:
                self._socket.pace(tree.label, mbps)

    def resend(self, execution: Execution, tree: int, chunks: Values, receiver: str) -> None:
        """Send the chunks again that a receiver lacks, as its message `Kind.MISSING` says: numbers of 32 bits, in
        memory for values.
        """
        execution.resend(tree, chunks.view(np.uint32).tolist(), receiver)

    # --- as a receiver ---

    def packet_arrived(self, execution: Execution, packet: Packet) -> None:
        """Take a packet of the execution's task that has arrived."""
        labels = [tree.label for tree in execution.task.trees]
        if execution.closed or packet.label not in labels or self._socket is None:
            return
        tree, carrier = labels.index(packet.label), self._socket.carrier
        assembly = self._assembling.get((packet.task, tree))
        if assembly is None:
            assembly = self._assembling[packet.task, tree] = Assembly(carrier, execution.task.chunk_values)
        assembly.heard = self._loop.time()
        state = execution.trees[tree]
        chunk, number = assembly.place(packet.sequence)
        if not state.is_receiver or chunk >= state.chunks or chunk in state.results:
            return
        whole = assembly.add(chunk, number, packet.values, lambda: execution.buffer_for(Kind.DOWN, tree, chunk))
        if whole is not None:
            execution.result(tree, chunk, whole)

    def request_missing(self, execution: Execution, tree: int, root: str) -> None:
        """Ask the root, which has said that it has sent all of a tree (`Kind.SENT`), for the chunks that are missing,
        as soon as no packet is on its way any more.
        """
        if execution.closed:
            return
        assembly = self._assembling.get((execution.task.number, tree))
        quiet = self._loop.time() - assembly.heard if assembly is not None else math.inf
        missing = execution.trees[tree].missing()
        if missing and quiet < QUIET_SECONDS:
            self._loop.call_later(QUIET_SECONDS - quiet, self.request_missing, execution, tree, root)
        elif missing:
            self._counters["missing"] += len(missing)
            self._control(Kind.MISSING, execution.task, root, tree, np.array(missing, np.uint32).view(np.float32))

    def arrived_over_tcp(self, task: int, tree: int, chunk: int) -> None:
        """Ignore packets of a chunk from now on: it has arrived over TCP."""
        assembly = self._assembling.get((task, tree))
        if assembly is not None:
            assembly.forget(chunk)

    def forget(self, task: Task) -> None:
        """Send and assemble nothing more of a task that is over."""
        for index, tree in enumerate(task.trees):
            self._assembling.pop((task.number, index), None)
            if self._socket is not None and tree.label:
                self._socket.forget(tree.label)
