"""Whole systems of switches with loopback ports: what goes round is lost, doubled and late as everything else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.model.folded import FoldedSwitch
from tests.model.folded_flows import FoldedFlowsSwitch
from tests.model.simulation import Simulation
from tests.model.switch import Switch
from tests.model.tofino import LOOPBACK, TofinoSwitch

ROUNDS = 1_000_000
"""In a simulation, the loopback port of a switch's first life is this one."""


@dataclass
class RoundSwitch(TofinoSwitch):
    """What goes round is a packet in the network of a simulation, until the switch restarts: each life of the switch
    has its own loopback port there.
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
    """The same of the folded program."""


@dataclass
class FoldedFlowsRoundSwitch(RoundSwitch, FoldedFlowsSwitch):
    """The same of the folded program of Tofino 1."""


class TofinoSimulation(Simulation):
    """Whole systems of switches with this program."""

    kind: type[RoundSwitch] = RoundSwitch

    def _switch(self, point: int) -> Switch:
        plain = super()._switch(point)

        def put_round(port: int, frame: bytes) -> None:
            self.put("switch", point, port, frame)

        return self.kind(
            self.values, self.slots, plain.labels, plain.groups, plain.routes, delayed=True, put_round=put_round
        )


class FoldedSimulation(TofinoSimulation):
    """The same of the folded program."""

    kind = FoldedRoundSwitch
    values = 4


class FoldedFlowsSimulation(TofinoSimulation):
    """The same of the folded program of Tofino 1."""

    kind = FoldedFlowsRoundSwitch
    values = 4
