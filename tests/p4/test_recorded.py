"""The reference model and softswitch answer sequences of frames as a real bmv2 did."""

from __future__ import annotations

from pathlib import Path

import pytest

from p4src.artifacts import find
from p4src.protocol import Verdict
from tests.p4 import rig
from tests.p4.comparison import readable
from tests.p4.recording import DIRECTORY, PLANNED, planned, read, verdict_counts
from tests.p4.targets import SoftswitchTarget

RECORDINGS = sorted(DIRECTORY.glob("*.jsonl"))


def test_the_recordings_are_the_planned_ones() -> None:
    assert {path.stem for path in RECORDINGS} == set(PLANNED)
    for path in RECORDINGS:
        recording = read(path)
        assert [arrival for arrival, _ in recording.steps] == list(planned(*PLANNED[path.stem]))


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_the_reference_model_gives_bmv2s_recorded_answers(path: Path) -> None:
    recording = read(path)
    reference = rig.switch(recording.values)
    for number, (arrival, out) in enumerate(recording.steps):
        assert readable(reference.process(arrival.port, arrival.frame)) == readable(out), number
    assert {verdict.name.lower(): reference.verdicts[verdict] for verdict in Verdict} == recording.verdicts


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.stem)
def test_softswitch_gives_bmv2s_recorded_answers(path: Path) -> None:
    recording = read(path)
    target = SoftswitchTarget(find(values=recording.values), rig.switch(recording.values))
    try:
        for number, (arrival, out) in enumerate(recording.steps):
            assert readable(target.process(arrival.port, arrival.frame)) == readable(out), number
        assert verdict_counts(target) == recording.verdicts
    finally:
        target.close()
