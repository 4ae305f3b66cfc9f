"""The compiled binary on Intel's model of the chip, where there is one: what leaves, and what is counted.

tests/model/tofino.py, which all other tests run on, is compared with it here. ``python -m tests.tofino.frames``
compares more frames.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from controlplane.planner.generators import parse_topology
from controlplane.targets.bri.entries import Entry
from controlplane.targets.bri.ports import PortMap
from controlplane.targets.bri.program import Program
from p4src.artifacts import Artifact, find
from p4src.protocol import Verdict, frame_bytes
from tests.model.packet import Packet, decode
from tests.model.simulation import Harm
from tests.model.tofino import TofinoSwitch
from tests.p4.rig import Traffic
from tests.tofino import frames
from tests.tofino.chip import PROGRAMS, Chip, missing
from tests.tofino.chip_system import TREES, ChipSimulation
from tests.tofino.conftest import TESTBED
from tests.tofino.plans import deployment, with_front_panel
from tests.tofino.test_program import Network, all_reduce

pytestmark = pytest.mark.timeout(1800)  # A model of a chip takes milliseconds for a packet.


@pytest.fixture(scope="module", params=PROGRAMS)
def artifact(request: pytest.FixtureRequest) -> Artifact:
    target, _, values = request.param.partition("-")
    found = find(target, int(values))
    reason = missing(found)
    if reason:
        pytest.skip(reason)
    return found


@pytest.fixture(scope="module")
def pair(artifact) -> Iterator[tuple[Chip, TofinoSwitch]]:
    """The chip and our model with the same tables; their counters and registers are kept from test to test."""
    with Chip(artifact) as chip:
        frames.install(chip, artifact)
        yield chip, frames.ours(artifact)


def test_frames_of_every_kind(pair):
    chip, model = pair
    traffic = Traffic(random.Random(7), model.values_per_packet, 1000)
    assert list(frames.differences(chip, model, frames.endless(traffic), 400)) == []
    assert frames.counted(chip) == frames.expected(model, chip.target)
    assert all(model.verdicts[verdict] for verdict in Verdict)


@pytest.mark.parametrize("more", range(-8, 9, 2))
def test_a_frame_of_another_length_than_it_says(pair, more):
    """A shorter frame, also one shorter by less than a frame check sequence, is refused; the surplus of a longer frame
    leaves with it.
    """
    chip, model = pair
    whole = Packet(32, 5000 + more, 1, 0, tuple(range(model.values_per_packet))).encode()
    frame = (whole + bytes(8))[: len(whole) + more]
    first = frames.FIRST[chip.target]
    assert [(port - first, left) for port, left in chip.process(first + 3, frame)] == model.process(3, frame)
    assert model.verdicts[Verdict.MALFORMED] or more >= 0


class ChipSwitch:
    """A chip as a switch of a :class:`Network`."""

    def __init__(self, artifact: Artifact, entries: list[Entry]) -> None:
        self.chip, self.values = Chip(artifact), artifact.manifest.values_per_packet
        self.chip.install(entries)

    def process(self, port: int, packet: Packet) -> list[tuple[int, Packet]]:
        left = []
        for out, frame in self.chip.process(port, packet.encode()):
            assert len(frame) == frame_bytes(self.values)
            leaving = decode(frame, self.values)
            assert leaving is not None
            left.append((out, leaving))
        return left


def test_a_plan_on_chips_with_two_pipes(artifact):
    """A real plan's entries work on the chip.

    The testbed's ports are in two pipes in turns, so flows meet through loopback ports or through the pipes' own
    recirculation ports.
    """
    program = Program.load(artifact.program)
    topology = with_front_panel(parse_topology(TESTBED), loopback=int(program.chip.rounds))
    made = deployment(topology, target=artifact.manifest.target)
    switches: list[ChipSwitch] = []

    def chip(entries: list[Entry], ports: PortMap) -> ChipSwitch:
        switches.append(ChipSwitch(artifact, entries))
        return switches[-1]

    try:
        network = Network(topology, made.rulesets, program, values=artifact.manifest.values_per_packet, make=chip)
        all_reduce(network, made, random.Random(2))
    finally:
        for switch in switches:
            switch.chip.close()


@pytest.mark.parametrize("tree", ["star", "two-level"])
def test_an_all_reduce_with_loss(artifact, tree):
    system = ChipSimulation(artifact, TREES[tree], 4, 12, harm=Harm(loss=0.05, duplicate=0.05), seed=3)
    try:
        system.run(limit=20_000)
    finally:
        system.close()
