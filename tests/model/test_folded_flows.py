"""The folded program of Tofino 1: a second half is the sum of the flows that it names, whatever happens on the way."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from p4src.artifacts import REGISTERS, find
from p4src.protocol import HEADER_OFFSET, VALUES_OFFSET, Flag, Verdict
from tests.model import folded_flows
from tests.model.folded import FOLD, FOLDED, LEAVES, READ, STAYS, VALUES
from tests.model.folded_flows import FETCHES, FLOWS, OWNERS, FoldedFlowsSwitch
from tests.model.folded_flows_search import FoldedFlowsSearch
from tests.model.packet import Packet
from tests.model.search import Found
from tests.model.test_folded import contribution, going_round, three_flows
from tests.model.test_tofino import BOUNDED
from tests.model.tofino import LOOPBACK
from tests.model.tree import star
from tests.p4 import salu

WORDS = st.integers(0, 0xFFFFFFFF)
WHOLE = len(Packet(0, 0, 0, 0, (0,) * 4).encode())


def joins_anything(flows: int, held: int, bitmap: int) -> tuple[int, int]:
    """Model a faulty second pass that does not check which flows the half has already."""
    return bitmap, 1


def test_a_contribution_recirculates_once_and_a_sum_for_four_passes() -> None:
    switch = three_flows(FoldedFlowsSwitch)
    for port in (1, 2):
        frame = going_round(switch, port)
        assert len(frame) == WHOLE - 8 + FOLD.size and frame[VALUES_OFFSET] == STAYS
        assert switch.process(LOOPBACK, frame) == []
    frame = going_round(switch, 3)
    for step in (LEAVES, FETCHES, READ):
        assert len(frame) == WHOLE - 4 + FOLD.size and frame[VALUES_OFFSET] == step
        ((out, frame),) = switch.process(LOOPBACK, frame)
        assert out == (6 if step == READ else LOOPBACK)
    assert frame == Packet(101, 9, 7, 0b111, (7,) * 4).encode()
    assert switch.verdicts == Counter({Verdict.ABSORBED: 2, Verdict.COMPLETED: 1})
    assert switch.overtaken == 0


@pytest.mark.parametrize("lost", [1, 2])
def test_a_lost_second_half_only_delays_the_sum(lost: int) -> None:
    """Later contributions do not join the half that lacks it; resends pass, and the next chunk is added up again."""
    switch = three_flows(FoldedFlowsSwitch)
    for port in (1, 2, 3):
        frame = going_round(switch, port)
        if port != lost:
            assert switch.process(LOOPBACK, frame) == []
    assert switch.overtaken == (2 if lost == 1 else 1)
    resent = contribution(1, flags=Flag.RESEND)
    assert switch.process(1, resent) == [(6, Packet(201, 9, 7, 1, (1,) * 4, Flag.RESEND).encode())]
    for port in (1, 2):
        assert switch.process(LOOPBACK, going_round(switch, port, sequence=8)) == []
    frame = going_round(switch, 3, sequence=8)
    for _ in range(3):
        ((out, frame),) = switch.process(LOOPBACK, frame)
    assert (out, frame) == (6, Packet(101, 9, 8, 0b111, (7,) * 4).encode())


@pytest.mark.parametrize("passes", [0, 1, 2])
def test_a_sum_whose_slot_was_taken_over_ends_on_its_way(passes: int) -> None:
    switch = three_flows(FoldedFlowsSwitch)
    for port in (1, 2):
        switch.process(LOOPBACK, going_round(switch, port))
    frame = going_round(switch, 3)
    for _ in range(passes):
        ((_, frame),) = switch.process(LOOPBACK, frame)
    switch.process(LOOPBACK, going_round(switch, 1, sequence=8))
    assert switch.process(LOOPBACK, frame) == []
    assert switch.overtaken == 1


def test_forged_recirculated_packets_from_outside_are_refused() -> None:
    switch = three_flows(FoldedFlowsSwitch)
    frame = going_round(switch, 1)
    assert frame[HEADER_OFFSET] == FOLDED
    cells = dict(switch.halves)
    for port, label in ((1, 20), (4, 30), (5, 99)):
        forged = frame[: HEADER_OFFSET + 4] + label.to_bytes(4, "big") + frame[HEADER_OFFSET + 8 :]
        assert switch.process(port, forged) == []
    assert switch.halves == cells
    assert switch.verdicts == Counter({Verdict.ABSORBED: 1, Verdict.REFUSED: 3})


@cache
def compiled() -> dict[str, salu.Register]:
    return salu.registers(find("tna", VALUES).directory / REGISTERS)


def function_of(functions: dict[str, Any], action: str) -> Any:
    (found,) = [function for name, function in functions.items() if action.endswith(name.removeprefix("do_"))]
    return found


@BOUNDED
@given(WORDS, WORDS, WORDS, WORDS)
def test_the_compiled_registers_do_the_same(one: int, other: int, first: int, second: int) -> None:
    flows, owner = compiled()["half_flows"], compiled()["half_owner"]
    assert flows.inputs[64].startswith("hdr.inart.bitmap.0-31") and flows.inputs[96].startswith("hdr.fold.held")
    assert owner.inputs[64].startswith("hdr.inart.epoch") and owner.inputs[96].startswith("hdr.inart.sequence")
    for action in flows.actions:
        for cell in (one, first, second):
            (after, _), output = flows.execute(action, (cell, 0), second, first)
            assert (after, output) == function_of(FLOWS, action)(cell, first, second)
    for action in owner.actions:
        for pair in ((one, other), (first, second), (first, other), (one, second)):
            assert owner.execute(action, pair, first, second) == function_of(OWNERS, action)(pair, first, second)


def owns_anything(owner: tuple[int, int], epoch: int, sequence: int) -> tuple[tuple[int, int], int]:
    """Model a faulty second half that does not check to which chunk it belongs."""
    return owner, 1


@pytest.mark.parametrize(
    ("functions", "action", "mistake", "chunks"),
    [(FLOWS, "do_follow_half", joins_anything, 1), (OWNERS, "do_check_owner", owns_anything, 2)],
    ids=["flows", "owner"],
)
def test_the_search_finds_mistakes(
    monkeypatch: pytest.MonkeyPatch, functions: dict[str, Any], action: str, mistake: Any, chunks: int
) -> None:
    monkeypatch.setitem(functions, action, mistake)
    with pytest.raises(Found):
        FoldedFlowsSearch(star(2), 1, chunks, history=1).run()


def test_the_model_has_every_action() -> None:
    found = folded_flows.tables()
    assert {row.action for row in found["half_table"].rows} == {"join_anyway", *FLOWS}
    assert {row.action for row in found["owner_table"].rows} == set(OWNERS)
