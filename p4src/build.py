"""Compile the P4 program into ``p4src/artifacts/``.

    python -m p4src.build                     every artifact that the repository keeps (256, 64 and 4 values)
    python -m p4src.build --values 128        one
    python -m p4src.build --check             compile and compare with what is there; write nothing

It needs p4c's bmv2 back end, ``p4c-bm2-ss``, on PATH. Whoever does not change the P4 sources does not need it: the
compiled programs are in the repository, and a test says when they do not match the sources.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from p4src.artifacts import ARTIFACTS, MANIFEST, P4INFO, PROGRAM, Manifest, source_digest
from p4src.protocol import DIRECTORY, PROTOCOL

TARGET = "v1model"
COMPILER = "p4c-bm2-ss"
KEPT = (256, 64, 4)
"""Values per packet of the artifacts in the repository; 4 is for recorded test sequences."""
POSSIBLE = (4, 8, 16, 32, 64, 128, 256)


class BuildError(Exception):
    """The program cannot be built; the message says why and what to do."""


def compiler_path() -> str:
    """Where the compiler is; raises BuildError when it is not on PATH."""
    path = shutil.which(COMPILER)
    if path is None:
        raise BuildError(
            f"{COMPILER} is not on PATH. It is p4c's back end for bmv2: build it from github.com/p4lang/p4c or install "
            "a p4lang-p4c package. Without it the compiled programs in p4src/artifacts still work."
        )
    return path


def compiler_version(path: str) -> str:
    """Name and version as the compiler tells them."""
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=True, timeout=60)
    found = re.search(r"Version:?\s+(.+)", done.stdout + done.stderr)
    if found is None:
        raise BuildError(f"{path} --version does not name a version: {done.stdout + done.stderr!r}")
    return f"{COMPILER} {found.group(1).strip()}"


def compile_program(
    values: int, slots: int, label_table_size: int, route_table_size: int, directory: Path, *, sources: Path = DIRECTORY
) -> Manifest:
    """Compile into ``directory`` (created); returns the manifest that was written there. Raises BuildError.

    ``sources``: a folder with ``bmv2/`` and ``include/``.
    """
    if values not in POSSIBLE:
        raise BuildError(f"values per packet must be one of {', '.join(map(str, POSSIBLE))}, not {values}")
    if slots < 1 or slots & (slots - 1):
        raise BuildError(f"the number of slots must be a power of two, not {slots}")
    if label_table_size < 1 or route_table_size < 1:
        raise BuildError("a table needs a size of at least 1")
    path = compiler_path()
    options = {
        "INART_VALUES": values,
        "INART_SLOTS": slots,
        "INART_LABEL_TABLE_SIZE": label_table_size,
        "INART_ROUTE_TABLE_SIZE": route_table_size,
    }
    directory.mkdir(parents=True, exist_ok=True)
    program, p4info = directory.resolve() / PROGRAM, directory.resolve() / P4INFO
    command = [path, "--std", "p4-16", "--Wdisable=unused", *(f"-D{name}={value}" for name, value in options.items())]
    command += ["--p4runtime-files", str(p4info), "-o", str(program), "bmv2/inart.p4"]
    # From that folder, so that source lines in the JSON have the same names on every machine.
    done = subprocess.run(command, cwd=sources, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode or done.stderr.strip():
        raise BuildError(f"{' '.join(command)}\nended with status {done.returncode}:\n{done.stderr[-4000:]}")
    # The compiler indents; without it the file is less than half as large.
    compiled = json.loads(program.read_text())
    program.write_text(json.dumps(compiled, separators=(",", ":")) + "\n")
    manifest = Manifest(
        TARGET,
        values,
        slots,
        label_table_size,
        route_table_size,
        PROTOCOL.targets[TARGET].multicast_groups,
        source_digest(TARGET),
        compiler_version(path),
    )
    (directory / MANIFEST).write_text(manifest.dumps())
    return manifest


def differences(built: Path, kept: Path) -> list[str]:
    """What in ``kept`` differs from ``built``: names of files."""
    names = (MANIFEST, PROGRAM, P4INFO)
    return [
        name
        for name in names
        if not (kept / name).is_file() or (kept / name).read_bytes() != (built / name).read_bytes()
    ]


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    defaults = PROTOCOL.targets[TARGET]
    parser = argparse.ArgumentParser(prog="python -m p4src.build", description="compile the P4 program")
    parser.add_argument("--values", type=int, action="append", help="values per packet (default: all that are kept)")
    parser.add_argument("--slots", type=int, default=defaults.slots)
    parser.add_argument("--label-table-size", type=int, default=defaults.label_table_size)
    parser.add_argument("--route-table-size", type=int, default=defaults.route_table_size)
    parser.add_argument("--output", type=Path, help="folder for the artifacts (default: p4src/artifacts)")
    parser.add_argument("--check", action="store_true", help="compare with what is there instead of writing")
    options = parser.parse_args(arguments)
    parent = options.output or ARTIFACTS
    sizes = (options.slots, options.label_table_size, options.route_table_size)
    status = 0
    try:
        for values in options.values or KEPT:
            name = f"{TARGET}-{values}"
            if not options.check:
                manifest = compile_program(values, *sizes, parent / name)
                print(f"{parent / name}: {manifest.values_per_packet} values, {manifest.slots} slots")
                continue
            with tempfile.TemporaryDirectory() as scratch:
                compile_program(values, *sizes, Path(scratch))
                different = differences(Path(scratch), parent / name)
            print(f"{name}: {'differs in ' + ', '.join(different) if different else 'as built'}")
            status |= bool(different)
    except BuildError as error:
        print(f"p4src.build: {error}", file=sys.stderr)
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main())
