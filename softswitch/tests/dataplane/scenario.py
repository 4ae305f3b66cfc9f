"""The input of a test: a program, its configuration and the frames that arrive, whatever switch runs it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from softswitch import Device, Match

Frames = list[tuple[int, bytes]]


@dataclass(frozen=True)
class Row:
    """A table entry.

    Matches: ["exact", v], ["lpm", v, length], ["ternary", v, mask], ["range", low, high], ["optional", v], or None for
    a key that may be anything.
    """

    table: str
    match: tuple[tuple[Any, ...] | None, ...]
    action: str
    params: tuple[int, ...] = ()
    priority: int = 0


@dataclass
class Scenario:
    """A configuration and, in order, the frames that arrive: (port, frame)."""

    program: str
    ports: tuple[int, ...]
    rows: list[Row] = field(default_factory=list)
    groups: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    sessions: dict[int, list[tuple[int, int]]] = field(default_factory=dict)
    frames: Frames = field(default_factory=list)

    def configuration(self) -> dict[str, Any]:
        """Return JSON of everything but the frames."""
        return {
            "program": self.program,
            "ports": list(self.ports),
            "rows": [[r.table, [None if m is None else list(m) for m in r.match], r.action, list(r.params), r.priority]
                     for r in self.rows],
            "groups": {str(k): [list(x) for x in v] for k, v in self.groups.items()},
            "sessions": {str(k): [list(x) for x in v] for k, v in self.sessions.items()},
        }  # fmt: skip

    @classmethod
    def from_configuration(cls, data: dict[str, Any]) -> Scenario:
        return cls(
            data["program"],
            tuple(data["ports"]),
            [Row(t, tuple(None if m is None else tuple(m) for m in ms), a, tuple(p), n)
             for t, ms, a, p, n in data["rows"]],
            {int(k): [(p, r) for p, r in v] for k, v in data["groups"].items()},
            {int(k): [(p, r) for p, r in v] for k, v in data["sessions"].items()},
        )  # fmt: skip


@dataclass
class Recording:
    """A scenario and what a switch sent for each of its frames, sorted by port (and by bytes within a port)."""

    scenario: Scenario
    switch: str
    answers: list[Frames]

    def write(self, path: Path) -> None:
        with path.open("w") as file:
            print(json.dumps({"switch": self.switch, **self.scenario.configuration()}), file=file)
            for (port, frame), answer in zip(self.scenario.frames, self.answers, strict=True):
                out = [[p, f.hex()] for p, f in answer]
                print(json.dumps([port, frame.hex(), out], separators=(",", ":")), file=file)

    @classmethod
    def read(cls, path: Path) -> Recording:
        lines = path.read_text().splitlines()
        head = json.loads(lines[0])
        scenario = Scenario.from_configuration(head)
        answers: list[Frames] = []
        for line in lines[1:]:
            port, frame, out = json.loads(line)
            scenario.frames.append((port, bytes.fromhex(frame)))
            answers.append([(p, bytes.fromhex(f)) for p, f in out])
        return cls(scenario, head["switch"], answers)


def native_match(row: Row, device: Device) -> tuple[Match, ...]:
    """Return a row's matches as :class:`Device` takes them."""
    assert device.program is not None
    keys = device.program.tables[row.table].keys
    matches: list[Match] = []
    for key, m in zip(keys, row.match, strict=True):
        if m is None:
            if key.match_kind == "range":
                matches.append(Match("range", 0, high=(1 << key.width) - 1))
            elif key.match_kind == "lpm":
                matches.append(Match("lpm", 0, prefix_len=0))
            else:
                matches.append(Match("ternary", 0, mask=0))
        elif m[0] == "lpm":
            matches.append(Match("lpm", m[1], prefix_len=m[2]))
        elif m[0] == "ternary":
            matches.append(Match("ternary", m[1], mask=m[2]))
        elif m[0] == "range":
            matches.append(Match("range", m[1], high=m[2]))
        elif m[0] == "optional":
            matches.append(Match("optional", m[1], mask=(1 << key.width) - 1))
        else:
            matches.append(Match("exact", m[1]))
    return tuple(matches)


def configure(device: Device, scenario: Scenario) -> None:
    """Fill a device that runs the scenario's program."""
    for row in scenario.rows:
        device.insert(row.table, native_match(row, device), row.action, row.params, row.priority)
    for group, replicas in scenario.groups.items():
        device.multicast_set(group, replicas)
    for session, replicas in scenario.sessions.items():
        device.clone_set(session, replicas)


def ordered(frames: Frames) -> Frames:
    """Sort frames by port: bmv2 keeps no order among copies of one packet on one port."""
    return sorted(frames)


def answers_of(device: Device, scenario: Scenario) -> Iterator[Frames]:
    """Yield what a device sends for each frame of the scenario."""
    for port, frame in scenario.frames:
        yield ordered(device.process(port, frame))
