"""The folded program: both halves of every sum have the same contributions, whatever happens between two passes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p4src.artifacts import REGISTERS, find
from p4src.protocol import HEADER_OFFSET, VALUES_OFFSET, Flag, Verdict
from tests.model import folded
from tests.model.folded import FOLDED, STAYS, FoldedSwitch
from tests.model.folded_search import FoldedSearch
from tests.model.packet import Packet
from tests.model.search import Found
from tests.model.switch import Aggregate, Forward
from tests.model.test_tofino import BOUNDED
from tests.model.tofino import LOOPBACK
from tests.model.tree import star
from tests.p4 import salu
from tests.p4.rig import SLOTS

WORDS = st.integers(0, 0xFFFFFFFF)
Action = Callable[[int, int, int], tuple[int, int]]


def joins_anything(cell: int, ticket: int, previous: int) -> tuple[int, int]:
    """Model a faulty second pass that does not check what the half has already."""
    return ticket, 1


def cut(frame: bytes, values: int) -> bool:
    """Return whether a frame lacks only the second half of its values."""
    return VALUES_OFFSET + 2 * values <= len(frame) < VALUES_OFFSET + 4 * values


def three_flows(kind: type[FoldedSwitch] = FoldedSwitch) -> FoldedSwitch:
    """Return a switch with three flows into one slot; complete sums have the label 101, others 201."""
    entries: dict[tuple[int, int], Any] = {
        (1, 20): Aggregate(4, 0, 0b001, 0b111, 101, 201, 6),
        (2, 21): Aggregate(4, 0, 0b010, 0b111, 101, 201, 6),
        (3, 22): Aggregate(4, 0, 0b100, 0b111, 101, 201, 6),
        (4, 30): Forward(7),
    }
    return kind(4, SLOTS, entries, delayed=True)


def contribution(port: int, sequence: int = 7, flags: int = 0) -> bytes:
    """Return a packet of the flow on ``port``, whose values are its bit."""
    return Packet(19 + port, 9, sequence, 0, (1 << port - 1,) * 4, flags).encode()


SUM = Packet(101, 9, 7, 0b111, (7,) * 4).encode()


def going_round(switch: FoldedSwitch, port: int, **of: int) -> bytes:
    """Return the packet that recirculates because of one contribution."""
    ((out, frame),) = switch.process(port, contribution(port, **of))
    assert out == LOOPBACK
    return frame


def test_a_contribution_recirculates_with_its_second_half_only_and_a_sum_twice() -> None:
    switch = three_flows()
    whole = len(contribution(1))
    for port in (1, 2):
        frame = going_round(switch, port)
        assert len(frame) == whole - 8 + folded.FOLD.size
        assert switch.process(LOOPBACK, frame) == []
    ((out, frame),) = switch.process(LOOPBACK, going_round(switch, 3))
    assert out == LOOPBACK and len(frame) == whole - 8 + folded.FOLD.size
    assert switch.process(LOOPBACK, frame) == [(6, SUM)]
    assert switch.verdicts == Counter({Verdict.ABSORBED: 2, Verdict.COMPLETED: 1})
    assert switch.overtaken == 0


@pytest.mark.parametrize("lost", [1, 2])
def test_a_lost_second_half_only_delays_the_sum(lost: int) -> None:
    """Later contributions do not join the half that lacks it; resends pass, and the next chunk is added up again."""
    switch = three_flows()
    for port in (1, 2, 3):
        frame = going_round(switch, port)
        if port != lost:
            assert switch.process(LOOPBACK, frame) == []
    assert switch.overtaken == (2 if lost == 1 else 1)
    resent = contribution(1, flags=Flag.RESEND)
    assert switch.process(1, resent) == [(6, Packet(201, 9, 7, 1, (1,) * 4, Flag.RESEND).encode())]
    frames = [going_round(switch, port, sequence=8) for port in (1, 2, 3)]
    assert [switch.process(LOOPBACK, frame) for frame in frames[:2]] == [[], []]
    ((_, last),) = switch.process(LOOPBACK, frames[2])
    assert switch.process(LOOPBACK, last) == [(6, Packet(101, 9, 8, 0b111, (7,) * 4).encode())]


def test_second_halves_in_another_order_are_not_added() -> None:
    switch = three_flows()
    frames = [going_round(switch, port) for port in (1, 2, 3)]
    assert [switch.process(LOOPBACK, frames[at]) for at in (1, 0, 2)] == [[], [], []]
    assert switch.overtaken == 2


@pytest.mark.parametrize("before", ["the second pass", "the last pass"])
def test_a_sum_whose_slot_was_taken_over_ends_on_its_way(before: str) -> None:
    switch = three_flows()
    for port in (1, 2):
        switch.process(LOOPBACK, going_round(switch, port))
    frame = going_round(switch, 3)
    if before == "the last pass":
        ((_, frame),) = switch.process(LOOPBACK, frame)
    switch.process(LOOPBACK, going_round(switch, 1, sequence=8))
    assert switch.process(LOOPBACK, frame) == []
    assert switch.overtaken == 1


def test_forged_recirculated_packets_from_outside_are_refused() -> None:
    """A packet whose version only recirculating packets have is refused; neither a slot nor a port gets it."""
    switch = three_flows()
    frame = going_round(switch, 1)
    assert frame[HEADER_OFFSET] == FOLDED and frame[VALUES_OFFSET] == STAYS
    cells = dict(switch.halves)
    for port, label in ((1, 20), (4, 30), (5, 99)):
        forged = frame[: HEADER_OFFSET + 4] + label.to_bytes(4, "big") + frame[HEADER_OFFSET + 8 :]
        assert switch.process(port, forged) == []
    assert switch.halves == cells
    assert switch.verdicts == Counter({Verdict.ABSORBED: 1, Verdict.REFUSED: 3})


def test_a_frame_that_is_short_of_its_second_half_leaves_no_sum() -> None:
    switch = three_flows()
    frame = going_round(switch, 1)
    assert switch.process(LOOPBACK, frame[:-1]) == []
    assert switch.verdicts == Counter({Verdict.ABSORBED: 1, Verdict.MALFORMED: 1})
    for port in (2, 3):
        assert switch.process(LOOPBACK, going_round(switch, port)) == []
    assert switch.overtaken == 2


@cache
def compiled() -> salu.Register:
    return salu.registers(find("t2na", folded.VALUES).directory / REGISTERS)["slot_ticket"]


@BOUNDED
@given(WORDS, WORDS, WORDS)
def test_the_compiled_register_of_tickets_does_the_same(held: int, ticket: int, previous: int) -> None:
    register = compiled()
    for name, function in folded.TICKETS.items():
        (action,) = [action for action in register.actions if name.removeprefix("do_") in action]
        for cell in (held, ticket, previous):
            (after, _), output = register.execute(action, (cell, 0), *order(register, ticket, previous))
            assert (after, output) == function(cell, ticket, previous)


def order(register: salu.Register, ticket: int, previous: int) -> tuple[int, int]:
    """Return the operands in the compiler's order."""
    first = ticket if register.inputs[64].startswith("hdr.fold.ticket") else previous
    return first, previous if first is ticket else ticket


def keeps_its_ticket(cell: int, ticket: int, previous: int) -> tuple[int, int]:
    """Model a first half that changes and keeps its number."""
    return cell, cell


@pytest.mark.parametrize(
    ("action", "mistake"),
    [
        ("do_follow_ticket", joins_anything),
        ("do_next_ticket", keeps_its_ticket),
    ],
)
def test_the_search_finds_mistakes(monkeypatch: pytest.MonkeyPatch, action: str, mistake: Action) -> None:
    monkeypatch.setitem(folded.TICKETS, action, mistake)
    with pytest.raises(Found):
        FoldedSearch(star(2), 1, 1, history=1).run()
