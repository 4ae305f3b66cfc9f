"""Records what bmv2 does in every scenario: ``python -m softswitch.tests.dataplane.record [NAME ...]``.

Needs simple_switch_grpc on PATH and root. CI compares softswitch with the recordings.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from softswitch.tests.dataplane import bmv2, scenarios
from softswitch.tests.dataplane.scenario import Recording
from softswitch.tests.support.switches import missing_with_cables

DIRECTORY = Path(__file__).parent / "recorded"


def record(name: str) -> Recording:
    scenario = scenarios.ALL[name]()
    with bmv2.Bmv2(scenario) as switch:
        time.sleep(0.5)  # the switch begins to use the program a moment after it has said so
        answers = [switch.process(port, frame) for port, frame in scenario.frames]
    return Recording(scenario, "simple_switch_grpc 1.15.5", answers)


def main() -> int:
    reason = missing_with_cables("bmv2")
    if reason:
        print(reason)
        return 1
    DIRECTORY.mkdir(exist_ok=True)
    for name in sys.argv[1:] or scenarios.ALL:
        recording = record(name)
        recording.write(DIRECTORY / f"{name}.jsonl")
        answered = sum(bool(a) for a in recording.answers)
        print(name, len(recording.answers), "frames,", answered, "with an answer")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
