"""A host's agent, as a trainer uses it: joins the coordinator, brings values, is told when they are summed."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from controlplane.planner.plan.task import Task
from overlay.core.errors import Late, OverlayError
from overlay.core.execution import Execution, Values
from overlay.core.tcp import MOST_CONNECTIONS
from overlay.net.brought import Bringing, Brought, Done
from overlay.net.early import Early
from overlay.net.incoming import Incoming
from overlay.net.loop import new_event_loop
from overlay.net.membership import Membership
from overlay.net.multicast import Carrier
from overlay.net.neighbours import Neighbours
from overlay.net.reliable_multicast import ReliableMulticast
from overlay.net.tasks import Tasks
from overlay.net.tls import Security
from overlay.net.transport import Inbound, end_all
from overlay.net.unannounced import Unannounced

__all__ = ["Agent", "Copy", "Done"]

JOIN_SECONDS = 30.0
ANSWER_SECONDS = 3.0
"""For which a trainer that waits no longer waits for the coordinator to say who is missing."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Copy:
    """What another agent sent to this one beside its own values (SelMcast, SSP)."""

    sender: str
    task: int
    values: Values


class Agent:
    """One agent, in a thread of its own. Methods may be called from any thread.

    coordinator: (host, port). backups: of coordinators that may take its place, in turn. listen: where other agents
    reach this one; port 0: any; at all addresses (0.0.0.0): under the one that the coordinator sees this agent come
    from. advertise: where others are told to reach it instead (behind a translation of addresses); port 0: where it
    listens. connections: TCP connections to each neighbour; where packets are lost, up to
    `most_connections` of them. security: TLS (tls.py); None: plaintext. clock: seconds since any time; agents'
    clocks need not agree.
    """

    def __init__(
        self,
        coordinator: tuple[str, int],
        node: str,
        *,
        listen: tuple[str, int],
        advertise: tuple[str, int] | None = None,
        connections: int = 1,
        most_connections: int = MOST_CONNECTIONS,
        backups: Sequence[tuple[str, int]] = (),
        security: Security | None = None,
        clock: Callable[[], float] = time.monotonic,
        log: Callable[[str], None] | None = None,
    ) -> None:
        self.node, self.coordinator, self.listen, self.connections = node, coordinator, listen, connections
        self.advertise = advertise
        self.most_connections = most_connections
        self.counters: Counter[str] = Counter()
        self._security = security
        self._log = log or _log.info
        self._inbox: deque[Copy] = deque()
        self._closing = False
        self._joined = threading.Event()
        self._refusal: str | None = None
        self._loop = new_event_loop()
        self._compose((coordinator, *backups), clock)
        self._thread = threading.Thread(target=self._run, name=f"overlay {node}", daemon=True)
        self._thread.start()

    def _compose(self, coordinators: Sequence[tuple[str, int]], clock: Callable[[], float]) -> None:
        """What an agent is made of. Each part is given those that it uses; they stand above it."""
        node, counters = self.node, self.counters
        unannounced = self._unannounced = Unannounced(counters)

        def log(line: str) -> None:
            self._log(f"{node}: {line}")

        self._membership = Membership(
            coordinators, hello=self._hello, told=self._told, left=self._left,
            clock=clock, security=self._security, log=log,
        )  # fmt: skip
        self._neighbours = Neighbours(
            node, self._loop, connections=self.connections, most_connections=self.most_connections,
            security=self._security, clock=self._membership.now, lost=self._lost,
        )  # fmt: skip
        self._multicast = ReliableMulticast(
            node, self.listen[0], self._loop, received=lambda packet: self._incoming.copied(packet),
            control=self._neighbours.control, counters=counters, log=log,
        )  # fmt: skip
        self._early = Early(node, self._neighbours, counters)
        self._brought = Brought(node, self._loop, membership=self._membership, early=self._early, counters=counters)
        self._tasks = Tasks(
            node, self._loop, membership=self._membership, neighbours=self._neighbours, multicast=self._multicast,
            brought=self._brought, early=self._early, unannounced=unannounced, counters=counters,
            copied=lambda *copy: self._inbox.append(Copy(*copy)), log=log,
        )  # fmt: skip
        self._incoming = Incoming(
            membership=self._membership, neighbours=self._neighbours, multicast=self._multicast, tasks=self._tasks,
            early=self._early, unannounced=unannounced, counters=counters, log=log,
        )  # fmt: skip

    # --- for trainers ---

    def wait_joined(self, timeout: float = JOIN_SECONDS) -> None:
        """Returns when the coordinator has taken this agent in. Raises OverlayError."""
        if not self._joined.wait(timeout):
            host, port = self.coordinator
            raise OverlayError(f"{self.node}: the coordinator at {host}:{port} did not answer within {timeout:.0f} s")
        if self._refusal:
            raise OverlayError(f"{self.node}: the coordinator refused this agent: {self._refusal}")

    def synchronise_async(self, tensor: Values) -> concurrent.futures.Future[Done]:
        """Brings these values; the future ends when they have been replaced by the result.

        tensor: float32, one dimension, contiguous; not to be touched meanwhile. The future raises PeerLost or
        OverlayError; the values are then again what was brought.
        """
        return self._hand_in(tensor).future

    def _hand_in(self, tensor: Values) -> Bringing:
        if tensor.dtype != np.float32 or tensor.ndim != 1 or not tensor.flags.c_contiguous or not tensor.size:
            raise ValueError("synchronise needs a contiguous float32 array of one dimension with values in it")
        bringing = Bringing(tensor)
        try:
            self._loop.call_soon_threadsafe(self._bring, bringing)
        except RuntimeError:  # the loop is closed
            bringing.future.set_exception(OverlayError(f"{self.node}: the agent was closed"))
        return bringing

    def synchronise(self, tensor: Values, timeout: float | None = None) -> Done:
        """The same, and waits. timeout: seconds after which the round is given up, for all who take part; then raises
        Late, a TimeoutError that says who is missing."""
        bringing = self._hand_in(tensor)
        try:
            return bringing.future.result(timeout)
        except TimeoutError:
            if bringing.future.done():
                return bringing.future.result()
        try:
            self._loop.call_soon_threadsafe(self._give_up, bringing, f"no result within {timeout:g} s")
            return bringing.future.result()
        except (OverlayError, RuntimeError) as error:
            raise Late(str(error)) from None

    def copies(self) -> list[Copy]:
        """What others have sent since the last call, in the order in which it was complete."""
        found = []
        while self._inbox:
            found.append(self._inbox.popleft())
        return found

    def statistics(self) -> dict[str, Any]:
        """Bytes sent per neighbour, those that switches copied by link of the network, and what was counted."""
        sent, copied = self._neighbours.bytes_sent(), dict(self._multicast.copied)
        return {"node": self.node, "bytes_sent": sent, "bytes_copied": copied, **self.counters}

    def leave(self, timeout: float = 30.0) -> None:
        """Closes when nobody needs this agent for a task any more: it may pass on what others still wait for."""
        self._tasks.idle.wait(timeout)
        self.close()

    def close(self) -> None:
        """Leaves at once. What is under way fails with OverlayError."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._end)
            self._thread.join(10)

    # --- the loop ---

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._main())
        finally:
            self._loop.close()

    async def _main(self) -> None:
        self._stop = asyncio.Event()
        context = self._security.serve if self._security else None
        host, port = self.listen

        def accept() -> Inbound:
            return self._neighbours.accept(self._incoming)

        server = await self._loop.create_server(accept, host, port, ssl=context)
        self.listen = (host, server.sockets[0].getsockname()[1])
        joining = asyncio.ensure_future(self._membership.run())
        await self._stop.wait()
        joining.cancel()
        server.close()
        self._neighbours.close()
        self._multicast.close()
        self._tasks.abort_all(f"{self.node}: the agent was closed")
        self._brought.fail_all(OverlayError(f"{self.node}: the agent was closed"))
        self._membership.close()
        await end_all()

    def _end(self) -> None:
        self._closing = True
        self._stop.set()

    def _bring(self, bringing: Bringing) -> None:
        if self._closing or self._refusal:
            bringing.future.set_exception(OverlayError(f"{self.node}: {self._refusal or 'the agent was closed'}"))
            return
        self._brought.bring(bringing)

    def _give_up(self, bringing: Bringing, reason: str) -> None:
        """The trainer waits no longer. The coordinator says who is missing, where one answers."""
        if bringing.future.done():
            return
        number = self._brought.task_of(bringing)
        if self._membership.there and (number is not None or bringing.announced):
            self._membership.tell(type="withdraw", turn=bringing.turn, task=number, reason=reason)
            alone = f"{reason}, and no coordinator answers"
            self._loop.call_later(ANSWER_SECONDS, self._give_up_alone, bringing, alone)
        else:
            self._give_up_alone(bringing, f"{reason}: there is no coordinator at {self._membership.known}")

    def _give_up_alone(self, bringing: Bringing, reason: str) -> None:
        number = self._brought.task_of(bringing)
        if bringing.future.done():
            return
        if number is not None:
            self._tasks.discard(number, reason, alone=True)
        else:
            self._brought.withdraw(bringing, OverlayError(f"{self.node}: {reason}"))

    def _unmet(self, turn: int | None, reason: str) -> None:
        """No task comes for what was brought. turn: which; None: what waits longest."""
        error = OverlayError(f"{self.node}: {reason}")
        if not self._brought.unmet(turn, error) and turn is not None:
            number = self._brought.task_by_turn(turn)
            if number is not None:  # it has begun since the trainer gave up
                self._membership.tell(type="withdraw", turn=turn, task=number, reason=reason)

    def _lost(self, name: str, address: tuple[str, int] | None, reason: str) -> None:
        if not self._closing:
            self._tasks.lost(name, address, reason)

    # --- the coordinator ---

    def _hello(self) -> dict[str, Any]:
        """Who joins, and what a coordinator needs that takes over from another one."""
        self._brought.forget_announcements()
        host, port = self.listen
        if self.advertise is not None:
            host, port = self.advertise[0], self.advertise[1] or port
        return {
            "node": self.node, "host": host, "port": port, "epoch": self._neighbours.epoch, **self._tasks.report(),
        }  # fmt: skip

    def _left(self) -> None:
        """There is no coordinator any more, or none yet."""
        self._brought.coordinator_left()
        self._tasks.coordinator_left()

    def _told(self, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind == "members":
            self._meet(message)
        elif kind == "default":
            blocks = tuple((str(owner), int(first), int(size)) for owner, first, size in message["blocks"])
            self._early.default(message["values"], message["chunk_values"], blocks)
        elif kind == "task":
            self._begun(self._tasks.begin(Task.from_json(message["task"])))
        elif kind == "alike":
            self._begun(self._tasks.begin_alike(message["as"], message["task"], message["round"]))
        elif kind == "mend":
            execution = self._tasks.mend(Task.from_json(message["task"]))
            if execution is not None:
                self._incoming.mended(execution)
        elif kind == "done":
            self._tasks.done(message["task"])
        elif kind == "abort":
            self._tasks.abort(message["task"], message["reason"], message["again"])
        elif kind == "drop":
            self._tasks.drop(message["task"], message["lost"])
        elif kind == "pace":
            self._tasks.pace(message["task"], message["mbps"])
        elif kind == "go":
            self._brought.go(message["task"])
        elif kind == "alone":
            self._brought.first_alone()
        elif kind == "unmet":
            self._unmet(message["turn"], message["reason"])
        elif kind == "waits":
            self._log(f"{self.node}: waits for others: {message['reason']}")
        elif kind == "gathering":
            self._joined.set()
        elif kind == "refused":
            self._refusal = message["reason"]
            self._joined.set()
            self._tasks.abort_all(f"the coordinator refused this agent: {self._refusal}")
            self._brought.fail_all(OverlayError(f"{self.node}: the coordinator refused this agent: {self._refusal}"))

    def _begun(self, execution: Execution | None) -> None:
        if execution is not None:
            self._incoming.begun(execution)

    def _meet(self, message: dict[str, Any]) -> None:
        if message["epoch"] != self._neighbours.epoch:  # another coordinator, or the first
            self._tasks.begin_anew()
            self._unannounced.forget_before(message["epoch"])
        self._incoming.probe_values, self._brought.may_go_alone = message["probe_values"], message["alone"]
        copying = message.get("multicast")
        if copying is None:
            self._multicast.carry(None)
        else:
            key = bytes.fromhex(copying["key"])
            self._multicast.carry(Carrier(copying["job"], copying["program_values"], bool(key)), key)
        members = {name: (host, port) for name, (host, port) in message["members"].items()}
        self._neighbours.meet(message["epoch"], members, message["everyone"])
        self._early.met(self._tasks.running)
        self._joined.set()
        self._tasks.led()
        self._brought.announce()
