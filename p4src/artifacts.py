"""Compiled programs: where their files are, and how many entries and slots a switch that runs them has.

An artifact is a folder ``p4src/artifacts/<target>-<values>/`` with the compiled program, its P4Runtime description and
``manifest.json``. Control plane and agents read values per packet and table sizes from there, never from a constant.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from p4src.protocol import DIRECTORY, PROTOCOL

ARTIFACTS = DIRECTORY / "artifacts"
PROGRAMS = {name: target.program for name, target in PROTOCOL.targets.items()}
"""By target, the file of the program that the control plane reads."""
MANIFEST = "manifest.json"
PROGRAM = PROGRAMS["v1model"]
P4INFO = "inart.p4info.txtpb"
ENTRIES = "inart.entries.txtpb"
"""File of the entries that the program itself puts into its tables (a P4Runtime WriteRequest), which the reference
model uses; only for tna."""
REGISTERS = "inart.registers"
"""File of the compiled register actions, which are instructions of stateful ALUs, against which the reference model is
checked; only for tna."""
PARSER = "inart.parser"
"""File of the compiled ingress parser: its states and what they match; only for tna."""
SWITCH = "switch"
"""Folder in an artifact for files that only a switch needs (for tna, the binary and its context); not in the
repository."""


class ArtifactError(ValueError):
    """The artifact does not exist, or its manifest cannot be read; the message says what to do."""


@dataclass(frozen=True)
class Manifest:
    """The build options of an artifact, and the digest of its sources.

    ``label_table_size`` and ``route_table_size`` are numbers of entries, and ``multicast_groups`` is the number of
    groups that the target holds; group ids are 1 to 65535. ``sources`` is the SHA-256 digest of :func:`source_digest`.
    """

    target: str
    values_per_packet: int
    slots: int
    label_table_size: int
    route_table_size: int
    multicast_groups: int
    sources: str
    compiler: str

    def dumps(self) -> str:
        """Return the content of ``manifest.json``."""
        return json.dumps(asdict(self), indent=2) + "\n"


@dataclass(frozen=True)
class Artifact:
    """A compiled program: its folder and its manifest."""

    directory: Path
    manifest: Manifest

    @property
    def program(self) -> Path:
        """The compiled program: bmv2 JSON, which the switch loads, or bf-rt.json."""
        return self.directory / PROGRAMS[self.manifest.target]

    @property
    def p4info(self) -> Path:
        """The P4Runtime description, as protobuf text."""
        return self.directory / P4INFO


def source_files(target: str) -> list[Path]:
    """Return every file from which a target's program is compiled, in a fixed order. Raise ArtifactError where there is
    no such target.

    What these files need of ``protocol.json`` is in include/constants.p4, which is generated from it. The build options
    there are the manifest's own fields; so a new target does not make the other targets' programs outdated.
    """
    if target not in PROTOCOL.targets:
        raise ArtifactError(f"there is no target {target!r}; there are: {', '.join(PROTOCOL.targets)}")
    own = DIRECTORY / PROTOCOL.targets[target].sources
    return sorted([*own.rglob("*.p4"), *(DIRECTORY / "include").glob("*.p4")])


def without_comments(source: str) -> str:
    """Return P4 source with one space for each run of blanks and comments, and without what stands at the ends of lines
    and on empty lines; strings stay as they are.

    Lines that end with a backslash are joined first, as the preprocessor does: a comment within a macro of several
    lines is none of its lines.
    """
    joined = source.replace("\\\n", "")
    spaced = re.sub(
        r'("(?:\\.|[^"\\\n])*")|(?:[ \t]|//[^\n]*|/\*.*?\*/)+',
        lambda found: found[1] or " ",
        joined,
        flags=re.DOTALL,
    )
    lines = (line.strip() for line in spaced.split("\n"))
    return "".join(f"{line}\n" for line in lines if line)


def source_digest(target: str) -> str:
    """Return the SHA-256 digest of names and contents of :func:`source_files`, hexadecimal.

    The P4 sources of the Tofinos are taken without their comments, which are nowhere in what is compiled from them;
    those of v1model are taken whole, because bmv2's JSON has their lines and parts of their text.
    """
    digest = hashlib.sha256()
    for path in source_files(target):
        content = path.read_bytes()
        if target != "v1model" and path.suffix == ".p4":
            content = without_comments(content.decode()).encode()
        digest.update(f"{path.relative_to(DIRECTORY).as_posix()}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def load(directory: Path) -> Artifact:
    """Return the artifact in ``directory``. Raise ArtifactError where there is none."""
    path = directory / MANIFEST
    try:
        manifest = Manifest(**json.loads(path.read_text()))
    except FileNotFoundError:
        raise ArtifactError(f"{directory} holds no {MANIFEST}: not a compiled program") from None
    except (TypeError, ValueError) as error:
        raise ArtifactError(f"{path}: {error}; build it again with python -m p4src.build") from error
    if manifest.target not in PROGRAMS:
        raise ArtifactError(f"{path}: there is no target {manifest.target!r}; there are: {', '.join(PROGRAMS)}")
    for name in (PROGRAMS[manifest.target], P4INFO):
        if not (directory / name).is_file():
            raise ArtifactError(f"{directory / name} is missing; build it again with python -m p4src.build")
    return Artifact(directory, manifest)


def available(target: str = "v1model") -> list[Artifact]:
    """Return every artifact of a target, sorted by values per packet."""
    artifacts = [load(path.parent) for path in ARTIFACTS.glob(f"{target}-*/{MANIFEST}")]
    return sorted(artifacts, key=lambda artifact: artifact.manifest.values_per_packet)


def find(target: str = "v1model", values: int | None = None) -> Artifact:
    """Return the artifact of ``target`` with ``values`` values per packet, by default as many as protocol.json says.

    Raise ArtifactError, which names the existing artifacts and says how to build others, where there is none.
    """
    if target not in PROTOCOL.targets:
        raise ArtifactError(f"there is no target {target!r}; there are: {', '.join(PROTOCOL.targets)}")
    if values is None:
        values = PROTOCOL.targets[target].values_per_packet
    directory = ARTIFACTS / f"{target}-{values}"
    if not (directory / MANIFEST).is_file():
        there = ", ".join(str(artifact.manifest.values_per_packet) for artifact in available(target)) or "none"
        raise ArtifactError(
            f"{target} is not compiled for {values} values a packet (compiled: {there}); "
            f"python -m p4src.build{'' if target == 'v1model' else ' --target ' + target} --values {values} does it"
        )
    return load(directory)
