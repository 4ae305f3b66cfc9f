"""Trees that switches copy, as one agent has them: chunks leave once, and what is lost is sent again over TCP.

Packets may be lost. When all of a tree has left, its root says so to each receiver (`Kind.SENT`); who has not got a
chunk answers which (`Kind.MISSING`), and gets it over TCP.
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
from overlay.core.execution import Execution, SendRequest, Values
from overlay.core.message import Kind
from overlay.net.multicast import Assembly, Carrier, Multicast, Packet, Seal

NOTHING = np.empty(0, np.float32)
QUIET_SECONDS = 0.1
"""Without a packet of a tree that switches copy, nothing of it is on its way any more."""

Control = Callable[[Kind, Task, str, int, Values], None]
"""Sends over TCP: what, of which task, to which agent, of which tree, with what in it."""


class ReliableMulticast:
    """Of one agent, in its loop.

    node: who it is. address: of its interface. received(packet): one has come of some task. copied: bytes of frames by
    link of the network ("u->v"). counters: the agent's.
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
        self._socket: Multicast | None = None  # where switches copy
        self._assembling: dict[tuple[int, int], Assembly] = {}  # by task and tree
        self.copied: Counter[str] = Counter()

    def carry(self, carrier: Carrier | None, key: bytes = b"") -> None:
        """What the coordinator says of the network. None: no switch copies. key: of sealed packets."""
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
        """Nothing more is sent or received."""
        if self._socket is not None:
            self._counters.update({"forged": self._socket.forged} if self._socket.forged else {})
            self._socket.close()
            self._socket = None

    # --- a root's part ---

    def send(self, execution: Execution, post: SendRequest, epoch: int) -> None:
        """A chunk for all receivers of its tree. epoch: the overlay's. Raises OverlayError: there is no socket."""
        task, tree = execution.task, execution.task.trees[post.tree]

        def sent() -> None:
            execution.sent(post)
            if post.chunk == task.chunks(post.tree) - 1 and not execution.closed:
                for edge in execution.parts[post.tree].down:
                    self._control(Kind.SENT, task, edge.receiver, post.tree, NOTHING)

        if self._socket is None:
            raise OverlayError(f"{self._node} cannot send multicasts")
        carrier = self._socket.carrier
        first = post.chunk * carrier.packets(task.chunk_values)
        self._socket.send(Packet(tree.label, epoch, task.number, first, post.values), tree.rate_mbps, sent)
        size = carrier.bytes(len(post.values))
        for u, v in {pair for route in tree.routes for pair in pairwise(route)}:
            self.copied[f"{u}->{v}"] += size

    def pace(self, execution: Execution, mbps: float) -> None:
        """All of its trees go at this rate from now on."""
        execution.pace(mbps)
        for tree in execution.task.trees:
            if self._socket is not None:
                self._socket.pace(tree.label, mbps)

    def again(self, execution: Execution, tree: int, chunks: Values, receiver: str) -> None:
        """`Kind.MISSING` has come from a receiver."""
        execution.again(tree, chunks.view(np.uint32).tolist(), receiver)

    # --- a receiver's part ---

    def arrived(self, execution: Execution, packet: Packet) -> None:
        """A packet of the execution's task has come."""
        labels = [tree.label for tree in execution.task.trees]
        if execution.closed or packet.label not in labels or self._socket is None:
            return
        tree, carrier = labels.index(packet.label), self._socket.carrier
        assembly = self._assembling.get((packet.task, tree))
        if assembly is None:
            assembly = self._assembling[packet.task, tree] = Assembly(carrier, execution.task.chunk_values)
        assembly.heard = self._loop.time()
        part = execution.parts[tree]
        chunk, number = assembly.place(packet.sequence)
        if not part.receiver or chunk >= part.chunks or chunk in part.answered:
            return
        whole = assembly.add(chunk, number, packet.values, lambda: execution.place(Kind.DOWN, tree, chunk))
        if whole is not None:
            execution.result(tree, chunk, whole)

    def ask(self, execution: Execution, tree: int, root: str) -> None:
        """`Kind.SENT` has come: what is missing is asked for, when nothing is on its way any more."""
        if execution.closed:
            return
        assembly = self._assembling.get((execution.task.number, tree))
        quiet = self._loop.time() - assembly.heard if assembly is not None else math.inf
        missing = execution.missing(tree)
        if missing and quiet < QUIET_SECONDS:
            self._loop.call_later(QUIET_SECONDS - quiet, self.ask, execution, tree, root)
        elif missing:
            self._counters["missing"] += len(missing)
            self._control(Kind.MISSING, execution.task, root, tree, np.array(missing, np.uint32).view(np.float32))

    def unicast(self, task: int, tree: int, chunk: int) -> None:
        """A chunk has come over TCP: packets of it count no more."""
        assembly = self._assembling.get((task, tree))
        if assembly is not None:
            assembly.forget(chunk)

    def forget(self, task: Task) -> None:
        """The task is over."""
        for index, tree in enumerate(task.trees):
            self._assembling.pop((task.number, index), None)
            if self._socket is not None and tree.label:
                self._socket.forget(tree.label)
