"""What a worker and a parameter server have in common: joining a controller and following what it says."""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from controlplane.common.agentconfig import AgentConfig, RepairedTree, Role
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.common.rpc.client import Identity, Membership
from controlplane.common.rpc.tls import Tls, credentials
from p4src.protocol import ENCODING
from worker_agent.address import addresses, check_interface, interface_of
from worker_agent.errors import AgentError, NotReadyError
from worker_agent.forked import abandon_when_forked, why

REPORT_SECONDS = 1.0
LOOK_SECONDS = 0.15
STUCK_SECONDS = 0.3
"""A tree that makes no progress for so long is reported at once: something may have failed."""


def scalars(stats: Any) -> dict[str, float]:
    """The numbers among a dataclass's fields, but not zeros."""
    values = {field.name: getattr(stats, field.name) for field in fields(stats)}
    return {name: value for name, value in values.items() if isinstance(value, int | float) and value}


class Member(ABC):
    """An agent of one node, joined from construction to `close`. Subclasses run the engine.

    Args:
        controller: "host:port".
        node: its name in the topology; None: the controller finds it by this machine's addresses.
        interface: of the data network; None: the one that holds the node's address. Raises AgentError: there is none.
        tls: None: what $INART_CREDENTIALS names, else plaintext.
        job: its name; None: $INART_JOB, or the only one that the node is in.
        take_over: from another process that has joined as this node; else this one is refused.
        log: gets one line per event.
    """

    role: Role
    joins_late = False
    """Whether it can begin with a new version while the others run."""

    def __init__(
        self,
        controller: str,
        node: str | None = None,
        *,
        interface: str | None = None,
        tls: Tls | None = None,
        job: str | None = None,
        take_over: bool = False,
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.controller = controller
        self.config: AgentConfig | None = None
        self._successor: AgentConfig | None = None
        self._interface = interface
        if interface is not None and (trouble := check_interface(interface)):
            log(trouble)
        self._log = log
        self._changed = threading.Condition()
        self._ready = False
        self._problem = f"no answer from the controller at {controller} yet"
        self._stopped = ""  # why the last epoch ended
        self._failure: AgentError | None = None
        self._closed = threading.Event()
        self._left_well = False  # closed in good order, while the job ran
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
        self._reporter = threading.Thread(target=self._report, name="reports", daemon=True)
        self._membership.start()
        self._reporter.start()

    # -- of the subclass; called one at a time from the membership's thread --------------------------------------------

    @abstractmethod
    def _configure(self, config: AgentConfig, interface: str) -> None:
        """Run `config` from now on, whatever ran before. Raises AgentError, ValueError, OSError."""

    @abstractmethod
    def _prepare(self, config: AgentConfig, interface: str, again: bool) -> int:
        """Make ready for `config` beside what runs; a worker holds its operations from now on and says how many it has
        started. again: it stops them, and says which is the first whose result it lacks. Raises AgentError, ValueError,
        OSError."""

    def _done(self) -> Sequence[int]:
        """After `_prepare` with `again`: operations whose results it can give to others."""
        return ()

    @abstractmethod
    def _switch_over(self, first_operation: int, given: Mapping[int, int]) -> None:
        """What was prepared holds from this operation on. given: operations whose results come from the worker with
        this number. Raises AgentError."""

    @abstractmethod
    def _withdraw(self) -> None:
        """What was prepared is not needed."""

    @abstractmethod
    def _repaired(self, trees: Sequence[RepairedTree]) -> None:
        """Trees of what runs were led another way."""

    @abstractmethod
    def _retire(self) -> None:
        """What ran before the last switch-over is not needed any more."""

    @abstractmethod
    def _stop(self, reason: str) -> None:
        """End what is under way; nothing new until `_configure`."""

    @abstractmethod
    def _end(self) -> None:
        """Give everything back."""

    @abstractmethod
    def _open_chunks(self) -> Mapping[int, int]:
        """By tree, its oldest chunk that is under way, where there is one. Every agent looks several times a second, so
        it must cost little. Raises AgentError: there is no engine."""

    @abstractmethod
    def _statistics(self) -> tuple[Mapping[str, float], Sequence[pb.TreeReport]]:
        """For the controller's status."""

    # -- of the user ---------------------------------------------------------------------------------------------------

    @property
    def ready(self) -> bool:
        """Whether there is a configuration and all agents of the job are there."""
        with self._changed:
            return self._ready

    def wait_ready(self, timeout: float) -> AgentConfig:
        """Wait for the configuration.

        Raises:
            NotReadyError: not within `timeout` seconds; the message has what is missing.
            AgentError: it never will be: the controller refused, or the engine could not start.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._ready or self._failure is not None, timeout)
            if self._failure is not None:
                raise self._failure
            if not self._ready or self.config is None:
                raise NotReadyError(f"not ready after {round(timeout, 2):g} s: {self._problem}")
            return self.config

    def wait_change(self, seconds: float) -> None:
        """Wait until something changes, at most `seconds`. Raises AgentError once the agent cannot go on."""
        with self._changed:
            if self._failure is None:
                self._changed.wait(seconds)
            if self._failure is not None:
                raise self._failure

    @property
    def problem(self) -> str:
        """Why it is not ready, in words; empty when it is."""
        with self._changed:
            return "" if self._ready else self._problem

    def close(self, announce: bool = True) -> None:
        """Leave the job and stop the engine. Again: nothing happens.

        announce: in good order: the others may finish what is under way; else they are told to stop at once.
        """
        if self._closed.is_set():
            return
        self._left_well = announce and self.ready
        self._closed.set()
        self._membership.close(announce)
        if threading.current_thread() is not self._reporter:
            self._reporter.join(timeout=10)
        with self._changed:
            self._ready = False
            self._problem = "the agent is closed"
            self._changed.notify_all()
        self._end()

    def abandon(self) -> None:
        """In a forked process: its parent is the agent."""
        self._closed = threading.Event()
        self._closed.set()
        self._changed = threading.Condition()
        self._ready, self._problem, self._failure = False, why(), AgentError(why())

    # -- Listener of the membership ------------------------------------------------------------------------------------

    def on_waiting(self, missing: tuple[str, ...], reason: str) -> None:
        waiting = reason or f"waiting for {', '.join(missing)} to join the controller"
        if trouble := self._trouble():
            waiting = f"{trouble}; {waiting}"
        self._log(waiting)
        with self._changed:
            if not self._ready:
                self._problem = f"{self._stopped}; {waiting}" if self._stopped else waiting
            self._changed.notify_all()

    def _trouble(self) -> str:
        try:
            return "" if self._interface is None else check_interface(self._interface)
        except (AgentError, OSError) as error:  # it has gone meanwhile
            return str(error)

    def on_configuration(self, config: AgentConfig) -> None:
        if self._closed.is_set():
            return
        if self._ready and config == self.config:
            self._log(f"carries on with epoch {config.epoch}")
            return
        try:
            self._configure(config, self._interface or interface_of(config.address))
        except (AgentError, ValueError, OSError) as error:
            self._fail(AgentError(f"{config.node} cannot run its configuration: {error}"))
            return
        self._log(f"{config.node}: epoch {config.epoch} begins")
        with self._changed:
            self.config, self._ready, self._problem, self._stopped = config, True, "", ""
            self._changed.notify_all()

    def on_abort(self, reason: str, nodes: tuple[str, ...]) -> None:
        self._log(f"stopped: {reason}")
        self._successor = None
        with self._changed:
            self._ready = False
            self._problem = self._stopped = reason
            self._changed.notify_all()
        self._stop(reason)

    def on_prepare(self, config: AgentConfig, again: bool) -> None:
        report = pb.UpdateReport(epoch=config.epoch, stage=pb.UpdateReport.PREPARED)
        try:
            if not self.ready and not self.joins_late:
                raise AgentError(f"not running: {self.problem}")
            report.next_operation = self._prepare(config, self._interface or interface_of(config.address), again)
            if again:
                report.done.extend(self._done())
            self._successor = config
        except (AgentError, ValueError, OSError) as error:
            report.failure = f"{config.node} cannot run the new plan: {error}"
            self._log(report.failure)
        self._membership.report_update(report)

    def on_switch_over(self, epoch: int, first_operation: int, given: Mapping[int, int]) -> None:
        successor, self._successor = self._successor, None
        if successor is None or successor.epoch != epoch:
            return  # a stop came in between
        with self._changed:
            self.config = successor
            if self.joins_late and not self._closed.is_set():
                self._ready, self._problem, self._stopped = True, "", ""
            self._changed.notify_all()
        try:
            self._switch_over(first_operation, given)
        except AgentError as error:
            self._give_up(str(error))
            return
        self._log(f"{successor.node}: epoch {epoch} begins at operation {first_operation}, without a stop")

    def on_withdraw(self, epoch: int, reason: str) -> None:
        if self._successor is not None:
            self._log(f"the change of plan does not take place: {reason}")
            self._successor = None
            self._withdraw()

    def on_repaired(self, trees: Sequence[RepairedTree]) -> None:
        self._repaired(trees)

    def on_retire(self, epoch: int) -> None:
        self._retire()

    def on_refused(self, reason: str) -> None:
        self._fail(AgentError(f"the controller at {self.controller} refused: {reason}"))

    def on_unreachable(self, reason: str) -> None:
        with self._changed:
            news = reason != self._problem
            if not self._ready:
                self._problem = reason
            self._changed.notify_all()
        if news:
            self._log(reason + ("; the job goes on without it" if self.ready else ""))

    def _give_up(self, failure: str) -> None:
        """This epoch cannot go on: ask for a new one, which ends it for the others too. Does not wait."""
        with self._changed:
            if not self._ready:
                return
            self._ready = False
            self._problem = self._stopped = failure
            self._changed.notify_all()
        self._log(f"gave up: {failure}")
        threading.Thread(target=self._membership.rejoin, args=(failure,), name="rejoin", daemon=True).start()

    def _fail(self, error: AgentError) -> None:
        """It cannot go on. Whoever waits for it gets the error, and says it."""
        with self._changed:
            self._ready, self._failure, self._problem = False, error, str(error)
            self._changed.notify_all()
        self._stop(str(error))
        # Out of the membership's own thread: the controller shall not count on an agent that does not run.
        threading.Thread(target=self._membership.close, args=(False,), name="leave", daemon=True).start()

    def _report(self) -> None:
        open_since: dict[int, tuple[int, float]] = {}
        reported = time.monotonic()
        told = False
        while not self._closed.wait(LOOK_SECONDS):
            now = time.monotonic()
            if not self.ready:
                open_since, told = {}, False
                continue
            try:
                before, open_since = open_since, {}
                for tree, chunk in self._open_chunks().items():
                    known, since = before.get(tree, (None, now))
                    open_since[tree] = chunk, since if known == chunk else now
                stuck = any(now - since >= STUCK_SECONDS for _, since in open_since.values())
                if now - reported >= REPORT_SECONDS or (stuck and not told):
                    self._report_once(open_since, now)
                    reported = now
                told = stuck
            except AgentError:  # closed or failed meanwhile
                continue

    def _report_once(self, open_since: Mapping[int, tuple[int, float]], now: float) -> None:
        statistics, trees = self._statistics()
        for tree in trees:
            chunk, since = open_since.get(tree.tree, (None, now))
            if tree.HasField("oldest_chunk"):
                waiting = now - since if chunk == tree.oldest_chunk else 0.0
                tree.waiting_seconds = max(tree.waiting_seconds, waiting)
        self._membership.report(statistics, trees)
