"""Compiles C sources (the agents' engines, the simulator) with the system compiler at first use, and keeps the result.

The cache (``$INART_CACHE``, else ``$XDG_CACHE_HOME/inart``, else ``~/.cache/inart``) is keyed by the sources, the
flags, the compiler's version and this machine's CPU features, because the code is built for exactly this CPU.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

# Of the engines. Trapping and errno off lets rintf() vectorise; NaN, infinities and rounding stay exact.
ENGINE = (
    "-std=c11",
    "-O3",
    "-march=native",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-ffp-contract=off",
    "-fno-strict-aliasing",
    "-Wall",
    "-Wextra",
    "-Werror=implicit-function-declaration",
    "-pthread",
)


class BuildError(RuntimeError):
    """A C source could not be compiled, or is not what its caller takes it for; says what to install or do."""


def cache_directory() -> Path:
    """Where compiled libraries are kept; made when missing. Raises BuildError."""
    configured = os.environ.get("INART_CACHE")
    if configured:
        path = Path(configured)
    else:
        path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "inart"
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BuildError(f"cannot make the cache {path} ({error.strerror}): set INART_CACHE") from error
    if not os.access(path, os.W_OK):
        raise BuildError(f"cannot write to the cache {path}: set INART_CACHE to a directory of this user")
    return path


def _cpu_features() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return line
    except OSError:
        pass
    return platform.processor()


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildError(f"{' '.join(command)} failed:\n{done.stderr.strip()}")
    return done.stdout


def build(source: Path, *, include: Sequence[Path] = (), options: Sequence[str] = ENGINE) -> Path:
    """One C file as a shared library. `include`: directories of headers, which count as its sources, beside its own
    directory. Raises BuildError."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not compiler:
        raise BuildError("no C compiler found: install one (Debian: apt-get install gcc libc6-dev) or set CC")
    directories = [source.parent, *include]
    command = [compiler, *options, "-shared", "-fPIC", *(f"-I{directory}" for directory in include)]
    digest = hashlib.sha256()
    for path in [source, *sorted(header for directory in directories for header in directory.glob("*.h"))]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    version = _run([compiler, "--version"])
    digest.update("\0".join([version, *options, platform.machine(), _cpu_features()]).encode())
    target = cache_directory() / f"{source.stem}-{digest.hexdigest()[:24]}.so"
    if target.exists():
        return target
    # Many agents start at once: one compiles, the others wait for it.
    with open(target.parent / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            return target
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            output = Path(scratch) / target.name
            _run([*command, str(source), "-o", str(output), "-lm"])
            output.replace(target)
    return target


def load(source: Path, include: Sequence[Path] = (), options: Sequence[str] = ENGINE) -> ctypes.CDLL:
    """The shared library of one C file, loaded; calls into it release the GIL. Raises BuildError."""
    return ctypes.CDLL(str(build(source, include=include, options=options)))


def check_sizes(library: ctypes.CDLL, table: str, structures: Sequence[type[ctypes.Structure]]) -> None:
    """Compares ctypes' idea of `structures` with the library's: `table` is its array of their sizes in C, ended by 0.
    Raises BuildError that names the first that differs."""
    found = (ctypes.c_size_t * (len(structures) + 1)).in_dll(library, table)
    for structure, size in zip(structures, found, strict=False):
        if ctypes.sizeof(structure) != size:
            raise BuildError(f"{structure.__name__} has {ctypes.sizeof(structure)} bytes, {table} says {size}")
    if found[len(structures)]:
        raise BuildError(f"{table} has more structures than the {len(structures)} of Python")
