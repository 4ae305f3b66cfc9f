"""Runs versions of a job's plan on a worker: its engine and the next one (relay.py), and on a host that is a parameter
server, too, the roots there (own_root.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from controlplane.common.agentconfig import NUMBERS_USED, REFUSED, SWITCH_ADDS, AgentConfig, ReroutedTree, suspect_key
from controlplane.common.rpc import inart_pb2 as pb
from worker_agent.adding import OfSwitch
from worker_agent.collectives import Collective
from worker_agent.engine import Engine
from worker_agent.errors import AbortedError
from worker_agent.native_worker import library
from worker_agent.operands import HostArray
from worker_agent.own_root import OwnRoot
from worker_agent.plan_versions import PlanVersions
from worker_agent.relay import NOTHING, Relay, Repeated
from worker_agent.reporter import Statistics, scalars, totals
from worker_agent.work import Work

HOLD_SECONDS = 30.0
"""The most seconds for which operations are held back for an update that neither takes place nor is withdrawn."""


@dataclass(frozen=True)
class Listeners:
    """Functions that a worker's versions call.

    Attributes:
        stopped: called with the reason when the operations in progress end.
        stuck: called with the reason when the epoch cannot go on.
        drained: called when the version before the last switch-over has ended, with the operations that were started
            again.
        log: gets one line per event.
    """

    stopped: Callable[[str], None]
    stuck: Callable[[str], None]
    drained: Callable[[Repeated], None]
    log: Callable[[str], None]


class WorkerVersions(PlanVersions):
    """The versions of a worker; each operation goes to the version that holds for it.

    Where no wheel has brought the engine, it is compiled here and not when the first configuration comes: then all
    other agents of the job would wait for it.

    Args:
        operation_timeout: seconds without any progress on a tree before its operations fail (0: never).
        listeners: functions to call.

    Raises:
        AgentError: the engine cannot be compiled.
    """

    def __init__(self, operation_timeout: float, listeners: Listeners) -> None:
        library()
        self._operation_timeout = operation_timeout
        self._tell = listeners
        self._relay = Relay(lambda: listeners.drained(NOTHING))
        self._root = OwnRoot()
        self._switch = OfSwitch()
        self._hold: threading.Timer | None = None

    @property
    def engine(self) -> Engine:
        """The engine of the version that holds; without one this raises AbortedError."""
        engine = self._relay.engine
        if engine is None:
            raise AbortedError("the agent is closed")
        return engine

    def submit(self, memory: HostArray, op: Collective) -> Work:
        """Submit an operation to the version that holds for it; see Engine.submit."""
        return self._relay.submit(memory, op)

    # -- PlanVersions ---------------------------------------------------------------------------------------------

    def configure(self, config: AgentConfig, interface: str) -> None:
        reason = f"epoch {config.epoch} has begun"
        self._tell.stopped(reason)
        self._root.configure(config, interface)
        self._relay.configure(config, self._maker(interface), reason)

    def prepare(self, config: AgentConfig, interface: str, again: bool) -> int:
        self._cancel_hold()
        self._root.prepare(config, interface, again)
        prepare = self._relay.prepare_again if again else self._relay.prepare
        try:
            number = prepare(config, self._maker(interface))
        except BaseException:
            self._root.withdraw()
            raise
        self._hold = threading.Timer(HOLD_SECONDS, self._end_hold)
        self._hold.daemon = True
        self._hold.start()
        return number

    def done(self) -> Sequence[int]:
        return self._relay.results

    def switch_over(self, first_operation: int, given: Mapping[int, int]) -> None:
        self._cancel_hold()
        self._root.switch_over()
        if not self._relay.repeating:
            self._relay.switch_over(first_operation)
            return
        repeated = self._relay.switch_again(first_operation, given)
        if repeated.operations:
            self._tell.log(f"{repeated.operations} operations, {repeated.nbytes} bytes, are done again")
        self._tell.drained(repeated)

    def withdraw(self) -> None:
        if not self._relay.repeating:  # Otherwise another change or a stop follows.
            self._cancel_hold()
        self._root.withdraw()
        self._relay.withdraw()

    def rerouted(self, trees: Sequence[ReroutedTree]) -> None:
        self._root.rerouted(trees)
        self._relay.rerouted(trees)

    def retire(self) -> None:
        self._root.retire()
        self._relay.retire()

    def stop(self, reason: str) -> None:
        self._cancel_hold()
        self._tell.stopped(reason)
        self._relay.abort(reason)

    def end(self, in_order: bool) -> None:
        self._cancel_hold()
        self._tell.stopped("the agent is closed")
        self._relay.close()
        if in_order:
            self._root.linger()
        self._root.end()

    def open_chunks(self) -> Mapping[int, int]:
        return self.engine.open_chunks()

    def statistics(self) -> Statistics:
        stats = self.engine.stats()
        numbers = scalars(stats) | totals(stats.trees)
        trees = [pb.TreeReport(tree=tree.tree) for tree in stats.trees]
        for report, tree in zip(trees, stats.trees, strict=True):
            report.busy_seconds, report.round_trip_seconds = tree.busy_seconds, tree.rtt_lowest
            report.answered_bytes = int(tree.measured_mbps * tree.busy_seconds * 1e6 / 8)
            if tree.oldest_unanswered < tree.next_sequence:
                report.oldest_chunk = tree.oldest_unanswered
        refused = sum(tree.check_failures for tree in stats.trees)
        numbers |= {REFUSED: refused} if refused else {}
        numbers |= {suspect_key(tree.tree): float(tree.check_failures) for tree in stats.trees if tree.check_failures}
        numbers |= {"resent": stats.resent, "measured_mbps": round(stats.measured_mbps, 3)}
        numbers[NUMBERS_USED] = stats.numbers_used
        self._root.add_to(numbers, trees)
        if self.engine.config.adds:
            numbers[SWITCH_ADDS] = self._switch.mbps(self.engine.config.values_per_packet)
        return numbers, trees

    def _maker(self, interface: str) -> Callable[[AgentConfig], Engine]:
        return lambda config: Engine(config, interface, self._operation_timeout)

    def _cancel_hold(self) -> None:
        if self._hold is not None:
            self._hold.cancel()
            self._hold = None

    def _end_hold(self) -> None:
        if self._relay.holding:
            reason = f"a migration was announced, and no word of it came for {HOLD_SECONDS:g} s"
            self._relay.abort(reason)
            self._tell.stuck(reason)
