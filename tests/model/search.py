"""Explicit-state search of small systems for wrong sums and stuck states.

    python -m tests.model.search --tree star:3 --slots 1 --chunks 3 --epochs 1 [--attempts A] [--history K] [--hostile]

The network is as hostile as can be: any packet that was ever sent may arrive now, later, again or never. A worker may
send, and send again with or without RESEND, any chunk that its window has ever covered. A switch may forget its
registers at any time. Workers and root move to a newer epoch each at its own time.

Packets between aggregation points: by default the search assumes that every partial sum that could exist has been
sent (any set of flows into the point whose workers have all had the chunk in their window, with and without RESEND).
That is more than can happen, so what it finds to be safe is safe, and its states are few. ``--history K`` keeps the
packets that were really sent instead, at most K distinct ones on a link, of which any may be lost at any time.

``--attempts A``: a worker may send a chunk in any of A attempts (:func:`attempt_epoch`), as the root asks for it and as
it hears what the root asks; none of them waits for another.

``--hostile``: the first worker also sends, whenever it likes, packets of an epoch that nobody has given out, the
highest number there is, for any chunk; packets of the highest sequence number there is; and, where there are several
chunks, its own first one with the wrong MAXIMUM flag, so that what becomes of that chunk's values is not looked at.

In every reachable state:

* every packet and slot holds exactly one contribution of each worker for whom a bit of its bitmap stands, for its own
  chunk and epoch (values are numbers in which every (worker, epoch, chunk) is a digit of its own);
* a chunk that a root's ring gives up is complete;
* from here on, a fair network without losses and only the resend of each worker's oldest unanswered chunk answer
  every chunk to every worker (no stuck states);
* the same holds when the root asks for its oldest incomplete chunk in another attempt, and no worker sends a RESEND but
  for a result that it lacks; and then every flow into the root carries one packet for that chunk, whatever the switches
  held: what was lost is added up again, and not sent worker by worker;
* every slot still aggregates: the packets of a chunk that comes next leave it as one sum.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from p4src.protocol import Flag, Verdict
from tests.model.merge import Values, subset
from tests.model.packet import Packet
from tests.model.root import RootSlot, oldest_incomplete, recipients, root_receive
from tests.model.schedule import ALL, SINGLE, Schedule
from tests.model.switch import Aggregate, Slot, aggregate
from tests.model.tree import ROOT, Tree, racks, star, two_level, with_direct

DIGIT_BITS = 6
HOSTILE = (1 << 32) - 1
"""The epoch, and the sequence number, of packets that no honest worker sends."""
ATTEMPT_SHIFT = 24


def attempt_epoch(epoch: int, attempt: int) -> int:
    """Return the epoch in a chunk's packets in an attempt; switches see another epoch, which takes the slot over."""
    return epoch ^ attempt << ATTEMPT_SHIFT


def epoch_of(wire: int) -> int:
    """Return the epoch without the attempt; hostile packets have no epoch of ours."""
    return wire & (1 << ATTEMPT_SHIFT) - 1


class Found(AssertionError):
    """The search found a violation; the message has the state and the trace that leads to it."""


class Core(NamedTuple):
    """The part of a state that remains when the network is empty.

    ``workers``: per worker, for each of its epochs so far, the answered chunks as bits. ``points``: slots of each
    aggregation point. ``root``: (epoch, ring).
    """

    workers: tuple[tuple[int, ...], ...]
    points: tuple[tuple[Any, ...], ...]
    root: tuple[int, tuple[RootSlot, ...]]


class State(NamedTuple):
    """A state of the system.

    ``links``: packets that each aggregation point has sent on (empty without history). ``results``: (epoch, chunk) that
    the root sent. Each may reach any worker, which is more than can happen. So may the message that all chunks before
    one are complete, once the results of all of them have been sent.
    """

    core: Core
    links: tuple[frozenset[Packet], ...]
    results: frozenset[tuple[int, int]]


@dataclass
class Statistics:
    """The size of what a search covered."""

    states: int = 0
    cores: int = 0
    transitions: int = 0
    complete: bool = True


class Search:
    """One configuration of the search. ``history`` None: every partial sum that could exist is in flight.

    ``hostile``: see the module. ``fresh``: a slot after a reboot. A search of another kind of switch has its own
    `fresh` and its own :meth:`at_point`.
    """

    fresh: Any = Slot()

    def __init__(
        self,
        tree: Tree,
        slots: int,
        chunks: int,
        epochs: int = 1,
        history: int | None = None,
        *,
        attempts: int = 1,
        hostile: bool = False,
        kinds: str = "",
        period: int = 1,
        source: int | None = None,
    ) -> None:
        if epochs * chunks >= 1 << DIGIT_BITS or len(tree.workers) * DIGIT_BITS > 32:
            raise ValueError("too many chunks, epochs or workers for one digit each in 32 bits")
        self.tree, self.slots, self.chunks, self.epochs, self.history = tree, slots, chunks, epochs, history
        self.hostile, self.attempts = hostile, attempts
        self.forges_maximum = hostile and chunks > 1  # of the first chunk; the others' values are still checked
        self.schedule = Schedule(kinds, len(tree.workers), slots, period, source)
        self.live: set[Core] = set()
        self.live_again: set[Core] = set()
        # The same few slots, rings and packets meet in most states: what comes of it is computed, and checked, once.
        self.value = cache(self.value)  # type: ignore[method-assign]
        self.sums_of: dict[Any, tuple[tuple[int, Packet], ...]] = {}
        self.slots_after: dict[Any, tuple[Any, Packet | None, Verdict | None]] = {}
        self.roots_after: dict[Any, tuple[Any, tuple[int, int, int] | None]] = {}

    def initial(self) -> State:
        """Return the state in which nothing is sent and registers are fresh.

        Epochs count from 0; packets have the number + 1.
        """
        core = Core(
            ((0,),) * len(self.tree.workers),
            ((self.fresh,) * self.slots,) * len(self.tree.points),
            (0, (RootSlot(),) * (2 * self.slots)),
        )
        return State(core, (frozenset(),) * len(self.tree.points), frozenset())

    def value(self, bits: int, epoch: int, chunk: int) -> int:
        """Return what the sum over ``bits`` of one chunk must be."""
        digit = epoch * self.chunks + chunk + 1
        workers = (w for w in range(len(self.tree.workers)) if bits >> w & 1 and self.schedule.counts(w, chunk))
        return sum(digit << DIGIT_BITS * w for w in workers)

    def worker_packet(self, worker: int, epoch: int, chunk: int, flags: int, attempt: int = 0) -> Packet:
        values = self.values(1 << worker, epoch, chunk)
        flags |= self.schedule.flags(worker, chunk, False)
        return Packet(self.tree.worker_label(worker), attempt_epoch(epoch + 1, attempt), chunk, 0, values, flags)

    def reaches(self, answered: int, chunk: int) -> bool:
        """Return whether a worker with these answers may send the chunk."""
        return chunk < self.oldest(answered) + self.schedule.window(chunk)

    def answer(self, core: Core, worker: int, results: int, complete: int) -> Core:
        """Deliver results (bits) of its newest epoch to a worker, and the message that all before ``complete`` are
        complete.
        """
        *before, answered = core.workers[worker]
        answered |= results
        there = {number for number in range(self.chunks) if answered >> number & 1}
        for number in self.schedule.heard(worker, min(complete, self.chunks), there):
            answered |= 1 << number
        return with_worker(core, worker, (*before, answered))

    def oldest(self, answered: int) -> int:
        """Return the oldest unanswered chunk (``chunks`` if there is none)."""
        return next((chunk for chunk in range(self.chunks) if not answered >> chunk & 1), self.chunks)

    def at_point(self, core: Core, point: int, packet: Packet) -> tuple[Core, Packet | None]:
        """Deliver a packet to an aggregation point; checks what leaves and what stays."""
        slots = core.points[point]
        index = packet.sequence & (self.slots - 1)
        met = (slots[index], point, packet, self.history)
        if met not in self.slots_after:
            self.slots_after[met] = self.at_slot(slots[index], point, packet)
        slot, leaving, _ = self.slots_after[met]
        if slot != slots[index]:
            slots = (*slots[:index], slot, *slots[index + 1 :])
            core = core._replace(points=(*core.points[:point], slots, *core.points[point + 1 :]))
        return core, leaving

    def at_slot(self, slot: Any, point: int, packet: Packet) -> tuple[Any, Packet | None, Verdict | None]:
        """Return a slot after a packet, what leaves, and the verdict; checks both."""
        action = self.tree.action(point, packet.label, self.slots - 1)
        assert isinstance(action, Aggregate)
        slot, verdict, leaving = aggregate(slot, packet, action)
        if slot.values is not None:
            workers = self.tree.workers_of(point, slot.bitmap)
            self.check(workers, slot.owner >> 32, slot.owner & 0xFFFFFFFF, slot.values, "slot")
        if leaving is not None:
            workers = self.tree.workers_of(point, leaving.bitmap)
            self.check(workers, leaving.epoch, leaving.sequence, leaving.values, "packet")
        return slot, leaving, verdict

    def at_root(self, core: Core, packet: Packet) -> tuple[Core, tuple[int, int, int] | None]:
        """Deliver to the root; returns the answer as (chunk, workers' bits, chunk below which all are complete)."""
        met = (core.root, packet)
        if met not in self.roots_after:
            self.roots_after[met] = self.root_after(*met)
        root, answer = self.roots_after[met]
        return core if root is core.root else core._replace(root=root), answer

    def root_after(
        self, root: tuple[int, tuple[RootSlot, ...]], packet: Packet
    ) -> tuple[tuple[int, tuple[RootSlot, ...]], tuple[int, int, int] | None]:
        """Return the root after a packet, and its answer; checks both."""
        epoch, ring = root
        if packet.epoch == HOSTILE or epoch_of(packet.epoch) - 1 != epoch or packet.sequence == HOSTILE:
            return root, None  # the last sequence number is beyond any window
        index = packet.sequence % len(ring)
        before = oldest_incomplete(ring, self.tree.expected)
        slot, answer = root_receive(ring[index], packet, self.tree.root_flow(packet.label), self.tree.expected)
        if slot.values is not None:
            self.check(slot.bitmap, epoch + 1, slot.sequence, slot.values, "root")
        if slot != ring[index]:
            ring = (*ring[:index], slot, *ring[index + 1 :])
            root = (epoch, ring)
        if answer is None:
            return root, None
        self.check(self.tree.expected, epoch + 1, answer.sequence, answer.values, "result")
        complete = oldest_incomplete(ring, self.tree.expected)
        workers = recipients(packet, answer, ring, before, self.tree.expected)
        return root, (answer.sequence, workers, complete)

    def check(self, bits: int, epoch: int, chunk: int, values: tuple[int, ...], where: str) -> None:
        """Check values; a hostile epoch's mean nothing, and no root accepts them. ``epoch``: as in packets."""
        if HOSTILE in (epoch, chunk) or (self.forges_maximum and not chunk):
            return
        if values != (self.value(bits, epoch_of(epoch) - 1, chunk),):
            raise Found(f"{where}: workers {bits:b} of chunk {chunk} in epoch {epoch} have the sum {values[0]:#x}")

    def successors(self, state: State) -> Iterator[tuple[str, State]]:
        """Yield every state to which one step of an agent or of the network leads, with the name of the step."""
        core = state.core
        for worker, epochs in enumerate(core.workers):
            for epoch, answered in enumerate(epochs):
                for chunk in range(self.chunks):
                    if not self.reaches(answered, chunk):
                        continue
                    for flags, attempt in product((0, Flag.RESEND), range(self.attempts)):
                        packet = self.worker_packet(worker, epoch, chunk, int(flags), attempt)
                        yield from self.arrive(state, self.tree.workers[worker], packet, f"worker {worker}")
            if epochs[-1] + 1 < 1 << self.chunks:
                for epoch, chunk in state.results:
                    reached = self.oldest(epochs[-1]) + self.slots
                    if epoch == len(epochs) - 1 and chunk < reached and not epochs[-1] >> chunk & 1:
                        changed = self.answer(core, worker, 1 << chunk, 0)
                        yield f"result {chunk} to {worker}", state._replace(core=changed)
                complete = 0
                while (len(epochs) - 1, complete) in state.results:
                    complete += 1
                    changed = self.answer(core, worker, 0, complete)
                    if changed != core:
                        yield f"all before {complete} to {worker}", state._replace(core=changed)
            if len(epochs) < self.epochs:
                yield f"worker {worker} new epoch", state._replace(core=with_worker(core, worker, (*epochs, 0)))
        if self.hostile:
            for chunk in range(self.chunks):
                for flags in (0, Flag.RESEND):
                    packet = self.worker_packet(0, 0, chunk, int(flags))._replace(epoch=HOSTILE)
                    yield from self.arrive(state, self.tree.workers[0], packet, "hostile")
            for packet in self.forged():
                yield from self.arrive(state, self.tree.workers[0], packet, "hostile")
        if core.root[0] + 1 < self.epochs:
            root = (core.root[0] + 1, (RootSlot(),) * (2 * self.slots))
            yield "root new epoch", state._replace(core=core._replace(root=root))
        for point, packets in enumerate(state.links):
            for packet in packets:
                yield from self.arrive(state, self.after(point, packet), packet, f"point {point}")
                yield f"loss after {point}", state._replace(links=with_link(state.links, point, packets - {packet}))
        if self.history is None:
            if core.workers not in self.sums_of:
                self.sums_of[core.workers] = tuple(self.possible(core))
            for point, packet in self.sums_of[core.workers]:
                yield from self.arrive(state, self.after(point, packet), packet, f"point {point}")
        fresh = (self.fresh,) * self.slots
        for point, slots in enumerate(core.points):
            if slots != fresh:
                points = (*core.points[:point], fresh, *core.points[point + 1 :])
                yield f"reboot of {point}", state._replace(core=core._replace(points=points))

    def after(self, point: int, packet: Packet) -> int:
        """Return where a packet goes from a point: complete sums to the next point, all others to the root."""
        return self.tree.points[point] if packet.label == self.tree.point_label(point) else ROOT

    def arrive(self, state: State, target: int, packet: Packet, source: str) -> Iterator[tuple[str, State]]:
        """Deliver one packet. What leaves an aggregation point is lost if the link is full."""
        step = f"{source} -> {target}: {named(packet)}"
        if target == ROOT:
            core, answer = self.at_root(state.core, packet)
            results = state.results
            if answer is not None:
                results = results | {(packet.epoch - 1, answer[0])}
            yield step, State(core, state.links, results)
            return
        core, leaving = self.at_point(state.core, target, packet)
        links = state.links
        if leaving is not None and self.history is not None and len(links[target]) < self.history:
            links = with_link(links, target, links[target] | {leaving})
        yield step, State(core, links, state.results)

    def possible(self, core: Core) -> Iterator[tuple[int, Packet]]:
        """Yield every partial sum that an aggregation point could have sent, given what the workers could have sent."""
        tree = self.tree
        for point in range(len(tree.points)):
            parts = tree.parts(point)
            everyone = (1 << len(parts)) - 1
            labels = (tree.point_label(point), tree.partial_label(point))
            for epoch in range(self.epochs):
                for chunk in range(self.chunks):
                    sent = sum(
                        1 << worker
                        for worker, epochs in enumerate(core.workers)
                        if epoch < len(epochs) and self.reaches(epochs[epoch], chunk)
                    )
                    if self.schedule.kind(chunk) == SINGLE:
                        yield from self.alone(point, epoch, chunk, sent)
                        continue
                    for bits in subsets(sum(1 << bit for bit, part in enumerate(parts) if subset(part, sent))):
                        values = self.values(tree.workers_of(point, bits), epoch, chunk)
                        for label in labels if bits == everyone else labels[1:]:
                            for resend, attempt in product((False, True), range(self.attempts)):
                                flags, own = self.schedule.flags(0, chunk, resend), attempt_epoch(epoch + 1, attempt)
                                yield point, Packet(label, own, chunk, bits, values, flags)
            if self.hostile and tree.below(point) == 1:
                for chunk in range(self.chunks):
                    for flags in (0, int(Flag.RESEND)):
                        yield point, Packet(labels[0], HOSTILE, chunk, everyone, self.values(1, 0, chunk), flags)

    def alone(self, point: int, epoch: int, chunk: int, sent: int) -> Iterator[tuple[int, Packet]]:
        """Yield what an aggregation point could have sent of a SINGLE chunk: one worker's packet, unchanged."""
        parts = self.tree.parts(point)
        everyone = (1 << len(parts)) - 1
        for bit, part in enumerate(parts):
            if part & (part - 1) or not part & sent:
                continue
            worker = part.bit_length() - 1
            label = (self.tree.point_label if 1 << bit == everyone else self.tree.partial_label)(point)
            packet = self.worker_packet(worker, epoch, chunk, 0)
            yield point, packet._replace(label=label, bitmap=1 << bit)
            yield point, packet._replace(label=self.tree.partial_label(point), bitmap=1 << bit)

    def check_progress(self, core: Core) -> None:
        """Check that a fair run from here answers everything; raises Found otherwise.

        All agents have reached the newest epoch, nothing is in flight, nothing is lost any more, and the workers only
        resend their oldest unanswered chunk: the least that they do on their timeouts.
        """
        newest = max(core.root[0], *(len(epochs) - 1 for epochs in core.workers))
        workers = tuple(epochs + (0,) * (newest + 1 - len(epochs)) for epochs in core.workers)
        if core.root[0] < newest:
            core = core._replace(root=(newest, (RootSlot(),) * (2 * self.slots)))
        core = core._replace(workers=workers)
        path: dict[Core, None] = {}
        while core not in self.live:
            if all(epochs[-1] + 1 == 1 << self.chunks for epochs in core.workers):
                break
            if core in path:
                raise Found(f"stuck: resending does not lead out of {core}")
            path[core] = None
            core = self.fair_round(core, newest)
        self.live.update(path)

    def forged(self) -> Iterator[Packet]:
        """Yield what the first worker should not send in its own epoch: another sequence, its first chunk as a
        maximum.
        """
        for flags in (0, int(Flag.RESEND)):
            yield self.worker_packet(0, 0, 0, flags)._replace(sequence=HOSTILE)
            if self.forges_maximum and self.schedule.kind(0) == ALL:
                yield self.worker_packet(0, 0, 0, flags | int(Flag.MAXIMUM))

    def check_asked(self, core: Core) -> None:
        """Check that what the root asks for in another attempt is added again, until all is answered; raises Found
        otherwise.
        """
        newest = max(core.root[0], *(len(epochs) - 1 for epochs in core.workers))
        workers = tuple(epochs + (0,) * (newest + 1 - len(epochs)) for epochs in core.workers)
        if core.root[0] < newest:
            core = core._replace(root=(newest, (RootSlot(),) * (2 * self.slots)))
        core = core._replace(workers=workers)
        path: dict[Core, None] = {}
        while core not in self.live_again and any(epochs[-1] + 1 != 1 << self.chunks for epochs in core.workers):
            if core in path:
                raise Found(f"stuck: asking does not lead out of {core}")
            path[core] = None
            core = self.asked_round(core, newest)
        self.live_again.update(path)

    def asked_round(self, core: Core, epoch: int) -> Core:
        """Let workers ask for the results that they lack, and then send the oldest incomplete chunk.

        They send it in an attempt that no packet of it has had, and not as a RESEND.
        """
        wanted = oldest_incomplete(core.root[1], self.tree.expected)
        for worker, epochs in enumerate(core.workers):
            oldest = self.oldest(epochs[-1])
            if oldest < min(wanted, self.chunks):
                packet = self.worker_packet(worker, epoch, oldest, int(Flag.RESEND))
                core, _ = self.settle(core, [(self.tree.workers[worker], packet)])
        if wanted >= self.chunks or not all(self.reaches(epochs[-1], wanted) for epochs in core.workers):
            return core
        ring = core.root[1]
        core = core._replace(root=(core.root[0], tuple(self.afresh(slot, wanted) for slot in ring)))
        # A worker that has the result may have overwritten its values, and does not send the chunk any more.
        without = [w for w, epochs in enumerate(core.workers) if not epochs[-1] >> wanted & 1]
        senders = [w for w in without if self.schedule.adds(w, wanted)]
        packets = [(self.tree.workers[w], self.worker_packet(w, epoch, wanted, 0, self.attempts)) for w in senders]
        core, came = self.settle(core, packets)
        flows = sum(target == ROOT for target in (*self.tree.points, *self.tree.workers))
        if came > flows:
            raise Found(f"chunk {wanted} came in {came} packets: {flows} flows come to the root")
        if not core.root[1][wanted % len(core.root[1])].complete(self.tree.expected):
            raise Found(f"stuck: chunk {wanted} is not complete though all have sent it in another attempt: {core}")
        return core

    def afresh(self, slot: RootSlot, wanted: int) -> RootSlot:
        """Return the root's entry when it asks for the chunk again.

        If it has a part of what a flow brings together, it cannot add that flow's sum, and forgets what it has.
        """
        sets = [1 << w for w, target in enumerate(self.tree.workers) if target == ROOT]
        sets += [self.tree.below(point) for point, target in enumerate(self.tree.points) if target == ROOT]
        cut = any(slot.bitmap & flow not in (0, flow) for flow in sets)
        return RootSlot(wanted) if slot.sequence == wanted and cut else slot

    def check_aggregates(self, core: Core) -> None:
        """Check that every slot adds up a chunk that comes next, and sends one packet for it; raises Found otherwise.

        If a hostile sequence number has the slot, the first such chunk is asked for in another attempt; then the slot
        works as before.
        """
        newest = max(core.root[0], *(len(epochs) - 1 for epochs in core.workers))
        for point, slots in enumerate(core.points):
            for index, slot in enumerate(slots):
                chunk = self.chunks + -(self.chunks - index) % self.slots
                if self.hostile:
                    slot = self.added(slot, point, newest, chunk, attempt=self.attempts)
                    chunk += self.slots
                self.added(slot, point, newest, chunk)

    def added(self, slot: Any, point: int, epoch: int, chunk: int, *, attempt: int = 0) -> Any:
        """Return the slot after all flows of its point have brought the chunk; raises Found if they were not added."""
        index = chunk & (self.slots - 1)
        labels, parts = self.tree.flows(point), self.tree.parts(point)
        for label, part in zip(labels, parts, strict=True):
            packet = Packet(label, attempt_epoch(epoch + 1, attempt), chunk, 0, self.values(part, epoch, chunk))
            slot, leaving, verdict = self.at_slot(slot, point, packet)
            wanted = Verdict.COMPLETED if label == labels[-1] else Verdict.ABSORBED
            if verdict is not wanted or (leaving is not None) != (wanted is Verdict.COMPLETED):
                raise Found(f"point {point} does not aggregate in slot {index}: {verdict} instead of {wanted}")
        return slot

    def values(self, bits: int, epoch: int, chunk: int) -> Values:
        """Return a packet's values: the sum over ``bits``."""
        return (self.value(bits, epoch, chunk),)

    def fair_round(self, core: Core, epoch: int) -> Core:
        """Let every worker resend its oldest unanswered chunk once, and deliver all that follows in order."""
        packets = []
        for worker, epochs in enumerate(core.workers):
            oldest = self.oldest(epochs[-1])
            if oldest < self.chunks:
                packet = self.worker_packet(worker, epoch, oldest, int(Flag.RESEND))
                packets.append((self.tree.workers[worker], packet))
        return self.settle(core, packets)[0]

    def settle(self, core: Core, packets: Sequence[tuple[int, Packet]]) -> tuple[Core, int]:
        """Deliver these packets and all that follows in order; returns also how many came to the root."""
        queue, came = deque(packets), 0
        while queue:
            target, packet = queue.popleft()
            if target != ROOT:
                core, leaving = self.at_point(core, target, packet)
                if leaving is not None:
                    queue.append((self.after(target, leaving), leaving))
                continue
            came += 1
            core, answer = self.at_root(core, packet)
            if answer is not None:
                chunk, bits, complete = answer
                for worker in range(len(core.workers)):
                    if bits >> worker & 1:
                        core = self.answer(core, worker, 1 << chunk, complete)
        return core, came

    def run(self, limit: int | None = None) -> Statistics:
        """Search breadth first, at most ``limit`` states; raises Found with the shortest trace."""
        start = self.initial()
        origin: dict[State, tuple[State, str] | None] = {start: None}
        cores: set[Core] = {start.core}
        queue = deque([start])
        statistics = Statistics()
        state = start
        try:
            self.check_progress(start.core)
            while queue:
                state = queue.popleft()
                for step, following in self.successors(state):
                    statistics.transitions += 1
                    if following in origin:
                        continue
                    if limit is not None and len(origin) >= limit:
                        statistics.complete = False
                        continue
                    origin[following] = (state, step)
                    if following.core not in cores:
                        cores.add(following.core)
                        self.check_progress(following.core)
                        self.check_asked(following.core)
                        self.check_aggregates(following.core)
                    queue.append(following)
        except AssertionError as error:
            trace: list[str] = []
            at: State | None = state
            while at is not None and (before := origin[at]) is not None:
                at, step = before
                trace.append(step)
            raise Found("\n".join([str(error), *reversed(trace), f"state: {state}"])) from error
        statistics.states, statistics.cores = len(origin), len(cores)
        return statistics


named = cache(str)
"""A packet in words."""


def subsets(bits: int) -> Iterator[int]:
    """Yield every non-empty subset of ``bits``."""
    subset = bits
    while subset:
        yield subset
        subset = (subset - 1) & bits


def with_worker(core: Core, worker: int, epochs: tuple[int, ...]) -> Core:
    """Return ``core`` with another state of one worker."""
    return core._replace(workers=(*core.workers[:worker], epochs, *core.workers[worker + 1 :]))


def with_link(
    links: tuple[frozenset[Packet], ...], point: int, packets: frozenset[Packet]
) -> tuple[frozenset[Packet], ...]:
    """Return ``links`` with other content of one link."""
    return (*links[:point], packets, *links[point + 1 :])


def tree_of(text: str) -> Tree:
    """Return the tree for ``star:W``, ``direct:W``, ``two-level:BELOW,ABOVE`` or ``racks:COUNT,WORKERS``."""
    name, _, numbers = text.partition(":")
    arguments = [int(number) for number in numbers.split(",")]
    if name == "star" and len(arguments) == 1:
        return star(*arguments)
    if name == "direct" and len(arguments) == 1:
        return with_direct(*arguments)
    if name == "two-level" and len(arguments) == 2:
        return two_level(*arguments)
    if name == "racks" and len(arguments) == 2:
        return racks(*arguments)
    known = "star:W, direct:W, two-level:BELOW,ABOVE, racks:COUNT,WORKERS"
    raise argparse.ArgumentTypeError(f"{text!r} is none of {known}")


def main(kind: type[Search] = Search) -> int:
    """Run the command line of a search; returns the exit status."""
    description = (__doc__ or "").splitlines()[0]
    module = Path(sys.argv[0]).stem  # kind.__module__ is __main__
    parser = argparse.ArgumentParser(prog=f"python -m tests.model.{module}", description=description)
    parser.add_argument("--tree", type=tree_of, default="star:2")
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("--chunks", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--attempts", type=int, default=1, help="in which a worker may send a chunk")
    parser.add_argument("--history", type=int, metavar="K", help="follow packets between points, at most K on a link")
    parser.add_argument(
        "--kinds",
        default="",
        help="of the chunks: r all-reduce; s, S reduce-scatter; g, G all-gather (tests/model/schedule.py)",
    )
    parser.add_argument("--period", type=int, default=1, help="at least one G in so many chunks of a gather")
    parser.add_argument("--source", type=int, metavar="WORKER", help="it sends all chunks of gathers: a broadcast")
    parser.add_argument("--hostile", action="store_true", help="packets of an epoch that nobody has given out, too")
    parser.add_argument("--limit", type=int, help="stop after so many states")
    options = parser.parse_args()
    begin = time.monotonic()
    search = kind(
        options.tree,
        options.slots,
        options.chunks,
        options.epochs,
        options.history,
        attempts=options.attempts,
        hostile=options.hostile,
        kinds=options.kinds,
        period=options.period,
        source=options.source,
    )
    try:
        statistics = search.run(options.limit)
    except Found as found:
        print(found)
        return 1
    print(f"{statistics}, {time.monotonic() - begin:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
