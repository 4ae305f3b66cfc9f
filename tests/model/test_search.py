"""The explicit-state search finds nothing wrong in the protocol, and finds each deliberate mistake."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from p4src.protocol import Flag, Verdict
from tests.model import search as search_module
from tests.model.packet import Packet
from tests.model.root import RootSlot
from tests.model.search import Found, Search
from tests.model.switch import Aggregate, Slot, aggregate
from tests.model.tree import Tree, racks, star, two_level, with_direct
from tests.support.examples import nightly

Result = tuple[Slot, Verdict, Packet | None]


@pytest.mark.parametrize(
    ("tree", "slots", "chunks", "epochs", "history"),
    [
        (star(2), 1, 3, 1, None),
        (star(2), 2, 3, 1, None),
        (star(2), 1, 2, 2, None),
        (star(3), 1, 2, 1, None),
        (with_direct(3), 1, 3, 1, None),
        (with_direct(2), 2, 4, 1, None),
        (two_level(2, 1), 1, 1, 1, None),
        (two_level(1, 1), 1, 2, 1, None),
        (racks(2, 2), 1, 1, 1, None),
        (star(2), 1, 2, 1, 2),
    ],
    ids=str,
)
def test_no_reachable_state_is_wrong_or_stuck(
    tree: Tree, slots: int, chunks: int, epochs: int, history: int | None
) -> None:
    statistics = Search(tree, slots, chunks, epochs, history).run()
    assert statistics.complete
    assert statistics.states > 20


@pytest.mark.parametrize(
    ("tree", "slots", "chunks", "epochs"),
    [(star(2), 1, 3, 1), (star(2), 1, 1, 2), (two_level(1, 1), 1, 2, 1), (two_level(2, 1), 1, 1, 1)],
    ids=str,
)
def test_packets_of_an_unassigned_epoch_do_no_lasting_harm(tree: Tree, slots: int, chunks: int, epochs: int) -> None:
    """No sum is wrong, no worker is stuck, and every slot aggregates the next chunk, whatever came with the highest
    epoch.
    """
    statistics = Search(tree, slots, chunks, epochs, hostile=True).run()
    assert statistics.complete
    assert statistics.states > 20


def adds_duplicates(slot: Slot, packet: Packet, action: Aggregate) -> Result:
    """Aggregate like a faulty switch that forgets who has contributed when it adds."""
    after, verdict, leaving = aggregate(slot, packet, action)
    if verdict is Verdict.DUPLICATE:
        assert slot.values is not None
        return slot._replace(values=(slot.values[0] + packet.values[0],)), Verdict.ABSORBED, None
    return after, verdict, leaving


def never_taken_over(slot: Slot, packet: Packet, action: Aggregate) -> Result:
    """Aggregate like a faulty switch whose slot keeps what the previous chunk left there."""
    if packet.own > slot.owner and slot.owner:
        slot = slot._replace(owner=packet.own)
    return aggregate(slot, packet, action)


def never_flushes(slot: Slot, packet: Packet, action: Aggregate) -> Result:
    """Aggregate like a faulty switch that treats a resend like a first packet."""
    after, verdict, leaving = aggregate(slot, packet._replace(flags=0), action)
    return after, verdict, leaving


def stale_dropped(slot: Slot, packet: Packet, action: Aggregate) -> Result:
    """Aggregate like a faulty switch that drops packets of chunks older than its slot's owner."""
    after, verdict, leaving = aggregate(slot, packet, action)
    return after, verdict, None if verdict is Verdict.STALE else leaving


def only_newer_epochs(slot: Slot, packet: Packet, action: Aggregate) -> Result:
    """Aggregate like a switch before version 3: a slot belongs to the highest epoch that it has ever seen."""
    if packet.own < slot.owner:
        return slot, Verdict.STALE, packet._replace(bitmap=action.flow, label=action.partial_label)
    return aggregate(slot, packet, action)


def test_the_search_finds_a_slot_that_a_huge_epoch_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_module, "aggregate", only_newer_epochs)
    with pytest.raises(Found, match="does not aggregate in slot 0"):
        Search(star(2), 1, 2, hostile=True).run()


def sums_are_complete(slot: Slot, packet: Packet, action: Aggregate) -> Result:
    """Aggregate like a faulty switch that sends on what it flushes as if it were complete."""
    after, verdict, leaving = aggregate(slot, packet, action)
    if verdict is Verdict.FLUSHED and leaving is not None:
        leaving = leaving._replace(label=action.next_label)
    return after, verdict, leaving


@pytest.mark.parametrize(
    ("mistake", "tree", "message"),
    [
        (adds_duplicates, star(2), "sum"),
        (never_taken_over, star(2), "sum|came in 2 packets"),
        (never_flushes, star(2), "stuck"),
        (stale_dropped, star(2), "stuck"),
    ],
)
def test_the_search_finds_mistakes_of_a_switch(
    monkeypatch: pytest.MonkeyPatch, mistake: Callable[[Slot, Packet, Aggregate], Result], tree: Tree, message: str
) -> None:
    monkeypatch.setattr(search_module, "aggregate", mistake)
    with pytest.raises(Found, match=message):
        Search(tree, 1, 2).run()


def test_the_search_finds_a_partial_sum_that_counts_as_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_module, "aggregate", sums_are_complete)
    with pytest.raises(Found, match="workers 11 of chunk 0"):
        Search(two_level(2, 1), 1, 1, history=1).run()


def test_the_search_finds_a_ring_that_is_too_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A root that keeps only ``slots`` chunks cannot answer a worker that is one window behind."""
    search = Search(star(2), 1, 2)
    initial = search.initial()
    short = initial._replace(core=initial.core._replace(root=(0, (RootSlot(),))))
    monkeypatch.setattr(search, "initial", lambda: short)
    with pytest.raises(Found, match="stuck"):
        search.run()


def test_the_search_finds_a_window_by_count() -> None:
    """Workers that count unanswered chunks, not their range, meet an incomplete chunk in a slot."""

    class ByCount(Search):
        def oldest(self, answered: int) -> int:
            return answered.bit_count()

    with pytest.raises(Found):
        ByCount(star(2), 2, 4).run()


def test_the_resend_flag_resolves_a_deadlock(monkeypatch: pytest.MonkeyPatch) -> None:
    search = Search(star(2), 1, 1)
    original = search.worker_packet

    def without(worker: int, epoch: int, chunk: int, flags: int, attempt: int = 0) -> Packet:
        return original(worker, epoch, chunk, flags & ~int(Flag.RESEND), attempt)

    monkeypatch.setattr(search, "worker_packet", without)
    with pytest.raises(Found, match="stuck"):
        search.run()


@pytest.mark.parametrize(
    ("tree", "slots", "chunks", "epochs", "more"),
    [
        (star(2), 1, 2, 1, {}),
        nightly(star(2), 2, 2, 1, {}),
        (star(3), 1, 1, 1, {}),
        (with_direct(3), 1, 2, 1, {}),
        (two_level(1, 1), 1, 2, 1, {}),
        (racks(2, 1), 1, 1, 1, {}),
        (star(2), 1, 1, 2, {}),
        (star(2), 1, 1, 1, {"history": 2}),
        (star(2), 1, 2, 1, {"hostile": True}),
        (two_level(1, 1), 1, 1, 1, {"hostile": True}),
        (with_direct(3), 1, 1, 1, {"hostile": True}),
        (star(2), 1, 1, 1, {"hostile": True, "history": 1}),
    ],
    ids=str,
)
def test_contributions_of_another_attempt_are_aggregated_again(
    tree: Tree, slots: int, chunks: int, epochs: int, more: dict[str, Any]
) -> None:
    """This holds whatever was lost, in whatever attempt; if hostile, also whatever sequence number had the slot."""
    statistics = Search(tree, slots, chunks, epochs, attempts=2, **more).run()
    assert statistics.complete
    assert statistics.states > 20


def test_the_search_finds_a_switch_that_does_not_tell_attempts_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks lost behind such a switch would come worker by worker, a congestion that maintains itself."""

    def one_attempt(slot: Slot, packet: Packet, action: Aggregate) -> Result:
        return aggregate(slot, packet._replace(epoch=search_module.epoch_of(packet.epoch)), action)

    monkeypatch.setattr(search_module, "aggregate", one_attempt)
    with pytest.raises(Found, match="came in 2 packets: 1 flows"):
        Search(star(2), 1, 1, attempts=2).run()


def test_the_search_finds_a_root_that_keeps_a_part_of_a_new_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Search, "afresh", lambda self, slot, wanted: slot)
    with pytest.raises(Found, match="not complete though all have sent it"):
        Search(with_direct(3), 1, 1, attempts=2).run()


def test_the_search_finds_a_root_that_forgets_complete_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that has the result may have overwritten its values."""
    monkeypatch.setattr(Search, "afresh", lambda self, slot, wanted: RootSlot())
    with pytest.raises(Found):
        Search(star(2), 2, 2, attempts=2).run()


def test_the_search_finds_a_root_that_the_first_flag_binds(monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker's wrong MAXIMUM flag would keep all others' packets out permanently."""
    receive = search_module.root_receive

    def bound(slot: RootSlot, packet: Packet, *rest: Any) -> Any:
        other = slot.sequence == packet.sequence and slot.values is not None and slot.maximum != packet.maximum
        return (slot, None) if other else receive(slot, packet, *rest)

    monkeypatch.setattr(search_module, "root_receive", bound)
    monkeypatch.setattr(Search, "afresh", lambda self, slot, wanted: slot)
    with pytest.raises(Found, match="stuck"):
        Search(star(2), 1, 2, history=2, hostile=True).run()
