"""The behavioural suite of tests/p4 on Intel's models of the chips, next to tests/model/tofino.py; skips without them.

Behaviour that differs between Tofino and v1model (docs/tofino.md) has tests of its own: tests/tofino/test_chip.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from p4src.artifacts import Artifact, find
from p4src.protocol import Verdict
from tests.model.switch import Switch
from tests.p4 import rig
from tests.p4.conftest import Pair
from tests.p4.targets import Frames, Target
from tests.p4.test_behaviour import (
    test_a_newer_chunk_takes_the_slot_and_an_older_one_passes,
    test_a_restarted_switch_has_forgotten_its_slots_and_its_counts,
    test_any_other_epoch_takes_the_slot_and_none_keeps_it,
    test_any_sequence,
    test_every_prefix_of_an_ipv4_frame,
    test_flush_then_late_packets_pass_through,
    test_forwarded_packets_keep_their_headers_and_sums_have_no_udp_checksum,
    test_four_workers_make_one_packet,
    test_long_sequences_meet_every_verdict,
    test_only_complete_sums_have_the_next_label,
    test_the_maximum_is_of_signed_numbers,
)
from tests.tofino import frames
from tests.tofino.chip import PROGRAMS, Chip, missing

__all__ = [
    "test_a_newer_chunk_takes_the_slot_and_an_older_one_passes",
    "test_a_restarted_switch_has_forgotten_its_slots_and_its_counts",
    "test_any_other_epoch_takes_the_slot_and_none_keeps_it",
    "test_any_sequence",
    "test_every_prefix_of_an_ipv4_frame",
    "test_flush_then_late_packets_pass_through",
    "test_forwarded_packets_keep_their_headers_and_sums_have_no_udp_checksum",
    "test_four_workers_make_one_packet",
    "test_long_sequences_meet_every_verdict",
    "test_only_complete_sums_have_the_next_label",
    "test_the_maximum_is_of_signed_numbers",
]
pytestmark = pytest.mark.timeout(1800)


class ChipTarget(Target):
    """A model of the chip with the rig's tables."""

    def __init__(self, artifact: Artifact) -> None:
        self.artifact, self.first = artifact, frames.FIRST[artifact.manifest.target]
        self.restart()

    def restart(self) -> None:
        if hasattr(self, "chip"):
            self.chip.close()
        self.chip = Chip(self.artifact)
        frames.install(self.chip, self.artifact)

    def process(self, port: int, frame: bytes) -> Frames:
        return [(out - self.first, left) for out, left in self.chip.process(self.first + port, frame)]

    def verdicts(self) -> dict[Verdict, int]:
        counts = frames.counted(self.chip)
        if self.chip.target == "t2na":  # On Tofino 2, unknown packets count as forwarded (see frames.expected).
            del counts[Verdict.FORWARDED], counts[Verdict.UNKNOWN]
        return counts

    def label_counters(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Return nothing, because the model's commands do not read these counters."""
        return {}

    def close(self) -> None:
        self.chip.close()


@dataclass
class ChipPair(Pair):
    """A chip next to our model of its program."""

    artifact: Artifact | None = None

    def fresh(self) -> Switch:
        assert self.artifact is not None
        return frames.ours(self.artifact)

    def arrivals(self, traffic: rig.Traffic) -> Iterator[rig.Arrival]:
        return frames.endless(traffic)


@pytest.fixture(scope="module", params=PROGRAMS)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    target, _, values = request.param.partition("-")
    artifact = find(target, int(values))
    if reason := missing(artifact):
        pytest.skip(reason)
    chip = ChipTarget(artifact)
    yield ChipPair(chip, frames.ours(artifact), int(values), zero=1, flushes=False, artifact=artifact)
    chip.close()
