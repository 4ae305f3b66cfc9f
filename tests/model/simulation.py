"""A whole system in one process: workers with windows and timeouts, switches, a root, and a network with faults.

The systems are larger than :mod:`tests.model.search` can exhaust, with random schedules: many chunks, vectors of 32-bit
values that wrap, sums and maxima, packets as bytes through whole switches with tables.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from p4src.protocol import Flag
from tests.model.merge import Values, merger
from tests.model.packet import Packet, decode
from tests.model.root import RootSlot, oldest_incomplete, recipients, root_receive
from tests.model.schedule import SINGLE, SINGLE_ALL, Schedule
from tests.model.switch import Replicate, Switch
from tests.model.tree import ROOT, Tree

RETURN_LABEL = 30_000
ANSWER_LABEL = 40_000
BELOW = 10_000
"""A switch's port to the switch of point i below it is this number plus i."""
VALUES = 3


@dataclass(frozen=True)
class Harm:
    """Probability per packet and hop of each fault, and per step of a reboot of some switch."""

    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    reboot: float = 0.0
    stray: float = 0.0


@dataclass
class Worker:
    """One worker's side of a tree: a window by range, and resends of the oldest unanswered chunk."""

    index: int
    epoch: int
    chunks: int
    slots: int
    sent: int = 0
    results: dict[int, Values | None] = field(default_factory=dict)
    """Answered chunks; None: complete, but not owned by this worker."""

    @property
    def oldest(self) -> int:
        """Return the oldest unanswered chunk."""
        return next((chunk for chunk in range(self.chunks) if chunk not in self.results), self.chunks)


class WrongResult(AssertionError):
    """A worker received something other than the exact sum (or maximum)."""


class Simulation:
    """A simulation of ``tree`` with ``slots`` slots at each point. Nodes: ("worker", w), ("switch", i), ("root", 0).

    Worker w is on port 1 + w of its switch, the switch of point i on port BELOW + i of the next; upwards is port 0.
    """

    values = VALUES
    """Values per packet."""

    def __init__(
        self,
        tree: Tree,
        slots: int,
        chunks: int,
        harm: Harm,
        seed: int,
        *,
        kinds: str = "",
        period: int = 1,
        source: int | None = None,
    ) -> None:
        self.tree, self.slots, self.harm = tree, slots, harm
        self.schedule = Schedule(kinds, len(tree.workers), slots, period, source)
        self.to_workers = 0
        self.random = random.Random(seed)
        self.epoch = 1
        self.workers = [Worker(w, self.epoch, chunks, slots) for w in range(len(tree.workers))]
        self.ring = [RootSlot()] * (2 * slots)
        self.root_epoch = self.epoch
        self.switches = [self.at_switch(point) for point in range(len(tree.points))]
        self.network: list[tuple[str, int, int, bytes]] = []
        self.seen: list[tuple[str, int, int, bytes]] = []
        self.data: dict[tuple[int, int, int], Values] = {}
        self.totals: dict[tuple[int, int], Values] = {}
        self.steps = 0

    def at_switch(self, point: int) -> Switch:
        switch = Switch(self.values, self.slots)
        children: list[int] = []
        for worker, at in enumerate(self.tree.workers):
            if at == point:
                label = self.tree.worker_label(worker)
                switch.labels[1 + worker, label] = self.tree.action(point, label, self.slots - 1)
                children.append(1 + worker)
        for below, at in enumerate(self.tree.points):
            if at == point:
                label = self.tree.point_label(below)
                switch.labels[BELOW + below, label] = self.tree.action(point, label, self.slots - 1)
                children.append(BELOW + below)
        for label, below in self.tree.passing(point):
            switch.labels[BELOW + below, label] = self.tree.action(point, label, self.slots - 1)
        switch.groups[1] = tuple(children)
        switch.labels[0, RETURN_LABEL] = Replicate(1)
        return switch

    def is_maximum(self, chunk: int) -> bool:
        """Return whether a chunk merges by maximum: every third chunk of an epoch does, except in a gather."""
        return chunk % 3 == 0 and self.schedule.kind(chunk) not in (SINGLE, SINGLE_ALL)

    def contribution(self, worker: int, epoch: int, chunk: int) -> Values:
        """Return a worker's values; they are the same for every resend, as they must be."""
        key = worker, epoch, chunk
        if not self.schedule.counts(worker, chunk):
            return (0,) * self.values
        if key not in self.data:
            self.data[key] = tuple(self.random.getrandbits(32) for _ in range(self.values))
        return self.data[key]

    def expected(self, epoch: int, chunk: int) -> Values:
        """Return the result over all workers."""
        key = epoch, chunk
        if key not in self.totals:
            self.totals[key] = self._total(epoch, chunk)
        return self.totals[key]

    def _total(self, epoch: int, chunk: int) -> Values:
        if self.schedule.kind(chunk) in (SINGLE, SINGLE_ALL):
            return self.contribution(self.schedule.owner(chunk), epoch, chunk)
        merge = merger(self.is_maximum(chunk))
        total = self.contribution(0, epoch, chunk)
        for worker in range(1, len(self.workers)):
            total = merge(total, self.contribution(worker, epoch, chunk))
        return total

    def put(self, kind: str, node: int, port: int, frame: bytes) -> None:
        """Hand a frame to the network, which may lose or double it, or keep it for later."""
        if self.random.random() < self.harm.loss:
            return
        item = (kind, node, port, frame)
        self.network.append(item)
        if self.random.random() < self.harm.duplicate:
            self.network.append(item)
        if self.random.random() < self.harm.stray:
            self.seen.append(item)

    def send(self, worker: Worker, chunk: int, resend: bool) -> None:
        if not resend and not self.schedule.adds(worker.index, chunk):
            return  # only the owner sends it
        flags = self.schedule.flags(worker.index, chunk, resend) | (Flag.MAXIMUM if self.is_maximum(chunk) else 0)
        values = self.contribution(worker.index, worker.epoch, chunk)
        packet = Packet(self.tree.worker_label(worker.index), worker.epoch, chunk, 0, values, int(flags))
        at = self.tree.workers[worker.index]
        if at == ROOT:
            self.put("root", 0, 0, packet.encode())
        else:
            self.put("switch", at, 1 + worker.index, packet.encode())

    def deliver(self, kind: str, node: int, port: int, frame: bytes) -> None:
        if kind == "switch":
            for out, leaving in self.switches[node].process(port, frame):
                if out != 0:
                    below = out - BELOW
                    self.put(*(("switch", below, 0) if below >= 0 else ("worker", out - 1, 0)), leaving)
                elif self.tree.points[node] == ROOT:
                    self.put("root", 0, 0, leaving)
                else:
                    self.put("switch", self.tree.points[node], BELOW + node, leaving)
            return
        packet = decode(frame, self.values)
        assert packet is not None
        if kind == "root":
            self._at_root(packet)
        else:
            self._at_worker(self.workers[node], packet)

    def _at_root(self, packet: Packet) -> None:
        if packet.epoch != self.root_epoch:
            return
        index = packet.sequence % len(self.ring)
        flow = self.tree.root_flow(packet.label)
        before = oldest_incomplete(self.ring, self.tree.expected)
        self.ring[index], answer = root_receive(self.ring[index], packet, flow, self.tree.expected)
        if answer is None:
            return
        after = oldest_incomplete(self.ring, self.tree.expected)
        count = after << 32 | len(self.workers)
        result = Packet(RETURN_LABEL, packet.epoch, answer.sequence, count, answer.values, int(Flag.RESULT))
        workers = recipients(packet, answer, self.ring, before, self.tree.expected)
        self.to_workers += workers.bit_count()
        if workers != self.tree.expected or answer.workers:
            for worker in range(len(self.workers)):
                if workers >> worker & 1:
                    self.put("worker", worker, 0, result._replace(label=ANSWER_LABEL + worker).encode())
            return
        for point, target in enumerate(self.tree.points):
            if target == ROOT:
                self.put("switch", point, 0, result.encode())
        for worker, target in enumerate(self.tree.workers):
            if target == ROOT:
                self.put("worker", worker, 0, result.encode())

    def _at_worker(self, worker: Worker, packet: Packet) -> None:
        if packet.epoch != worker.epoch or not packet.result:
            return
        for chunk in self.schedule.heard(worker.index, packet.bitmap >> 32, worker.results.keys()):
            worker.results[chunk] = None
        if packet.sequence in worker.results:
            return
        if packet.values != self.expected(packet.epoch, packet.sequence):
            raise WrongResult(f"worker {worker.index} got {packet}, not {self.expected(packet.epoch, packet.sequence)}")
        worker.results[packet.sequence] = packet.values

    def step(self) -> None:
        """Do one thing: a worker sends or resends, a packet arrives, a switch forgets, an old packet comes."""
        self.steps += 1
        if self.random.random() < self.harm.reboot:
            self.random.choice(self.switches).reboot()
        if self.seen and self.random.random() < self.harm.stray:
            self.deliver(*self.random.choice(self.seen))
        ready = [worker for worker in self.workers if self.may_send(worker)]
        if self.network and (not ready or self.random.random() < 0.7):
            late = self.random.random() < self.harm.reorder
            self.deliver(*self.network.pop(self.random.randrange(len(self.network)) if late else 0))
        elif ready:
            worker = self.random.choice(ready)
            self.send(worker, worker.sent, resend=False)
            worker.sent += 1
        else:
            waiting = [worker for worker in self.workers if worker.oldest < worker.chunks]
            worker = self.random.choice(waiting)
            self.send(worker, worker.oldest, resend=True)

    def may_send(self, worker: Worker) -> bool:
        """Return whether its next chunk is in its window."""
        return worker.sent < min(worker.chunks, worker.oldest + self.schedule.window(worker.sent))

    def early_resend(self) -> None:
        """Let a timeout come too early: some worker resends a chunk for which nothing has been lost."""
        worker = self.random.choice(self.workers)
        if worker.oldest < worker.sent:
            self.send(worker, worker.oldest, resend=True)

    def new_epoch(self, chunks: int) -> None:
        """Start all agents again; what is in the network and in the switches stays."""
        self.epoch += 1
        self.root_epoch = self.epoch
        self.ring = [RootSlot()] * (2 * self.slots)
        self.workers = [Worker(w, self.epoch, chunks, self.slots) for w in range(len(self.workers))]

    def run_with_new_epoch(self, chunks: int, before: int, limit: int) -> None:
        """Run, with a new epoch after ``before`` steps, or at the end if that is earlier."""
        for _ in range(before):
            if self.done:
                break
            self.step()
        self.new_epoch(chunks)
        self.run(limit)

    @property
    def done(self) -> bool:
        return all(worker.oldest == worker.chunks for worker in self.workers)

    def run(self, limit: int) -> None:
        """Run until every worker has every result; raises AssertionError after ``limit`` steps."""
        for _ in range(limit):
            if self.done:
                return
            self.step()
        raise AssertionError(f"not done after {limit} steps: {[worker.oldest for worker in self.workers]}")
