"""Packs the compiled program as one archive, for a switch whose owner has an SDE and no p4c.

    python -m p4src.tofino_release make [--tofino 2] [--output FOLDER]           after make p4-tofino
    python -m p4src.tofino_release install ARCHIVE [--sde-install DIR]           on the switch (default: $SDE_INSTALL)

The archive has the files that p4src/tofino_install.py writes into an SDE, under the same names, and release.json: the
manifest of the program, and the size and SHA-256 digest of each file, which install compares before it writes anything.
The same program gives the same archive, byte by byte.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import sys
import tarfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from p4src.artifacts import Artifact, ArtifactError
from p4src.tofino_install import (
    VARIABLE,
    InstallError,
    add_program_arguments,
    check_sde,
    chosen,
    files,
    sde,
    write,
)

DESCRIPTION = "release.json"
FORMAT = 1


def make(artifact: Artifact, folder: Path) -> Path:
    """Write the archive into ``folder``, which is created, and return its path. Raise InstallError where there is no
    binary."""
    contents = files(artifact)
    manifest = artifact.manifest
    description = {
        "format": FORMAT,
        "program": asdict(manifest),
        "files": {name: {"bytes": len(content), "sha256": _digest(content)} for name, content in contents.items()},
    }
    contents = {DESCRIPTION: (json.dumps(description, indent=2) + "\n").encode(), **contents}
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"inart-{manifest.target}-{manifest.values_per_packet}-{manifest.sources[:12]}.tar.gz"
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as zipped, tarfile.open(fileobj=zipped, mode="w") as archive:
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    path.write_bytes(packed.getvalue())
    return path


def read(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return release.json and the files of an archive. Raise InstallError where it is no release, or is incomplete."""
    try:
        with tarfile.open(path) as archive:
            contents = {
                member.name: file.read() for member in archive if (file := archive.extractfile(member)) is not None
            }
        description = json.loads(contents.pop(DESCRIPTION))
        described = {name: (one["bytes"], one["sha256"]) for name, one in description["files"].items()}
        if description["format"] != FORMAT:
            raise InstallError(f"{path} has format {description['format']}, this version reads {FORMAT}")
    except (tarfile.TarError, EOFError, KeyError, TypeError, AttributeError, ValueError, OSError) as error:
        raise InstallError(f"{path} is no release of the program for Tofino: {error}") from error
    if set(described) != set(contents):
        raise InstallError(f"{path} has other files than its {DESCRIPTION} says")
    for name, content in contents.items():
        if described[name] != (len(content), _digest(content)):
            raise InstallError(f"{path}: {name} is not what {DESCRIPTION} says: {_digest(content)}; get the file again")
        if name.startswith("/") or ".." in Path(name).parts:
            raise InstallError(f"{path}: {name} would be written outside the SDE")
    return description, contents


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m p4src.tofino_release", description=(__doc__ or "").splitlines()[0])
    commands = parser.add_subparsers(dest="command", required=True)
    making = commands.add_parser("make", help="write the archive (after make p4-tofino)")
    making.add_argument("--output", type=Path, default=Path(), metavar="FOLDER", help="default: here")
    add_program_arguments(making)
    installing = commands.add_parser("install", help="write what is in it into an SDE")
    installing.add_argument("archive", type=Path, help="what `make` has written")
    installing.add_argument("--sde-install", type=Path, metavar="DIR", help=f"default: ${VARIABLE}")
    options = parser.parse_args(arguments)
    try:
        if options.command == "make":
            path = make(chosen(options), options.output)
            print(f"{path} {path.stat().st_size} bytes, sha256 {_digest(path.read_bytes())}")
            return 0
        root = sde(options.sde_install)
        check_sde(root)
        description, contents = read(options.archive)
        for written in write(contents, root):
            print(written)
        program = description["program"]
        print(f"{program['target']}, {program['values_per_packet']} values a packet, {program['compiler']}")
    except (InstallError, ArtifactError, OSError) as error:
        print(f"p4src.tofino_release: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
