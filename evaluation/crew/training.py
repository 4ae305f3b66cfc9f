"""Iterative training with partial reduce on the flow-level simulator (CREW paper, sections III, IV, V).

Workers compute and report that they are ready. The policy that also runs in the real system (`Crew`) decides which
workers form a group, which adds which block, and which replaces a lost one. This module simulates the effect on the
network: flows, their schedules, faults, and the behaviour of workers that are lost or alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from controlplane.planner.plan.task import Task
from controlplane.planner.simulate import Overlay, Simulator
from controlplane.planner.strategies.wan.crew.policy import SCHEMES, Crew, CrewSettings
from controlplane.planner.strategies.wan.errors import WanError
from controlplane.planner.strategies.wan.policy import (
    Abort,
    Back,
    ContinueAlone,
    DefaultSplit,
    Event,
    Failed,
    Finished,
    Mend,
    Order,
    Ready,
    Start,
)
from evaluation.crew.faults import CONTROLLER, Effects, Fault, Faults

MODEL_MBIT = 180 * 8.0
SCHEDULES = ("FS", "FL", "TL", "C1", "C2")
CHUNK = 10**8
"""Number of parts in which the policy counts the model's values, so that blocks that do not end with chunks are exact.
"""


@dataclass(frozen=True)
class Setup:
    """The settings of a simulation.

    Attributes:
        scheme: CREW, OPR (only initiators add) or A2A (every worker sends everything).
        network_aware: groups are split by the network (N-A); else evenly (E-D).
        schedule: FS (fair), FL (FCFS by flow), TL (FCFS by task), C1 (multicast before scatter) or C2 (scatter
            first).
        blocking: scatter starts only when the group is known.
        avoid: groups are split without the connections that are known to be broken (section III: "recomputes the
            execution scheme"), so that only later failures need a replacement.
        estimate: the bandwidths that the controller assumes.
        budget: seconds after which an unfinished group discards its task, whatever the reason.
        chunks: k of Algorithms 1 and 2, for scatter that does not block.
    """

    scheme: str = "CREW"
    p: int = 5
    network_aware: bool = True
    schedule: str = "FL"
    blocking: bool = True
    model_mbit: float = MODEL_MBIT
    chunks: int = 10_000
    faults: tuple[Fault, ...] = ()
    avoid: bool = False
    budget: float = float("inf")
    estimate: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        if self.scheme not in SCHEMES:
            raise ValueError(f"unknown scheme {self.scheme!r}; known: {', '.join(SCHEMES)}")
        if self.schedule not in SCHEDULES:
            raise ValueError(f"unknown schedule {self.schedule!r}; known: {', '.join(SCHEDULES)}")
        if any(fault.worker == CONTROLLER and fault.other is not None for fault in self.faults):
            raise ValueError("a fault between the controller and a worker names the worker first")
        broken = any(fault.worker != CONTROLLER for fault in self.faults) or self.budget < float("inf")
        if not self.blocking and (self.scheme != "CREW" or self.schedule == "TL" or broken):
            raise ValueError(
                "scatter that does not block is CREW's, without task priorities, faults of workers, and time budgets"
            )
        if (self.faults or self.budget < float("inf")) and self.scheme == "A2A":
            raise ValueError("failover is CREW's (and OPR's)")
        if not self.budget > 0:
            raise ValueError(f"the time budget of a task must be > 0 s, got {self.budget}")

    def priority(self, task: int, multicast: bool) -> int:
        """Return the priority of a flow of a task by the schedule; the lower one goes first."""
        if self.schedule == "TL":
            return task
        if self.schedule == "C1":
            return int(not multicast)
        if self.schedule == "C2":
            return int(multicast)
        return 0

    def check(self, overlay: Overlay) -> None:
        """Check that this can be simulated on a network; raise ValueError otherwise."""
        if not 1 <= self.p <= overlay.n:
            raise ValueError(f"p must be 1 .. {overlay.n}, got {self.p}")
        if self.scheme != "A2A" and self.network_aware:
            return
        dead = np.argwhere(~(overlay.bandwidth > 0))
        if len(dead):
            i, j = dead[0].tolist()
            raise ValueError(f"link {i} -> {j} has no bandwidth: only a network-aware splitting can do without it")


@dataclass
class Result:
    """The results of a simulation.

    Attributes:
        rounds: synchronised rounds per worker.
        trained: local steps that each worker has finished.
        durations: for each finished task, the seconds from the forming of its group to its last worker's result.
        waits: seconds from a worker's being ready to the forming of its group.
        abandoned: number of tasks that no replacement could save, or not in time.
    """

    rounds: NDArray[np.int64]
    trained: NDArray[np.int64]
    durations: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    abandoned: int = 0
    reassigned: int = 0

    @property
    def mean_rounds(self) -> float:
        return float(self.rounds.mean())


@dataclass
class _Task:
    """The state of a group's task.

    Attributes:
        blocks: by first value, the worker that adds the block and its size in Mbit.
        workers: for each member, the group of all flows that it is to receive.
        scatter, multicast: flows of each block, the latter in the order of the members.
    """

    number: int
    start: float
    members: list[int]
    task: Task
    blocks: dict[int, tuple[int, float]]
    workers: dict[int, int]
    scatter: dict[int, Sequence[int]] = field(default_factory=dict)
    multicast: dict[int, Sequence[int]] = field(default_factory=dict)

    def owners(self) -> NDArray[np.int64]:
        return np.array([owner for owner, _ in self.blocks.values()], dtype=np.int64)

    def sizes(self) -> NDArray[np.float64]:
        return np.array([size for _, size in self.blocks.values()])


class Training:
    """A simulation run.

    Args:
        bandwidth: (n, n) Mbit/s.
        compute: called as compute(worker); returns the seconds of the worker's next local step.
    """

    def __init__(self, setup: Setup, bandwidth: NDArray[np.float64], compute: Callable[[int], float]) -> None:
        self.setup = setup
        self.overlay = Overlay(bandwidth)
        self.n = self.overlay.n
        setup.check(self.overlay)
        self.compute = compute
        self.sim = Simulator(self.overlay.capacities, "fair" if setup.schedule == "FS" else "fcfs")
        self.values = setup.chunks * CHUNK
        self.names = [str(k) for k in range(self.n)]
        self.policy = _policy(setup, self.overlay, self.names, self._lacks)
        effects = Effects(self._tell, self._leaves, self.train, self._controller_is_back)
        self.faults = Faults(self.sim, self.overlay, effects)
        self.queue: list[int] = []  # workers that are ready and in no group
        self.untold: list[int] = []  # ready workers of which the controller does not know
        self.unseen: list[Event] = []  # events while no controller acted
        self.since = np.zeros(self.n)  # times at which workers became ready
        self.result = Result(np.zeros(self.n, dtype=np.int64), np.zeros(self.n, dtype=np.int64))
        self.tasks: dict[int, _Task] = {}
        self.early: dict[int, tuple[range, list[int]]] = {}  # worker -> flows and blocks of its default scatter
        self.dummy = self.sim.groups(1, None)[0]
        self.default = np.zeros(self.n)  # Mbit of each worker's block in scatter that does not block
        for name in self.names:
            self._carry_out(self.policy.handle(Back(name), 0.0))
        self._carry_out(self.policy.preset(self.values))

    # --- the controller ---

    def _tell(self, event: Event) -> None:
        """Tell the controller of an event, now or when a controller acts again."""
        if self.faults.away:
            self.unseen.append(event)
        else:
            self._carry_out(self.policy.handle(event, self.sim.now))

    def _controller_is_back(self) -> None:
        """Tell the controller what has happened while none acted, and which workers have become ready."""
        unseen, untold, self.unseen, self.untold = self.unseen, self.untold, [], []
        for event in unseen:
            self._tell(event)
        for worker in untold:
            self._tell(Ready(str(worker), self.values))

    def _carry_out(self, orders: Iterable[Order]) -> None:
        alone = 0
        for order in orders:
            match order:
                case Start(task):
                    self.start(task)
                case Mend(task):
                    self._mend(self.tasks[task.number], task)
                case Abort(number):
                    self._abandon(self.tasks[number])
                case DefaultSplit(blocks=blocks):
                    for owner, _, count in blocks:
                        self.default[int(owner)] += self._mbit(count)
                case ContinueAlone(node, reason):
                    if not self.setup.avoid:
                        raise WanError(reason)
                    alone += 1
                    self.queue.remove(int(node))
                    self.result.waits.append(self.sim.now - self.since[int(node)])
                    self.train(int(node))
        self.result.abandoned += alone // self.setup.p

    def _lacks(self, number: int, tree: int, member: str) -> bool:
        task = self.tasks.get(number)
        if task is None:  # the task of this very event
            return True
        flow = task.multicast[task.task.trees[tree].first][task.members.index(int(member))]
        return bool(self.sim.remaining_many([flow])[0] > 0)

    def _mbit(self, values: int) -> float:
        return values * (self.setup.model_mbit / self.values)

    # --- workers ---

    def run(self, seconds: float) -> Result:
        for fault in self.setup.faults:
            self.faults.plan(fault)
        for worker in range(self.n):
            self.train(worker)
        self.sim.run(seconds)
        return self.result

    def train(self, worker: int) -> None:
        self.sim.after(self.compute(worker), lambda: self.ready(worker))

    def ready(self, worker: int) -> None:
        self.result.trained[worker] += 1
        self.since[worker] = self.sim.now
        if self.faults.gone[worker]:
            self.faults.lost.add(worker)
            return
        if self.faults.alone[worker]:
            self.train(worker)  # It trains on its own until it can ask for a group again.
            return
        if not self.setup.blocking:
            blocks = np.flatnonzero(self.default > 0)
            flows = self.sim.send_many(
                self.default[blocks],
                worker * self.n + blocks,
                np.full(len(blocks), self.dummy),
                priority=self.setup.priority(0, False),
            )
            self.early[worker] = (flows, blocks.tolist())
        self.queue.append(worker)
        if self.faults.away:
            self.untold.append(worker)
        else:
            self._tell(Ready(str(worker), self.values))

    def _leaves(self, worker: int) -> bool:
        """Remove a worker from those that are ready, and return whether it was ready."""
        if worker in self.untold:
            self.untold.remove(worker)
        if worker in self.queue:
            self.queue.remove(worker)
            return True
        return False

    def start(self, task: Task) -> None:
        together = task.participants if self.setup.scheme == "A2A" else task.trees[0].contributors
        members = [int(node) for node in together]
        for member in members:
            self.queue.remove(member)
        self.result.waits.extend((self.sim.now - self.since[members]).tolist())
        if self.setup.scheme == "A2A":
            self._start_all_to_all(task.number, members)
            return
        groups = self.sim.groups(len(members), None)
        blocks = _blocks(task, self.setup.blocking, self._mbit)
        begun = _Task(task.number, self.sim.now, members, task, blocks, dict(zip(members, groups, strict=True)))
        for member, group in begun.workers.items():
            self.sim.on_done(group, partial(self._received, begun, member))
        self.tasks[task.number] = begun
        if self.setup.budget < float("inf"):
            self.sim.after(self.setup.budget, partial(self._late, begun))
        if self.setup.blocking:
            self._scatter(begun)
        else:
            self._adjust(begun)

    def _promise(self, task: _Task, blocks: Sequence[int], reduced: Sequence[int], members: Sequence[int]) -> range:
        """Order multicasts of these blocks to these members (member by member).

        Each block's begins when its group (`reduced`) of scatter flows is done.
        """
        owners, sizes = np.array([task.blocks[block] for block in blocks]).T
        return self.sim.send_many(
            np.repeat(sizes, len(members)),
            (owners.astype(np.int64)[:, None] * self.n + np.array(members)).ravel(),
            np.tile([task.workers[i] for i in members], len(blocks)),
            priority=self.setup.priority(task.number, True),
            after=np.repeat(reduced, len(members)),
        )

    def _multicast(self, task: _Task, reduced: Sequence[int]) -> None:
        flows, p = self._promise(task, list(task.blocks), reduced, task.members), len(task.members)
        for k, block in enumerate(task.blocks):
            task.multicast[block] = flows[k * p : (k + 1) * p]

    # --- scatter ---

    def _scatter(self, task: _Task) -> None:
        groups = self.sim.groups(len(task.blocks), None)
        self._multicast(task, groups)
        flows = self.sim.send_many(
            np.tile(task.sizes(), len(task.members)),
            (np.array(task.members)[:, None] * self.n + task.owners()).ravel(),
            np.tile(groups, len(task.members)),
            priority=self.setup.priority(task.number, False),
        )
        for k, block in enumerate(task.blocks):
            task.scatter[block] = flows[k :: len(task.blocks)]

    def _adjust(self, task: _Task) -> None:
        """Run Algorithm 2: change what each initiator is sending to what the group's own splitting wants."""
        now = np.zeros(self.n)
        now[task.owners()] = task.sizes()
        kept = np.minimum(self.default, now)  # A block loses its largest indexes, and keeps its remaining old ones.
        blocks = task.owners()
        groups = np.full(self.n, -1)
        groups[blocks] = self.sim.groups(len(blocks), None)
        for group in groups[blocks].tolist():
            self.sim.hold(group)
        self._multicast(task, groups[blocks].tolist())
        for member in task.members:
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
        for group in groups[blocks].tolist():
            self.sim.release(group)

    # --- multicast ---

    def _received(self, task: _Task, member: int, _group: int) -> None:
        if task.number not in self.tasks:
            return
        self.result.rounds[member] += 1
        del task.workers[member]
        if not task.workers:
            self.result.durations.append(self.sim.now - task.start)
            del self.tasks[task.number]
        self._done(member, task.number)

    def _done(self, member: int, number: int) -> None:
        self._carry_out(self.policy.handle(Finished(str(member), number), self.sim.now))
        self.train(member)

    # --- all-to-all ---

    def _start_all_to_all(self, number: int, members: list[int]) -> None:
        start, left = self.sim.now, [len(members)]

        def received(worker: int, _group: int) -> None:
            self.result.rounds[worker] += 1
            left[0] -= 1
            if left[0] == 0:
                self.result.durations.append(self.sim.now - start)
            self._done(worker, number)

        for worker in members:
            group = self.sim.groups(1, partial(received, worker))[0]
            self.sim.hold(group)
            others = np.array([i for i in members if i != worker], dtype=int)
            self.sim.send_many(
                np.full(len(others), self.setup.model_mbit),
                others * self.n + worker,
                np.full(len(others), group),
                priority=self.setup.priority(number, True),
            )
            self.sim.release(group)

    def _late(self, task: _Task) -> None:
        if task.number in self.tasks:
            self._carry_out(self.policy.handle(Failed(task.number, "not in its time"), self.sim.now))

    def _mend(self, task: _Task, mended: Task) -> None:
        task.task = mended
        for tree in mended.trees:
            if tree.count and task.blocks[tree.first][0] != int(tree.root):
                self._reassign(task, tree.first, int(tree.root))

    def _reassign(self, task: _Task, block: int, chosen: int) -> None:
        """Let another worker add this block; values that were sent to the lost one are sent again, behind flows that
        already wait.

        Members that have the block's sum keep it; the replacement multicasts to those that lack it.
        """
        size = task.blocks[block][1]
        task.blocks[block] = chosen, size
        self.result.reassigned += 1
        flows = list(task.multicast[block])
        lacking = np.flatnonzero(self.sim.remaining_many(flows) > 0)
        group = self.sim.groups(1, None)[0]
        fresh = self._promise(task, [block], [group], [task.members[k] for k in lacking])
        self._cancel([flows[k] for k in lacking])  # They are cancelled before the flows that they wait for.
        self._cancel(task.scatter.get(block, ()))
        for k, flow in zip(lacking.tolist(), fresh, strict=True):
            flows[k] = flow
        task.multicast[block] = flows
        task.scatter[block] = self.sim.send_many(
            np.full(len(task.members), size),
            np.array(task.members) * self.n + chosen,
            np.full(len(task.members), group),
            priority=self.setup.priority(task.number, False),
        )

    def _cancel(self, flows: Iterable[int]) -> None:
        for flow in flows:
            self.sim.set_remaining(flow, 0.0)

    def _abandon(self, task: _Task) -> None:
        self.result.abandoned += 1
        del self.tasks[task.number]
        for flows in (*task.multicast.values(), *task.scatter.values()):
            self._cancel(flows)
        for member in task.workers:
            if self.faults.gone[member]:
                self.faults.lost.add(member)
            else:
                self.train(member)


def _policy(setup: Setup, overlay: Overlay, names: Sequence[str], lacks: Callable[[int, int, str], bool]) -> Crew:
    """Return the policy that decides in this simulation, as it would decide for agents."""
    settings = CrewSettings(
        scheme=setup.scheme,
        network_aware=setup.network_aware,
        chunk_values=CHUNK,
        blocking=setup.blocking,
        avoid=setup.avoid,
    )
    estimate = overlay.bandwidth if setup.estimate is None else setup.estimate
    return Crew(names, estimate, setup.p, settings=settings, lacks=lacks)


def _blocks(task: Task, blocking: bool, mbit: Callable[[int], float]) -> dict[int, tuple[int, float]]:
    """Return the worker that adds each block, and the block's Mbit. Where scatter does not block, all that one worker
    adds is one block.
    """
    blocks: dict[int, tuple[int, float]] = {}
    firsts: dict[int, int] = {}
    for tree in task.trees:
        owner, first = int(tree.root), tree.first
        if not blocking:
            first = firsts.setdefault(owner, first)
        blocks[first] = owner, blocks.get(first, (owner, 0.0))[1] + mbit(tree.count)
    return blocks


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
