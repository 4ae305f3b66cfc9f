"""Compile the P4 program into ``p4src/artifacts/``.

    python -m p4src.build                     every artifact that the repository keeps (256, 64 and 4 values)
    python -m p4src.build --values 128        one
    python -m p4src.build --check             compile and compare with what is there; write nothing
    python -m p4src.build --target tna        the program for Tofino: compile and assemble (p4src/tofino_toolchain.py)
    python -m p4src.build --target t2na       the same program for Tofino 2; with 128 values it is folded

v1model needs p4c's bmv2 back end, ``p4c-bm2-ss``, on PATH; tna and t2na need p4c's Tofino back end. Those who do not
change the P4 sources need neither: the compiled programs are in the repository, and a test fails when they do not match
the sources.
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

from p4src import tofino_toolchain
from p4src.artifacts import (
    ARTIFACTS,
    ENTRIES,
    MANIFEST,
    P4INFO,
    PARSER,
    PROGRAM,
    PROGRAMS,
    REGISTERS,
    Manifest,
    source_digest,
)
from p4src.protocol import DIRECTORY, PROTOCOL
from p4src.tofino_toolchain import BuildError, CompilerMissing, Toolchain

TARGET = "v1model"
COMPILER = "p4c-bm2-ss"
POSSIBLE = (4, 8, 16, 32, 64, 128, 256)


def compiler_path() -> str:
    """Return the compiler's path. Raise BuildError where it is not on PATH."""
    path = shutil.which(COMPILER)
    if path is None:
        raise CompilerMissing(
            f"{COMPILER} is not on PATH. It is p4c's back end for bmv2: build it from github.com/p4lang/p4c or install "
            "a p4lang-p4c package. Without it the compiled programs in p4src/artifacts still work."
        )
    return path


def compiler_version(path: str) -> str:
    """Return the compiler's name and version."""
    done = subprocess.run([path, "--version"], capture_output=True, text=True, check=True, timeout=60)
    found = re.search(r"Version:?\s+(.+)", done.stdout + done.stderr)
    if found is None:
        raise BuildError(f"{path} --version does not name a version: {done.stdout + done.stderr!r}")
    return f"{COMPILER} {found.group(1).strip()}"


def compile_program(
    values: int, slots: int, label_table_size: int, route_table_size: int, directory: Path, *, sources: Path = DIRECTORY
) -> Manifest:
    """Compile into ``directory``, which is created, and return the manifest that was written there. ``sources`` is a
    folder with ``bmv2/`` and ``include/``. Raise BuildError where the compiler fails."""
    options = tofino_toolchain.options(POSSIBLE, values, slots, label_table_size, route_table_size)
    path = compiler_path()
    directory.mkdir(parents=True, exist_ok=True)
    program, p4info = directory.resolve() / PROGRAM, directory.resolve() / P4INFO
    command = [path, "--std", "p4-16", "--Wdisable=unused", *(f"-D{name}={value}" for name, value in options.items())]
    command += ["--p4runtime-files", str(p4info), "-o", str(program), "bmv2/inart.p4"]
    # The compiler runs in that folder, so that source lines in the JSON have the same names on every machine.
    done = subprocess.run(command, cwd=sources, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode or done.stderr.strip():
        raise BuildError(f"{' '.join(command)}\nended with status {done.returncode}:\n{done.stderr[-4000:]}")
    # The compiler indents the JSON; without that the file is less than half as large.
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


def compile_target(target: str, values: int, sizes: tuple[int, int, int], directory: Path) -> Manifest:
    """Compile for ``target``. The ``sizes`` are the slots, the entries of the label table and those of the route
    table."""
    if target == TARGET:
        return compile_program(values, *sizes, directory)
    return tofino_toolchain.compile_program(Toolchain.find(), values, sizes, directory, target=target)


def differences(built: Path, kept: Path, target: str = TARGET) -> list[str]:
    """Return the names of the files in ``kept`` that differ from those in ``built``."""
    of_tofino = [ENTRIES, REGISTERS, PARSER] if target in tofino_toolchain.CHIPS else []
    names = (MANIFEST, PROGRAMS[target], P4INFO, *of_tofino)
    return [
        name
        for name in names
        if not (kept / name).is_file() or (kept / name).read_bytes() != (built / name).read_bytes()
    ]


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m p4src.build", description="compile the P4 program")
    parser.add_argument("--target", choices=sorted(PROTOCOL.targets), default=TARGET, help="default: %(default)s")
    parser.add_argument("--values", type=int, action="append", help="values per packet (default: all that are kept)")
    parser.add_argument("--slots", type=int, help="slots for sums (default: the target's)")
    parser.add_argument("--output", type=Path, help="folder for the artifacts (default: p4src/artifacts)")
    parser.add_argument("--check", action="store_true", help="compare with what is there instead of writing")
    parser.add_argument("--if-possible", action="store_true", help="without the compiler, say so and end with status 0")
    options = parser.parse_args(arguments)
    defaults = PROTOCOL.targets[options.target]
    parent = options.output or ARTIFACTS
    status = 0
    try:
        for values in options.values or PROTOCOL.targets[options.target].built:
            name = f"{options.target}-{values}"
            usual = tofino_toolchain.default_slots(options.target, values)
            slots = usual if options.slots is None else options.slots
            sizes = slots, defaults.label_table_size, defaults.route_table_size
            if not options.check:
                manifest = compile_target(options.target, values, sizes, parent / name)
                print(f"{parent / name}: {manifest.values_per_packet} values, {manifest.slots} slots")
                continue
            with tempfile.TemporaryDirectory() as scratch:
                compile_target(options.target, values, sizes, Path(scratch))
                different = differences(Path(scratch), parent / name, options.target)
            print(f"{name}: {'differs in ' + ', '.join(different) if different else 'as built'}")
            status |= bool(different)
    except CompilerMissing as error:
        if options.if_possible:
            print(f"skipped: {error}")
            return 0
        print(f"p4src.build: {error}", file=sys.stderr)
        return 1
    except BuildError as error:
        print(f"p4src.build: {error}", file=sys.stderr)
        return 1
    return status


if __name__ == "__main__":
    sys.exit(main())
