"""softswitch runs packets of this program at once, each with the lock of its slot: nobody can tell."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from p4src.artifacts import find
from softswitch.bmv2json.reader import read_program
from softswitch.compiler.layout import Layout
from softswitch.compiler.sharing import sharing
from tests.p4 import rig
from tests.p4.targets import SoftswitchTarget

VALUES = 4


def state(target: SoftswitchTarget) -> tuple[object, ...]:
    """Return all that packets change, but the ports' counters."""
    device = target.device
    registers = {name: device.register_read_all(name) for name in target.program.registers}
    return registers, device.counter_read_all("verdict_counter"), target.label_counters(), device.drop_stats()


@pytest.mark.parametrize("values", [4, 64, 256])
def test_slots_have_locks_of_their_own(values: int) -> None:
    program = read_program(find("v1model", values).program.read_text())
    assert sharing(program, Layout(program)) is not None


@settings(max_examples=15, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(1, 60))
def test_the_same_as_with_one_lock(source: random.Random, length: int) -> None:
    alone, beside = (SoftswitchTarget(find("v1model", VALUES), rig.switch(VALUES), threads) for threads in (1, 2))
    try:
        traffic = rig.Traffic(source, VALUES, 1000)
        for _ in range(length):
            arrival = traffic.arrival()
            assert beside.process(arrival.port, arrival.frame) == alone.process(arrival.port, arrival.frame)
        assert state(beside) == state(alone)
    finally:
        alone.close()
        beside.close()
