"""Sequences of frames with the answers of a real bmv2, kept as text so that every target can be compared with it.

    python -m tests.p4.recording        records them anew; needs simple_switch_grpc on PATH and root

A file has one JSON object per line: first {"values", "switch"}, then [port, frame, [[port, frame], ...]] with frames in
hexadecimal, last {"verdicts"}. The configuration is that of :mod:`tests.p4.rig`.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from p4src.artifacts import find
from p4src.protocol import Verdict
from softswitch.tests.support.switches import BMV2, missing_with_cables
from tests.p4 import bmv2, rig
from tests.p4.targets import Frames, Target

DIRECTORY = Path(__file__).resolve().parent / "recorded"
PLANNED = {"mixed-4": (4, 11, 900), "mixed-64": (64, 12, 150), "mixed-256": (256, 13, 60)}
"""Values per packet, seed and number of frames of each recording."""


@dataclass(frozen=True)
class Recording:
    """One file: values per packet, the recorded switch, (arrival, what left), counts per verdict."""

    values: int
    switch: str
    steps: list[tuple[rig.Arrival, Frames]]
    verdicts: dict[str, int]


def planned(values: int, seed: int, frames: int) -> Iterator[rig.Arrival]:
    """Yield the arrivals of a recording."""
    traffic = rig.Traffic(random.Random(seed), values, 1_700_000_000)
    return (traffic.arrival() for _ in range(frames))


def write(path: Path, target: Target, switch: str, values: int, arrivals: Iterable[rig.Arrival]) -> None:
    """Run ``arrivals`` through ``target`` and record what leaves."""
    lines = [json.dumps({"values": values, "switch": switch})]
    for arrival in arrivals:
        out = sorted(target.process(arrival.port, arrival.frame))
        line = [arrival.port, arrival.frame.hex(), [[port, frame.hex()] for port, frame in out]]
        lines.append(json.dumps(line, separators=(",", ":")))
    lines.append(json.dumps({"verdicts": verdict_counts(target)}))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def read(path: Path) -> Recording:
    """Read a recording from its file."""
    first, *lines, last = [json.loads(line) for line in path.read_text().splitlines()]
    steps = [
        (rig.Arrival(port, bytes.fromhex(frame)), [(to, bytes.fromhex(left)) for to, left in out])
        for port, frame, out in lines
    ]
    return Recording(first["values"], first["switch"], steps, last["verdicts"])


def verdict_counts(target: Target) -> dict[str, int]:
    """Return a target's counts, by the names in a recording."""
    return {Verdict(verdict).name.lower(): count for verdict, count in target.verdicts().items()}


def main() -> int:
    """Record all of PLANNED; returns the exit status."""
    reason = missing_with_cables("bmv2")
    if reason:
        print(f"tests.p4.recording: {reason}", file=sys.stderr)
        return 1
    version = subprocess.run([BMV2, "--version"], capture_output=True, text=True, check=False, timeout=30)
    switch = f"{BMV2} {(version.stdout or version.stderr).strip()}"
    for name, (values, seed, frames) in PLANNED.items():
        target = bmv2.Bmv2Target(find(values=values), rig.switch(values), rig.PORTS)
        try:
            write(DIRECTORY / f"{name}.jsonl", target, switch, values, planned(values, seed, frames))
        finally:
            target.close()
        print(f"{name}: {frames} frames")
    return 0


if __name__ == "__main__":
    sys.exit(main())
