"""A case is a program, control-plane statements and frames; it runs on either switch and is written as an STF file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from softswitch.tests.conformance import stf
from softswitch.tests.conformance.stf import Add, Command, Packet, SetDefault, Statement
from softswitch.tests.conformance.targets import Frames
from tests.fuzz.packets import Frame

PROGRAM_LINE = "# program: "


@dataclass(frozen=True)
class Artifacts:
    """A compiled program.

    ``path``: the path of its JSON relative to the repository if it is in the repository, else a name.
    """

    path: str
    config: bytes
    info: str


@dataclass(frozen=True)
class Case:
    artifacts: Artifacts
    statements: tuple[Statement, ...]
    frames: tuple[Frame, ...]

    def with_frames(self, frames: Iterable[Frame]) -> Case:
        return replace(self, frames=tuple(frames))

    def with_statements(self, statements: Iterable[Statement]) -> Case:
        return replace(self, statements=tuple(statements))


def multiset(frames: Frames) -> dict[int, list[bytes]]:
    """Return the frames of each port sorted, because bmv2's threads overtake each other."""
    return {port: sorted(out) for port, out in sorted(frames.items()) if out}


def as_text(statement: Statement) -> str:
    """Return the STF line of a control-plane statement."""
    if isinstance(statement, Command):
        return " ".join((statement.name, *statement.arguments))
    assert isinstance(statement, Add | SetDefault)
    call = f"{statement.call.action}({', '.join(f'{name}:{value:#x}' for name, value in statement.call.arguments)})"
    if isinstance(statement, SetDefault):
        return f"setdefault {statement.table} {call}"
    keys = " ".join(f"{name}:{value}" for name, value in statement.keys)
    priority = "" if statement.priority is None else f"{statement.priority} "
    return f"add {statement.table} {priority}{keys} {call}"


def write(path: Path, case: Case, answers: Frames, comment: Sequence[str]) -> None:
    """Write an STF file of a case and the frames that it should lead to."""
    lines = [PROGRAM_LINE + case.artifacts.path, *(f"# {line}" for line in comment)]
    lines += [as_text(s) for s in case.statements]
    lines += [f"packet {port} {frame.hex()}" for port, frame in case.frames]
    lines += [f"expect {port} {frame.hex()} $" for port, frames in multiset(answers).items() for frame in frames]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def read(path: Path, root: Path) -> tuple[Case, Frames]:
    """Read a file that :func:`write` wrote; the program's path is relative to ``root``."""
    first = path.read_text().splitlines()[0]
    if not first.startswith(PROGRAM_LINE):
        raise stf.StfError(f"{path.name} does not begin with {PROGRAM_LINE!r}")
    config = root / first.removeprefix(PROGRAM_LINE).strip()
    artifacts = Artifacts(str(config), config.read_bytes(), config.with_suffix(".p4info.txtpb").read_text())
    control: list[Statement] = []
    frames: list[Frame] = []
    answers: Frames = {}
    for statement in stf.read(path):
        if isinstance(statement, Packet):
            frames.append((statement.port, statement.frame))
        elif isinstance(statement, stf.Expect):
            answers.setdefault(statement.port, []).append(bytes.fromhex(statement.pattern))
        else:
            control.append(statement)
    return Case(artifacts, tuple(control), tuple(frames)), answers
