"""Simulations of whole systems with real check words, on a network that flips bits."""

from __future__ import annotations

from collections import Counter

from p4src.protocol import HEADER_OFFSET, Flag, exponents_per_packet
from tests.model.checkword import KINDS, Check
from tests.model.merge import Values, signed
from tests.model.packet import Packet, decode
from tests.model.root import oldest_incomplete, recipients, root_receive_checked
from tests.model.simulation import ANSWER_LABEL, RETURN_LABEL, Harm, Simulation, Worker, WrongResult
from tests.model.tree import ROOT, Tree

TREE = 1


class CorruptedSimulation(Simulation):
    """A simulation on a network that flips bits.

    flips: the probability that one bit of our header or values flips, per packet and hop. `dropped`: number of packets
    that the root ("packet", "sum") and the workers ("result") recognised as changed.
    """

    values = 9

    def __init__(self, tree: Tree, slots: int, chunks: int, harm: Harm, seed: int, *, flips: float) -> None:
        super().__init__(tree, slots, chunks, harm, seed)
        self.flips = flips
        self.word_check = Check(seed.to_bytes(16, "little"), len(tree.workers), self.values)
        self.dropped: Counter[str] = Counter()

    def put(self, kind: str, node: int, port: int, frame: bytes) -> None:
        if self.random.random() < self.flips:
            at, changed = self.random.randrange(HEADER_OFFSET, len(frame)), bytearray(frame)
            changed[at] ^= 1 << self.random.randrange(8)
            frame = bytes(changed)
        super().put(kind, node, port, frame)

    def contribution(self, worker: int, epoch: int, chunk: int) -> Values:
        key = worker, epoch, chunk
        if key not in self.data:
            self.data[key] = self._drawn(worker, chunk)
        return self.data[key]

    def _drawn(self, worker: int, chunk: int) -> Values:
        if self.is_maximum(chunk):
            exponents = [self.random.randrange(2000) for _ in range(exponents_per_packet(self.values))] * 2
            words = [self.word_check.exponent_word(TREE, chunk, j, e) for j, e in enumerate(exponents)]
            return (*words, *[0] * (self.values - len(words)))
        most = 2**30 // len(self.workers)
        data = [self.random.randint(-most, most) for _ in range(self.values - 1)]
        return (*(v % 2**32 for v in data), self.word_check.word(data, [worker], TREE, 0, chunk))

    def right(self, bits: int, packet: Packet) -> bool:
        """Return whether the check word of a packet of these workers is right."""
        words, kind = [signed(word) for word in packet.values], packet.flags & KINDS
        if packet.maximum:
            return self.word_check.maximum_right(words, TREE, packet.sequence)
        workers = [w for w in range(len(self.workers)) if bits >> w & 1]
        return self.word_check.right(words, workers, TREE, kind, packet.sequence)

    def deliver(self, kind: str, node: int, port: int, frame: bytes) -> None:
        if kind == "switch" or decode(frame, self.values) is not None:
            super().deliver(kind, node, port, frame)

    def _at_root(self, packet: Packet) -> None:
        before = oldest_incomplete(self.ring, self.tree.expected)
        known = {self.tree.worker_label(w) for w, at in enumerate(self.tree.workers) if at == ROOT}
        known |= {self.tree.partial_label(p) for p in range(len(self.tree.points))}
        known |= {label for p in range(len(self.tree.points)) for label, _ in self.tree.passing(p)}
        if packet.epoch != self.root_epoch or packet.label not in known or packet.sequence >= before + self.slots:
            return
        index = packet.sequence % len(self.ring)
        slot = self.ring[index]
        flow = self.tree.root_flow(packet.label)
        self.ring[index], answer = root_receive_checked(slot, packet, flow, self.tree.expected, self.right)
        if self.ring[index].alone and not slot.alone:
            self.dropped["sum"] += 1
        if slot.alone and slot == self.ring[index]:
            self.dropped["packet"] += 1
        if answer is None:
            return
        after = oldest_incomplete(self.ring, self.tree.expected)
        values = self._sealed(packet, answer.sequence, answer.values, after)
        kind = packet.flags & int(Flag.MAXIMUM) if not answer.again else int(Flag.MAXIMUM) * slot.maximum
        count = after << 32 | len(self.workers)
        result = Packet(RETURN_LABEL, packet.epoch, answer.sequence, count, values, kind | int(Flag.RESULT))
        bits = recipients(packet, answer, self.ring, before, self.tree.expected)
        for worker in range(len(self.workers)):
            if bits >> worker & 1:
                self.put("worker", worker, 0, result._replace(label=ANSWER_LABEL + worker).encode())

    def _sealed(self, packet: Packet, sequence: int, values: Values, complete: int) -> Values:
        kind = int(Flag.MAXIMUM) * self.is_maximum(sequence)
        data = [signed(word) for word in values[:-1]]
        return (*values[:-1], self.word_check.result(data, TREE, kind, sequence, complete=complete))

    def _at_worker(self, worker: Worker, packet: Packet) -> None:
        number = packet.sequence
        if packet.epoch != worker.epoch or not packet.result or number in worker.results or number >= worker.sent:
            return
        if packet.bitmap & 0xFFFFFFFF != len(self.workers):
            return
        if not self._result_right(packet):
            self.dropped["result"] += 1
            return
        if packet.values[:-1] != self.expected(packet.epoch, number)[:-1]:
            raise WrongResult(f"worker {worker.index} takes {packet}, not {self.expected(packet.epoch, number)}")
        worker.results[number] = packet.values

    def _result_right(self, packet: Packet) -> bool:
        words, complete = [signed(word) for word in packet.values], packet.bitmap >> 32
        number, check = packet.sequence, self.word_check
        kind = int(Flag.MAXIMUM) * self.is_maximum(number)
        if packet.values[-1] != check.result(words[:-1], TREE, kind, number, complete=complete):
            return False
        return not kind or self.right(0, packet._replace(flags=kind))
