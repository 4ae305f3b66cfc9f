"""Training on the flow-level simulator: the same policies, orders and executions as over TCP (network.py).

Executions get one value a chunk, since their decisions depend on how many chunks there are and not on the values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any

import numpy as np

from controlplane.planner.plan.task import Edge, Task
from controlplane.planner.strategies.wan.errors import WanError
from controlplane.planner.strategies.wan.policy import (
    Abort,
    Back,
    ContinueAlone,
    DefaultSplit,
    Drop,
    Event,
    Finished,
    LetGo,
    Measured,
    Order,
    Policy,
    Progress,
    Ready,
    Reject,
    Release,
)
from controlplane.planner.topology import Topology
from overlay.core.errors import OverlayError
from overlay.core.execution import Environment, Execution, SendRequest
from overlay.core.framing import segment_bytes
from overlay.core.measurement import PROBE_CHUNKS, ThroughputEstimator
from overlay.core.message import HEADER_BYTES, Kind, Values
from overlay.core.orders import OrderExecutor, RunningTask
from overlay.core.path_selector import PathSelector
from overlay.core.scatter import EAGER_PRIORITY, Scatter
from overlay.core.tcp import BITS
from overlay.sim.network import WITHOUT_LOSS, Message, SimulatedNetwork, TcpSettings

SEGMENT_BYTES = segment_bytes()


@dataclass(frozen=True)
class _Chunk:
    """A chunk on its path.

    Attributes:
        size: bytes, with the message's header.
        execution: the sender's execution, or None where its task does not run any more.
    """

    task: Task
    request: SendRequest
    size: int
    execution: Execution | None

    def wanted(self) -> bool:
        """Return whether the chunk is still to be sent."""
        assert self.request.edge is not None
        return self.execution is None or self.execution.closed or self.execution.sends_to(self.request.edge.receiver)


class Simulation:
    """Training of a policy's agents, which are servers of the topology. Its Effects (core/orders.py) act on executions.

    Args:
        policy: decides on tasks.
        topology: the network.
        values: float32 values of the model.
        compute: called as compute(node); returns the seconds of the agent's next step.
        tcp: settings of the connections between agents.
        probe_values: agents report the throughput of chunks of at least this many values; None for no reports.
        probe_chunks: number of chunks of which a throughput is taken.
        finished: called as finished(task, seconds) when a task is done, whose slowest agent took so many seconds.

    Attributes:
        sim: the simulator.
        rounds: number of tasks that are done.
    """

    def __init__(
        self,
        policy: Policy,
        topology: Topology,
        values: int,
        *,
        compute: Callable[[str], float] = lambda node: 0.0,
        tcp: TcpSettings = WITHOUT_LOSS,
        probe_values: int | None = None,
        probe_chunks: int = PROBE_CHUNKS,
        finished: Callable[[Task, float], None] = lambda task, seconds: None,
    ) -> None:
        self.policy, self.values, self._compute = policy, values, compute
        self._probe_values, self._probe_chunks = probe_values, probe_chunks
        self._on_finished = finished
        self.network = SimulatedNetwork(topology, len(policy.nodes), tcp)
        self.sim = self.network.sim
        self._orders = OrderExecutor(self)
        self._executions: dict[int, dict[str, Execution]] = {}  # of each running task, by agent
        self._began: dict[int, float] = {}  # when each running task began, s
        self._throughputs: dict[tuple[str, str], ThroughputEstimator] = {}
        self._paths = {node: PathSelector(node) for node in topology.servers}
        self._scatters: dict[str, Scatter[Values]] = {node: Scatter(node) for node in topology.servers}
        self._default_splits: dict[int, DefaultSplit] = {}
        self._turns = count(1)
        self.rounds = 0
        self._most_rounds = 0

    def run(self, rounds: int, seconds: float = math.inf) -> float:
        """Train until this many tasks are done, or so many seconds have passed. Return the simulated time (seconds)."""
        self._most_rounds = rounds
        for node in self.policy.nodes:
            self.tell(Back(node))
        for node in self.policy.nodes:
            self._train(node)
        if math.isinf(seconds):
            self.sim.run()
        else:
            self.sim.run(seconds)
        return self.sim.now

    def tell(self, event: Event) -> None:
        """Give the policy an event, and carry out its orders."""
        self.carry_out(self.policy.handle(event, self.sim.now))

    def carry_out(self, orders: Sequence[Order]) -> None:
        """Carry out orders of the policy, now."""
        self._orders.carry_out(orders)

    def set_rate(self, u: str, v: str, mbps: float) -> None:
        """Set the capacity of a link of the topology, from now on."""
        self.network.set_rate(u, v, mbps)

    # --- trainers ---

    def _train(self, node: str) -> None:
        self.sim.after(self._compute(node), partial(self._ready, node))

    def _ready(self, node: str) -> None:
        turn = next(self._turns)
        if self.values in self._default_splits:
            split = self._default_splits[self.values]
            for owner, chunk in self._scatters[node].begin(turn, split.blocks, split.chunk_values):
                self._send_eagerly(node, turn, owner, chunk)
        self.tell(Ready(node, self.values, turn))

    def _send_eagerly(self, node: str, turn: int, owner: str, chunk: int) -> None:
        scatter, chunk_values = self._scatters[node], self._default_splits[self.values].chunk_values
        values = min(chunk_values, self.values - chunk * chunk_values)

        def arrived() -> None:
            tasks = [run.task for run in self._orders.running.values()]
            found = self._scatters[owner].came(node, turn, chunk, np.zeros(1, np.float32), tasks)
            if found is not None:
                task, tree, own = found
                there = self._executions[task.number][owner]
                there.partial(tree, own, 1 << task.trees[tree].contributors.index(node), np.zeros(1, np.float32))

        message = Message(
            4 * values + HEADER_BYTES, began=partial(scatter.sent, turn, owner, chunk), arrived=arrived,
            wanted=partial(scatter.wants, turn),
        )  # fmt: skip
        self.network.send((node, owner), EAGER_PRIORITY, message)

    # --- effects of orders ---

    def prepare(self, task: Task) -> Task:
        return task

    def refused(self, task: Task, error: OverlayError) -> None:
        raise error

    def started(self, task: Task) -> None:
        small = _small(task)
        self._began[task.number] = self.sim.now
        executions = {node: self._execution(task, small, node) for node in task.nodes}
        self._executions[task.number] = executions
        for pair in task.hops():
            self.network.connect(pair)
        for node in task.participants:
            executions[node].start(np.zeros(small.values, np.float32))
        for node in task.nodes:
            for index, chunk, bit, values in self._scatters[node].collect(task):
                executions[node].partial(index, chunk, bit, values)

    def mended(self, before: Task, task: Task) -> None:
        executions, small = self._executions[task.number], _small(task)
        for node in task.nodes:
            if node in executions:
                executions[node].mend(small)
            else:
                executions[node] = self._execution(task, small, node)
        for node in executions.keys() - task.nodes:
            executions[node].close()

    def dropped(self, before: Task, task: Task, order: Drop) -> None:
        executions = self._executions[task.number]
        executions[task.trees[0].root].drop(order.nodes)
        for node in order.nodes:
            executions[node].close()

    def paced(self, task: Task, mbps: float) -> None:
        self._executions[task.number][task.trees[0].root].pace(mbps / task.chunk_values)

    def aborted(self, run: RunningTask, order: Abort) -> None:
        for execution in self._executions.pop(order.task).values():
            execution.close()
        for node in run.waiting:
            if order.again:
                self._ready(node)
            else:
                self._train(node)

    def done(self, run: RunningTask) -> None:
        del self._executions[run.task.number]
        self.rounds += 1
        self._on_finished(run.task, run.seconds)
        if self.rounds >= self._most_rounds:
            self.sim.stop()

    def released(self, order: Release | LetGo) -> None:
        self._train(order.node)

    def left_alone(self, order: ContinueAlone) -> None:
        self._train(order.node)

    def rejected(self, order: Reject) -> None:
        raise WanError(order.reason)  # a figure that left out rounds would be wrong

    def default_split_set(self, order: DefaultSplit) -> None:
        self._default_splits[order.values] = order

    # --- executions ---

    def _execution(self, task: Task, small: Task, node: str) -> Execution:
        environment = Environment(
            send=partial(self._send_request, task, node),
            finished=partial(self._finished, task, node),
            clock=lambda: self.sim.now,
            later=self.sim.after,
            progress=lambda receiver, left: self.tell(Progress(node, task.number, receiver, left)),
        )
        return Execution(small, node, environment, skip=self._scatters[node].settle(task))

    def _finished(self, task: Task, node: str) -> None:
        if node not in task.awaited:
            return  # the sender of a copy
        self._orders.finished(task.number, node, self.sim.now - self._began[task.number])
        self.tell(Finished(node, task.number))
        if task.op != "copy":
            self._train(node)

    # --- chunks ---

    def _send_request(self, task: Task, node: str, request: SendRequest) -> None:
        execution = None
        if task.number in self._orders.running:
            task = self._orders.running[task.number].task  # with the trees and rates of the present
            execution = self._executions[task.number][node]
        start, end = task.chunk(request.tree, request.chunk)
        if request.edge is None:
            tree = task.trees[request.tree]

            def arrived(receiver: str) -> None:
                self._arrive(task, request._replace(edge=Edge(tree.root, receiver)))

            def left() -> None:
                if execution is not None:
                    execution.sent(request)

            self.network.send_copied((task.number, request.tree), tree, end - start, left, arrived)
            return
        size = 4 * (end - start) + HEADER_BYTES

        def send_over(path: Edge, left: Callable[[], None]) -> None:
            def taken() -> None:
                left()
                if execution is not None:
                    execution.sent(request)

            self._hop(_Chunk(task, request, size, execution), path.path, taken)

        self._paths[node].send(task, request.edge, send_over)

    def _hop(self, chunk: _Chunk, path: Sequence[str], taken: Callable[[], None]) -> None:
        """Send a chunk along the rest of its path. `taken` is called when it is at the path's end, or not wanted any
        more.
        """
        if len(path) == 1:
            self._arrive(chunk.task, chunk.request)
            return
        pair = (path[0], path[1])
        began_at = [0.0]

        def began() -> None:
            began_at[0] = self.sim.now

        def arrived() -> None:
            if len(path) == 2:
                taken()
            throughput = self._throughputs.setdefault(pair, ThroughputEstimator(self._probe_chunks))
            counts = self._probe_values is not None and chunk.size >= 4 * self._probe_values
            mbps = throughput.arrived(began_at[0], self.sim.now, chunk.size * BITS, counts=counts)
            if mbps is not None:
                self.tell(Measured(*pair, mbps))
            self._hop(chunk, path[1:], taken)

        message = Message(chunk.size, began, arrived, chunk.wanted, skipped=taken)
        self.network.send(pair, chunk.task.priority, message)

    def _arrive(self, task: Task, request: SendRequest) -> None:
        if task.number not in self._orders.running:
            return  # the last results of a task may still be on their way to agents that only pass them on
        assert request.edge is not None
        there = self._executions[task.number][request.edge.receiver]
        if there.closed or not there.has_chunk(request.tree, request.chunk, 1):
            return
        values = request.values.copy()
        if request.kind == Kind.UP:
            there.partial(request.tree, request.chunk, request.contributors, values)
        else:
            there.result(request.tree, request.chunk, request.values)


def _small(task: Task) -> Task:
    """Return the same task with one value a chunk."""
    first, trees = 0, []
    for index, tree in enumerate(task.trees):
        chunks = task.chunks(index)
        begin = 0 if task.op == "mix" else first
        rate = tree.rate_mbps / task.chunk_values
        trees.append(replace(tree, first=begin, count=chunks, rate_mbps=rate))
        first += chunks
    return replace(task, trees=tuple(trees), values=max(t.first + t.count for t in trees), chunk_values=1)


def seconds_of(policy: Policy, topology: Topology, values: int, rounds: int = 1, **options: Any) -> list[float]:
    """Return the seconds of each of the first tasks, when all agents are always ready. The options are those of
    `Simulation`.
    """
    found: list[float] = []
    Simulation(policy, topology, values, finished=lambda task, s: found.append(s), **options).run(rounds)
    return found
