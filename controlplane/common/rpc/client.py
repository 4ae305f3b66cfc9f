"""An agent's client of the controller: it stays joined over reconnects, and passes events to a listener."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import grpc
from google.protobuf.message import Message

from controlplane.common.agentconfig import AgentConfig, ReroutedTree, Role
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.common.rpc.channels import (
    KEEPALIVE,
    KEEPALIVE_OF_SEVERAL,
    answers,
    check_address,
    each_address,
    open_channel,
)
from controlplane.common.rpc.stubs import ControllerStub
from controlplane.common.rpc.tls import Tls, credentials

REPORT_SECONDS = 5.0
LEAVE_SECONDS = 5.0
STATUS_SECONDS = 10.0
REPLAN_SECONDS = 300.0
FIRST_PAUSE_SECONDS = 0.1
LAST_PAUSE_SECONDS = 2.0
PAUSE_OF_SEVERAL_SECONDS = 0.3
ONE_OF_SEVERAL_SECONDS = 2.0
"""Longest wait for a connection to one of several controllers, in seconds, before the next one is tried."""
SAID_AGAIN_SECONDS = 60.0
"""Seconds after which the same reason for an unreachable controller is reported again."""
MOST_DETAILS = 100
"""Longest text of a gRPC error that is shown, in characters."""

DENIALS = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)
REFUSALS = (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT, *DENIALS)
"""Status codes of errors whose message needs no explanation."""
SILENCES = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
"""Status codes of a call without an answer: it is not known what has become of the request."""


class ControllerError(Exception):
    """The controller cannot be reached or refuses; the message names it and says what to do."""


class NoAnswer(ControllerError):
    """No controller has answered: none leads now, or the one that was asked has ended meanwhile. The request may have
    been carried out, or not."""


class Listener(Protocol):
    """A receiver of the events of an agent.

    The membership's thread calls the methods one at a time; they must not block for long.
    """

    def on_waiting(self, missing: tuple[str, ...], reason: str) -> None:
        """Take note that the job waits for the nodes `missing` or, with a reason, that it goes on without this agent
        for now."""

    def on_configuration(self, config: AgentConfig) -> None:
        """Run with this configuration from now on. If its epoch and content are those that run, go on."""

    def on_abort(self, reason: str, nodes: tuple[str, ...]) -> None:
        """Stop, for this reason: these nodes are gone."""

    def on_refused(self, reason: str) -> None:
        """Take note that the controller does not accept this agent. No event follows."""

    def on_prepare(self, config: AgentConfig, again: bool) -> None:
        """Set up a new plan version beside the running one, hold new operations back, and report. With `again`, stop
        operations under way; they are started again under the new version."""

    def on_switch_over(self, epoch: int, first_operation: int, given: Mapping[int, int]) -> None:
        """Use the prepared version from this operation of the running epoch on. `given` are operations whose results
        come from another worker, with that worker's number."""

    def on_withdraw(self, epoch: int, reason: str) -> None:
        """Drop the prepared version, since the job does not migrate to it."""

    def on_rerouted(self, trees: Sequence[ReroutedTree]) -> None:
        """Take note that these trees were rerouted around a failure."""

    def on_retire(self, epoch: int) -> None:
        """Drop the versions before `epoch`, which no agent needs any more."""

    def on_unreachable(self, reason: str) -> None:
        """Take note that the controller does not answer. The client tries again until `close`, and what runs may
        go on."""


@dataclass(frozen=True)
class Identity:
    """The identity under which an agent joins.

    Attributes:
        node: its name, or "" where the controller is to find the node by one of the addresses.
        agent: a random word, which tells this process from others.
        job: the job's name, by default $INART_JOB; "" for the only job with that node.
        take_over: replace another process that has joined as this node, instead of being refused.
    """

    node: str
    addresses: tuple[str, ...]
    role: Role
    version: int
    agent: str = field(default_factory=lambda: secrets.token_hex(8))
    job: str = field(default_factory=lambda: os.environ.get("INART_JOB", ""))
    take_over: bool = False
    process: str = field(default_factory=lambda: f"process {os.getpid()} on {socket.gethostname()}")


class Membership:
    """Keeps an agent joined from `start` to `close`.

    `controller` is the controller's address, or those of several controllers with commas between. Of several, the one
    that leads answers; it is looked for again when it does not answer any more.
    """

    def __init__(self, controller: str, identity: Identity, listener: Listener, tls: Tls | None = None) -> None:
        self.controller = controller
        self._addresses = each_address(controller)
        self.identity = identity
        self.listener = listener
        self._tls = tls
        self._running: AgentConfig | None = None
        self._prepared: AgentConfig | None = None
        self._answered = False  # Whether a controller has ever sent an event.
        self._closed = threading.Event()
        self._lock = threading.Lock()
        self._unreachable = ("", 0.0)  # The last reason reported, and when.
        self._unsent: pb.UpdateReport | None = None  # the last report about a migration that was not delivered
        self._call: grpc.Call | None = None
        self._stub: ControllerStub | None = None
        self._thread = threading.Thread(target=self._run, name="controller", daemon=True)

    def start(self) -> None:
        """Join. The listener gets events from now on."""
        self._thread.start()

    @property
    def ended(self) -> bool:
        """Whether it has stopped trying; once it has been started."""
        return not self._thread.is_alive()

    def _run(self) -> None:
        pause = FIRST_PAUSE_SECONDS
        while not self._closed.is_set():
            # Each attempt has a new channel: an old one would sit out its own, longer back-off.
            try:
                heard = self._attempt(self._addresses[0])
            except _Refused:
                return
            if heard:
                pause = FIRST_PAUSE_SECONDS
            self._addresses = [*self._addresses[1:], self._addresses[0]]
            self._closed.wait(pause)
            pause = min(2 * pause, LAST_PAUSE_SECONDS if len(self._addresses) == 1 else PAUSE_OF_SEVERAL_SECONDS)

    def _attempt(self, address: str) -> bool:
        """Join one controller and follow it for as long as it lasts. Return whether it sent anything. Raise _Refused
        where it does not accept this agent."""
        several = len(self._addresses) > 1
        try:
            channel = open_channel(address, self._tls, KEEPALIVE_OF_SEVERAL if several else KEEPALIVE)
        except ValueError as error:
            self.listener.on_refused(str(error))
            raise _Refused from None
        try:
            if several and not answers(channel, ONE_OF_SEVERAL_SECONDS):
                self._say_unreachable(f"none of the controllers at {self.controller} answers now")
                return False
            return self._follow(channel)
        except grpc.RpcError as error:
            if error.code() in DENIALS:
                self.listener.on_refused(error.details() or "refused without a reason")
                raise _Refused from None
            if not self._closed.is_set():
                self._say_unreachable(explain(address, error, self._tls))
            return False
        finally:
            channel.close()

    def _say_unreachable(self, reason: str) -> None:
        """Report a reason once, and then only from time to time, since attempts come every two seconds."""
        said, when = self._unreachable
        now = time.monotonic()
        if reason != said or now - when >= SAID_AGAIN_SECONDS:
            self._unreachable = reason, now
            self.listener.on_unreachable(reason)

    def _follow(self, channel: grpc.Channel) -> bool:
        """Follow one stream of events to its end. Return whether at least one event came."""
        stub = ControllerStub(channel)
        request = pb.JoinRequest(
            node=self.identity.node,
            addresses=self.identity.addresses,
            role=self.identity.role,
            version=self.identity.version,
            agent=self.identity.agent,
            # An agent that works for a job is never put into another one.
            job=self.identity.job or (self._running.job if self._running is not None else ""),
            take_over=self.identity.take_over,
            process=self.identity.process,
        )
        if self._running is not None:
            request.running_epoch = self._running.epoch
            request.running_digest = self._running.digest
        call = stub.join(request)
        with self._lock:
            if self._closed.is_set():
                call.cancel()
                return False
            self._call, self._stub = call, stub
        heard = False
        try:
            for event in call:
                heard, self._answered, self._unreachable = True, True, ("", 0.0)
                self._dispatch(event)
        except grpc.RpcError:
            if not heard:
                raise
        finally:
            with self._lock:
                self._call = self._stub = None
        if not self._closed.is_set():
            self._say_unreachable(f"the controller at {self.controller} closed the connection")
        return heard

    def _dispatch(self, event: pb.Event) -> None:
        kind = event.WhichOneof("kind")
        if kind == "waiting":
            self.listener.on_waiting(tuple(event.waiting.missing), event.waiting.reason)
        elif kind == "configuration":
            config = AgentConfig.from_json(event.configuration.agent_config)
            self._running, self._prepared = config, None
            self.listener.on_configuration(config)
        elif kind == "abort":
            self._running = self._prepared = None
            self.listener.on_abort(event.abort.reason, tuple(event.abort.nodes))
        elif kind == "prepare":
            self._prepared = AgentConfig.from_json(event.prepare.agent_config)
            self.listener.on_prepare(self._prepared, event.prepare.again)
        elif kind == "switch_over":
            if self._prepared is None or self._prepared.epoch != event.switch_over.epoch:
                return  # A stop came in between.
            self._running, self._prepared = self._prepared, None
            order = event.switch_over
            self.listener.on_switch_over(order.epoch, order.first_operation, dict(order.given))
        elif kind == "withdraw":
            self._prepared = None
            self.listener.on_withdraw(event.withdraw.epoch, event.withdraw.reason)
        elif kind == "rerouted":
            found = event.rerouted.trees
            trees = [ReroutedTree(one.label, one.rate_mbps, one.contributions, one.results, one.link) for one in found]
            self.listener.on_rerouted(trees)
        elif kind == "retire":
            self.listener.on_retire(event.retire.epoch)
        elif kind == "refused":
            self.listener.on_refused(event.refused.reason)
            raise _Refused

    def report(self, statistics: Mapping[str, float], trees: Sequence[pb.TreeReport] = ()) -> bool:
        """Send statistics. Return False where the controller cannot be reached now; the next report makes up for it."""
        config = self._running
        if config is None:
            return False
        if (unsent := self._unsent) is not None:
            self.report_update(unsent)
        request = pb.ReportRequest(node=config.node, epoch=config.epoch, statistics=statistics, trees=trees)
        return self._send("report", request, REPORT_SECONDS)

    def report_update(self, report: pb.UpdateReport) -> None:
        """Report how far this agent is with a migration. If the report is not delivered now, it is sent again before
        the next statistics: the controller waits without limit until the operations of the old plan have ended."""
        report.agent = self.identity.agent
        self._unsent = report
        if self._send("report_update", report, REPORT_SECONDS) and self._unsent is report:
            self._unsent = None

    def _announce(self, failure: str) -> None:
        self._send("leave", pb.LeaveRequest(agent=self.identity.agent, failure=failure), LEAVE_SECONDS)

    def _send(self, method: str, request: Message, timeout: float) -> bool:
        """Send a request over the stream's channel. Return False where the controller cannot be reached now."""
        with self._lock:
            stub = self._stub
        if stub is not None:
            # ValueError means that the channel was closed in the meantime.
            with contextlib.suppress(grpc.RpcError, ValueError):
                getattr(stub, method)(request, timeout=timeout)
                return True
        return False

    def rejoin(self, failure: str) -> None:
        """Give up the running epoch for all agents, and ask for a new one. `failure` is the reason, which the others
        are told."""
        self._announce(failure)
        self._running = None
        with self._lock:
            if self._call is not None:
                self._call.cancel()

    def close(self, announce: bool = True) -> None:
        """Leave the job. With `announce`, a controller that has ever answered is told that the agent is done, so that
        the other agents may finish what is under way; otherwise they stop at once."""
        if announce and self._answered and not self._closed.is_set():
            self._announce("")
        with self._lock:
            self._closed.set()
            if self._call is not None:
                self._call.cancel()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout=10)


class _Refused(Exception):
    """The controller refused this agent; no further attempt follows."""


def explain(controller: str, error: grpc.RpcError, tls: Tls | None = None) -> str:
    """Return words for a gRPC error that also say what to check."""
    code, details = error.code(), (error.details() or "").strip()
    if tls is not None and code == grpc.StatusCode.UNAVAILABLE and (expired := tls.expired()):
        return f"controller at {controller}: {code.name}: {expired}"
    # gRPC's details are like "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Failed to
    # connect to remote host: connect: Connection refused (111)"; only the end matters.
    if code == grpc.StatusCode.UNAVAILABLE and "last error:" in details:
        details = ": ".join(details.rsplit(": ", 2)[-2:])
    details = details if len(details) <= MOST_DETAILS else f"{details[:MOST_DETAILS]} ..."
    hint = {
        grpc.StatusCode.UNAVAILABLE: "does `inart serve` run there, and have both ends TLS (--credentials) or none?",
        grpc.StatusCode.DEADLINE_EXCEEDED: "it accepts connections but does not answer",
        grpc.StatusCode.UNIMPLEMENTED: "something else is listening there",
    }.get(code, "")
    return f"controller at {controller}: {code.name}: {details}" + (f" ({hint})" if hint else "")


def ask(controller: str, method: str, request: Message, tls: Tls | None = None, timeout: float = STATUS_SECONDS) -> Any:
    """Send an operator's request to the controller and return its answer. Raise ControllerError where it refuses, and
    NoAnswer where it is not known whether the request was carried out."""
    try:
        tls = tls if tls is not None else credentials()
        addresses = each_address(check_address(controller))
        for address in addresses:
            with open_channel(address, tls) as channel:
                if len(addresses) > 1 and not answers(channel, ONE_OF_SEVERAL_SECONDS):
                    continue
                call = partial(getattr(ControllerStub(channel), method), request, timeout=timeout)
                return _answer(call, address, tls)
    except ValueError as error:
        raise ControllerError(str(error)) from None
    raise NoAnswer(f"none of the controllers at {controller} answers (does `inart serve` run there?)")


def _answer(call: Callable[[], Any], address: str, tls: Tls | None) -> Any:
    try:
        return call()
    except grpc.RpcError as error:
        if error.code() in REFUSALS:
            raise ControllerError(error.details() or "refused without a reason") from None
        kind = NoAnswer if error.code() in SILENCES else ControllerError
        raise kind(explain(address, error, tls)) from None


def fetch_status(
    controller: str, tls: Tls | None = None, timeout: float = STATUS_SECONDS, *, job: str = ""
) -> pb.StatusReply:
    """Ask the controller for the state of agents, switches and trees. `job` is the one to describe in full. Raise
    ControllerError where it does not answer."""
    return ask(controller, "status", pb.StatusRequest(job=job), tls, timeout)
