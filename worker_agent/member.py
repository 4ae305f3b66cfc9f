"""Joins a controller and follows its messages, as worker and parameter server alike do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from controlplane.common.agentconfig import AgentConfig, ReroutedTree, Role
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.common.rpc.client import Identity, Membership
from controlplane.common.rpc.renewal import Renewal
from controlplane.common.rpc.tls import Tls, credentials
from p4src.protocol import ENCODING
from worker_agent.address import addresses, check_interfaces, interfaces_of, links_up
from worker_agent.errors import AgentError
from worker_agent.flight import flight
from worker_agent.forked import abandon_when_forked, why
from worker_agent.plan_versions import PlanVersions
from worker_agent.readiness import Readiness
from worker_agent.reporter import Reporter, Statistics


class Member:
    """An agent of one node, joined from construction to `close`.

    Args:
        controller: "host:port".
        node: its name in the topology; None: the controller finds it by this machine's addresses.
        versions: the engines that run the configurations that the controller sends.
        interface: the interface of the data network, or those of several links separated by commas, in the order of the
            node's ports in the topology; None: the one that holds the node's address.
        tls: the node's credentials; None: those that $INART_CREDENTIALS names, else plaintext.
        job: its name; None: $INART_JOB, or the only one that the node is in.
        take_over: replace another process that has joined as this node; otherwise this one is refused.
        log: gets one line per event.

    Raises:
        AgentError: there is no such interface, or the credentials cannot be read.
    """

    role: Role

    def __init__(
        self,
        controller: str,
        node: str | None,
        versions: PlanVersions,
        *,
        interface: str | None = None,
        tls: Tls | None = None,
        job: str | None = None,
        take_over: bool = False,
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.controller = controller
        self._running = versions
        self._state = Readiness(f"no answer from the controller at {controller} yet")
        self._successor: AgentConfig | None = None
        self._interface = interface
        self._used = ""
        if interface is not None and (trouble := check_interfaces(interface)):
            log(trouble)
        self._log = log
        self._closed = threading.Event()
        if tls is None:
            try:
                tls = credentials()
            except ValueError as error:
                raise AgentError(str(error)) from None
        self._tls = tls
        identity = Identity(node or "", tuple(addresses()), self.role, ENCODING, take_over=take_over)
        if job is not None:
            identity = replace(identity, job=job)
        self._membership = Membership(controller, identity, self, tls)
        abandon_when_forked(self)
        self._reporter = Reporter(lambda: self.ready, versions.open_chunks, self._statistics, self._membership.report)
        self._renewal = Renewal(controller, tls, log) if tls is not None else None
        self._membership.start()
        self._reporter.start()
        if self._renewal is not None:
            self._renewal.start()

    # -- of the user ---------------------------------------------------------------------------------------------------

    @property
    def config(self) -> AgentConfig | None:
        """The configuration that runs, or ran last; None where there was none yet."""
        return self._state.config

    @property
    def ready(self) -> bool:
        """Whether there is a configuration and all agents of the job are there."""
        return self._state.ready

    @property
    def problem(self) -> str:
        """The reason, in words, for which the agent is not ready; empty when it is."""
        return self._state.problem

    def wait_ready(self, timeout: float) -> AgentConfig:
        """Wait until the agent is ready, and return its configuration.

        Raises:
            NotReadyError: it was not ready within `timeout` seconds; the message has what is missing.
            AgentError: it never will be: the controller refused, or the engine could not start.
        """
        return self._state.wait(timeout)

    def wait_change(self, seconds: float) -> None:
        """Wait until something changes, at most `seconds`. Raise AgentError once the agent cannot go on."""
        self._state.wait_change(seconds)

    def close(self, announce: bool = True) -> None:
        """Leave the job and stop the engine. A second call does nothing.

        With `announce` the agent leaves in good order, and the others may finish the operations in progress; otherwise
        they are told to stop at once.
        """
        if self._closed.is_set():
            return
        in_order = announce and self.ready
        self._closed.set()
        if self._renewal is not None:
            self._renewal.close()
        self._membership.close(announce)
        self._reporter.close()
        self._state.close("the agent is closed")
        self._running.end(in_order)

    def abandon(self) -> None:
        """Give everything up in a forked process: the parent is the agent."""
        self._closed = threading.Event()
        self._closed.set()
        self._state.abandon(why())

    # -- Listener of the membership ------------------------------------------------------------------------------------

    def on_waiting(self, missing: tuple[str, ...], reason: str) -> None:
        waiting = reason or f"waiting for {', '.join(missing)} to join the controller"
        if trouble := self._trouble():
            waiting = f"{trouble}; {waiting}"
        self._log(waiting)
        self._state.wait_for_others(waiting)

    def _statistics(self) -> Statistics:
        numbers, trees = self._running.statistics()
        return {**numbers, **links_up(self._used)}, trees

    def _trouble(self) -> str:
        try:
            return "" if self._interface is None else check_interfaces(self._interface)
        except (AgentError, OSError) as error:  # the interface has gone meanwhile
            return str(error)

    def on_configuration(self, config: AgentConfig) -> None:
        if self._closed.is_set():
            return
        if self.ready and config == self.config:
            self._log(f"carries on with epoch {config.epoch}")
            return
        try:
            self._used = interfaces_of(config, self._interface)
            self._running.configure(config, self._used)
        except (AgentError, ValueError, OSError) as error:
            self._fail(AgentError(f"{config.node} cannot run its configuration: {error}"))
            return
        self._log(f"{config.node}: epoch {config.epoch} begins")
        flight.node = config.node
        flight.moment("operations", f"epoch {config.epoch} begins")
        self._state.begin(config)

    def on_abort(self, reason: str, nodes: tuple[str, ...]) -> None:
        self._log(f"stopped: {reason}")
        if flight.waits:
            self._record(f"stopped: {reason}")
        self._successor = None
        self._state.stop(reason)
        self._running.stop(reason)

    def on_prepare(self, config: AgentConfig, again: bool) -> None:
        report = pb.UpdateReport(epoch=config.epoch, stage=pb.UpdateReport.PREPARED)
        try:
            ready = self.ready
            if not ready and not self._running.joins_late:
                raise AgentError(f"not running: {self.problem}")
            interface = self._used = interfaces_of(config, self._interface)
            report.next_operation = self._running.prepare(config, interface, again or not ready)
            if again:
                report.done.extend(self._running.done())
            self._successor = config
        except (AgentError, ValueError, OSError) as error:
            report.failure = f"{config.node} cannot run the new plan: {error}"
            self._log(report.failure)
        self._membership.report_update(report)

    def on_switch_over(self, epoch: int, first_operation: int, given: Mapping[int, int]) -> None:
        successor, self._successor = self._successor, None
        if successor is None or successor.epoch != epoch:
            return  # a stop came in between
        if self._running.joins_late and not self._closed.is_set():
            self._state.begin(successor)
        else:
            self._state.follow(successor)
        try:
            self._running.switch_over(first_operation, given)
        except AgentError as error:
            self._give_up(str(error))
            return
        self._log(f"{successor.node}: epoch {epoch} begins at operation {first_operation}, without a stop")

    def on_withdraw(self, epoch: int, reason: str) -> None:
        if self._successor is not None:
            self._log(f"the migration does not take place: {reason}")
            self._successor = None
            self._running.withdraw()

    def on_rerouted(self, trees: Sequence[ReroutedTree]) -> None:
        self._running.rerouted(trees)

    def on_retire(self, epoch: int) -> None:
        self._running.retire()

    def on_refused(self, reason: str) -> None:
        self._fail(AgentError(f"the controller at {self.controller} refused: {reason}"))

    def on_unreachable(self, reason: str) -> None:
        self._state.miss_controller(reason)
        self._log(reason + ("; the job goes on without it" if self.ready else ""))

    def _give_up(self, failure: str) -> None:
        """Ask for a new epoch, since this one cannot go on; that ends it for the other agents, too.

        Do not wait for it.
        """
        if self._state.stop_if_ready(failure):
            self._log(f"gave up: {failure}")
            self._record(f"gave up: {failure}")
            threading.Thread(target=self._membership.rejoin, args=(failure,), name="rejoin", daemon=True).start()

    def _record(self, failure: str) -> None:
        """Write the flight recorder's events to a file, and log its path."""
        if path := flight.dump(failure):
            self._log(f"what happened before is in {path} (a Chrome trace)")

    def _fail(self, error: AgentError) -> None:
        """Fail, since the agent cannot go on: every caller that waits for it gets the error."""
        self._state.fail(error)
        self._running.stop(str(error))
        # Another thread leaves, as this may be the membership's own: the controller must not count on this agent.
        threading.Thread(target=self._membership.close, args=(False,), name="leave", daemon=True).start()
