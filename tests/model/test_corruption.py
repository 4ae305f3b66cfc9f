"""Packets changed on the way make no result wrong and block no worker; and the search finds faulty variants."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from p4src.protocol import Verdict
from tests.model.corrupted_simulation import CorruptedSimulation
from tests.model.corruption import DAMAGE, CorruptedSearch
from tests.model.packet import Packet
from tests.model.root import Answer, RootFlow, RootSlot, root_receive, root_receive_checked
from tests.model.search import Found
from tests.model.simulation import Harm
from tests.model.test_simulation import trees
from tests.model.tree import Tree, star, two_level, with_direct
from tests.support.examples import examples


@pytest.mark.parametrize(
    ("tree", "chunks"), [(star(2), 1), (with_direct(2), 2), (two_level(1, 1), 1), (with_direct(3), 1)], ids=str
)
def test_no_result_is_wrong_and_no_worker_is_stuck(tree: Tree, chunks: int) -> None:
    """Values, bitmaps, labels, sequence numbers and flags may change on every hop at any time."""
    statistics = CorruptedSearch(tree, 1, chunks).run()
    assert statistics.complete
    assert statistics.states > 100


class BrokenSwitches(CorruptedSearch):
    """Switches that damage each sum of several flows, permanently."""

    def at_slot(self, slot: Any, point: int, packet: Packet) -> tuple[Any, Packet | None, Verdict | None]:
        slot, leaving, verdict = super().at_slot(slot, point, packet)
        if leaving is not None and leaving.bitmap & (leaving.bitmap - 1):
            leaving = leaving._replace(values=tuple(a + b for a, b in zip(leaving.values, DAMAGE, strict=True)))
        return slot, leaving, verdict


@pytest.mark.parametrize("tree", [star(2), with_direct(3), two_level(1, 1)], ids=str)
def test_a_switch_that_always_adds_wrongly_blocks_no_worker(tree: Tree) -> None:
    """The packets that the root asks for, past the switches, are right."""
    assert BrokenSwitches(tree, 1, 1).run().complete


class Trusting(CorruptedSearch):
    """A faulty root that answers with whatever it has added up."""

    def received(self, slot: RootSlot, packet: Packet, flow: RootFlow) -> tuple[RootSlot, Answer | None]:
        return root_receive(slot, packet, flow, self.tree.expected)


class Keeping(CorruptedSearch):
    """A faulty root that refuses the last packet of a wrong sum, and keeps the others."""

    def received(self, slot: RootSlot, packet: Packet, flow: RootFlow) -> tuple[RootSlot, Answer | None]:
        after, answer = super().received(slot, packet, flow)
        return (slot, None) if after.alone and not slot.alone else (after, answer)


class Bound(CorruptedSearch):
    """A faulty root that refuses packets that lack the flags of the first one."""

    def received(self, slot: RootSlot, packet: Packet, flow: RootFlow) -> tuple[RootSlot, Answer | None]:
        other = slot.sequence == packet.sequence and slot.values is not None and slot.maximum != packet.maximum
        if other:
            return slot, None
        return root_receive_checked(slot, packet, flow, self.tree.expected, self.right)


class Credulous(CorruptedSearch):
    """Faulty workers that accept whatever comes."""

    def takes(self, chunk: int, epoch: int, values: Any) -> bool:
        return True


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        (Trusting, "result: workers 11"),
        (Keeping, "stuck"),
        (Bound, "stuck"),
        (Credulous, "takes a wrong result"),
    ],
)
def test_the_search_finds_mistakes(mistake: type[CorruptedSearch], message: str) -> None:
    with pytest.raises(Found, match=message):
        mistake(star(2) if mistake is not Bound else with_direct(2), 1, 1).run()


@settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(trees(), st.sampled_from([1, 4]), st.sampled_from([0.002, 0.02, 0.1]), st.integers(0, 2**32))
def test_flipped_bits_make_no_result_wrong(tree: Tree, slots: int, flips: float, seed: int) -> None:
    """Real packets go through whole switches, with real check words, and with losses."""
    simulation = CorruptedSimulation(tree, slots, 6, Harm(loss=0.01, reorder=0.2), seed, flips=flips)
    simulation.run(limit=200_000)
    assert all(len(worker.results) == 6 for worker in simulation.workers)


def test_flips_are_found_by_root_and_workers() -> None:
    simulation = CorruptedSimulation(with_direct(4), 4, 60, Harm(), seed=1, flips=0.05)
    simulation.run(limit=200_000)
    assert all(simulation.dropped[what] for what in ("sum", "packet", "result"))


class OnlyMaxima(CorruptedSimulation):
    """All chunks are exponents."""

    def is_maximum(self, chunk: int) -> bool:
        return True


def test_a_lost_exponent_is_found_though_the_maximum_of_the_others_proves_itself() -> None:
    """A flipped bit makes the largest exponent small; then another worker's valid word is what the switch keeps."""
    for seed in range(20):
        simulation = OnlyMaxima(star(4), 4, 12, Harm(), seed, flips=0.1)
        simulation.run(limit=200_000)
        assert all(len(worker.results) == 12 for worker in simulation.workers)
