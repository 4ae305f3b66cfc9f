"""The members of the overlay, their numbers, and one agent's connections to and from them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, cast
from weakref import WeakSet

from controlplane.planner.plan.task import Task
from overlay.core.errors import MessageError, OverlayError, PeerLost
from overlay.core.message import Header, Kind, Values
from overlay.core.reachability import REMEDY, Reachability
from overlay.core.tcp import Connections
from overlay.net.connector import Connector
from overlay.net.inbound import Inbound, Receiver
from overlay.net.transport import CONNECT_SECONDS, TRIAL_SECONDS, Peer, kept_open

REVERSE_SECONDS = 0.2
"""Seconds after which an agent opens a connection again over which another agent sends to it."""

RETRIAL_SECONDS = 5.0
"""Seconds between two trials to connect to an agent that cannot connect to this one, either."""

REOPEN_SECONDS = 1.0
"""Seconds after which a connection that broke is opened again, before a task needs it."""


class Neighbours:
    """The neighbours of one agent, in its loop.

    Args:
        node: the agent's name.
        loop: its event loop.
        connections: number of connections to each neighbour.
        connector: opens connections.
        clock: returns the time with which messages are stamped.
        lost: called as lost(name, address, reason) when an agent that a task needs cannot be reached at this
            address; None where its address is not known.
        unreached_changed: called when `unreached` has changed.

    Attributes:
        epoch: the epoch of the coordinator and its numbers; 0 where none has been joined.
        members: address at which each member listens.
        reachability: which members can connect to which, as the coordinator has said last.
        unreached: members to which this agent cannot connect: (address, reason) by name.
    """

    def __init__(
        self,
        node: str,
        loop: asyncio.AbstractEventLoop,
        *,
        connections: Connections,
        connector: Connector,
        clock: Callable[[], float],
        lost: Callable[[str, tuple[str, int] | None, str], None],
        unreached_changed: Callable[[], None],
    ) -> None:
        self._node, self._loop = node, loop
        self._connections = connections
        self.connector = connector
        self._clock, self._on_lost, self._on_unreached_changed = clock, lost, unreached_changed
        self.epoch = 0
        self.members: dict[str, tuple[str, int]] = {}
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._paths: dict[tuple[str, ...], tuple[int, ...]] = {}
        self.peers: dict[str, Peer] = {}
        self.inbound: WeakSet[Inbound] = WeakSet()
        self._reopening: dict[str, asyncio.TimerHandle] = {}
        self._closed = False
        self.reachability = Reachability()
        self.unreached: dict[str, tuple[tuple[str, int], str]] = {}
        self._reversing: dict[str, asyncio.Task[None]] = {}  # connections that this agent opens for others to send over
        self._retrying: dict[str, asyncio.Task[None]] = {}  # trials to connect to agents without a link

    # --- members ---

    def set_members(
        self, epoch: int, members: Mapping[str, tuple[str, int]], everyone: Sequence[str],
        reachability: Reachability,
    ) -> None:  # fmt: skip
        """Take the members that the coordinator has named.

        Args:
            epoch: the coordinator's epoch.
            members: address at which each member listens.
            everyone: all agents of the job, members or not. An agent's number is its position in this list, which is
                the same at all agents.
            reachability: which members can connect to which.
        """
        self.reachability = reachability
        self.unreached = {
            name: found for name, found in self.unreached.items() if members.get(name, found[0]) == found[0]
        }  # another process, at another address, has to be tried again
        for name, peer in list(self.peers.items()):
            if members.get(name) != peer.address:
                peer.close()
                del self.peers[name]
        self.epoch, self.members = epoch, dict(members)
        self._names = list(everyone)
        self._numbers = {name: k for k, name in enumerate(self._names)}
        self._paths.clear()
        self._reopen_nothing()
        self._keep_open()
        self._reverse()
        self._retry()

    def name(self, number: int) -> str | None:
        """Return the name of the agent with this number; None where there is none."""
        return self._names[number] if number < len(self._names) else None

    def path(self, *names: str) -> tuple[int, ...]:
        """Return the numbers of these agents."""
        path = self._paths.get(names)
        if path is None:
            path = self._paths[names] = tuple(self._numbers[name] for name in names)
        return path

    # --- which agent opens connections ---

    def _dials(self, name: str) -> bool:
        """Return whether this agent can connect to a member, as far as is known."""
        tried = name in self.unreached and self.unreached[name][0] == self.members.get(name)
        return not tried and self.reachability.dials(self._node, name)

    def linked(self, name: str) -> bool:
        """Return whether this agent or a member can connect to the other one, as far as is known."""
        return self._dials(name) or self.reachability.dials(name, self._node)

    def _trial_failed(self, name: str, reason: str) -> None:
        """Report that this agent cannot connect to a member, so that that one opens the connections."""
        self.unreached[name] = self.members[name], reason
        self._on_unreached_changed()
        self._retry()

    def _retry(self) -> None:
        """Keep trying to connect to each member to which this agent has no link because the trial failed."""
        self._keep(self._retrying, {name for name in self.unreached if not self.linked(name)}, self._keep_trying)

    async def _keep_trying(self, name: str) -> None:
        while not self._closed:
            await asyncio.sleep(RETRIAL_SECONDS)
            try:
                tried = await self.connector.open(asyncio.Protocol(), self.members[name], seconds=TRIAL_SECONDS)
            except (OSError, KeyError):
                continue
            tried.close()
            if self.unreached.pop(name, None) is not None:
                self._on_unreached_changed()
            if name in self.peers:
                self.peers[name].dial()
            return

    def _keep(
        self, running: dict[str, asyncio.Task[None]], wanted: Collection[str],
        run: Callable[[str], Coroutine[Any, Any, None]],
    ) -> None:  # fmt: skip
        """Have exactly the wanted members' coroutines run."""
        for name in [name for name in running if name not in wanted]:
            running.pop(name).cancel()
        for name in wanted:
            if name not in running or running[name].done():
                running[name] = asyncio.ensure_future(run(name))

    # --- connections that others open ---

    def accept(self, receiver: Receiver) -> Inbound:
        """Return the protocol for a connection that another agent opens."""
        self.inbound.add(each := Inbound(receiver, secure=self.connector.security is not None))
        return each

    def check(self, hello: Header, transport: asyncio.BaseTransport) -> None:
        """Check that a connection's certificate is that of the agent that its first message names; raise MessageError
        otherwise.
        """
        if self.connector.security is None:
            return
        # The numbers of another epoch are not known, so the certificate may be that of any agent.
        speaker = self.name(hello.path[0]) if hello.epoch == self.epoch else None
        try:
            self.connector.security.check(transport, "node", speaker)
        except OverlayError as error:
            raise MessageError(str(error)) from None

    def take(self, hello: Header, transport: asyncio.BaseTransport) -> None:
        """Take a connection over which this agent is to send to the agent that has opened it, since it cannot connect
        to that one. Raise MessageError where it is refused.
        """
        self.check(hello, transport)
        name = self.name(hello.path[0]) if hello.epoch == self.epoch else None
        if name is None or name == self._node or name not in self.members or self._dials(name):
            raise MessageError("this agent is to send over the connection, and does not know its other end as an agent "
                               "to which it cannot connect: that one will open it again")  # fmt: skip
        self._loop.call_soon(self._peer(name).take, cast(asyncio.Transport, transport))

    def reverse_with(self, receiver: Receiver) -> None:
        """Set the receiver of what arrives over the connections that this agent opens for others to send over."""
        self._receiver = receiver

    def _reverse(self) -> None:
        """Keep a connection to each agent that cannot connect to this one, over which that agent sends."""
        wanted = {
            name for name in self.members
            if name != self._node and not self.reachability.dials(name, self._node) and self._dials(name)
        }  # fmt: skip
        self._keep(self._reversing, wanted, self._keep_reversed)

    async def _keep_reversed(self, name: str) -> None:
        while not self._closed:
            inbound = self.accept(self._receiver)
            try:
                # The other end sends over it, and does not know which segments this end has found to arrive.
                transport = await self.connector.open(inbound, self.members[name], seconds=CONNECT_SECONDS, small=True)
                if self.connector.security is not None:
                    self.connector.security.check(transport, "node", name)
                transport.write(Header(Kind.REVERSED, self.epoch, 0, self.path(self._node)).pack())
                await inbound.ended.wait()
            except (OSError, OverlayError, KeyError):
                inbound.close()
            await asyncio.sleep(REVERSE_SECONDS)

    def divert(self, task: int, tensor: Values | None) -> None:
        """Have no message that is still arriving received into a task's tensor, which its trainer gets back, and copy
        the parts of it that wait to be sent."""
        for each in list(self.inbound):
            each.divert(task)
        if tensor is not None:
            for peer in self.peers.values():
                peer.detach(task, tensor)

    # --- connections to others ---

    def send(
        self,
        priority: int,
        header: Header,
        values: Values,
        sent: Callable[[], None] = lambda: None,
        wanted: Callable[[], bool] = lambda: True,
        *,
        dropped: Callable[[], None] = lambda: None,
    ) -> None:
        """Send a message to the agent that its header addresses now (`Peer.send`)."""
        name = self._names[header.path[header.hop]]
        try:
            peer = self._peer(name)
        except PeerLost as error:
            dropped()
            self._lost(name, str(error))
        else:
            peer.send(priority, header, values, sent, wanted, dropped=dropped)

    def control(self, kind: Kind, task: Task, receiver: str, tree: int, values: Values) -> None:
        """Send a message about a task, without a chunk, directly to another agent."""
        path = self.path(self._node, receiver)
        self.send(task.priority, Header(kind, self.epoch, task.number, path, 1, tree, 0, len(values)), values)

    def connect_for(self, task: Task) -> None:
        """Open the connections that the task will need: later they would have to wait behind the task's own chunks."""
        for name in self._receivers(task):
            if name in self.members and self.linked(name):  # else the first chunk reports that there is no link
                self._peer(name).expect()

    def adapt(self, task: Task) -> None:
        """Open more connections to neighbours on whose links this task has lost packets (`Peer.adapt`)."""
        for name in self._receivers(task) if self._connections.most > self._connections.least else ():
            if name in self.peers:
                self.peers[name].adapt(self._connections.most)

    def _receivers(self, task: Task) -> dict[str, None]:
        """Return the neighbours to which this agent sends chunks of the task, each once (the keys, in order)."""
        return dict.fromkeys(receiver for sender, receiver in task.hops() if sender == self._node)

    def round_trips(self) -> dict[str, float]:
        """Return the least round trip to each neighbour that is connected, in seconds, as the kernel has seen it."""
        found = {}
        for name, peer in self.peers.items():
            trip = peer.round_trip()
            if trip is not None:
                found[name] = trip
        return found

    def adapt_to(self, name: str) -> None:
        """Open more connections to this agent, if it is a neighbour, where packets to it are lost."""
        if name in self.peers:
            self.peers[name].adapt(self._connections.most)

    def bytes_sent(self) -> dict[str, int]:
        """Return the bytes sent to each neighbour."""
        return {name: peer.bytes_sent for name, peer in list(self.peers.items()) if peer.bytes_sent}

    def close(self) -> None:
        """End all connections, in both directions; none is opened again, and `lost` is not called any more."""
        self._closed = True
        self._reopen_nothing()
        for running in (*self._reversing.values(), *self._retrying.values()):
            running.cancel()
        for each in list(self.inbound):
            each.close()
        for peer in self.peers.values():
            peer.close()

    def _peer(self, name: str) -> Peer:
        peer = self.peers.get(name)
        if peer is None:
            if name not in self.members:
                raise PeerLost(f"{name} is not a member of the overlay now")
            if not self.linked(name):
                raise PeerLost(f"{self.reachability.why_unlinked(self._node, name)}; {REMEDY}")
            peer = self.peers[name] = Peer(
                name,
                self.members[name],
                Header(Kind.HELLO, self.epoch, 0, self.path(self._node)).pack(),
                connections=self._connections.least,
                clock=self._clock,
                on_lost=lambda reason: self._lost(name, reason),
                on_unreached=(lambda reason: self._trial_failed(name, reason)) if self._dials(name) else None,
                connector=self.connector,
            )
        return peer

    def _lost(self, name: str, reason: str) -> None:
        peer = self.peers.pop(name, None)
        address = peer.address if peer is not None else self.members.get(name)
        if self._closed:
            return
        if name not in self._reopening:
            self._reopening[name] = self._loop.call_later(REOPEN_SECONDS, self._reopen, name)
        if peer is None or peer.used:  # else no task needs it
            self._on_lost(name, address, reason)

    def _keep_open(self) -> None:
        """Open the connections to all members, in a job with few agents: which of them the next task needs is not
        known, and a connection over several links or with TLS takes as long to open as a small task.
        """
        if self._closed or not kept_open(len(self._names), self._connections.least):
            return
        for name in self.members:
            if name != self._node and name not in self._reopening and self.linked(name):
                self._peer(name)

    def _reopen(self, name: str) -> None:
        del self._reopening[name]
        self._keep_open()

    def _reopen_nothing(self) -> None:
        for timer in self._reopening.values():
            timer.cancel()
        self._reopening.clear()
