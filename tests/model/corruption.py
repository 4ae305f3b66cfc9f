"""Search of small systems in which packets are changed on the way: no result is wrong, and no worker is stuck.

    python -m tests.model.corruption --tree star:2 --slots 1 --chunks 2 [--history K]

The network is that of :mod:`tests.model.search`; beside each packet that may arrive there is one with a change: in its
values, its bitmap, its label, its sequence number or its MAXIMUM flag. Copies of results are changed, too. Switches add
whatever arrives.

Values are two numbers: the sum, and the damage by changes, which adds up and never disappears by itself (two changes
that cancel are the chance that the check word leaves). A check word tells whether values are undamaged and belong to
the workers and the chunk that the packet names.

In every reachable state no answer of the root is wrong, no worker has accepted a wrong result, and if the network stops
changing and losing packets, resends lead to all answers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from p4src.protocol import Flag
from tests.model.merge import Values
from tests.model.packet import Packet
from tests.model.root import Answer, RootFlow, RootSlot, oldest_incomplete, recipients, root_receive_checked
from tests.model.search import Core, Found, Search, State, main, subsets
from tests.model.tree import POINT_LABELS, ROOT

DAMAGE: Values = (0, 1)


class CorruptedSearch(Search):
    """A search with packets that are changed on the way."""

    def values(self, bits: int, epoch: int, chunk: int) -> Values:
        return (self.value(bits, epoch, chunk), 0)

    def check(self, bits: int, epoch: int, chunk: int, values: Values, where: str) -> None:
        """Check only what leaves the root: switches hold whatever arrived."""
        if where == "result" and values != self.values(bits, epoch - 1, chunk):
            raise Found(f"result: workers {bits:b} of chunk {chunk} in epoch {epoch} have the sum {values}")

    def right(self, bits: int, packet: Packet) -> bool:
        """Return whether the check word is right."""
        if packet.maximum:
            return False  # all chunks here are sums
        return packet.values == self.values(bits, packet.epoch - 1, packet.sequence)

    def takes(self, chunk: int, epoch: int, values: Values) -> bool:
        """Return whether a worker accepts a result."""
        return values == self.values(self.tree.expected, epoch, chunk)

    def root_after(
        self, root: tuple[int, tuple[RootSlot, ...]], packet: Packet
    ) -> tuple[tuple[int, tuple[RootSlot, ...]], tuple[int, int, int] | None]:
        epoch, ring = root
        before = oldest_incomplete(ring, self.tree.expected)
        if packet.epoch - 1 != epoch or packet.sequence >= before + self.slots:
            return root, None
        index = packet.sequence % len(ring)
        flow = self.tree.root_flow(packet.label)
        slot, answer = self.received(ring[index], packet, flow)
        if slot != ring[index]:
            ring = (*ring[:index], slot, *ring[index + 1 :])
            root = (epoch, ring)
        if answer is None:
            return root, None
        self.check(self.tree.expected, epoch + 1, answer.sequence, answer.values, "result")
        complete = oldest_incomplete(ring, self.tree.expected)
        workers = recipients(packet, answer, ring, before, self.tree.expected)
        return root, (answer.sequence, workers, complete)

    def received(self, slot: RootSlot, packet: Packet, flow: RootFlow) -> tuple[RootSlot, Answer | None]:
        """Return the root's entry after the packet, and its answer."""
        return root_receive_checked(slot, packet, flow, self.tree.expected, self.right)

    def check_asked(self, core: Core) -> None:
        """Check nothing: tests.model.search checks what the root asks for anew."""

    def changed(self, packet: Packet, target: int) -> Iterator[Packet]:
        """Yield the packet with one thing in it changed on its way."""
        damaged = tuple(a + b for a, b in zip(packet.values, DAMAGE, strict=True))
        yield packet._replace(values=damaged)
        yield packet._replace(flags=packet.flags ^ int(Flag.MAXIMUM))
        for chunk in range(self.chunks):
            if chunk != packet.sequence:
                yield packet._replace(sequence=chunk)
        if target != ROOT:
            return  # a switch knows a label at one port only, and overwrites bitmaps
        points = [self.tree.partial_label(point) for point in range(len(self.tree.points))]
        direct = [self.tree.worker_label(w) for w, at in enumerate(self.tree.workers) if at == ROOT]
        for label in (*points, *direct):
            if label != packet.label:
                yield packet._replace(label=label)
        if packet.label >= POINT_LABELS:
            parts = self.tree.parts(packet.label % POINT_LABELS)
            for bits in subsets((1 << len(parts)) - 1):
                if bits != packet.bitmap:
                    yield packet._replace(bitmap=bits)

    def arrive(self, state: State, target: int, packet: Packet, source: str) -> Iterator[tuple[str, State]]:
        yield from super().arrive(state, target, packet, source)
        for other in self.changed(packet, target):
            yield from super().arrive(state, target, other, f"changed, {source}")

    def successors(self, state: State) -> Iterator[tuple[str, State]]:
        yield from super().successors(state)
        core = state.core
        for worker, epochs in enumerate(core.workers):
            for epoch, chunk in state.results:
                if epoch != len(epochs) - 1 or epochs[-1] >> chunk & 1:
                    continue
                good = self.values(self.tree.expected, epoch, chunk)
                damaged = tuple(a + b for a, b in zip(good, DAMAGE, strict=True))
                if self.takes(chunk, epoch, damaged):
                    raise Found(f"worker {worker} takes a wrong result of chunk {chunk}")


if __name__ == "__main__":
    sys.exit(main(CorruptedSearch))
