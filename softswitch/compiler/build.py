"""Compiles C with the system compiler and caches the results under a digest of all inputs.

The inputs are source, headers, flags, compiler and CPU.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from softswitch.errors import CompilerFailed

RUNTIME = Path(__file__).resolve().parent.parent / "runtime"
FLAGS = ("-std=gnu11", "-O3", "-march=native", "-fPIC", "-shared", "-fno-strict-aliasing", "-fvisibility=hidden", "-w")
RUNTIME_FLAGS = (
    "-std=gnu11", "-O3", "-march=native", "-fPIC", "-shared", "-fno-strict-aliasing", "-fvisibility=hidden",
    "-Wall", "-Wextra", "-pthread",
)  # fmt: skip
TIMEOUT = 600.0  # seconds that the compiler may take


def cache_dir() -> Path:
    """Return the folder of compiled objects: ``$XDG_CACHE_HOME/softswitch`` or ``~/.cache/softswitch``."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "softswitch"


def compile_program(source: str, quick: bool = False) -> tuple[Path, str]:
    """Compile a generated program, and return the shared object and the digest that names it.

    With ``quick`` it is compiled in little time, to slower code.
    """
    headers = [RUNTIME / "ss_abi.h", RUNTIME / "ss_bits.h", RUNTIME / "ss_crc.h", RUNTIME / "ss_meter.h"]
    flags = tuple("-O1" if flag == "-O3" else flag for flag in FLAGS) if quick else FLAGS
    return _compile(source.encode(), [], headers, flags)


def compile_runtime() -> Path:
    """Compile the runtime, which is the same for all programs, and return the shared object."""
    sources = sorted(RUNTIME.glob("*.c"))
    return _compile(b"", sources, sorted(RUNTIME.glob("*.h")), RUNTIME_FLAGS)[0]


@functools.cache
def compiler() -> tuple[str, str]:
    """Return (path of the C compiler, its version and this machine's CPU)."""
    path = shutil.which(os.environ.get("CC", "cc"))
    if path is None:
        raise CompilerFailed("no C compiler: install one (Debian: apt-get install gcc libc6-dev)")
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    return path, version + _cpu()


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
            wanted = ("model name", "flags", "Features", "CPU part")
            return "".join(sorted({line for line in file if line.startswith(wanted)}))
    except OSError:
        return platform.processor()


def _compile(source: bytes, files: Sequence[Path], headers: Sequence[Path], flags: Sequence[str]) -> tuple[Path, str]:
    path, version = compiler()
    flags = (*flags, *os.environ.get("SOFTSWITCH_CFLAGS", "").split())  # The variable is for sanitizers, for instance.
    digest = hashlib.sha256()
    for part in (source, *(f.read_bytes() for f in (*files, *headers)), " ".join(flags).encode(), version.encode()):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    name = digest.hexdigest()[:32]
    directory = cache_dir()
    target = directory / f"{name}.so"
    if target.exists():
        return target, name
    try:
        directory.mkdir(parents=True, exist_ok=True)
        temporary = tempfile.TemporaryDirectory(dir=directory, prefix="build-")
    except OSError as error:
        raise CompilerFailed(f"cannot write to {directory}: {error.strerror} (XDG_CACHE_HOME names another)") from None
    with temporary as work:
        inputs = [str(f) for f in files]
        if source:
            main = Path(work) / "program.c"
            main.write_bytes(source)
            inputs.append(str(main))
        output = Path(work) / "out.so"
        command = [path, *flags, "-I", str(RUNTIME), "-o", str(output), *inputs]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        except subprocess.TimeoutExpired:
            raise CompilerFailed(f"{path} took more than {TIMEOUT:.0f} s") from None
        if done.returncode != 0:
            raise CompilerFailed(f"{path} failed:\n{done.stderr[-4000:]}")
        os.replace(output, target)  # The rename is atomic, since a second process may be compiling the same.
    return target, name
