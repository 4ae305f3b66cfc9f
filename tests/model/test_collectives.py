"""Reduce-scatter and all-gather on the same trees: every contribution counts once, no worker is stuck, owners get
answers.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p4src.protocol import HostFlag
from tests.model import search as search_module
from tests.model.packet import Packet
from tests.model.root import Answer, RootFlow, RootSlot, root_receive
from tests.model.schedule import Schedule
from tests.model.search import Found, Search
from tests.model.simulation import Harm, Simulation
from tests.model.test_simulation import BOUNDED, harms, trees
from tests.model.tree import Tree, racks, star, two_level, with_direct


@pytest.mark.parametrize(
    ("tree", "slots", "kinds", "period", "history"),
    [
        (star(2), 1, "sss", 1, None),
        (star(2), 2, "ssS", 1, None),
        (star(3), 1, "sS", 1, None),
        (with_direct(3), 1, "sr", 1, None),
        (two_level(1, 1), 1, "sS", 1, None),
        (star(2), 1, "sS", 1, 2),
        (star(2), 2, "rgG", 2, None),
        (with_direct(2), 2, "rgGr", 2, None),
        (star(2), 2, "rgG", 2, 1),
        (star(2), 2, "srgG", 2, None),
    ],
    ids=str,
)
def test_no_reachable_state_is_wrong_or_stuck(
    tree: Tree, slots: int, kinds: str, period: int, history: int | None
) -> None:
    statistics = Search(tree, slots, len(kinds), 1, history, kinds=kinds, period=period).run()
    assert statistics.complete
    assert statistics.states > 20


def test_over_two_epochs_with_a_hostile_sender() -> None:
    assert Search(star(2), 1, 2, 2, kinds="sS", hostile=True).run().complete
    assert Search(star(2), 2, 2, 1, kinds="rg", period=2, source=1, hostile=True).run().complete


def test_a_broadcast_over_two_levels() -> None:
    assert Search(two_level(1, 1), 2, 3, kinds="rgG", period=2, source=1).run().complete


def test_the_search_finds_a_gather_whose_window_is_too_wide(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the whole window the others can be so far ahead that the root has given up a chunk that one worker lacks."""
    monkeypatch.setattr(Schedule, "window", lambda self, chunk: self.slots)
    with pytest.raises(Found, match="stuck"):
        Search(star(2), 2, 6, kinds="rggGrr", period=3).run()


def test_the_search_finds_a_gather_without_waiting_for_the_others() -> None:
    with pytest.raises(Found, match="stuck"):
        Search(star(2), 2, 6, kinds="rggggg", period=2, source=0).run()


Receive = Callable[[RootSlot, Packet, RootFlow, int], tuple[RootSlot, Answer | None]]


def takes_questions(slot: RootSlot, packet: Packet, flow: RootFlow, expected: int) -> tuple[RootSlot, Answer | None]:
    """Receive like a root that takes a request for a chunk for a contribution to it."""
    flags = packet.flags & ~HostFlag.ASK | (HostFlag.SINGLE if packet.ask else 0)
    return root_receive(slot, packet._replace(flags=int(flags)), flow, expected)


def waits_for_all(slot: RootSlot, packet: Packet, flow: RootFlow, expected: int) -> tuple[RootSlot, Answer | None]:
    """Receive like a root that does not know chunks of one worker."""
    return root_receive(slot, packet._replace(flags=packet.flags & ~int(HostFlag.SINGLE)), flow, expected)


@pytest.mark.parametrize(("mistake", "message"), [(takes_questions, "sum"), (waits_for_all, "stuck|not complete")])
def test_the_search_finds_mistakes_of_a_root(monkeypatch: pytest.MonkeyPatch, mistake: Receive, message: str) -> None:
    monkeypatch.setattr(search_module, "root_receive", mistake)
    with pytest.raises(Found, match=message):
        Search(star(2), 2, 3, kinds="rgG", period=2).run()


def test_the_search_finds_a_worker_that_takes_complete_for_received(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker's own chunks are complete before it has their sums: it must not go on without them."""

    def goes_on(self: Schedule, worker: int, complete: int, answered: set[int]) -> list[int]:
        return [chunk for chunk in range(complete + 1) if chunk not in answered]

    monkeypatch.setattr(Schedule, "heard", goes_on)
    with pytest.raises(Found):
        Search(star(2), 1, 3, kinds="sss").run()


@st.composite
def schedules(draw: st.DrawFn) -> tuple[str, int, int | None]:
    """Draw collectives one after another, as the agents cut them; the period of a gather's chunks; and a broadcast's
    source.
    """
    period = draw(st.sampled_from([1, 2]))
    kinds = ""
    for collective in draw(st.lists(st.sampled_from("rsg"), min_size=1, max_size=4)):
        length = draw(st.integers(1, 5))
        kinds += "r"
        if collective == "g":
            first = len(kinds)
            kinds += "".join("G" if (first + i) % period == period - 1 else "g" for i in range(length - 1)) + "G"
        else:
            kinds += collective * (length - 1) + collective.replace("s", "S")
    return kinds, period, draw(st.sampled_from([None, 0]))


@BOUNDED
@given(trees(), st.sampled_from([2, 4]), schedules(), harms, st.integers(0, 2**32))
def test_every_worker_gets_its_results(
    tree: Tree, slots: int, schedule: tuple[str, int, int | None], harm: Harm, seed: int
) -> None:
    kinds, period, source = schedule
    simulation = Simulation(tree, slots, len(kinds), harm, seed, kinds=kinds, period=period, source=source)
    simulation.run(limit=200_000)
    for worker in simulation.workers:
        for chunk in range(len(kinds)):
            value = worker.results[chunk]
            if simulation.schedule.needs(worker.index, chunk):
                assert value == simulation.expected(1, chunk)


def test_without_harm_a_scattered_sum_comes_down_once_and_a_gathered_chunk_goes_up_once_and_not_back() -> None:
    for tree in (star(4), two_level(3, 1), with_direct(4), racks(2, 2)):
        simulation = Simulation(tree, 8, 16, Harm(), seed=1, kinds="s" * 15 + "S")
        simulation.run(limit=100_000)
        assert simulation.to_workers < 1.5 * (15 + 4)  # early timeouts are answered, too

        simulation = Simulation(tree, 8, 17, Harm(), seed=1, kinds="r" + "gggG" * 4, period=4)
        sent = 0
        put = simulation.put

        def count(kind: str, node: int, port: int, frame: bytes, put=put) -> None:  # type: ignore[no-untyped-def]
            nonlocal sent
            sent += kind == "root"
            put(kind, node, port, frame)

        simulation.put = count  # type: ignore[method-assign]
        simulation.run(limit=100_000)
        assert sent < 2 * 17 + 5
        assert simulation.to_workers < 1.15 * (12 * 3 + 5 * 4), "its owner gets none of what it has sent itself"
