"""Iterative training with partial reduce on the flow-level simulator (CREW paper, sections III, IV, V).

Workers compute and report that they are ready. The policy that also runs in the real system (`Crew`) decides which
workers form a group, which adds which block, and which replaces one that cannot be reached. This module simulates the
effect on the network: whole blocks as flows, and their schedules. docs/adr/0009-simulators-of-figures.md
says why they do not use overlay/sim.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from controlplane.planner.plan.task import Task
from controlplane.planner.simulate import Overlay, Simulator
from controlplane.planner.strategies.wan.crew.policy import Crew, CrewSettings
from controlplane.planner.strategies.wan.errors import WanError
from controlplane.planner.strategies.wan.policy import (
    Abort,
    Back,
    ContinueAlone,
    DefaultSplit,
    Finished,
    Lost,
    Mend,
    Order,
    Ready,
    Start,
)

MODEL_MBIT = 180 * 8.0
SCHEDULES = ("FS", "FL", "TL", "C1", "C2")
CHUNK = 10**8
"""Number of parts of a chunk in which the policy counts the model's values, so that blocks that do not end with chunks
are exact.
"""

VALUES = 10_000 * CHUNK
"""The model's parts: k of Algorithms 1 and 2, for scatter that does not block, is 10,000."""


@dataclass(frozen=True)
class Setup:
    """The settings of a simulation.

    Attributes:
        scheme: CREW, OPR (only initiators add) or A2A (every worker sends everything).
        network_aware: groups are split by the network (N-A); else evenly (E-D).
        schedule: FS (fair), FL (FCFS by flow), TL (FCFS by task), C1 (multicast before scatter) or C2 (scatter
            first).
        blocking: scatter starts only when the group is known.
        broken: connections that are down, as pairs of workers.
        avoid: groups are split without the broken connections (section III: "recomputes the execution scheme"); else
            another worker replaces one that a member cannot reach.
        estimate: the bandwidths that the controller assumes.
    """

    scheme: str = "CREW"
    p: int = 5
    network_aware: bool = True
    schedule: str = "FL"
    blocking: bool = True
    model_mbit: float = MODEL_MBIT
    broken: tuple[tuple[int, int], ...] = ()
    avoid: bool = False
    estimate: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise ValueError(f"unknown schedule {self.schedule!r}; known: {', '.join(SCHEDULES)}")
        if self.broken and (self.scheme == "A2A" or not self.blocking):
            raise ValueError("connections that are down need a scheme with failover, and scatter that blocks")

    def priority(self, task: int, multicast: bool) -> int:
        """Return the priority of a flow of a task by the schedule; the lower one goes first."""
        if self.schedule == "TL":
            return task
        if self.schedule == "C1":
            return int(not multicast)
        if self.schedule == "C2":
            return int(multicast)
        return 0


@dataclass
class Result:
    """The results of a simulation.

    Attributes:
        rounds: synchronised rounds per worker.
        trained: local steps that each worker has finished.
        durations: for each finished task, the seconds from the forming of its group to its last worker's result.
        waits: seconds from a worker's being ready to the forming of its group.
    """

    rounds: NDArray[np.int64]
    trained: NDArray[np.int64]
    durations: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    @property
    def mean_rounds(self) -> float:
        return float(self.rounds.mean())


class Training:
    """A simulation run.

    Args:
        bandwidth: (n, n) Mbit/s.
        compute: called as compute(worker); returns the seconds of the worker's next local step.
    """

    def __init__(self, setup: Setup, bandwidth: NDArray[np.float64], compute: Callable[[int], float]) -> None:
        self.setup, self.compute = setup, compute
        overlay = Overlay(bandwidth)
        n = self.n = overlay.n
        self.sim = Simulator(overlay.capacities, "fair" if setup.schedule == "FS" else "fcfs")
        settings = CrewSettings(
            scheme=setup.scheme, network_aware=setup.network_aware, chunk_values=CHUNK, blocking=setup.blocking,
            avoid=setup.avoid,
        )  # fmt: skip
        estimate = overlay.bandwidth if setup.estimate is None else setup.estimate
        self.policy = Crew([str(k) for k in range(n)], estimate, setup.p, settings=settings)
        self.since = np.zeros(n)  # times at which workers became ready
        self.result = Result(np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64))
        self.early: dict[int, tuple[range, list[int]]] = {}  # worker -> flows and blocks of its default scatter
        self.dummy = self.sim.groups(1, None)[0]
        self.default = np.zeros(n)  # Mbit of each worker's block in scatter that does not block
        for name in self.policy.nodes:
            self._carry_out(self.policy.handle(Back(name), 0.0))
        self._carry_out(self.policy.preset(VALUES))
        for i, j in setup.broken:
            for pair in (i * n + j, j * n + i):
                self.sim.set_capacity(pair, 0.0)
            self._carry_out(self.policy.handle(Lost(str(i), str(j)), 0.0))

    def _carry_out(self, orders: Iterable[Order]) -> None:
        begun: dict[int, Task] = {}
        for order in orders:
            match order:
                case Start(task) | Mend(task):  # a task whose blocks need replacements is mended as it begins
                    begun[task.number] = task
                case Abort(number):
                    for node in begun.pop(number).participants:
                        self.train(int(node))
                case DefaultSplit(blocks=blocks):
                    for owner, _, count in blocks:
                        self.default[int(owner)] += self._mbit(count)
                case ContinueAlone(node, reason):
                    if not self.setup.avoid:
                        raise WanError(reason)
                    self.result.waits.append(self.sim.now - self.since[int(node)])
                    self.train(int(node))
        for task in begun.values():
            self._start(task)

    def _mbit(self, values: int) -> float:
        return values * (self.setup.model_mbit / VALUES)

    # --- workers ---

    def run(self, seconds: float) -> Result:
        for worker in range(self.n):
            self.train(worker)
        self.sim.run(seconds)
        return self.result

    def train(self, worker: int) -> None:
        self.sim.after(self.compute(worker), lambda: self._ready(worker))

    def _ready(self, worker: int) -> None:
        self.result.trained[worker] += 1
        self.since[worker] = self.sim.now
        if not self.setup.blocking:
            blocks = np.flatnonzero(self.default > 0)
            flows = self.sim.send_many(
                self.default[blocks],
                worker * self.n + blocks,
                np.full(len(blocks), self.dummy),
                priority=self.setup.priority(0, False),
            )
            self.early[worker] = (flows, blocks.tolist())
        self._carry_out(self.policy.handle(Ready(str(worker), VALUES), self.sim.now))

    def _start(self, task: Task) -> None:
        members = [int(node) for node in task.participants]
        self.result.waits.extend((self.sim.now - self.since[members]).tolist())
        groups = self.sim.groups(len(members), None)  # for each member, all flows that it is to receive
        begin, left = self.sim.now, [len(members)]

        def received(member: int, _group: int) -> None:
            self.result.rounds[member] += 1
            left[0] -= 1
            if left[0] == 0:
                self.result.durations.append(self.sim.now - begin)
            self._carry_out(self.policy.handle(Finished(str(member), task.number), self.sim.now))
            self.train(member)

        for member, group in zip(members, groups, strict=True):
            self.sim.on_done(group, partial(received, member))
        if self.setup.scheme == "A2A":
            self._send_all_to_all(task.number, members, groups)
            return
        owners, sizes = self._blocks(task)
        reduced = self.sim.groups(len(owners), None)  # for each block, the flows to the worker that adds it
        if self.setup.blocking:
            self._multicast(task.number, members, groups, (owners, sizes), reduced)
            self.sim.send_many(
                np.tile(sizes, len(members)),
                (np.array(members)[:, None] * self.n + owners).ravel(),
                np.tile(reduced, len(members)),
                priority=self.setup.priority(task.number, False),
            )
            return
        for group in reduced:
            self.sim.hold(group)
        self._multicast(task.number, members, groups, (owners, sizes), reduced)
        self._adjust(members, owners, sizes, reduced)
        for group in reduced:
            self.sim.release(group)

    def _blocks(self, task: Task) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the worker that adds each block, and the block's Mbit. Where scatter does not block, all that one
        worker adds is one block.
        """
        trees = [(int(tree.root), self._mbit(tree.count)) for tree in task.trees if tree.count]
        if not self.setup.blocking:
            owners = dict.fromkeys(owner for owner, _ in trees)
            trees = [(owner, sum(size for each, size in trees if each == owner)) for owner in owners]
        return np.array([owner for owner, _ in trees], dtype=np.int64), np.array([size for _, size in trees])

    def _multicast(
        self,
        number: int,
        members: list[int],
        groups: Sequence[int],
        blocks: tuple[NDArray[np.int64], NDArray[np.float64]],
        reduced: Sequence[int],
    ) -> None:
        """Order the multicasts of all blocks of a task; each begins when its scatter flows (`reduced`) are done."""
        owners, sizes = blocks
        self.sim.send_many(
            np.repeat(sizes, len(members)),
            (owners[:, None] * self.n + np.array(members)).ravel(),
            np.tile(groups, len(owners)),
            priority=self.setup.priority(number, True),
            after=np.repeat(reduced, len(members)),
        )

    def _adjust(
        self, members: list[int], blocks: NDArray[np.int64], sizes: NDArray[np.float64], reduced: Sequence[int]
    ) -> None:
        """Run Algorithm 2: change what each initiator is sending to what the group's own splitting wants."""
        now = np.zeros(self.n)
        now[blocks] = sizes
        kept = np.minimum(self.default, now)  # A block loses its largest indexes, and keeps its remaining old ones.
        groups = np.full(self.n, -1)
        groups[blocks] = reduced
        for member in members:
            flows, sending = self.early.pop(member)
            left = self.sim.remaining_many(flows)
            sent = np.array(self.default)
            sent[sending] -= np.maximum(left, 0)
            todo = np.maximum(kept - sent, 0) + (now - kept)
            running = np.zeros(self.n, dtype=bool)
            under_way = left >= 0
            ids, own = np.array(flows)[under_way], np.array(sending)[under_way]
            running[own] = True
            wanted = now[own] > 0
            self.sim.set_groups(ids[wanted], groups[own[wanted]])
            self.sim.set_remaining_many(ids, np.where(todo[own] > 1e-9, todo[own], 0.0))
            fresh = np.flatnonzero(~running & (todo > 1e-9))
            self.sim.send_many(
                todo[fresh], member * self.n + fresh, groups[fresh], priority=self.setup.priority(0, False)
            )

    def _send_all_to_all(self, number: int, members: list[int], groups: Sequence[int]) -> None:
        for worker, group in zip(members, groups, strict=True):
            self.sim.hold(group)
            others = np.array([i for i in members if i != worker], dtype=int)
            self.sim.send_many(
                np.full(len(others), self.setup.model_mbit),
                others * self.n + worker,
                np.full(len(others), group),
                priority=self.setup.priority(number, True),
            )
            self.sim.release(group)


def one_reduce(setup: Setup, bandwidth: NDArray[np.float64], members: Sequence[int]) -> float:
    """Return the seconds of a single partial reduce of these workers, with nothing else on the network."""
    never = float("inf")
    order = {worker: k for k, worker in enumerate(members)}
    started: set[int] = set()

    def compute(worker: int) -> float:
        first = worker in order and worker not in started
        started.add(worker)
        return 0.0 if first else 1e12

    run = Training(replace(setup, p=len(members)), bandwidth, compute)
    run.run(1e11)
    return run.result.durations[0] if run.result.durations else never
