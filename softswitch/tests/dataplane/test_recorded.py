"""softswitch answers every recorded frame with the same bytes on the same ports as bmv2."""

from __future__ import annotations

from pathlib import Path

import pytest

from softswitch import Fabric
from softswitch.tests.dataplane import bmv2, scenarios
from softswitch.tests.dataplane.programs import program
from softswitch.tests.dataplane.scenario import Recording, answers_of, configure
from softswitch.tests.support.switches import missing_with_cables

RECORDINGS = sorted((Path(__file__).parent / "recorded").glob("*.jsonl"))


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda p: p.stem)
def test_softswitch_gives_bmv2s_recorded_answers(path: Path) -> None:
    recording = Recording.read(path)
    with Fabric() as fabric:
        device = fabric.add_device(1)
        device.load(program(recording.scenario.program))
        configure(device, recording.scenario)
        answers = answers_of(device, recording.scenario)
        for (port, frame), expected, got in zip(recording.scenario.frames, recording.answers, answers, strict=True):
            assert got == expected, f"frame {frame.hex()} on port {port}"


def test_recordings_are_of_the_scenarios() -> None:
    """The recordings match the scenarios; a scenario changed without a new recording would leave the change
    untested.
    """
    assert {p.stem for p in RECORDINGS} == set(scenarios.ALL)
    for path in RECORDINGS:
        recorded = Recording.read(path).scenario
        planned = scenarios.ALL[path.stem]()
        assert recorded.configuration() == planned.configuration()
        assert recorded.frames == planned.frames


@pytest.mark.namespaces
@pytest.mark.parametrize("name", sorted(scenarios.ALL))
def test_bmv2_still_does(name: str) -> None:
    """The real switch, if it is installed, is compared on other frames than the recorded ones."""
    reason = missing_with_cables("bmv2")
    if reason:
        pytest.skip(reason)
    scenario = scenarios.ALL[name](seed=77)  # type: ignore[operator]
    scenario.frames = scenario.frames[:40]
    with bmv2.Bmv2(scenario) as switch, Fabric() as fabric:
        device = fabric.add_device(1)
        device.load(program(name))
        configure(device, scenario)
        for (port, frame), got in zip(scenario.frames, answers_of(device, scenario), strict=True):
            assert got == switch.process(port, frame, at_least=len(got)), f"frame {frame.hex()} on port {port}"
