"""The overlay's coordinator: agents join it, and it tells them the tasks that a policy decides on."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from controlplane.common import dual_stack
from controlplane.common.descriptors import HANDSHAKE_SECONDS, IDLE_SECONDS
from controlplane.planner.plan.task import Task
from controlplane.planner.strategies.wan.policy import Back, Event, Lost, Policy, Tick
from overlay.core.errors import OverlayError
from overlay.core.site_quorum import SiteQuorum
from overlay.net import liveness, site_web
from overlay.net.connector import SMALL_SEGMENT_BYTES
from overlay.net.leadership import STANDBY, Leadership, Office
from overlay.net.liveness import ALIVE_SECONDS, alive
from overlay.net.loop import listening_at, new_event_loop
from overlay.net.members import Member, Members
from overlay.net.multicast import Seal
from overlay.net.policy_driver import PolicyDriver
from overlay.net.recovery import AgentState
from overlay.net.tls import Security
from overlay.net.transport import end_all

if TYPE_CHECKING:
    from overlay.net.replication import Replication

REMIND_SECONDS = 10.0
"""Time, in seconds, after which agents whose submissions wait are told which agents are missing, for their logs."""

ANYWHERE = ("", "0.0.0.0", "::")
"""Hosts of agents that listen at all addresses: others reach such an agent at the address that it connects from."""


class Desk(Protocol):
    """The work of a coordinator for its members beside tasks (site_desk.py). All methods are called in the
    coordinator's loop.
    """

    def attach(self, loop: asyncio.AbstractEventLoop, members: Members, driver: PolicyDriver) -> None:
        """Take the coordinator's parts, before any agent joins."""
        ...

    def joined(self, node: str) -> None:
        """Handle that a member has joined and has been introduced to the others."""
        ...

    def left(self, node: str) -> None:
        """Handle that a member is lost."""
        ...

    def reachability_changed(self) -> None:
        """Handle that other members than before can connect to each other."""
        ...

    def said(self, node: str, message: dict[str, Any]) -> None:
        """Handle a member's message of the type "site"."""
        ...

    def ended(self) -> None:
        """End the desk's work: this coordinator acts no more, and has disconnected all members."""
        ...

    def status(self) -> dict[str, Any]:
        """Return the desk's state for people, as an object of JSON."""
        ...


class Coordinator:
    """A coordinator: a server in a thread of its own, and a context manager.

    A coordinator that was restarted learns from the agents which tasks are running. When the policy can continue with
    those, trainers notice nothing; when it cannot, or agents report different epochs, the tasks are given up. A policy
    with a method `admit` lets agents of any name join to which that method does not object.

    Args:
        policy: decides on tasks.
        host, port: where agents join; port 0 is any free one.
        probe_values: agents report the throughput of chunks of at least this many values; None for no reports.
        security: TLS; None for plaintext.
        replication: the switches that copy multicasts (L3), closed with the coordinator; None where no switch
            copies, and no task may need that.
        desk: handles the members' messages that are not about tasks (site_desk.py).
        quorum: decides whether this coordinator may act (site_quorum.py); None for a new one.
        log: gets each line of log.
        finished: called as finished(task, seconds) when all agents have their results of a task; the slowest of
            them took so many seconds.

    Attributes:
        address: (host, port) at which it listens.
        members: the agents that are connected, by name.
        leadership: whether this coordinator acts, and what it waits for before it does.
        driver: the tasks that run.
        loop: the event loop of the coordinator's thread, the only thread in which these are changed.

    Raises:
        OSError: it cannot listen.
    """

    def __init__(  # noqa: PLR0913  (options by keyword)
        self,
        policy: Policy,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        probe_values: int | None = None,
        security: Security | None = None,
        replication: Replication | None = None,
        desk: Desk | None = None,
        quorum: SiteQuorum | None = None,
        log: Callable[[str], None] = lambda line: None,
        finished: Callable[[Task, float], None] = lambda task, seconds: None,
    ) -> None:
        self.policy, self.probe_values, self._security = policy, probe_values, security
        self._replication, self._log = replication, log
        self._key = (
            Seal.draw() if security is not None else b""
        )  # seals packets that switches copy; sent to members over TLS only
        self.loop, self.members = self._own_loop(), Members()
        self.driver = PolicyDriver(policy, self.members, replication=replication, log=log, on_finished=finished)
        self.desk = desk
        if desk is not None:
            desk.attach(self.loop, self.members, self.driver)
        self.leadership = Leadership(
            self.loop, self.members, self.driver, quorum or SiteQuorum(),
            Office(self.introduce, self._began, self.said, self._ended), log=log,
        )  # fmt: skip
        self._reminded = ""  # the last words to waiting agents about which agents are missing
        self._started, self.address = threading.Event(), (host, port)
        self._error: BaseException | None = None
        self._start()

    def _own_loop(self) -> asyncio.AbstractEventLoop:
        return new_event_loop()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="overlay coordinator", daemon=True)
        self._thread.start()
        self._started.wait()
        if self._error is not None:
            raise self._error

    @property
    def active(self) -> bool:
        """Whether this coordinator acts, that is, begins tasks."""
        return self.leadership.active

    def tell(self, event: Event) -> None:
        """Give the policy an event from outside (bandwidths that the network tells). May be called from any thread."""
        self.loop.call_soon_threadsafe(self.driver.handle, event)

    def close(self) -> None:
        """End the coordinator; agents go on with their tasks, and try to join again."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(10)

    def __enter__(self) -> Coordinator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- the loop ---

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._main())
        except BaseException as error:
            self._error = error
        finally:
            self._started.set()
            self.loop.close()
            if self._replication is not None:
                self._replication.close()

    async def _main(self) -> None:
        self._stop = asyncio.Event()
        host, port = self.address
        context = self._security.serve if self._security else None
        server = await asyncio.start_server(
            self.serve,
            **listening_at(host, port),
            ssl=context,
            ssl_handshake_timeout=HANDSHAKE_SECONDS if context else None,
            limit=1 << 20,
        )
        self.address = (host, server.sockets[0].getsockname()[1])
        for each in server.sockets:  # for connections of either direction, whatever links are on the way
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, SMALL_SEGMENT_BYTES)
        self._started.set()
        watching = asyncio.ensure_future(self._watch())
        await self._stop.wait()
        watching.cancel()
        server.close()
        for member in list(self.members.values()):
            member.writer.close()
        await end_all()

    async def _watch(self) -> None:
        """Find members that are silent, and remind agents that wait, every second."""
        while True:
            await asyncio.sleep(ALIVE_SECONDS)
            for member in list(self.members.values()):
                if self.members.get(member.node) is not member:
                    continue  # it was disconnected when another member was lost
                member.silence.tick()
                if member.silence.seconds > liveness.FROZEN_SECONDS:
                    self._gone(member, f"{member.node}'s host answers, and {member.node} itself has said nothing for "
                               f"{liveness.FROZEN_SECONDS:.0f} s: it counts as lost")  # fmt: skip
            self._remind()
            if getattr(self.policy, "ticks", False) and self.active:
                quiet = (name for name, each in self.members.items() if each.silence.seconds >= liveness.QUIET_SECONDS)
                self.driver.handle(Tick(frozenset(quiet)))

    def _remind(self) -> None:
        """Tell agents whose submissions have waited for a while which agents are missing, once for each change."""
        late = self.driver.pending.waiting(time.monotonic() - REMIND_SECONDS)
        reason = self.driver.pending.missing(self.members) if late else ""
        if reason and reason != self._reminded:
            self._log(f"{', '.join(late)} wait: {reason}")
            self.members.tell(late, type="waits", reason=reason)
        self._reminded = reason

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection until it ends: of an agent, a command, a browser, or a deputy."""
        member: Member | None = None
        ended = "has left"
        try:
            while True:
                async with asyncio.timeout(IDLE_SECONDS if member is None else None):
                    line = await reader.readline()
                if not line:
                    break
                web = member is None and line.startswith(b"GET ") and self.desk is not None
                message: Any = None if web else json.loads(line)
                if (answer := self._admitted(message, writer)) is not None:
                    writer.write(json.dumps(answer).encode() + b"\n")
                    if answer["type"] == "refused":
                        break
                    continue
                if web:
                    await site_web.answer(line, reader, writer, self.status)
                    break
                if not isinstance(message, dict):
                    raise ValueError(f"a message is an object with a type, got {line[:40]!r}")
                if member is None and message.get("type") == "status" and self.desk is not None:
                    writer.write(json.dumps(self.status()).encode() + b"\n")
                elif member is None and message.get("type") == "alive":
                    writer.write(alive(message))
                elif member is None:
                    member = self._join(message, writer)
                    if member is None:
                        await writer.drain()
                        break
                elif self.members.get(member.node) is not member:
                    break  # it has joined again, or was let go: messages over this connection are void
                else:
                    member.silence.heard()
                    self.said(member.node, message)
        except asyncio.CancelledError:
            pass  # the coordinator ends
        except OSError as error:
            ended = f"cannot be reached any more: {error}"
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            who = member.node if member else "an agent that had not joined"
            self._log(f"closed the connection of {who}: its message cannot be read: {error!r}")
        finally:
            writer.close()
            if member is not None and self.members.get(member.node) is member:
                self._gone(member, f"{member.node} {ended}")

    def _admitted(self, message: Any, writer: asyncio.StreamWriter) -> dict[str, str] | None:
        """Return the answer to a connection that may not speak, or to a request for a certificate; None for others."""
        admission = self._security.admission if self._security is not None else None
        if admission is None:
            return None
        try:
            return admission.answer(message, writer.get_extra_info("peercert") or {})
        except OverlayError as error:
            return {"type": "refused", "reason": str(error)}

    # --- members ---

    def _join(self, message: dict[str, Any], writer: asyncio.StreamWriter) -> Member | None:
        """Let an agent join, and return the new member; return None where the agent is refused, and tell it so."""
        node, host = str(message["node"]), str(message["host"])
        if not self.leadership.quorum.admits(node):
            writer.write(STANDBY)
            return None
        seen = dual_stack.plain(str(writer.get_extra_info("peername")[0]))
        address = seen if host in ANYWHERE else host, int(message["port"])
        before = self.members.get(node)
        taken = before is not None and before.address != address
        reason = self._objection(message, node, before if taken else None, writer)
        if reason is not None:
            writer.write(json.dumps({"type": "refused", "reason": reason, "taken": taken}).encode() + b"\n")
            return None
        state = AgentState.of(message)
        self.leadership.observe(node, message)
        if before is not None:  # the same agent, of whose connection's end this process has not heard yet
            self._gone(before, f"{node} joins again")
        liveness.end_when_unreached(writer.transport, liveness.UNREACHED_SECONDS)
        member = Member(node, address, writer, state, inbound=bool(message.get("inbound", True)))
        member.could_not_reach(message.get("unreached", {}))
        self.members[node] = member
        self._log(f"{node} joined ({len(self.members)} here now)")
        if not self.active:
            self.leadership.gather(member)
            return member
        self.introduce()
        for split in self.driver.default_splits.values():
            self.members.tell((node,), **split)
        for number, (task, _) in state.running.items():
            given_up = state.epoch == self.leadership.epoch and number not in self.driver.running
            if given_up:  # the task was given up while the agent was away
                self.members.tell((node,), type="abort", task=number, reason=f"{node} was lost", again=task.keep)
        self.driver.handle(Back(node))
        if self.desk is not None:
            self.desk.joined(node)
        return member

    def status(self) -> dict[str, Any]:
        return {"acts": self.active, **(self.desk.status() if self.desk is not None else {})}

    def _began(self) -> None:
        if self.desk is not None:
            for name in list(self.members):
                self.desk.joined(name)

    def _ended(self) -> None:
        if self.desk is not None:
            self.desk.ended()

    def _objection(
        self, message: dict[str, Any], node: str, other: Member | None, writer: asyncio.StreamWriter
    ) -> str | None:
        """Return why this agent may not join; None where it may. `other` is the agent that has its name already."""
        if message.get("type") != "join":
            return "the first message must be of the type join"
        admit = getattr(self.policy, "admit", None)
        if admit is None and node not in self.policy.nodes:
            return f"{node} has no part in this job; it has {', '.join(self.policy.nodes)}"
        if other is not None:
            return f"{node} is there already, at {other.address[0]}:{other.address[1]}"
        if self._security is not None:
            try:
                self._security.check(writer.transport, "node", node)
            except OverlayError as error:
                return str(error)
        return None if admit is None else admit(node)

    # --- messages ---

    def introduce(self) -> None:
        """Tell all members who the members are, and which of them can connect to which."""
        reachability = self.members.reachability()
        self.members.tell(
            self.members,
            type="members",
            term=self.leadership.quorum.term,
            epoch=self.leadership.epoch,
            everyone=self.policy.nodes,
            hidden=sorted(reachability.hidden),
            unreached=[[*pair, reason] for pair, reason in reachability.unreached.items()],
            members={name: member.address for name, member in self.members.items()},
            probe_values=self.probe_values,
            alone=getattr(self.policy, "alone", False),
            multicast=self.multicast_format(),
        )

    def _reported(self, node: str, others: dict[str, Any]) -> None:
        """Take a member's report of others to which it cannot connect, so that these open the connections."""
        before = self.members.reachability()
        self.members[node].could_not_reach(others)
        now = self.members.reachability()
        if now == before:
            return
        for pair, reason in now.unreached.items() - before.unreached.items():
            self._log("{} cannot connect to {} at {}".format(*pair, reason))
        if self.active:
            self.introduce()
            if self.desk is not None:
                self.desk.reachability_changed()

    def multicast_format(self) -> dict[str, int | str] | None:
        if self._replication is None:
            return None
        carrier = self._replication.carrier
        return {"job": carrier.job, "program_values": carrier.program_values, "key": self._key.hex()}

    def _gone(self, member: Member, reason: str) -> None:
        """Handle that a member is lost."""
        del self.members[member.node]
        member.writer.close()
        self._log(reason)
        self.driver.pending.clear(member.node)
        if self.leadership.member_gone():
            self.introduce()
            self.driver.handle(Lost(member.node))
            if self.desk is not None:
                self.desk.left(member.node)

    def said(self, node: str, message: dict[str, Any]) -> None:
        """Handle a member's message; the policy hears of it when this coordinator acts."""
        if message["type"] == "alive":
            self.members[node].tell(alive(message))
        elif message["type"] == "unreached":
            self._reported(node, message["others"])
        elif not self.active:
            self.leadership.hold_back(node, message)
        elif message["type"] == "site" and self.desk is not None:
            self.desk.said(node, message)
        else:
            self.driver.said(node, message)
