"""Builds the program that runs the agents' engines on an adversarial network in virtual time (native/main.c)."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from evaluation.recovery.virtual import HERE as VIRTUAL
from evaluation.recovery.virtual import OF_THE_KERNEL
from ps_server import server
from worker_agent import native_worker
from worker_agent.native_engine import NATIVE

HERE = Path(__file__).resolve().parent / "native"
SANITIZE = ("-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all")
FLAGS = (
    "-std=c11", "-O1", "-g1", "-w", "-pthread", "-D_GNU_SOURCE", "-fno-strict-aliasing", "-fno-math-errno",
    "-fno-trapping-math", "-ffp-contract=off",
)  # fmt: skip
PEEK = (HERE / "peek_worker.c", HERE / "peek_root.c")
ROOT = server.SOURCES[0].parent


class NoCompiler(Exception):
    """There is no C compiler on PATH."""


def build(folder: Path, sanitizers: Sequence[str] = SANITIZE, flags: Sequence[str] = FLAGS) -> Path:
    """Compile the program into `folder`, and return its path. Raise NoCompiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise NoCompiler("there is no C compiler (cc): apt-get install gcc libc6-dev")
    probe = [compiler, *sanitizers, "-x", "c", "-", "-o", "/dev/null"]
    can = subprocess.run(probe, input="int main(void) { return 0; }", text=True, capture_output=True, check=False)
    command = [compiler, *flags, *(sanitizers if can.returncode == 0 else ()), f"-I{NATIVE}", f"-I{VIRTUAL}"]
    virtual = ["-include", str(VIRTUAL / "virtual_calls.h")]
    worker = [source for source in native_worker.SOURCES if source.name not in OF_THE_KERNEL]
    root = [source for source in server.SOURCES if source.parent == ROOT]
    parts = {
        "worker": ([*worker], virtual),
        "root": ([*root], [f"-I{ROOT}", *virtual]),
        "worker_step": ([VIRTUAL / "virtual_worker.c", PEEK[0]], ["-Dvirtual_step=worker_step"]),
        "root_step": ([VIRTUAL / "virtual_root.c", PEEK[1]], [f"-I{ROOT}", "-Dvirtual_step=root_step"]),
        "virtual": ([VIRTUAL / "virtual.c"], []),
        "network": ([VIRTUAL / "network.c"], []),
        "tests": ([path for path in sorted(HERE.glob("*.c")) if path not in PEEK], [f"-I{ROOT}"]),
    }
    objects = []
    for name, (sources, options) in parts.items():
        whole = folder / f"{name}.c"
        whole.write_text("".join(f'#include "{source}"\n' for source in sources))
        objects.append(folder / f"{name}.o")
        _run([*command, *options, f"-I{HERE}", "-c", str(whole), "-o", str(objects[-1])])
    program = folder / "engines"
    _run([*command, *map(str, objects), "-lm", "-o", str(program)])
    return program


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True)
