"""The targets as fixtures: every behavioural test runs on each target that can run here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from p4src.artifacts import find
from softswitch.tests.support.switches import missing_with_cables
from tests.model.switch import Switch
from tests.p4 import bmv2, rig
from tests.p4.targets import SoftswitchTarget, Target

VALUES = 4
"""Values per packet in most tests: packets are small, and every path is tested."""


@dataclass
class Pair:
    """A target and the reference in the same configuration and state. Tests share both: each takes a newer epoch.

    Two things differ from chip to chip. ``zero``: the first epoch. ``flushes``: whether a resend of what a slot has
    takes along what else the slot has.
    """

    target: Target
    reference: Switch
    values: int
    epoch: int = 1000
    zero: int = 0
    flushes: bool = True

    def next_epoch(self) -> int:
        """Return an epoch that is newer than all that the slots have seen."""
        self.epoch += 1000
        return self.epoch

    def restart(self) -> None:
        """Reset both as after power-up, with their tables."""
        self.target.restart()
        self.reference = self.fresh()

    def fresh(self) -> Switch:
        """Return the reference after power-up."""
        return rig.switch(self.values)

    def arrivals(self, traffic: rig.Traffic) -> Iterator[rig.Arrival]:
        """Yield the part of this traffic that the target's ports can receive."""
        while True:
            yield traffic.arrival()

    def repeated(self, values: tuple[int, ...]) -> tuple[int, ...]:
        """Return some values repeated to fill a packet."""
        return values * (self.values // len(values))


def make(kind: str, values: int) -> Pair:
    """Return a pair on a target of that kind; skips if it cannot run."""
    artifact, configuration = find(values=values), rig.switch(values)
    if kind == "bmv2":
        reason = missing_with_cables("bmv2")
        if reason:
            pytest.skip(reason)
        return Pair(bmv2.Bmv2Target(artifact, configuration, rig.PORTS), configuration, values)
    return Pair(SoftswitchTarget(artifact, configuration), configuration, values)


TARGETS = ["softswitch", pytest.param("bmv2", marks=pytest.mark.namespaces)]


@pytest.fixture(scope="module", params=TARGETS)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Make target and reference with 4 values per packet."""
    made = make(request.param, VALUES)
    yield made
    made.target.close()


@pytest.fixture(scope="module", params=TARGETS)
def wide_pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    """Make target and reference with the default of 256 values per packet."""
    made = make(request.param, 256)
    yield made
    made.target.close()
