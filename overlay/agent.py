"""A host's agent: joins the coordinator, carries out tasks with its neighbours, tells a trainer when they are done."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from controlplane.plan.task import Edge, Task, TaskError
from overlay.errors import MessageError, OverlayError, PeerLost
from overlay.execution import Execution, Post, Values
from overlay.message import Header, Kind
from overlay.tls import Security
from overlay.transport import Inbound, Peer, end_all
from overlay.ways import Ways

ALIVE_SECONDS = 1.0
"""An agent says so often that it is there; silence for LOST_SECONDS counts as its end (overlay/coordinator.py)."""

REJOIN_SECONDS = 0.5
JOIN_SECONDS = 30.0
HELD_BYTES = 1 << 30
"""Of messages for tasks that have not been announced here yet."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Done:
    """What a synchronisation was: the task's number, who took part, seconds from its announcement to the result."""

    task: int
    participants: tuple[str, ...]
    seconds: float


@dataclass(frozen=True)
class Copy:
    """What another agent sent to this one beside its own values (SelMcast, SSP). round: how often it has sent."""

    sender: str
    task: int
    values: Values


@dataclass
class _Pending:
    tensor: Values
    future: concurrent.futures.Future[Done]
    began: float
    announced: bool = False


class Agent:
    """One agent, in a thread of its own. Methods may be called from any thread.

    coordinator: (host, port). listen: where other agents reach this one; port 0: any. connections: TCP connections to
    each neighbour. security: TLS (overlay/tls.py); None: plaintext.
    """

    def __init__(
        self,
        coordinator: tuple[str, int],
        node: str,
        *,
        listen: tuple[str, int],
        connections: int = 1,
        security: Security | None = None,
        log: Callable[[str], None] | None = None,
    ) -> None:
        self.node, self.coordinator, self.listen, self.connections = node, coordinator, listen, connections
        self._security = security
        self._log = log or _log.info
        self._pending: deque[_Pending] = deque()  # in the order in which they were brought; not yet in a task
        self._tasks: dict[int, Execution] = {}
        self._owners: dict[int, _Pending] = {}
        self._newest = 0
        self._epoch = 0
        self._members: dict[str, tuple[str, int]] = {}
        self._numbers: dict[str, int] = {}
        self._names: list[str] = []
        self._peers: dict[str, Peer] = {}
        self._held: dict[tuple[int, int], list[tuple[Header, Values]]] = {}
        self._held_bytes = 0
        self._ways = Ways(node)
        self._state: Values | None = None  # as a root of tasks with momentum
        self._inbox: deque[Copy] = deque()
        self._probe_values: int | None = None
        self.counters: Counter[str] = Counter()
        self._writer: asyncio.StreamWriter | None = None
        self._closing = False
        self._joined = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._refusal: str | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=f"overlay {node}", daemon=True)
        self._thread.start()

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
        OverlayError; the values are undefined then.
        """
        if tensor.dtype != np.float32 or tensor.ndim != 1 or not tensor.flags.c_contiguous or not tensor.size:
            raise ValueError("synchronise needs a contiguous float32 array of one dimension with values in it")
        pending = _Pending(tensor, concurrent.futures.Future(), time.monotonic())
        try:
            self._loop.call_soon_threadsafe(self._bring, pending)
        except RuntimeError:  # the loop is closed
            pending.future.set_exception(OverlayError(f"{self.node}: the agent was closed"))
        return pending.future

    def synchronise(self, tensor: Values, timeout: float | None = None) -> Done:
        """The same, and waits. Raises TimeoutError too."""
        return self.synchronise_async(tensor).result(timeout)

    def copies(self) -> list[Copy]:
        """What others have sent since the last call, in the order in which it was complete."""
        found = []
        while self._inbox:
            found.append(self._inbox.popleft())
        return found

    def statistics(self) -> dict[str, Any]:
        """Bytes sent per neighbour, and what was counted."""
        sent = {name: peer.bytes_sent for name, peer in list(self._peers.items())}
        return {"node": self.node, "bytes_sent": sent, **self.counters}

    def leave(self, timeout: float = 30.0) -> None:
        """Closes when nobody needs this agent for a task any more: it may pass on what others still wait for."""
        self._idle.wait(timeout)
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
        server = await self._loop.create_server(
            lambda: Inbound(self, secure=self._security is not None), host, port, ssl=context
        )
        self.listen = (host, server.sockets[0].getsockname()[1])
        joining = asyncio.ensure_future(self._stay_joined())
        await self._stop.wait()
        joining.cancel()
        server.close()
        for peer in self._peers.values():
            peer.close()
        self._fail_all(OverlayError(f"{self.node}: the agent was closed"))
        if self._writer is not None:
            self._writer.close()
        await end_all()

    def _end(self) -> None:
        self._closing = True
        self._stop.set()

    async def _stay_joined(self) -> None:
        while not self._closing:
            try:
                reader, self._writer = await asyncio.open_connection(
                    *self.coordinator, ssl=self._security.connect if self._security else None, limit=1 << 26
                )
                if self._security:
                    self._security.check(self._writer.transport, "controller")
                self._tell(type="join", node=self.node, host=self.listen[0], port=self.listen[1])
                alive = asyncio.ensure_future(self._stay_alive())
                try:
                    while line := await reader.readline():
                        self._told(json.loads(line))
                finally:
                    alive.cancel()
            except (OSError, ValueError, OverlayError) as error:
                self._log(f"{self.node}: no coordinator: {error}")
                if self._writer is not None:
                    self._writer.close()
            self._writer = None
            for pending in self._pending:
                pending.announced = False
            await asyncio.sleep(REJOIN_SECONDS)

    async def _stay_alive(self) -> None:
        while True:
            await asyncio.sleep(ALIVE_SECONDS)
            self._tell(type="alive")

    def _tell(self, **message: object) -> None:
        if self._writer is not None and not self._writer.is_closing():
            self._writer.write(json.dumps(message).encode() + b"\n")

    # --- what the coordinator says ---

    def _told(self, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind == "members":
            self._meet(message)
        elif kind == "task":
            self._begin(Task.from_json(message["task"]))
        elif kind == "done":
            self._forget(message["task"], commit=True)
        elif kind == "abort":
            self._abort(message["task"], message["reason"], message["again"])
        elif kind == "drop":
            execution = self._tasks.get(message["task"])
            if execution is not None:
                execution.drop(message["lost"])
        elif kind == "go":
            self._go(message["task"])
        elif kind == "refused":
            self._refusal = message["reason"]
            self._joined.set()
            self._fail_all(OverlayError(f"{self.node}: the coordinator refused this agent: {self._refusal}"))

    def _meet(self, message: dict[str, Any]) -> None:
        if message["epoch"] != self._epoch:  # another coordinator, or the first
            for number in list(self._tasks):
                self._abort(number, "another coordinator has taken over")
            self._epoch, self._newest = message["epoch"], 0
        self._probe_values = message["probe_values"]
        members = {name: (host, port) for name, (host, port) in message["members"].items()}
        for name, peer in list(self._peers.items()):
            if members.get(name) != peer.address:
                peer.close()
                del self._peers[name]
        self._members = members
        self._names = sorted(message["everyone"])
        self._numbers = {name: k for k, name in enumerate(self._names)}
        self._joined.set()
        for pending in self._pending:
            self._announce(pending)

    def _begin(self, task: Task) -> None:
        number = task.number
        try:
            task.check()
        except TaskError as error:
            self._tell(type="failed", task=number, reason=str(error))
            return
        execution = Execution(
            task,
            self.node,
            post=lambda post: self._post(execution, post),
            finished=lambda: self._finished(execution),
            clock=self._loop.time,
            later=self._loop.call_later,
            state=self._state if self._state is not None and self._state.size == task.values else None,
            progress=lambda receiver, left: self._tell(type="progress", task=number, receiver=receiver, left=left),
        )
        self._tasks[number] = execution
        self._idle.clear()
        self._newest = max(self._newest, number)
        if self.node in task.bringers:
            if not self._pending or self._pending[0].tensor.size != task.values:
                self._tell(type="failed", task=number, reason=f"{self.node} has no {task.values} values")
                return
            self._owners[number] = self._pending.popleft()
            execution.start(self._owners[number].tensor)
        elif self.node in task.participants:
            execution.start(np.empty(task.values, np.float32))
        held = self._held.pop((self._epoch, number), [])
        for header, values in held:
            self._held_bytes -= values.nbytes
            self._arrived(execution, header, values)

    def _forget(self, number: int, *, commit: bool = False) -> None:
        execution = self._tasks.pop(number, None)
        if execution is not None:
            self.counters.update(execution.counters)
            if execution.fresh is not None and commit:
                self._state = execution.fresh
            elif commit and any(t.state is not None and t.state.sender == self.node for t in execution.task.trees):
                self._state = None  # the next root has it
            execution.close()
        if not self._tasks:
            self._idle.set()

    def _abort(self, number: int, reason: str, again: bool = False) -> None:
        self._newest = max(self._newest, number)
        execution = self._tasks.get(number)
        if execution is not None and again:
            execution.restore()
        self._forget(number)
        self._held.pop((self._epoch, number), None)
        pending = self._owners.pop(number, None)
        if pending is None:
            return
        if again:
            pending.announced = False
            self._pending.appendleft(pending)
            self._announce(pending)
        else:
            pending.future.set_exception(PeerLost(reason))

    def _fail_all(self, error: OverlayError) -> None:
        for pending in (*self._owners.values(), *self._pending):
            if not pending.future.done():
                pending.future.set_exception(error)
        self._owners.clear()
        self._pending.clear()

    # --- what trainers bring and get ---

    def _bring(self, pending: _Pending) -> None:
        if self._closing or self._refusal:
            pending.future.set_exception(OverlayError(f"{self.node}: {self._refusal or 'the agent was closed'}"))
            return
        self._pending.append(pending)
        if self._members:
            self._announce(pending)

    def _announce(self, pending: _Pending) -> None:
        if not pending.announced and self._writer is not None:
            pending.announced = True
            self._tell(type="ready", values=pending.tensor.size)

    def _finished(self, execution: Execution) -> None:
        number = execution.task.number
        seconds = self._loop.time() - execution.began
        if execution.task.op == "copy":
            sender = execution.task.trees[0].root
            if sender == self.node:
                return  # until the policy lets it go on
            assert execution.tensor is not None
            self._inbox.append(Copy(sender, number, execution.tensor))
        pending = self._owners.pop(number, None)
        self._tell(type="finished", task=number, seconds=seconds)
        if pending is not None:
            pending.future.set_result(Done(number, execution.task.participants, seconds))

    def _go(self, number: int) -> None:
        pending = self._owners.pop(number, None)
        if pending is not None:
            pending.future.set_result(Done(number, (self.node,), time.monotonic() - pending.began))

    # --- what goes out ---

    def _peer(self, name: str) -> Peer:
        peer = self._peers.get(name)
        if peer is None:
            if name not in self._members:
                raise PeerLost(f"{name} is no member of the overlay")
            hello = Header(Kind.HELLO, self._epoch, 0, (self._numbers[self.node],)).pack()
            peer = self._peers[name] = Peer(
                name,
                self._members[name],
                hello,
                connections=self.connections,
                clock=time.monotonic,
                on_lost=lambda reason: self._lost(name, reason),
                security=self._security,
            )
        return peer

    def _lost(self, name: str, reason: str) -> None:
        self._peers.pop(name, None)
        if not self._closing:
            self._tell(type="lost", node=name, reason=reason)

    def _post(self, execution: Execution, post: Post) -> None:
        def go(way: Edge, through: Callable[[], None]) -> None:
            def taken() -> None:
                through()
                execution.sent(post)

            if not execution.closed:
                self._send(execution, post, way, taken)

        self._ways.send(execution.task, post.edge, go)

    def _send(self, execution: Execution, post: Post, edge: Edge, sent: Callable[[], None]) -> None:
        task = execution.task
        path = tuple(self._numbers[name] for name in (self.node, *edge.via, edge.receiver))
        header = Header(
            post.kind, self._epoch, task.number, path, 1, post.tree, post.chunk, len(post.values), post.contributors
        )
        self._dispatch(task.priority, header, post.values, sent, lambda: execution.sends_to(edge.receiver))

    def _dispatch(
        self,
        priority: int,
        header: Header,
        values: Values,
        sent: Callable[[], None] = lambda: None,
        wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        name = self._names[header.path[header.hop]]
        try:
            self._peer(name).send(priority, header, values, sent, wanted)
        except PeerLost as error:
            self._lost(name, str(error))

    # --- what comes in (Receiver) ---

    def place(self, header: Header) -> Values:
        execution = self._tasks.get(header.task) if header.epoch == self._epoch else None
        if execution is not None and header.last and execution.takes(header.tree, header.chunk, header.values):
            return execution.place(header.kind, header.tree, header.chunk)
        return np.empty(header.values, np.float32)

    def received(self, header: Header, values: Values) -> None:
        if header.epoch == self._epoch and self._probe_values is not None and header.values >= self._probe_values:
            seconds = time.monotonic() - header.stamp
            if seconds > 0 and header.path[header.hop - 1] < len(self._names):
                sender = self._names[header.path[header.hop - 1]]
                self._tell(type="measured", sender=sender, mbps=values.nbytes * 8e-6 / seconds)
        execution = self._tasks.get(header.task) if header.epoch == self._epoch else None
        if execution is not None:
            self._arrived(execution, header, values)
        elif (header.epoch, header.task) > (self._epoch, self._newest) and header.epoch >= self._epoch:
            if self._held_bytes + values.nbytes > HELD_BYTES:
                self.counters["held too much"] += 1
                return
            self._held.setdefault((header.epoch, header.task), []).append((header, values))
            self._held_bytes += values.nbytes
        else:
            self.counters["old task"] += 1

    def _arrived(self, execution: Execution, header: Header, values: Values) -> None:
        if not header.last:
            if max(header.path) < len(self._names):
                self._dispatch(execution.task.priority, header.onward(), values)
        elif not execution.takes(header.tree, header.chunk, header.values):
            self.counters["no such chunk"] += 1
        elif header.kind == Kind.UP:
            execution.partial(header.tree, header.chunk, header.contributors, values)
        elif header.kind == Kind.STATE:
            execution.kept(header.tree, header.chunk, values)
        else:
            execution.result(header.tree, header.chunk, values)

    def met(self, header: Header, transport: asyncio.BaseTransport) -> None:
        """The first message of a connection says who speaks there."""
        if self._security is None:
            return
        number = header.path[0]
        if header.epoch == self._epoch and number < len(self._names):
            speaker = self._names[number]
        else:  # another coordinator's numbers: a member at any rate
            speaker = None
        try:
            self._security.check(transport, "node", speaker)
        except OverlayError as error:
            raise MessageError(str(error)) from None

    def refused(self, peer: str, error: MessageError) -> None:
        self.counters["malformed"] += 1
        self._log(f"{self.node}: closed the connection of {peer}: {error}")
