"""The worker's public API: `connect` joins a controller, gets the trees from it, and the agent all-reduces tensors.

with connect("10.1.0.1:9600") as agent:
    work = agent.allreduce_async(tensor, op="mean")     # in place
    work.wait()
"""

from __future__ import annotations

import math
import time
from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any, Literal

from controlplane.common.rpc import channels
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.common.rpc.client import ControllerError, fetch_status
from controlplane.common.rpc.tls import Tls, add_tls_arguments
from worker_agent.collectives import Collective, Operation, collective
from worker_agent.engine import DEFAULT_TIMEOUT, Engine
from worker_agent.engine_stats import EngineStats
from worker_agent.errors import AbortedError, AgentError, ExhaustedError
from worker_agent.flight import flight
from worker_agent.member import Member
from worker_agent.operands import HostArray, operand
from worker_agent.relay import Repeated
from worker_agent.reporter import LOOK_SECONDS
from worker_agent.ways import Ways
from worker_agent.work import Work
from worker_agent.worker_versions import Listeners, WorkerVersions

LATE_SECONDS = 2.0


class Agent(Member):
    """A worker of a job. Made by `connect`; usable once `wait_ready` has returned.

    When a peer is lost, operations in progress fail with AbortedError that names it; once it is back, the agent is
    ready again (`wait_ready`) and all agents begin a new epoch. An operation that fails otherwise (no progress, or
    workers that submit different operations) ends the epoch for all of them, and a new one begins. A migration
    while the job runs needs nothing of the caller: operations move to the new plan at a boundary that all workers share
    (relay.py).

    It is thread-safe; all workers must submit the same operations in the same order.

    Args:
        operation_timeout: seconds without any progress on a tree before its operations fail (0: never).
    """

    role: Literal["worker"] = "worker"

    def __init__(
        self,
        controller: str,
        node: str | None = None,
        *,
        interface: str | None = None,
        tls: Tls | None = None,
        operation_timeout: float = DEFAULT_TIMEOUT,
        job: str | None = None,
        take_over: bool = False,
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._operation_timeout = operation_timeout
        self._listeners: list[Callable[[str], None]] = []
        tell = Listeners(self._tell_stop, self._give_up, self._report_drained, log)
        self._versions = WorkerVersions(operation_timeout, tell)
        super().__init__(
            controller, node, self._versions, interface=interface, tls=tls, job=job, take_over=take_over, log=log
        )

    @property
    def world_size(self) -> int:
        """Number of workers of the job."""
        return len(self._engine().config.workers)

    @property
    def values_per_packet(self) -> int:
        """The number of values in a packet of the network; 0 while the agent has not joined."""
        return self.config.values_per_packet if self.config is not None else 0

    @property
    def ways(self) -> Ways | None:
        """The figures that decide between the network and torch.distributed; None while the agent has not joined."""
        return Ways.of(self.config) if self.config is not None else None

    @property
    def index(self) -> int:
        """This worker's number in the job; -1 while the agent has not joined."""
        return self.config.index if self.config is not None else -1

    def allreduce_async(
        self, array: Any, op: Operation = "sum", *, dtype: str | None = None, bits: int | None = None, seed: int = 0
    ) -> Work:
        """Start an all-reduce in place without waiting; see Engine.allreduce_async.

        Raise AbortedError, which says what is missing, while the job does not run.
        """
        how = collective(op).encoded(bits, seed)
        return self.submit(operand(array, how, dtype), how)

    def submit(self, memory: HostArray, how: Collective) -> Work:
        """Start an operation on host memory, as `allreduce_async` does."""
        epoch, began = self._engine().config.epoch, time.monotonic()
        try:
            work = self._versions.submit(memory, how)
        except ExhaustedError as error:
            self._give_up(str(error))
            raise
        work.add_done_callback(self._check)
        work.add_done_callback(lambda done: flight.operation(done, str(how.plain), began, epoch))
        return work

    def _check(self, work: Work) -> None:
        # After a timeout or a mismatch the engine accepts no operation until it is configured again.
        error = work.exception()
        if error is not None and (isinstance(error, ExhaustedError) or not isinstance(error, AbortedError)):
            self._give_up(str(error))

    def allreduce(
        self,
        array: Any,
        op: Operation = "sum",
        *,
        bits: int | None = None,
        seed: int = 0,
        timeout: float | None = None,
    ) -> None:
        """Run `allreduce_async` and wait at most `timeout` seconds (None: the operation's own timeout rules).

        If the job does not run when this is called, because it waits for an agent or begins a new epoch, this waits as
        well, for as long as an operation may be without progress (`timeout`, if less); then it raises AbortedError.
        """
        allowed = self._operation_timeout or math.inf
        deadline = time.monotonic() + (allowed if timeout is None else min(allowed, timeout))
        while True:
            try:
                work = self.allreduce_async(array, op, bits=bits, seed=seed)
                break
            except AbortedError:
                left = deadline - time.monotonic()
                if left <= 0 or self._closed.is_set():
                    raise
                self.wait_change(min(left, LOOK_SECONDS))
        work.wait(timeout)

    def on_stop(self, listener: Callable[[str], None], *, remove: bool = False) -> None:
        """Add a listener, or remove it where `remove` is set.

        `listener(reason)` is called from any thread when the epoch ends, but not when the plan of a running job
        changes.
        """
        if not remove:
            self._listeners.append(listener)
        elif listener in self._listeners:
            self._listeners.remove(listener)

    def late(self) -> list[str]:
        """Return the workers that the others wait for, as the roots report them; empty when there are none or the
        controller does not answer.
        """
        try:
            job = self.config.job if self.config is not None else ""
            trees = fetch_status(self.controller, self._tls, LATE_SECONDS, job=job).trees
        except (ControllerError, OSError):
            return []
        return sorted({name for tree in trees for name in tree.missing})

    def stats(self) -> EngineStats:
        """Return the engine's counters; they begin at zero with each new version of the plan, which has an engine of
        its own.
        """
        return self._engine().stats()

    def _engine(self) -> Engine:
        if problem := self.problem:
            raise AbortedError(problem)
        return self._versions.engine

    # -- what the versions of the plan say ----------------------------------------------------------------------------

    def _report_drained(self, repeated: Repeated) -> None:
        config = self.config
        if config is not None:
            report = pb.UpdateReport(epoch=config.epoch, stage=pb.UpdateReport.DRAINED)
            report.repeated_operations, report.repeated_bytes = repeated.operations, repeated.nbytes
            self._membership.report_update(report)

    def _tell_stop(self, reason: str) -> None:
        for listener in list(self._listeners):
            listener(reason)

    def _give_up(self, failure: str) -> None:
        self._tell_stop(failure)
        super()._give_up(failure)

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def controller_address(given: str | None) -> str:
    """Return the controller's address: the argument, else $INART_CONTROLLER. Raise AgentError where there is none."""
    try:
        return channels.controller_address(given)
    except ValueError as error:
        raise AgentError(str(error)) from None


def add_agent_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of all commands that join a controller."""
    parser.add_argument("--controller", metavar="HOST:PORT", help="default: $INART_CONTROLLER")
    parser.add_argument(
        "--node", metavar="NAME", help="node of the topology (default: the node whose address this machine has)"
    )
    parser.add_argument(
        "--interface",
        metavar="NAME[,NAME]",
        help="interfaces of the data network (default: those with the node's address)",
    )
    parser.add_argument(
        "--job", metavar="NAME", help="name of the job, for a node of several jobs (default: $INART_JOB)"
    )
    parser.add_argument("--take-over", action="store_true", help="replace another process that has joined as this node")
    add_tls_arguments(parser)


def connect(  # noqa: PLR0913  (options by keyword)
    controller: str | None = None,
    node: str | None = None,
    timeout: float = 60.0,
    *,
    interface: str | None = None,
    tls: Tls | None = None,
    operation_timeout: float = DEFAULT_TIMEOUT,
    job: str | None = None,
    take_over: bool = False,
    log: Callable[[str], None] = lambda line: None,
) -> Agent:
    """Join a job as a worker and wait until all of its agents have joined.

    Args:
        controller: "host:port" or "unix:path"; None: $INART_CONTROLLER.
        node: name in the topology; None: the node whose address this machine has.
        timeout: seconds to wait for the controller and the other agents.
        interface, tls, operation_timeout, job, log: see Agent.
        take_over: replace another process that has joined as this node; otherwise this one is refused.

    Raises:
        NotReadyError: after `timeout`; the message names the missing nodes or the controller.
        AgentError: the controller refused, or the engine cannot run here.
    """
    agent = Agent(
        controller_address(controller),
        node,
        interface=interface,
        tls=tls,
        operation_timeout=operation_timeout,
        job=job,
        take_over=take_over,
        log=log,
    )
    try:
        agent.wait_ready(timeout)
    except BaseException:
        agent.close()
        raise
    return agent
