"""A host's agent, as a trainer uses it: it joins the coordinator, submits values, and waits for their mean or sum."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from controlplane.common.descriptors import HANDSHAKE_SECONDS
from controlplane.planner.plan.task import Task
from overlay.core.errors import Late, NameTaken, OverlayError
from overlay.core.execution import Execution
from overlay.core.message import Values
from overlay.core.reachability import REMEDY, Reachability
from overlay.core.tcp import ONE_OR_MORE, Connections
from overlay.net.connector import Connector
from overlay.net.deputy import Deputies
from overlay.net.dispatcher import Dispatcher
from overlay.net.eager_scatter import EagerScatter
from overlay.net.front import Front
from overlay.net.loop import listening_at, new_event_loop
from overlay.net.membership import Membership
from overlay.net.multicast import Carrier
from overlay.net.neighbours import Neighbours
from overlay.net.pending_messages import PendingMessages
from overlay.net.reliable_multicast import ReliableMulticast
from overlay.net.site_services import SiteServices
from overlay.net.submissions import About, Done, Submission, Submissions
from overlay.net.tasks import AgentParts, Tasks
from overlay.net.tls import Security
from overlay.net.told import unpacked
from overlay.net.transport import end_all
from overlay.net.withdrawals import ANSWER_SECONDS, Withdrawals

__all__ = ["Agent", "Copy", "Done"]

NOWHERE = "", 0
"""Value of `advertise` for an agent that others cannot reach, so that it opens all connections itself."""

JOIN_SECONDS = 30.0

UNANSWERED_SECONDS = ANSWER_SECONDS + 1.0
"""Longest wait of a trainer, after its timeout has passed, for its agent to say which agents are missing. The agent of
a busy machine, or one that plans as a deputy, may not come to that for longer.
"""

_log = logging.getLogger("inart")


@dataclass(frozen=True)
class Copy:
    """Values that another agent sent to this one, beside this agent's own (SelMcast, SSP)."""

    sender: str
    task: int
    values: Values


class Agent:
    """One agent, in a thread of its own. Methods may be called from any thread.

    Args:
        coordinator: (host, port) of the coordinator; a host name is resolved for each connection.
        node: the agent's name, a worker of the job.
        listen: (host, port) at which other agents connect to this one. Port 0 is any free one. With the host
            0.0.0.0 the agent listens at all addresses, and others are told the address that the coordinator sees.
        advertise: (host, port) that others are told instead (behind address translation), with port 0 for the one
            of `listen`; NOWHERE where they cannot connect to this agent.
        connections: number of TCP connections to each neighbour.
        security: TLS (tls.py); None for plaintext.
        clock: returns seconds since any time; the clocks of agents need not agree.
        log: gets each line of log; None for the module's logger.

    Attributes:
        membership: the connection to a coordinator.
        neighbours: the connections to other agents.
        submissions: values that have no result yet.
        tasks: the tasks that run.
        loop: the event loop of the agent's thread, the only thread in which these are changed.
    """

    def __init__(
        self,
        coordinator: tuple[str, int],
        node: str,
        *,
        listen: tuple[str, int],
        advertise: tuple[str, int] | None = None,
        connections: Connections = ONE_OR_MORE,
        security: Security | None = None,
        clock: Callable[[], float] = time.monotonic,
        log: Callable[[str], None] | None = None,
    ) -> None:
        self.node, self.coordinator, self.listen, self.connections = node, coordinator, listen, connections
        self.advertise = advertise
        self.counters: Counter[str] = Counter()
        self._security = security
        self._log = log or _log.info
        self._inbox: deque[Copy] = deque()
        self._said: dict[str, str] = {}  # the last words about links, by member
        self._closing = False
        self._joined = threading.Event()
        self._refusal: OverlayError | None = None
        self.loop = new_event_loop()
        self._compose(clock)
        self._thread = threading.Thread(target=self._run, name=f"overlay {node}", daemon=True)
        self._thread.start()

    def _compose(self, clock: Callable[[], float]) -> None:
        """Make the agent's parts, each of which is given the ones before it that it uses."""
        node, coordinator, counters = self.node, self.coordinator, self.counters
        self._pending_messages = PendingMessages(counters)

        def log(line: str) -> None:
            self._log(f"{node}: {line}")

        connector = Connector(self._security)
        self.membership = Membership(
            coordinator, hello=self._hello, on_message=self._on_message, on_disconnected=self._on_disconnected,
            clock=clock, connector=connector, log=log,
            deputy=lambda: self._deputies.found(self.membership),
        )  # fmt: skip
        self.neighbours = Neighbours(
            node, self.loop, connections=self.connections, connector=connector, clock=self.membership.now,
            lost=self._lost, unreached_changed=self._report_unreached,
        )  # fmt: skip
        self._multicast = ReliableMulticast(
            node, self.listen[0], self.loop, received=lambda packet: self.dispatcher.packet_received(packet),
            control=self.neighbours.control, counters=counters, log=log,
        )  # fmt: skip
        self._eager_scatter = EagerScatter(node, self.neighbours, counters)
        self.submissions = Submissions(
            node, self.loop, membership=self.membership, eager_scatter=self._eager_scatter, counters=counters,
        )  # fmt: skip
        parts = AgentParts(
            self.membership, self.neighbours, self._multicast, self.submissions, self._eager_scatter,
            self._pending_messages,
        )  # fmt: skip
        self.tasks = Tasks(
            node, self.loop, parts, counters=counters,
            copied=lambda *copy: self._inbox.append(Copy(*copy)), log=log,
        )  # fmt: skip
        self._withdrawals = Withdrawals(node, self.loop, self.membership, self.submissions, self.tasks)
        self.site = SiteServices(node, self.loop, self.membership, self.neighbours)
        self._deputies = Deputies(
            node, coordinator, self.site, self.neighbours, listens=lambda: self.listen, security=self._security,
            log=log,
        )  # fmt: skip
        self.dispatcher = Dispatcher(parts, self.tasks, self.site, counters=counters, log=log)

    # --- for trainers ---

    def wait_joined(self, timeout: float = JOIN_SECONDS) -> None:
        """Return when the coordinator has accepted this agent. Raise OverlayError when the coordinator refuses the
        agent (NameTaken where another one has its name), or does not answer within `timeout` seconds.
        """
        if not self._joined.wait(timeout):
            host, port = self.coordinator
            raise OverlayError(f"{self.node}: the coordinator at {host}:{port} did not answer within {timeout:.0f} s")
        if self._refusal:
            raise self._refusal

    def synchronise_async(self, tensor: Values, about: About | None = None) -> concurrent.futures.Future[Done]:
        """Submit these values, and return a future that ends when the result has replaced them. It raises PeerLost or
        OverlayError; the tensor then has the submitted values again.

        Args:
            tensor: float32, one dimension, contiguous; not to be touched before the future ends.
            about: description of the values, for policies whose members come and go.

        Raises:
            ValueError: the tensor is of another kind.
        """
        return self._submit(tensor, about).future

    def _submit(self, tensor: Values, about: About | None, timeout: float | None = None) -> Submission:
        if tensor.dtype != np.float32 or tensor.ndim != 1 or not tensor.flags.c_contiguous or not tensor.size:
            raise ValueError("synchronise needs a contiguous float32 array of one dimension with values in it")
        submission = Submission(tensor, about, ends=None if timeout is None else time.monotonic() + timeout)
        try:
            self.loop.call_soon_threadsafe(self._submit_in_loop, submission)
        except RuntimeError:  # the loop is closed
            submission.future.set_exception(OverlayError(f"{self.node}: the agent was closed"))
        return submission

    def synchronise(self, tensor: Values, timeout: float | None = None, *, about: About | None = None) -> Done:
        """Submit these values and wait until the result has replaced them (`synchronise_async`).

        Args:
            tensor: float32, one dimension, contiguous.
            timeout: seconds after which the round is given up for all its agents. Where members come and go, the round
                then goes on without this trainer, and the tensor is not to be touched any more.
            about: description of the values, for policies whose members come and go.

        Raises:
            Late: the timeout has passed; a TimeoutError that names the agents whose values are missing.
            ValueError, PeerLost, OverlayError: as for `synchronise_async`.
        """
        submission = self._submit(tensor, about, timeout)
        try:
            return submission.future.result(timeout)
        except TimeoutError:
            if submission.future.done():
                return submission.future.result()
        try:
            self.loop.call_soon_threadsafe(self._withdrawals.give_up, submission, f"no result within {timeout:g} s")
            return submission.future.result(None if about is None else UNANSWERED_SECONDS)
        except (OverlayError, RuntimeError) as error:
            raise Late(str(error)) from None
        except TimeoutError:  # the submission is withdrawn as soon as the loop comes to it
            busy = f"{self.node}: no result within {timeout:g} s, and this site's own agent is too busy to say why"
            raise Late(busy) from None

    def copies(self) -> list[Copy]:
        """Return the copies that other agents have sent since the last call, in the order of their completion."""
        found = []
        while self._inbox:
            found.append(self._inbox.popleft())
        return found

    def statistics(self) -> dict[str, Any]:
        """Return the bytes sent to each neighbour, the bytes of multicasts on each link of the network, and the agent's
        counters.
        """
        sent, copied = self.neighbours.bytes_sent(), dict(self._multicast.copied)
        return {"node": self.node, "bytes_sent": sent, "bytes_copied": copied, **self.counters}

    def leave(self, timeout: float = 30.0) -> None:
        """Close the agent when no task needs it any more (it may pass on chunks for others), or after `timeout`
        seconds.
        """
        self.tasks.idle.wait(timeout)
        self.close()

    def close(self) -> None:
        """Close the agent at once. Synchronisations that have not ended raise OverlayError."""
        if self._thread.is_alive():
            with contextlib.suppress(RuntimeError):  # the agent is ending already, and its loop is closed
                self.loop.call_soon_threadsafe(self._end)
            self._thread.join(10)

    # --- the loop ---

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._main())
        finally:
            self.loop.close()

    async def _main(self) -> None:
        self._stop = asyncio.Event()
        context = self._security.serve if self._security else None
        host, port = self.listen

        def accept() -> Front:
            return Front(lambda: self.neighbours.accept(self.dispatcher), self._deputies.serve)

        server = None
        if self.advertise != NOWHERE:
            wait = HANDSHAKE_SECONDS if context else None
            where = listening_at(host, port)
            server = await self.loop.create_server(accept, **where, ssl=context, ssl_handshake_timeout=wait)
            self.listen = (host, server.sockets[0].getsockname()[1])
        joining = asyncio.ensure_future(self.membership.run())
        await self._stop.wait()
        joining.cancel()
        if server is not None:
            server.close()
        self._deputies.close()
        self.neighbours.close()
        self._multicast.close()
        self.tasks.abort_all(f"{self.node}: the agent was closed")
        self.submissions.fail_all(OverlayError(f"{self.node}: the agent was closed"))
        self.site.fail_all(OverlayError(f"{self.node}: the agent was closed"))
        self.membership.close()
        await end_all()

    def _end(self) -> None:
        self._closing = True
        self._stop.set()

    def _submit_in_loop(self, submission: Submission) -> None:
        if self._closing or self._refusal:
            submission.future.set_exception(self._refusal or OverlayError(f"{self.node}: the agent was closed"))
            return
        self.submissions.submit(submission)

    def _lost(self, name: str, address: tuple[str, int] | None, reason: str) -> None:
        if not self._closing:
            self.tasks.lost(name, address, reason)

    # --- the coordinator ---

    def _hello(self) -> dict[str, Any]:
        """Return the message with which the agent joins: its address, and its tasks (AgentState)."""
        self.submissions.forget_announcements()
        host, port = self.listen
        if self.advertise is not None and self.advertise != NOWHERE:
            host, port = self.advertise[0], self.advertise[1] or port
        return {
            "node": self.node, "host": host, "port": port, "inbound": self.advertise != NOWHERE,
            "epoch": self.neighbours.epoch, "history": self.site.history, "unreached": self.neighbours.unreached,
            **self.tasks.report(),
        }  # fmt: skip

    def _report_unreached(self) -> None:
        """Tell the coordinator to which members this agent cannot connect."""
        self.membership.tell(type="unreached", others=self.neighbours.unreached)

    def _say_reachability(self) -> None:
        """Log with which members this agent has no link, and for which it opens the connections, as that changes."""
        reach, found = self.neighbours.reachability, dict[str, str]()
        for name in self.neighbours.members.keys() - {self.node}:
            why = reach.unreached.get((name, self.node))
            if not reach.linked(name, self.node):
                found[name] = f"no link to {name}: {reach.why_unlinked(self.node, name)}; {REMEDY}"
            elif why is not None:
                found[name] = f"{name} cannot connect to this agent at {why}: this one opens the connections"
        for name, words in found.items():
            if self._said.get(name) != words:
                (self._log if reach.linked(name, self.node) else _log.warning)(f"{self.node}: {words}")
        self._said = found

    def _on_disconnected(self) -> None:
        """React to the loss of the coordinator, or to its absence at the start."""
        self.site.coordinator_left()
        self.submissions.coordinator_left()
        self.tasks.coordinator_left()

    def _on_message(self, message: dict[str, Any]) -> None:
        """Do what the coordinator's message demands."""
        kind = message["type"]
        if kind == "members":
            self._set_members(message)
        elif kind == "default":
            blocks = tuple((str(owner), int(first), int(size)) for owner, first, size in message["blocks"])
            self._eager_scatter.set_default_split(message["values"], message["chunk_values"], blocks)
        elif kind == "task":
            self._begun(self.tasks.begin(unpacked(message)))
        elif kind == "alike":
            self._begun(self.tasks.begin_alike(message["as"], message["task"], message["round"]))
        elif kind == "mend":
            execution = self.tasks.mend(Task.from_json(message["task"]))
            if execution is not None:
                self.dispatcher.mended(execution)
        elif kind == "done":
            self.tasks.done(message["task"])
        elif kind == "abort":
            self.tasks.abort(message["task"], message["reason"], message["again"])
        elif kind == "let go":
            self.tasks.let_go(message["task"], message["reason"])
        elif kind == "drop":
            self.tasks.drop(message["task"], message["lost"])
        elif kind == "pace":
            self.tasks.pace(message["task"], message["mbps"])
        elif kind == "go":
            self.submissions.release(message["task"])
        elif kind == "alone":
            self.submissions.first_alone()
        elif kind == "unmet":
            self._withdrawals.reject(message["turn"], message["reason"], message)
        elif kind == "site":
            self.site.said(message)
        elif kind == "waits":
            self._log(f"{self.node}: waits for others: {message['reason']}")
        elif kind == "gathering":
            self._joined.set()
        elif kind == "refused":
            reason = f"the coordinator refused this agent: {message['reason']}"
            self._refusal = (NameTaken if message.get("taken") else OverlayError)(f"{self.node}: {reason}")
            self._joined.set()
            self.tasks.abort_all(reason)
            self.submissions.fail_all(self._refusal)
            self.site.fail_all(self._refusal)
            self.membership.end()  # or others would wait for values that this agent cannot submit

    def _begun(self, execution: Execution | None) -> None:
        if execution is not None:
            self.dispatcher.begun(execution)

    def _set_members(self, message: dict[str, Any]) -> None:
        """Take the members' names and addresses, and the form of messages, from a coordinator that has begun to act."""
        if message["epoch"] != self.neighbours.epoch:  # the coordinator is another one than before, or the first one
            self.tasks.new_epoch()
            self._pending_messages.forget_before(message["epoch"])
        self.dispatcher.probe_values, self.submissions.may_go_alone = message["probe_values"], message["alone"]
        copying = message.get("multicast")
        if copying is None:
            self._multicast.configure(None)
        else:
            key = bytes.fromhex(copying["key"])
            self._multicast.configure(Carrier(copying["job"], copying["program_values"], bool(key)), key)
        members = {name: (host, port) for name, (host, port) in message["members"].items()}
        unreached = {(agent, other): reason for agent, other, reason in message["unreached"]}
        reachability = Reachability(frozenset(message["hidden"]), unreached)
        self.neighbours.set_members(message["epoch"], members, message["everyone"], reachability)
        self._say_reachability()
        self._eager_scatter.introduced(self.tasks.running)
        self._joined.set()
        self.tasks.coordinator_acts()
        self.site.introduced()
        self.submissions.announce()
