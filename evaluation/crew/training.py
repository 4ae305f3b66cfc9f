"""Iterative training with partial reduce, as a policy on the flow-level simulator (CREW paper, sections III, IV, V).

Workers compute, report that they are ready, the controller groups the first p ready ones, they synchronise, and each
goes on as soon as it has all blocks of the result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from controlplane.simulate import Overlay, Simulator
from controlplane.strategies.wan.crew import algorithm as crew
from controlplane.strategies.wan.errors import WanError

MODEL_MBIT = 180 * 8.0
SCHEDULES = ("FS", "FL", "TL", "C1", "C2")
SCHEMES = ("CREW", "OPR", "A2A")
LAST = 2  # after all classes of C1 and C2


CONTROLLER = -1


@dataclass(frozen=True)
class Fault:
    """The connection between two workers (both ways) is down from start to end (s), or with other == None the worker
    itself, or its connection with the CONTROLLER; whoever uses it learns of it `detection` seconds after it starts.

    worker == CONTROLLER, other == None: the controller itself, until its backup has asked all workers for their states.
    """

    worker: int
    other: int | None
    start: float = 0.0
    end: float = float("inf")
    detection: float = 0.0


@dataclass(frozen=True)
class Setup:
    """scheme: CREW, OPR (only initiators add), A2A (everyone sends everything). network_aware: N-A, else E-D.

    schedule: FS (fair), FL (FCFS by flow), TL (FCFS by task), C1 (multicast before scatter), C2 (scatter first).
    blocking: scatter starts only when the group is known. idle_only: scatter that does not block takes no bandwidth
    from flows of formed groups until its own is formed (ours; as printed it queues like all others).
    avoid: groups are split without the connections that are known to be broken (section III: "recomputes the execution
    scheme"), so that only what breaks later needs a replacement.
    estimate: the bandwidths that the controller believes in.
    budget: seconds after which a group that is not done discards its task, whatever the reason.
    chunks: k of Algorithms 1 and 2, for scatter that does not block.
    """

    scheme: str = "CREW"
    p: int = 5
    network_aware: bool = True
    schedule: str = "FL"
    blocking: bool = True
    idle_only: bool = False
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
        if self.idle_only and self.blocking:
            raise ValueError("idle_only is for scatter that does not block")
        if (self.faults or self.budget < float("inf")) and self.scheme == "A2A":
            raise ValueError("failover is CREW's (and OPR's)")
        if not self.budget > 0:
            raise ValueError(f"the time budget of a task must be > 0 s, got {self.budget}")


@dataclass
class Result:
    """rounds: synchronised rounds per worker; trained: local steps that each has finished. durations: seconds from the
    forming of a group to its last worker's result, of finished tasks. waits: seconds from a worker's being ready to the
    forming of its group. abandoned: tasks that no replacement could save, or not in time."""

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
    number: int
    start: float
    members: list[int]
    weights: NDArray[np.float64]
    owner: NDArray[np.int64]
    workers: dict[int, int]  # member -> group of everything that it is to receive
    scatter: dict[int, Sequence[int]] = field(default_factory=dict)  # block -> flows
    multicast: dict[int, Sequence[int]] = field(default_factory=dict)  # block -> flows, in the order of the members


class Training:
    """One run. bandwidth: (n, n) Mbit/s. compute(worker) -> seconds of its next local step."""

    def __init__(self, setup: Setup, bandwidth: NDArray[np.float64], compute: Callable[[int], float]) -> None:
        self.setup = setup
        self.overlay = Overlay(bandwidth)
        self.n = self.overlay.n
        if not 1 <= setup.p <= self.n:
            raise ValueError(f"p must be 1 .. {self.n}, got {setup.p}")
        if setup.scheme == "A2A" or not setup.network_aware:
            dead = np.argwhere(~(self.overlay.bandwidth > 0))
            if len(dead):
                i, j = dead[0].tolist()
                raise ValueError(f"link {i} -> {j} has no bandwidth: only a network-aware splitting can do without it")
        self.compute = compute
        self.sim = Simulator(self.overlay.capacities, "fair" if setup.schedule == "FS" else "fcfs")
        self.belief = self.overlay.bandwidth if setup.estimate is None else crew.mesh(setup.estimate)
        self.queue: list[int] = []
        self.since = np.zeros(self.n)  # when each became ready
        self.result = Result(np.zeros(self.n, dtype=np.int64), np.zeros(self.n, dtype=np.int64))
        self.tasks: dict[int, _Task] = {}
        self.n_tasks = 0
        self.cut = np.zeros((self.n, self.n), dtype=int)  # faults per connection (diagonal: per worker)
        self.noticed = np.zeros((self.n, self.n), dtype=int)  # those of them that the controller knows
        self.alone = np.zeros(self.n, dtype=int)  # per worker: that it cannot talk to the controller
        self.away = 0  # faults of the controller itself
        self.lost: set[int] = set()  # down workers that go on when they are back
        self.loads = np.zeros(self.n)  # Mbit that each is to add now: l of Eq. (3)
        self.early: dict[int, tuple[range, list[int]]] = {}  # worker -> flows and blocks of its default scatter
        self.dummy = self.sim.groups(1, None)[0]
        self.default: tuple[crew.Ranges, ...] = ()
        if not setup.blocking:
            everyone = list(range(self.n))
            aware = setup.network_aware
            weights = crew.optimal_split(self.belief, everyone).weights if aware else crew.even_split(self.n)
            self.default = crew.split_model(weights, setup.chunks)
        self.default_sizes = np.array([crew.size(block) for block in self.default])  # chunks

    @property
    def down(self) -> NDArray[np.bool_]:
        """Connections that are not to be used, as the controller knows it; the diagonal: workers."""
        return self.noticed > 0

    # --- priorities of the schedules ---

    def _priority(self, task: int, multicast: bool) -> int:
        schedule = self.setup.schedule
        if schedule == "TL":
            return task
        if schedule == "C1":
            return int(not multicast)
        if schedule == "C2":
            return int(multicast)
        return 0

    # --- workers and controller ---

    def run(self, seconds: float) -> Result:
        for fault in self.setup.faults:
            self._plan_fault(fault)
        for worker in range(self.n):
            self._train(worker)
        self.sim.run(seconds)
        return self.result

    def _train(self, worker: int) -> None:
        self.sim.after(self.compute(worker), lambda: self._ready(worker))

    def _ready(self, worker: int) -> None:
        self.result.trained[worker] += 1
        self.since[worker] = self.sim.now
        if self.down[worker, worker]:
            self.lost.add(worker)
            return
        if self.alone[worker]:
            self._train(worker)  # on its own, until it can ask for a group again
            return
        if not self.setup.blocking:
            sizes = self.default_sizes * (self.setup.model_mbit / self.setup.chunks)
            blocks = np.flatnonzero(sizes > 0)
            flows = self.sim.send_many(
                sizes[blocks],
                worker * self.n + blocks,
                np.full(len(blocks), self.dummy),
                priority=self._priority(0, False) + LAST * self.setup.idle_only,
            )
            self.early[worker] = (flows, blocks.tolist())
        self.queue.append(worker)
        self._group()

    def _group(self) -> None:
        """The first p in the queue become a group, as long as there are so many (and a controller)."""
        while len(self.queue) >= self.setup.p and not self.away:
            members, self.queue = self.queue[: self.setup.p], self.queue[self.setup.p :]
            self._start(members)

    def _weights(self, members: list[int]) -> NDArray[np.float64]:
        offline = np.diag(self.down) | (self.alone > 0)
        aggregators = members if self.setup.scheme == "OPR" else np.flatnonzero(~offline).tolist()
        belief = self.belief
        if self.setup.avoid:
            belief = np.where(self.down, 0.0, belief)
            aggregators = [k for k in aggregators if not self.down[members, k].any()]
            if not aggregators:
                raise WanError(f"nobody has connections with all of {members}")
        if self.setup.network_aware:
            return crew.optimal_split(belief, members, aggregators).weights
        return crew.even_split(self.n, aggregators)

    def _start(self, members: list[int]) -> None:
        number = self.n_tasks
        self.n_tasks += 1
        self.result.waits.extend((self.sim.now - self.since[members]).tolist())
        if self.setup.scheme == "A2A":
            self._start_all_to_all(number, members)
            return
        try:
            weights = self._weights(members)
        except WanError:
            if not self.setup.avoid:
                raise
            self.result.abandoned += 1
            for member in members:
                self._train(member)
            return
        groups = self.sim.groups(len(members), None)
        task = _Task(
            number, self.sim.now, members, weights, np.arange(self.n), dict(zip(members, groups, strict=True))
        )
        for member, group in task.workers.items():
            self.sim.on_done(group, partial(self._received, task, member))
        self.tasks[number] = task
        if self.setup.budget < float("inf"):
            self.sim.after(self.setup.budget, partial(self._late, task))
        if self.setup.blocking:
            self._scatter(task)
        else:
            self._adjust(task)

    def _promise(
        self, task: _Task, blocks: NDArray[np.int64], reduced: Sequence[int], members: Sequence[int]
    ) -> range:
        """Multicasts of these blocks to these members (member by member), each block's from the instant when its group
        (`reduced`) of scatter flows is done."""
        return self.sim.send_many(
            np.repeat(task.weights[blocks] * self.setup.model_mbit, len(members)),
            (task.owner[blocks][:, None] * self.n + np.array(members)).ravel(),
            np.tile([task.workers[i] for i in members], len(blocks)),
            priority=self._priority(task.number, True),
            after=np.repeat(reduced, len(members)),
        )

    def _multicast(self, task: _Task, blocks: NDArray[np.int64], reduced: Sequence[int]) -> None:
        flows, p = self._promise(task, blocks, reduced, task.members), len(task.members)
        for k, block in enumerate(blocks.tolist()):
            task.multicast[block] = flows[k * p : (k + 1) * p]

    # --- scatter ---

    def _scatter(self, task: _Task) -> None:
        blocks = np.flatnonzero(task.weights > 0)
        self.loads += task.weights * self.setup.model_mbit
        groups = self.sim.groups(len(blocks), None)
        self._multicast(task, blocks, groups)
        lost = self.down[task.members][:, blocks].any(axis=0)
        healthy = blocks[~lost]
        to = np.array(groups)[~lost]
        flows = self.sim.send_many(
            np.tile(task.weights[healthy] * self.setup.model_mbit, len(task.members)),
            (np.array(task.members)[:, None] * self.n + healthy).ravel(),
            np.tile(to, len(task.members)),
            priority=self._priority(task.number, False),
        )
        for k, block in enumerate(healthy.tolist()):
            task.scatter[block] = flows[k :: len(healthy)]
        for block in blocks[lost].tolist():
            if task.number in self.tasks:
                self._reassign(task, block)

    def _adjust(self, task: _Task) -> None:
        """Algorithm 2: what each initiator has under way becomes what the group's own splitting wants."""
        unit = self.setup.model_mbit / self.setup.chunks
        new = crew.rearrange(task.weights, self.default)
        old = self.default_sizes
        now = np.array([crew.size(block) for block in new])
        kept = np.minimum(old, now)  # a block loses its largest indexes, and keeps the rest of its old ones
        task.weights = now / self.setup.chunks
        self.loads += task.weights * self.setup.model_mbit
        blocks = np.flatnonzero(now > 0)
        groups = np.full(self.n, -1)
        groups[blocks] = self.sim.groups(len(blocks), None)
        for group in groups[blocks].tolist():
            self.sim.hold(group)
        self._multicast(task, blocks, groups[blocks].tolist())
        for member in task.members:
            flows, sending = self.early.pop(member)
            left = self.sim.remaining_many(flows)
            if self.setup.idle_only:
                for flow in flows:
                    self.sim.set_priority(flow, self._priority(0, False))
            sent = np.array(old * unit)
            sent[sending] -= np.maximum(left, 0)
            todo = np.maximum(kept * unit - sent, 0) + (now - kept) * unit
            running = np.zeros(self.n, dtype=bool)
            under_way = left >= 0
            ids, own = np.array(flows)[under_way], np.array(sending)[under_way]
            running[own] = True
            wanted = now[own] > 0
            self.sim.set_groups(ids[wanted], groups[own[wanted]])
            self.sim.set_remaining_many(ids, np.where(todo[own] > 1e-9, todo[own], 0.0))
            fresh = np.flatnonzero(~running & (todo > 1e-9))
            self.sim.send_many(
                todo[fresh], member * self.n + fresh, groups[fresh], priority=self._priority(0, False)
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
            self._close(task)
        self._train(member)

    def _close(self, task: _Task) -> None:
        del self.tasks[task.number]
        np.subtract.at(self.loads, task.owner, task.weights * self.setup.model_mbit)

    # --- all-to-all ---

    def _start_all_to_all(self, number: int, members: list[int]) -> None:
        start, left = self.sim.now, [len(members)]

        def received(worker: int, _group: int) -> None:
            self.result.rounds[worker] += 1
            left[0] -= 1
            if left[0] == 0:
                self.result.durations.append(self.sim.now - start)
            self._train(worker)

        for worker in members:
            group = self.sim.groups(1, partial(received, worker))[0]
            self.sim.hold(group)
            others = np.array([i for i in members if i != worker], dtype=int)
            self.sim.send_many(
                np.full(len(others), self.setup.model_mbit),
                others * self.n + worker,
                np.full(len(others), group),
                priority=self._priority(number, True),
            )
            self.sim.release(group)

    # --- failover (section IV-B) ---

    def _pairs(self, fault: Fault) -> list[tuple[int, int]]:
        if fault.other == CONTROLLER:
            return []
        others = [fault.other] if fault.other is not None else [k for k in range(self.n) if k != fault.worker]
        return [pair for k in others for pair in ((fault.worker, k), (k, fault.worker))]

    def _plan_fault(self, fault: Fault) -> None:
        if fault.worker == CONTROLLER:
            self._plan_handover(fault)
            return
        pairs = self._pairs(fault)

        def breaks() -> None:
            for i, j in pairs:
                self.cut[i, j] += 1
                self.sim.set_capacity(i * self.n + j, 0.0)

        def noticed() -> None:
            worker = fault.worker
            for i, j in pairs:
                self.noticed[i, j] += 1
            if fault.other is None:
                self.noticed[worker, worker] += 1
                if worker in self.queue:
                    self.queue.remove(worker)
                    self.lost.add(worker)
            if fault.other == CONTROLLER:
                self.alone[worker] += 1
                if worker in self.queue:
                    self.queue.remove(worker)
                    self._train(worker)
            self._repair()

        def back() -> None:
            known = fault.start + fault.detection <= fault.end
            for i, j in pairs:
                self.cut[i, j] -= 1
                self.noticed[i, j] -= known
                if not self.cut[i, j]:
                    self.sim.set_capacity(i * self.n + j, self.overlay.bandwidth[i, j])
            if fault.other == CONTROLLER:
                self.alone[fault.worker] -= known
            if fault.other is None:
                self.noticed[fault.worker, fault.worker] -= known
                if fault.worker in self.lost and not self.down[fault.worker, fault.worker]:
                    self.lost.remove(fault.worker)
                    self._train(fault.worker)

        self.sim.at(fault.start, breaks)
        if fault.start + fault.detection <= fault.end:
            self.sim.at(fault.start + fault.detection, noticed)
        if fault.end < float("inf"):
            self.sim.at(fault.end, back)

    def _plan_handover(self, fault: Fault) -> None:
        """Groups that have begun go on, none are formed and nothing is repaired before the backup is there."""

        def leaves() -> None:
            self.away += 1

        def back() -> None:
            self.away -= 1
            self._repair()
            self._group()

        self.sim.at(fault.start, leaves)
        if fault.end < float("inf"):
            self.sim.at(fault.end, back)

    def _late(self, task: _Task) -> None:
        if task.number in self.tasks:
            self._abandon(task)

    def _repair(self) -> None:
        """First come, first served over the tasks that the broken connections touch.

        An initiator that cannot ask the controller for a replacement has its task abandoned.
        """
        if self.away:
            return
        down = self.down
        for task in list(self.tasks.values()):
            if down[task.members, task.members].any():
                self._abandon(task)
                continue
            for block in np.flatnonzero(task.weights > 0).tolist():
                if task.number not in self.tasks:
                    break
                lacking = self.sim.remaining_many(task.multicast[block]) > 0
                broken = lacking & down[task.members, task.owner[block]]
                if (broken & (self.alone[task.members] > 0)).any():
                    self._abandon(task)
                elif broken.any():
                    self._reassign(task, block)

    def _choose(self, task: _Task, block: int) -> int | None:
        usable = np.where(self.down, 0.0, self.belief)
        offline = np.diag(self.down) | (self.alone > 0)  # has not got P, or cannot get it
        excluded = [int(task.owner[block]), *np.flatnonzero(offline).tolist()]
        size = task.weights[block] * self.setup.model_mbit
        return crew.replacement(usable, task.members, self.loads, size, excluded)

    def _reassign(self, task: _Task, block: int) -> None:
        """Another worker adds this block; what was sent to the lost one is sent again, after all that waits already.

        Whoever has the block's sum keeps it; the replacement multicasts to those who lack it.
        """
        chosen = self._choose(task, block)
        if chosen is None:
            self._abandon(task)
            return
        size = task.weights[block] * self.setup.model_mbit
        self.loads[task.owner[block]] -= size
        self.loads[chosen] += size
        task.owner[block] = chosen
        self.result.reassigned += 1
        flows = list(task.multicast[block])
        lacking = np.flatnonzero(self.sim.remaining_many(flows) > 0)
        group = self.sim.groups(1, None)[0]
        fresh = self._promise(task, np.array([block]), [group], [task.members[k] for k in lacking])
        self._cancel([flows[k] for k in lacking])  # before what they wait for
        self._cancel(task.scatter.get(block, ()))
        for k, flow in zip(lacking.tolist(), fresh, strict=True):
            flows[k] = flow
        task.multicast[block] = flows
        task.scatter[block] = self.sim.send_many(
            np.full(len(task.members), size),
            np.array(task.members) * self.n + chosen,
            np.full(len(task.members), group),
            priority=self._priority(task.number, False),
        )

    def _cancel(self, flows: Iterable[int]) -> None:
        for flow in flows:
            self.sim.set_remaining(flow, 0.0)

    def _abandon(self, task: _Task) -> None:
        self.result.abandoned += 1
        self._close(task)
        for flows in (*task.multicast.values(), *task.scatter.values()):
            self._cancel(flows)
        for member in task.workers:
            if self.down[member, member]:
                self.lost.add(member)
            else:
                self._train(member)


def one_reduce(setup: Setup, bandwidth: NDArray[np.float64], members: Sequence[int]) -> float:
    """Seconds of a single partial reduce of these workers, with nothing else on the network."""
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
