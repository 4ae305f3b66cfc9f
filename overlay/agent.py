"""A host's agent: joins the coordinator, carries out tasks with its neighbours, tells a trainer when they are done."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any
from weakref import WeakSet

import numpy as np

from controlplane.plan.task import Edge, Task, TaskError
from overlay.awareness import Throughput
from overlay.errors import MessageError, OverlayError, PeerLost
from overlay.execution import Execution, Post, Values
from overlay.loop import new_event_loop
from overlay.membership import Membership
from overlay.message import Header, Kind
from overlay.multicast import Carrier, Packet
from overlay.reliable_multicast import NOTHING, ReliableMulticast
from overlay.scatter import EARLY_PRIORITY, Blocks, Scatter
from overlay.tcp import MOST_CONNECTIONS
from overlay.tls import Security
from overlay.transport import Inbound, Peer, end_all, kept_open
from overlay.ways import Ways

JOIN_SECONDS = 30.0
ALONE_SECONDS = 1.0
"""Without a coordinator for so long, an agent that may goes on by itself."""

ENDED = 256
"""Tasks that are over, of which an agent knows how they ended."""

HELD_BYTES = 1 << 30
"""Of messages for tasks that have not been announced here yet."""

REOPEN_SECONDS = 1.0
"""After which a connection that broke is opened again, before a task needs it."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Done:
    """What a synchronisation was: the task's number, whose values are in the result, seconds from its announcement."""

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
    turn: int = 0


class Agent:
    """One agent, in a thread of its own. Methods may be called from any thread.

    coordinator: (host, port). backups: of coordinators that may take its place, in turn. listen: where other agents
    reach this one; port 0: any. connections: TCP connections to each neighbour; where packets are lost, up to
    `most_connections` of them. security: TLS (overlay/tls.py); None:
    plaintext. clock: seconds since any time; agents' clocks need not agree.
    """

    def __init__(
        self,
        coordinator: tuple[str, int],
        node: str,
        *,
        listen: tuple[str, int],
        connections: int = 1,
        most_connections: int = MOST_CONNECTIONS,
        backups: Sequence[tuple[str, int]] = (),
        security: Security | None = None,
        clock: Callable[[], float] = time.monotonic,
        log: Callable[[str], None] | None = None,
    ) -> None:
        self._clock = clock
        self._throughputs: dict[str, Throughput] = {}
        self.node, self.coordinator, self.listen, self.connections = node, coordinator, listen, connections
        self.most_connections = most_connections
        self._security = security
        self._log = log or _log.info
        self._pending: deque[_Pending] = deque()  # in the order in which they were brought; not yet in a task
        self._tasks: dict[int, Execution] = {}
        self._owners: dict[int, _Pending] = {}
        self._newest = 0
        self._latest: Task | None = None  # that was told
        self._epoch = 0
        self._members: dict[str, tuple[str, int]] = {}
        self._numbers: dict[str, int] = {}
        self._names: list[str] = []
        self._peers: dict[str, Peer] = {}
        self._reopening: dict[str, asyncio.TimerHandle] = {}
        self._held: dict[tuple[int, int], list[tuple[Header, Values]]] = {}
        self._held_bytes = 0
        self._ahead: dict[tuple[int, int], list[Packet]] = {}  # of tasks that have not been announced here yet
        self._scatter: Scatter[Values] = Scatter(node)
        # Others must not take them for those before a restart.
        self._turns = count(int(time.time() * 1000) & 0x3FFFFFFF)
        self._defaults: dict[int, tuple[int, Blocks]] = {}  # values -> values of a chunk, who adds what
        self._inbound: WeakSet[Inbound] = WeakSet()
        self._ways = Ways(node)
        self._state: Values | None = None  # as a root of tasks with momentum
        self._inbox: deque[Copy] = deque()
        self._probe_values: int | None = None
        self.counters: Counter[str] = Counter()
        self._ended: dict[int, bool] = {}  # task -> whether it was done; else it was given up
        self._alone = False  # may go on without a coordinator
        self._left_at: float | None = None  # when the last coordinator was lost
        self._closing = False
        self._joined = threading.Event()
        self._idle = threading.Event()
        self._idle.set()
        self._refusal: str | None = None
        self._membership = Membership(
            (coordinator, *backups), hello=self._hello, told=self._told, left=self._without_coordinator, clock=clock,
            security=security, log=lambda line: self._log(f"{node}: {line}"),
        )  # fmt: skip
        self._tell = self._membership.tell
        self._loop = new_event_loop()
        self._multicast = ReliableMulticast(
            node, listen[0], self._loop, received=self._copied, control=self._control, counters=self.counters,
            log=lambda line: self._log(f"{node}: {line}"),
        )  # fmt: skip
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
        """Bytes sent per neighbour, those that switches copied by link of the network, and what was counted."""
        sent = {name: peer.bytes_sent for name, peer in list(self._peers.items()) if peer.bytes_sent}
        return {"node": self.node, "bytes_sent": sent, "bytes_copied": dict(self._multicast.copied), **self.counters}

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

        def accept() -> Inbound:
            self._inbound.add(each := Inbound(self, secure=self._security is not None))
            return each

        server = await self._loop.create_server(accept, host, port, ssl=context)
        self.listen = (host, server.sockets[0].getsockname()[1])
        joining = asyncio.ensure_future(self._membership.run())
        await self._stop.wait()
        joining.cancel()
        server.close()
        for each in list(self._inbound):
            each.close()
        for peer in self._peers.values():
            peer.close()
        self._multicast.close()
        self._fail_all(OverlayError(f"{self.node}: the agent was closed"))
        self._membership.close()
        await end_all()

    def _end(self) -> None:
        self._closing = True
        self._stop.set()

    # --- with and without a coordinator ---

    def _hello(self) -> dict[str, Any]:
        """Who joins, and what a coordinator needs that takes over from another one."""
        for pending in self._pending:
            pending.announced = False
        running = [{"task": execution.task.to_json(), "finished": execution.over} for execution in self._tasks.values()]
        host, port = self.listen
        return {
            "node": self.node, "host": host, "port": port, "epoch": self._epoch, "newest": self._newest,
            "running": running, "ended": list(self._ended.items()),
        }  # fmt: skip

    def _without_coordinator(self) -> None:
        if self._left_at is None:
            self._left_at = self._loop.time()
            self._loop.call_later(ALONE_SECONDS, self._go_alone)

    def _go_alone(self) -> None:
        """Whoever has brought values keeps them (CREW, IV-B): no coordinator can find others for them."""
        if self._membership.there or not self._alone or self._left_at is None:
            return
        while self._pending:
            self._go_on(self._pending.popleft())

    def _go_on(self, pending: _Pending) -> None:
        """Its values stay what they are."""
        self._scatter.stop()
        self.counters["alone"] += 1
        pending.future.set_result(Done(0, (self.node,), time.monotonic() - pending.began))

    def _late(self, execution: Execution) -> None:
        if not execution.closed and not execution.over:
            self._discard(execution.task.number, f"not done within {execution.task.budget:g} s")

    def _discard(self, number: int, reason: str, *, tell: bool = True) -> None:
        """Gives a task up: by the coordinator where there is one, else by telling the others and going on alone."""
        execution = self._tasks.get(number)
        if execution is None or execution.over or self.node not in execution.task.participants:
            return
        if self._membership.there:
            self._tell(type="failed", task=number, reason=reason)
            return
        self._log(f"{self.node}: task {number} is discarded: {reason}")
        for name in sorted(execution.task.nodes & self._peers.keys()) if tell else ():
            self._control(Kind.DISCARD, execution.task, name, 0, NOTHING)
        self.counters["discarded"] += 1
        self._abort(number, reason)

    # --- what the coordinator says ---

    def _told(self, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind == "members":
            self._meet(message)
        elif kind == "default":
            blocks = tuple((str(owner), int(first), int(size)) for owner, first, size in message["blocks"])
            self._defaults[message["values"]] = message["chunk_values"], blocks
        elif kind == "task":
            self._begin(Task.from_json(message["task"]))
        elif kind == "alike":
            self._begin_alike(message["as"], message["task"], message["round"])
        elif kind == "mend":
            self._mend(Task.from_json(message["task"]))
        elif kind == "done":
            self._forget(message["task"], commit=True)
        elif kind == "abort":
            self._abort(message["task"], message["reason"], message["again"])
        elif kind == "drop":
            execution = self._tasks.get(message["task"])
            if execution is not None:
                execution.drop(message["lost"])
        elif kind == "pace":
            execution = self._tasks.get(message["task"])
            if execution is not None:
                self._multicast.pace(execution, message["mbps"])
        elif kind == "go":
            self._go(message["task"])
        elif kind == "alone" and self._pending:
            self._go_on(self._pending.popleft())
        elif kind == "refused":
            self._refusal = message["reason"]
            self._joined.set()
            self._fail_all(OverlayError(f"{self.node}: the coordinator refused this agent: {self._refusal}"))

    def _meet(self, message: dict[str, Any]) -> None:
        if message["epoch"] != self._epoch:  # another coordinator, or the first
            for number in list(self._tasks):
                self._abort(number, "another coordinator has taken over")
            self._epoch, self._newest = message["epoch"], 0
            self._ended.clear()
        self._probe_values, self._alone, self._left_at = message["probe_values"], message["alone"], None
        members = {name: (host, port) for name, (host, port) in message["members"].items()}
        for name, peer in list(self._peers.items()):
            if members.get(name) != peer.address:
                peer.close()
                del self._peers[name]
        copying = message.get("multicast")
        if copying is None:
            self._multicast.carry(None)
        else:
            key = bytes.fromhex(copying["key"])
            self._multicast.carry(Carrier(copying["job"], copying["program_values"], bool(key)), key)
        self._members = members
        self._names = sorted(message["everyone"])
        self._numbers = {name: k for k, name in enumerate(self._names)}
        for timer in self._reopening.values():
            timer.cancel()
        self._reopening.clear()
        self._keep_open()
        self._joined.set()
        for pending in self._pending:
            self._announce(pending)

    def _begin_alike(self, number: int, new: int, round_: int) -> None:
        """A task as the last one that this coordinator has told."""
        if self._latest is None or self._latest.number != number:
            self._tell(type="failed", task=new, reason=f"it is to be as task {number}, which this agent has not taken")
            return
        self._begin(replace(self._latest, number=new, round=round_), checked=True)

    def _begin(self, task: Task, *, checked: bool = False) -> None:
        number, self._latest = task.number, None
        try:
            if not checked:
                task.check()
        except TaskError as error:
            self._tell(type="failed", task=number, reason=str(error))
            return
        self._latest = task
        skip = self._scatter.settle(task)
        execution = Execution(
            task,
            self.node,
            skip=skip,
            post=lambda post: self._post(execution, post),
            finished=lambda: self._finished(execution),
            clock=self._loop.time,
            later=self._loop.call_later,
            state=self._state if self._state is not None and self._state.size == task.values else None,
            progress=lambda receiver, left: self._tell(type="progress", task=number, receiver=receiver, left=left),
        )
        self._tasks[number] = execution
        if task.budget:
            self._loop.call_later(task.budget, self._late, execution)
        self._idle.clear()
        self._newest = max(self._newest, number)
        self._open(task)
        if self.node in task.bringers:
            if not self._pending or self._pending[0].tensor.size != task.values:
                self._tell(type="failed", task=number, reason=f"{self.node} has no {task.values} values")
                return
            self._owners[number] = self._pending.popleft()
            execution.start(self._owners[number].tensor)
        elif self.node in task.participants:
            execution.start(np.empty(task.values, np.float32))
        for tree, chunk, bit, values in self._scatter.collect(task):
            self.counters["early"] += 1
            execution.partial(tree, chunk, bit, values)
        for packet in self._ahead.pop((self._epoch, number), []):
            self._held_bytes -= packet.values.nbytes
            self._copied(packet)
        held = self._held.pop((self._epoch, number), [])
        for header, values in held:
            self._held_bytes -= values.nbytes
            self._arrived(execution, header, values)

    def _keep_open(self) -> None:
        """To everybody, where they are few: with which of them the next task has to do is not known, and a connection
        over several links, or with TLS, takes as long to open as a small task."""
        if self._closing or not kept_open(len(self._names), self.connections):
            return
        for name in self._members:
            if name != self.node and name not in self._reopening:
                self._peer(name)

    def _reopen(self, name: str) -> None:
        del self._reopening[name]
        self._keep_open()

    def _open(self, task: Task) -> None:
        """Connections that the task will need: later, they would be opened behind queues of what it sends."""
        for sender, receiver in task.hops():
            if sender == self.node and receiver in self._members:
                self._peer(receiver).expect()

    def _mend(self, task: Task) -> None:
        """Other agents have taken trees of a task over."""
        number = task.number
        execution = self._tasks.get(number)
        if execution is None or execution.closed or len(task.trees) <= len(execution.task.trees):
            return
        try:
            task.check()
        except TaskError as error:
            self._tell(type="failed", task=number, reason=str(error))
            return
        self._divert(number)  # what is on its way of the old trees must not meet what comes of the new ones
        self.counters["mended"] += 1
        execution.mend(task)
        for header, values in self._held.pop((self._epoch, number), []):
            self._held_bytes -= values.nbytes
            self._arrived(execution, header, values)

    def _hold(self, header: Header, values: Values) -> None:
        """For what has not been announced here yet."""
        if self._held_bytes + values.nbytes > HELD_BYTES:
            self.counters["held too much"] += 1
            return
        self._held.setdefault((header.epoch, header.task), []).append((header, values))
        self._held_bytes += values.nbytes

    def _forget(self, number: int, *, commit: bool = False) -> None:
        execution = self._tasks.pop(number, None)
        for _, values in self._held.pop((self._epoch, number), []):
            self._held_bytes -= values.nbytes
        if execution is not None:
            self._ended[number] = commit
            while len(self._ended) > ENDED:
                del self._ended[next(iter(self._ended))]
            self.counters.update(execution.counters)
            for sender, receiver in execution.task.hops() if self.most_connections > self.connections else ():
                if sender == self.node and receiver in self._peers:
                    self._peers[receiver].adapt(self.most_connections)
            self._multicast.forget(execution.task)
            if execution.fresh is not None and commit:
                self._state = execution.fresh
            elif commit and any(t.state is not None and t.state.sender == self.node for t in execution.task.trees):
                self._state = None  # the next root has it
            execution.close()
        if not self._tasks:
            self._idle.set()

    def _divert(self, number: int) -> None:
        """The trainer gets its tensor back: nothing that comes late may be received into it."""
        for each in list(self._inbound):
            each.divert(number)

    def _abort(self, number: int, reason: str, again: bool = False) -> None:
        self._newest = max(self._newest, number)
        execution = self._tasks.get(number)
        alone = execution is not None and execution.task.keep and self._alone
        self._divert(number)
        if execution is not None and (again or alone):
            execution.restore()
        self._forget(number)
        for packet in self._ahead.pop((self._epoch, number), []):
            self._held_bytes -= packet.values.nbytes
        pending = self._owners.pop(number, None)
        if pending is None:
            return
        if again:
            pending.announced = False
            self._pending.appendleft(pending)
            self._announce(pending)
        elif alone:
            self._go_on(pending)
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
        if self._left_at is not None and self._alone and self._loop.time() > self._left_at + ALONE_SECONDS:
            self._go_alone()
        elif self._members:
            self._announce(pending)

    def _announce(self, pending: _Pending) -> None:
        if not pending.announced and self._membership.there:
            pending.announced = True
            pending.turn = next(self._turns)
            self._tell(type="ready", values=pending.tensor.size, turn=pending.turn)
            self._send_early(pending)

    def _send_early(self, pending: _Pending) -> None:
        """By the default splitting, where there is one for so many values."""
        chunk_values, blocks = self._defaults.get(pending.tensor.size, (1, ()))
        turn = pending.turn
        for owner, chunk in self._scatter.begin(turn, blocks, chunk_values):
            if owner in self._members:
                values = pending.tensor[chunk * chunk_values : (chunk + 1) * chunk_values]
                path = self._numbers[self.node], self._numbers[owner]
                self._dispatch(
                    EARLY_PRIORITY,
                    Header(Kind.EARLY, self._epoch, turn, path, 1, 0, chunk, len(values)),
                    values,
                    partial(self._scatter.sent, turn, owner, chunk),
                    partial(self._scatter.wants, turn),
                )

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
            pending.future.set_result(Done(number, self._mixed(execution.task), seconds))

    def _mixed(self, task: Task) -> tuple[str, ...]:
        """Whose values are in this agent's result."""
        if task.op != "mix":
            return task.participants
        return (self.node, *(tree.root for tree in task.trees if self.node in tree.receivers))

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
                clock=self._stamp,
                on_lost=lambda reason: self._lost(name, reason),
                security=self._security,
            )
        return peer

    def _lost(self, name: str, reason: str) -> None:
        peer = self._peers.pop(name, None)
        if self._closing:
            return
        if name not in self._reopening:
            self._reopening[name] = self._loop.call_later(REOPEN_SECONDS, self._reopen, name)
        if peer is not None and not peer.used:
            return  # nobody misses it
        self._tell(type="lost", node=name, reason=reason)
        if not self._membership.there:
            for number, execution in list(self._tasks.items()):
                if self.node in execution.task.participants and name in execution.task.nodes:
                    self._discard(number, f"{reason}, and there is no coordinator to mend it")

    def _post(self, execution: Execution, post: Post) -> None:
        def go(way: Edge, through: Callable[[], None]) -> None:
            def taken() -> None:
                through()
                execution.sent(post)

            if not execution.closed:
                self._send(execution, post, way, taken)

        if post.edge is not None:
            self._ways.send(execution.task, post.edge, go)
            return
        try:
            self._multicast.send(execution, post, self._epoch)
        except OverlayError as error:
            self._tell(type="failed", task=execution.task.number, reason=str(error))

    def _send(self, execution: Execution, post: Post, edge: Edge, sent: Callable[[], None]) -> None:
        task = execution.task
        path = tuple(self._numbers[name] for name in (self.node, *edge.via, edge.receiver))
        header = Header(
            post.kind, self._epoch, task.number, path, 1, post.tree, post.chunk, len(post.values), post.contributors
        )
        self._dispatch(task.priority, header, post.values, sent, lambda: execution.sends_to(edge.receiver))

    def _control(self, kind: Kind, task: Task, receiver: str, tree: int, values: Values) -> None:
        """What agents say to each other about a task, directly."""
        path = self._numbers[self.node], self._numbers[receiver]
        self._dispatch(task.priority, Header(kind, self._epoch, task.number, path, 1, tree, 0, len(values)), values)

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
        known = header.epoch == self._epoch and header.kind not in (Kind.EARLY, Kind.MISSING)
        execution = self._tasks.get(header.task) if known else None
        if execution is not None and header.last and execution.takes(header.tree, header.chunk, header.values):
            return execution.place(header.kind, header.tree, header.chunk)
        return np.empty(header.values, np.float32)

    def received(self, header: Header, values: Values) -> None:
        if header.epoch == self._epoch and self._probe_values is not None and header.values:
            self._measure(header, values.nbytes * 8e-6)
        if header.kind == Kind.EARLY:
            self._came_early(header, values)
            return
        execution = self._tasks.get(header.task) if header.epoch == self._epoch else None
        if execution is not None:
            self._arrived(execution, header, values)
        elif (header.epoch, header.task) > (self._epoch, self._newest) and header.epoch >= self._epoch:
            self._hold(header, values)
        else:
            self.counters["old task"] += 1

    def _copied(self, packet: Packet) -> None:
        """A packet that switches have copied."""
        execution = self._tasks.get(packet.task) if packet.epoch == self._epoch else None
        if execution is not None:
            self._multicast.arrived(execution, packet)
        elif (packet.epoch, packet.task) > (self._epoch, self._newest) and packet.epoch >= self._epoch:
            if self._held_bytes + packet.values.nbytes <= HELD_BYTES:
                self._ahead.setdefault((packet.epoch, packet.task), []).append(packet)
                self._held_bytes += packet.values.nbytes
        else:
            self.counters["old task"] += 1

    def _stamp(self) -> float:
        """The coordinator's time; nan: it is not known yet."""
        offset = self._membership.offset.seconds
        return math.nan if offset is None else self._clock() + offset

    def _measure(self, header: Header, megabits: float) -> None:
        now, number = self._stamp(), header.path[header.hop - 1]
        if math.isnan(now) or math.isnan(header.stamp) or number >= len(self._names):
            return
        sender = self._names[number]
        mbps = self._throughputs.setdefault(sender, Throughput()).arrived(header.stamp, now, megabits)
        if mbps is not None and self._probe_values is not None and header.values >= self._probe_values:
            self._tell(type="measured", sender=sender, mbps=mbps)

    def _came_early(self, header: Header, values: Values) -> None:
        if header.epoch != self._epoch or header.path[0] >= len(self._names):
            self.counters["old task"] += 1
            return
        tasks = [execution.task for execution in self._tasks.values()]
        sender = self._names[header.path[0]]
        found = self._scatter.came(sender, header.task, header.chunk, values, tasks)
        if found is not None:
            task, tree, chunk = found
            execution = self._tasks[task.number]
            if execution.takes(tree, chunk, header.values):
                self.counters["early"] += 1
                execution.partial(tree, chunk, 1 << task.trees[tree].contributors.index(sender), values)

    def _arrived(self, execution: Execution, header: Header, values: Values) -> None:
        if header.kind == Kind.DISCARD:
            self._discard(execution.task.number, "another agent has given it up", tell=False)
        elif not header.last:
            if max(header.path) < len(self._names):
                self._dispatch(execution.task.priority, header.onward(), values)
        elif header.tree >= len(execution.parts):
            self._hold(header, values)
        elif header.kind in (Kind.SENT, Kind.MISSING):
            sender = header.path[0]
            if sender < len(self._names):
                if header.kind == Kind.SENT:
                    self._multicast.ask(execution, header.tree, self._names[sender])
                else:
                    self._multicast.again(execution, header.tree, values, self._names[sender])
        elif not execution.takes(header.tree, header.chunk, header.values):
            self.counters["no such chunk"] += 1
        elif header.kind == Kind.UP:
            execution.partial(header.tree, header.chunk, header.contributors, values)
        elif header.kind == Kind.STATE:
            execution.kept(header.tree, header.chunk, values)
        else:
            self._multicast.unicast(header.task, header.tree, header.chunk)
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
