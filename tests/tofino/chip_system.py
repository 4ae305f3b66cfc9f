"""Runs a whole all-reduce with chips as switches: workers and root of tests/model, on a network that loses frames.

    INART_TOFINO_MODEL=... python -m tests.tofino.chip_system --bytes 64Ki --loss 0.02

The network also doubles frames. Every result that a worker gets is compared with the exact sum or maximum. There is no
clock, so a slow model loses nothing.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

from controlplane.common.inputs import parse_bytes
from p4src.artifacts import Artifact
from tests.model.simulation import BELOW, Harm, Simulation
from tests.model.switch import Aggregate, Forward, Replicate, Switch
from tests.model.tree import Tree, star, two_level
from tests.tofino import frames
from tests.tofino.chip import Chip

UP, POINTS, LOOP = 31, 32, 60
"""Device ports counted from that of port 0: of the switch above, of the switches below, and of the loopback port."""
Labels = dict[tuple[int, int], Forward | Replicate | Aggregate]
TREES = {"star": star(3), "two-level": two_level(2, 2)}


class ChipSwitch(Switch):
    """A switch of a simulation whose frames go through a chip. Its tables are installed with the first frame."""

    chip: Chip | None = None
    artifact: Artifact

    def process(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        first = frames.FIRST[self.artifact.manifest.target]
        if self.chip is None:
            self.chip = Chip(self.artifact)
            tables = Switch(self.values_per_packet, self.slots, _labels(self.labels), self.groups, self.routes)
            numbers = {port for port, _ in tables.labels} | {port for ports in self.groups.values() for port in ports}
            devices = {number: first + _device(number) for number in numbers | {UP}}
            self.chip.install(frames.entries(self.artifact, tables, devices, first + LOOP))
        left = self.chip.process(first + _device(port or UP), frame)
        return [(_number(device - first), leaving) for device, leaving in left]


def _labels(labels: dict[tuple[int, int], Forward | Replicate | Aggregate]) -> Labels:
    """Return the labels with UP for port 0, which the control plane takes for no port."""
    made: Labels = {}
    for (port, label), action in labels.items():
        out = action if isinstance(action, Replicate) else replace(action, port=action.port or UP)
        made[port or UP, label] = out
    return made


def _device(number: int) -> int:
    return number if number < BELOW else POINTS + number - BELOW


def _number(device: int) -> int:
    if device == UP:
        return 0
    return device if device < POINTS else BELOW + device - POINTS


class ChipSimulation(Simulation):
    """A simulation in which every aggregation point is a chip of its own. Must be closed."""

    def __init__(self, artifact: Artifact, tree: Tree, slots: int, chunks: int, *, harm: Harm, seed: int) -> None:
        self.artifact, self.values = artifact, artifact.manifest.values_per_packet
        super().__init__(tree, slots, chunks, harm, seed)

    def at_switch(self, point: int) -> Switch:
        plain = super().at_switch(point)
        made = ChipSwitch(self.values, self.slots, plain.labels, plain.groups, plain.routes)
        made.artifact = self.artifact
        return made

    @property
    def chips(self) -> list[Chip]:
        return [switch.chip for switch in self.switches if isinstance(switch, ChipSwitch) and switch.chip is not None]

    def close(self) -> None:
        for chip in self.chips:
            chip.close()


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.tofino.chip_system", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--bytes", type=parse_bytes, default="64Ki", help="of a worker's tensor (default: %(default)s)")
    parser.add_argument("--tree", choices=sorted(TREES), default="star")
    parser.add_argument("--slots", type=int, default=16)
    parser.add_argument("--loss", type=float, default=0.02)
    parser.add_argument("--duplicate", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=1)
    frames.add_artifact(parser)
    options = parser.parse_args()
    artifact = frames.artifact_of(options)
    chunks = -(-options.bytes // (4 * artifact.manifest.values_per_packet))
    harm = replace(Harm(), loss=options.loss, duplicate=options.duplicate)
    system = ChipSimulation(artifact, TREES[options.tree], options.slots, chunks, harm=harm, seed=options.seed)
    try:
        while not system.done:
            system.step()
            if system.steps % 1000 == 0:
                print(f"{system.steps} steps, chunk {min(w.oldest for w in system.workers)} of {chunks}", flush=True)
        print(f"{len(system.workers)} workers, {chunks} chunks, {system.steps} steps: every result exact")
        for number, chip in enumerate(system.chips):
            counted = frames.counted(chip)
            print(f"chip {number}: " + ", ".join(f"{verdict.name.lower()} {n}" for verdict, n in counted.items() if n))
    finally:
        system.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
