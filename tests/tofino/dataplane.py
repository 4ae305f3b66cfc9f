"""Runs the program's model on a switch with these entries in its tables and registers for each pipe, with the types of
tests/model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any

from controlplane.targets.bri.chip import PORTS_PER_PIPE, TOFINO_1, TOFINO_2, TOFINO_2_FOLDED
from p4src.protocol import Verdict
from tests.model import folded
from tests.model.packet import Packet
from tests.model.tofino import LOOPBACK, Cell, Contribution, ReadOut, ingress

Labels = Mapping[tuple[int, int], tuple[str, Mapping[str, int]]]
"""label_table: (device port, label) -> (action, its data)"""


class Switch:
    """A switch.

    Packets that leave by the ports in `loopback` come back at once; other loopback ports are the caller's task.
    """

    def __init__(self, labels: Labels, groups: Mapping[int, Collection[int]], loopback: Collection[int] = ()) -> None:
        self.labels, self.groups, self.loopback = labels, groups, loopback
        self.cells: dict[tuple[int, int], Cell] = {}
        self.round = 0
        self.verdicts: Counter[Verdict] = Counter()

    def process(self, port: int, packet: Packet) -> list[tuple[int, Packet]]:
        """Process a packet and return (device port, packet) of all that leaves the switch."""
        if (port, packet.label) not in self.labels:
            self.verdicts[Verdict.UNKNOWN] += 1
            return []
        action, data = self.labels[port, packet.label]
        if action == "replicate":
            self.verdicts[Verdict.REPLICATED] += 1
            return [(out, packet) for out in self.groups[data["group"]]]
        out = data["port"]
        if action == "forward":
            self.verdicts[Verdict.FORWARDED] += 1
        else:
            entry: Contribution | ReadOut = ReadOut(out)
            if action != "read_out":
                labels = data["next_label"], data["partial_label"]
                entry = Contribution(data["flow"], data["everyone"], *labels, out)
                packet = packet.without_checksum()
            assert data["slot_base"] & data["slot_mask"] == 0
            index = port // PORTS_PER_PIPE, data["slot_base"] ^ (packet.sequence & data["slot_mask"])
            self.cells[index], outcome = ingress(self.cells.get(index, Cell()), packet, entry)
            if outcome.verdict is not None:
                self.verdicts[outcome.verdict] += 1
            if outcome.packet is None:
                return []
            packet, out = outcome.packet, outcome.port
            if out == LOOPBACK and "loopback" in data:
                out = data["loopback"]
                self.round += 1
            elif out == LOOPBACK:  # Tofino 2 has both halves of the values at once.
                _, outcome = ingress(self.cells[index], packet, ReadOut(data["port"]))
                assert outcome.packet is not None
                packet, out = outcome.packet, outcome.port
        if out in self.loopback:
            return self.process(out, packet)
        return [(out, packet)]


class FoldedSwitch(Switch):
    """The same with the folded program: a recirculated packet has one half of the values and a header of its own."""

    def __init__(self, labels: Labels, groups: Mapping[int, Collection[int]], loopback: Collection[int] = ()) -> None:
        super().__init__(labels, groups, loopback)
        self.halves: dict[tuple[int, int], Any] = {}

    def ingress(
        self, index: tuple[int, int], packet: Packet, fold: folded.Fold | None, entry: Contribution | ReadOut
    ) -> folded.Outcome:
        """Process a pass over the registers at an index."""
        cell = self.halves.get(index, folded.Folded())
        self.halves[index], outcome = folded.ingress(cell, packet, fold, entry, folded.tables())
        return outcome

    def process(self, port: int, packet: Packet, fold: folded.Fold | None = None) -> list[tuple[int, Packet]]:
        action, data = self.labels.get((port, packet.label), ("", {}))
        if action not in ("aggregate", "read_out"):
            assert fold is None
            return super().process(port, packet)
        entry: Contribution | ReadOut = ReadOut(data["port"])
        if action == "aggregate":
            labels = data["next_label"], data["partial_label"]
            entry = Contribution(data["flow"], data["everyone"], *labels, data["port"])
            packet = packet.without_checksum()
        index = port // PORTS_PER_PIPE, data["slot_base"] ^ (packet.sequence & data["slot_mask"])
        outcome = self.ingress(index, packet, fold, entry)
        if outcome.verdict is not None:
            self.verdicts[outcome.verdict] += 1
        if outcome.packet is None:
            return []
        if outcome.fold is None:
            return [(data["port"], outcome.packet)]
        self.round += 1
        loop = data.get("loopback", port)
        assert loop in self.loopback and loop // PORTS_PER_PIPE == port // PORTS_PER_PIPE
        return self.process(loop, outcome.packet, outcome.fold)


PLANES = {TOFINO_1: Switch, TOFINO_2: Switch, TOFINO_2_FOLDED: FoldedSwitch}
"""Maps what a program is for to the switch that runs it."""
