"""The compiled register actions do what the model's functions do."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.model import tofino
from tests.p4 import salu

VALUES = [f"sum_{i:02x}" for i in range(32)]
UNHURRIED = settings(deadline=None)
words = st.one_of(
    st.sampled_from([0, 1, 0x7FFFFFFF, 0x80000000, 0x80000001, 0xFFFFFFFE, 0xFFFFFFFF]), st.integers(0, 0xFFFFFFFF)
)


@cache
def compiled() -> dict[str, salu.Register]:
    return salu.registers()


def action_of(register: str, name: str) -> str:
    """Return the compiled name of a register action."""
    (found,) = [action for action in compiled()[register].actions if name in action]
    return found


def test_every_register_exists_and_gets_its_operands() -> None:
    found = compiled()
    assert set(found) == {"slot_epoch", "slot_sequence", "slot_flows", *VALUES}
    inputs = {name: (register.inputs[64], register.inputs.get(96)) for name, register in found.items()}
    assert inputs["slot_epoch"][0].startswith("hdr.inart.epoch")
    assert (inputs["slot_epoch"][1] or "").startswith("hdr.inart.bitmap.32-")
    assert inputs["slot_sequence"][0].startswith("hdr.inart.sequence")
    assert inputs["slot_flows"][0].startswith("hdr.inart.sequence")
    assert (inputs["slot_flows"][1] or "").startswith("meta.claim")
    for name in VALUES:
        index = name.removeprefix("sum_")
        first, second = inputs[name]
        assert first.startswith(f"hdr.first.value_{index}")
        assert (second or "").startswith(f"hdr.second.value_{index}")
        assert len(found[name].actions) == 4
    assert [name for name, register in found.items() if not register.pairs] == ["slot_sequence"]


@UNHURRIED
@given(words, words)
def test_sequence(cell: int, operand: int) -> None:
    near = (operand, operand - 1 & 0xFFFFFFFF, operand + 1 & 0xFFFFFFFF, cell)
    for register, name, function in (
        ("slot_sequence", "follow_sequence", tofino.follow_sequence),
        ("slot_sequence", "take_sequence", tofino.take_sequence),
    ):
        for held in near:
            (after, _), output = compiled()[register].execute(action_of(register, name), (held, 0), operand, 0)
            assert (after, output) == function(held, operand)


@UNHURRIED
@given(words, words, words, words)
def test_pairs(first: int, second: int, operand: int, other: int) -> None:
    for register, name, function in (
        ("slot_epoch", "follow_epoch", tofino.follow_epoch),
        ("slot_epoch", "check_epoch", tofino.check_epoch),
        ("slot_flows", "follow_flows", tofino.follow_flows),
        ("slot_flows", "take_flows", tofino.take_flows),
    ):
        action = action_of(register, name)
        for cell in ((first, second), (operand, second), (operand, other), (first, other)):
            assert compiled()[register].execute(action, cell, operand, other) == function(cell, operand, other)


@pytest.mark.parametrize("name", ["store", "add", "maximum", "read"])
@UNHURRIED
@given(words, words, words, words)
def test_values(name: str, first: int, second: int, low: int, high: int) -> None:
    expected = tofino.VALUE_ACTIONS[name]((first, second), low, high)
    found = compiled()
    results = {
        register: found[register].execute(action_of(register, name), (first, second), low, high) for register in VALUES
    }
    assert set(results.values()) == {expected}


def test_an_unknown_instruction_is_not_passed_over() -> None:
    register = salu.Register(actions={"new": ["rotate lo, lo"]})
    with pytest.raises(AssertionError, match="rotate"):
        register.execute("new", (0, 0), 0, 0)
