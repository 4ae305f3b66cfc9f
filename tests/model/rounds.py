"""Simulations of switches with loopback ports: recirculating packets are lost, doubled and late like all others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.model.folded import FoldedSwitch
from tests.model.simulation import Simulation
from tests.model.switch import Switch
from tests.model.tofino import LOOPBACK, TofinoSwitch

ROUNDS = 1_000_000
"""Number of the loopback port of a switch's first life in a simulation."""


@dataclass
class RoundSwitch(TofinoSwitch):
    """A switch whose recirculating packets are in the network of a simulation, until it restarts.

    Each life of the switch has its own loopback port there.
    """

    put_round: Callable[[int, bytes], None] = print
    life: int = 0

    def reboot(self) -> None:
        super().reboot()
        self.life += 1

    def process(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        if port >= ROUNDS:
            if port != ROUNDS + self.life:
                return []
            port = LOOPBACK
        leaving = []
        for out, sent in super().process(port, frame):
            if out == LOOPBACK:
                self.put_round(ROUNDS + self.life, sent)
            else:
                leaving.append((out, sent))
        return leaving


@dataclass
class FoldedRoundSwitch(RoundSwitch, FoldedSwitch):
    """A switch with the folded program whose recirculating packets are in the network."""


class TofinoSimulation(Simulation):
    """A simulation of switches with the Tofino program."""

    kind: type[RoundSwitch] = RoundSwitch

    def at_switch(self, point: int) -> Switch:
        plain = super().at_switch(point)

        def put_round(port: int, frame: bytes) -> None:
            self.put("switch", point, port, frame)

        return self.kind(
            self.values, self.slots, plain.labels, plain.groups, plain.routes, delayed=True, put_round=put_round
        )


class FoldedSimulation(TofinoSimulation):
    """A simulation of switches with the folded program."""

    kind = FoldedRoundSwitch
    values = 4
