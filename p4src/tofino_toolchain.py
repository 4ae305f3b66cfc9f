"""Finds p4c's Tofino back end, and compiles and assembles ``p4src/tofino/`` with it.

The compiler (``p4c-barefoot``) accepts programs that do not fit the chip: that a program fits its stages is only known
when the assembler (``bfas``) has written the binary, so both always run. They are looked for in the folder in which
p4c was built, named by the environment variable ``P4C_TOFINO``, else on PATH. Build p4c from github.com/p4lang/p4c
with ``-DENABLE_TOFINO=ON``.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from p4src.artifacts import ENTRIES, MANIFEST, P4INFO, PARSER, PROGRAMS, REGISTERS, SWITCH, Manifest, source_digest
from p4src.protocol import DIRECTORY, PROTOCOL

TARGET = "tna"
OF_TOFINO_2 = "t2na"
COMPILER, ASSEMBLER = "p4c-barefoot", "bfas"
BUILD_FOLDER = "P4C_TOFINO"
FOLDED = 128
"""Values per packet of the program for Tofino 2 that adds them up in two passes (p4src/tofino/fold.p4)."""
POSSIBLE = (4, 8, 16, 32, 64)
"""Numbers of values per packet for which the program can be compiled; 64 per pass fill Tofino 1's stages and Tofino 2's
containers."""
PACKET_REGISTERS = ("half", "byte0", "byte1")
"""Names, in a parser state's match, of registers with packet data."""


@dataclass(frozen=True)
class Chip:
    """The compiler's names for a chip, and options that only this chip needs.

    ``family`` is the name of the chip and of its binary, and ``generation`` the value of ``__TARGET_TOFINO__`` in P4.
    ``containers`` has the number of header vector containers by kind and width in bits; ALUs can access the normal ones
    fully. ``possible`` has the numbers of values per packet for which the program can be compiled.
    """

    family: str
    generation: int
    containers: dict[str, dict[int, int]]
    options: tuple[str, ...] = ()
    possible: tuple[int, ...] = POSSIBLE

    @property
    def files(self) -> tuple[str, ...]:
        """The files that the assembler writes and a switch loads, together with the complete bf-rt.json."""
        return f"{self.family}.bin", "context.json"


CHIPS = {
    TARGET: Chip("tofino", 1, {"normal": {8: 64, 16: 96, 32: 64}, "tagalong": {8: 32, 16: 48, 32: 32}}),
    # Clots are parts of headers outside containers: Intel's model stops at a packet that has a header, but not its
    # clot.
    OF_TOFINO_2: Chip(
        "tofino2",
        2,
        {"normal": {8: 48, 16: 72, 32: 48}, "mocha": {8: 16, 16: 24, 32: 16}, "dark": {8: 16, 16: 24, 32: 16}},
        ("--no-clot",),
        (*POSSIBLE, FOLDED),
    ),
}


class BuildError(Exception):
    """The program cannot be built; the message says why and what to do."""


class CompilerMissing(BuildError):
    """No compiler was found here; the message says how to get it."""


def options(
    possible: Sequence[int], values: int, slots: int, label_table_size: int, route_table_size: int
) -> dict[str, int]:
    """Return the build options that every program has, as preprocessor macros. Raise BuildError where one is
    impossible."""
    if values not in possible:
        raise BuildError(f"values per packet must be one of {', '.join(map(str, possible))}, not {values}")
    if slots < 1 or slots & (slots - 1):
        raise BuildError(f"the number of slots must be a power of two, not {slots}")
    if label_table_size < 1 or route_table_size < 1:
        raise BuildError("a table needs a size of at least 1")
    return {
        "INART_VALUES": values,
        "INART_SLOTS": slots,
        "INART_LABEL_TABLE_SIZE": label_table_size,
        "INART_ROUTE_TABLE_SIZE": route_table_size,
    }


def default_slots(target: str, values: int) -> int:
    """Return the default number of slots. A folded program has two cells per slot in the same memory, so it has half as
    many slots."""
    slots = PROTOCOL.targets[target].slots
    return slots // 2 if target == OF_TOFINO_2 and values == FOLDED else slots


@dataclass(frozen=True)
class Toolchain:
    """The compiler, the assembler, and the folders of core.p4 and tna.p4 if the compiler does not know them itself."""

    compiler: Path
    assembler: Path
    includes: tuple[Path, ...] = ()

    @classmethod
    def find(cls) -> Toolchain:
        """Find the tools in the folder ``$P4C_TOFINO``, or else on PATH. Raise CompilerMissing where they are in
        neither."""
        folder = os.environ.get(BUILD_FOLDER)
        if folder:
            return cls._built_in(Path(folder))
        compiler, assembler = shutil.which(COMPILER), shutil.which(ASSEMBLER)
        if compiler is None or assembler is None:
            missing = " and ".join(
                name for name, path in ((COMPILER, compiler), (ASSEMBLER, assembler)) if path is None
            )
            raise CompilerMissing(
                f"not on PATH: {missing}, p4c's compiler and assembler for Tofino. Build github.com/p4lang/p4c with "
                f"-DENABLE_TOFINO=ON and set {BUILD_FOLDER} to its build folder. Without them the compiled program in "
                "p4src/artifacts still says what the tables are; only a switch needs the binary."
            )
        return cls(Path(compiler), Path(assembler))

    @classmethod
    def _built_in(cls, folder: Path) -> Toolchain:
        backend = folder / "backends" / "tofino"
        found = cls(backend / "bf-p4c" / COMPILER, backend / "bf-asm" / ASSEMBLER)
        cache = folder / "CMakeCache.txt"
        for path in (found.compiler, found.assembler, cache):
            if not path.is_file():
                raise CompilerMissing(
                    f"{path} is missing: {BUILD_FOLDER} must be a folder in which p4c was built with -DENABLE_TOFINO=ON"
                )
        home = re.search(r"^CMAKE_HOME_DIRECTORY:INTERNAL=(.+)$", cache.read_text(), re.MULTILINE)
        if home is None:
            raise CompilerMissing(f"{cache} does not say where p4c's sources are")
        sources = Path(home.group(1))
        return cls(
            found.compiler,
            found.assembler,
            (sources / "p4include", sources / "backends" / "tofino" / "bf-p4c" / "p4include"),
        )

    def version(self) -> str:
        """Return the compiler's name and version. Raise BuildError where it does not tell."""
        done = _run([str(self.compiler), "--version"], DIRECTORY)
        found = re.search(r"Version:?\s+(.+)", done)
        if found is None:
            raise BuildError(f"{self.compiler} --version does not name a version: {done!r}")
        return f"{COMPILER} {found.group(1).strip()}"


def compile_program(
    toolchain: Toolchain,
    values: int,
    sizes: tuple[int, int, int],
    directory: Path,
    *,
    target: str = TARGET,
    sources: Path = DIRECTORY,
) -> Manifest:
    """Compile and assemble into ``directory``, which is created, and return the manifest that was written there.

    The ``sizes`` are the slots, the entries of the label table and those of the route table. The control plane and the
    tests read bf-rt.json, p4info, the program's own entries and the manifest; ``switch/`` gets the files that a switch
    loads, and the compiler's reports of the chip's resources. ``sources`` is a folder with ``tofino/`` and
    ``include/``. Raise BuildError where a tool fails.
    """
    chip = CHIPS[target]
    macros = options(chip.possible, values, *sizes)
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="inart-tna-") as folder:
        scratch = Path(folder)
        command = [str(toolchain.compiler), "--target", chip.family, "--arch", target, "--std", "p4-16"]
        command += [f"-I{path}" for path in toolchain.includes]
        command += [*chip.options, f"-D__TARGET_TOFINO__={chip.generation}"]
        command += [f"-D{name}={value}" for name, value in macros.items()]
        command += ["--Wdisable=unused", "-g", "--bf-rt-schema", str(scratch / PROGRAMS[TARGET])]
        command += ["--p4runtime-force-std-externs", "--p4runtime-files", str(scratch / "inart.p4info.txt")]
        command += ["--p4runtime-entries-files", str(scratch / "entries.txt"), "-o", str(scratch), "tofino/inart.p4"]
        _run(command, sources)
        pipe = scratch / "pipe"
        assembly = (pipe / "inart.bfa").read_text()
        parser = ingress_parser(assembly)
        check_parser(parser, toolchain)
        (pipe / "assembled" / "logs").mkdir(parents=True)
        _run([str(toolchain.assembler), "-o", "assembled", "inart.bfa"], pipe)
        kept = directory / SWITCH
        kept.mkdir(exist_ok=True)
        for name in chip.files:
            shutil.copyfile(pipe / "assembled" / name, kept / name)
        for name in ("resources.json", "phv.json"):
            shutil.copyfile(pipe / "logs" / name, kept / name)
        schema = (scratch / PROGRAMS[TARGET]).read_text()
        (kept / PROGRAMS[TARGET]).write_text(schema)
        (directory / PROGRAMS[TARGET]).write_text(without_snapshots(schema))
        shutil.copyfile(scratch / "inart.p4info.txt", directory / P4INFO)
        shutil.copyfile(scratch / "entries.txt", directory / ENTRIES)
        (directory / REGISTERS).write_text(register_actions(assembly))
        (directory / PARSER).write_text(parser)
    manifest = Manifest(
        target,
        values,
        *sizes,
        PROTOCOL.targets[target].multicast_groups,
        source_digest(target),
        toolchain.version(),
    )
    (directory / MANIFEST).write_text(manifest.dumps())
    return manifest


def without_snapshots(schema: str) -> str:
    """Return bf-rt.json without indentation and without the debugger's tables, which the compiler writes in any
    order."""
    content = json.loads(schema)
    content["tables"] = [table for table in content["tables"] if not table["name"].startswith("pipe.snapshot.")]
    return json.dumps(content, separators=(",", ":")) + "\n"


def register_actions(assembly: str) -> str:
    """Return, from an assembly file, each register's inputs, format and actions, without their places on the chip."""
    lines: list[str] = []
    register = part = False
    for line in assembly.splitlines():
        indent = len(line) - len(line.lstrip())
        if indent <= 2:
            register = part = line.startswith("  stateful ")
        elif indent == 4:
            part = register and line.strip().partition(":")[0] in ("p4", "input_xbar", "format", "actions")
        if part:
            lines.append(line[2:])
    return "\n".join(lines) + "\n"


def ingress_parser(assembly: str) -> str:
    """Return, from an assembly file, the states of the ingress parser: what they match, extract and go on to."""
    lines: list[str] = []
    inside = False
    for line in assembly.splitlines():
        if line and not line.startswith(" "):
            inside = line.startswith("parser ingress")
        if inside and not line.lstrip().startswith("#"):
            lines.append(line.partition("  # ")[0].rstrip())
    return "\n".join(lines) + "\n"


def check_parser(parser: str, toolchain: Toolchain) -> None:
    """Check that the compiler has kept the parser's selections; raise BuildError where it has dropped them, so that the
    parser accepts every packet.

    Some versions of p4c drop them under the same version number as others that do not, and nothing else of their output
    shows it.
    """
    selecting = re.findall(r"^ *match: \[(.*)\]", parser, re.MULTILINE)
    if any(register in match for match in selecting for register in PACKET_REGISTERS):
        return
    raise BuildError(
        f"{toolchain.compiler} has made an ingress parser that does not look at packets: every select() on packet data "
        "is gone, and the switch would add up any frame. p4c does so from e3af57fc19 (February 2026) on; "
        "11b050578a is one that does not"
    )


def _run(command: list[str], folder: Path) -> str:
    """Run a command and return its standard output and standard error. Raise BuildError where it fails."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=1800, check=False)
    if done.returncode:
        said = (done.stdout + done.stderr)[-4000:]
        raise BuildError(f"{' '.join(command)}\nended with status {done.returncode}:\n{said}")
    return done.stdout + done.stderr
