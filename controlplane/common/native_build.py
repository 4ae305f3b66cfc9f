"""Builds and loads the C libraries (the agents' engines, the simulator): prebuilt in the wheel, or at first use.

A wheel holds each library beside its source, for several levels of the processor, under names with a digest of its
sources and flags (`prebuild`, called by setup.py). The best one that this machine runs is loaded; after a change of a
source its digest differs, so that an outdated library is never loaded. Without a prebuilt library the system compiler
makes one. That cache (``$INART_CACHE``, else ``$XDG_CACHE_HOME/inart``, else ``~/.cache/inart``) is keyed by the
sources, the flags, the compiler's version and this machine's CPU features, because the code is built for exactly this
CPU. ``$INART_CFLAGS`` adds flags (`make sanitize` sets them); if it is set, prebuilt libraries are not used.

The module imports nothing of this repository, because setup.py loads it before anything is installed.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import hashlib
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

# Compiler flags of the engines. -fno-math-errno and -fno-trapping-math let rintf() vectorise; NaN, infinities and
# rounding stay exact.
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

NATIVE = "-march=native"
ENGINES = (*ENGINE, "-D_GNU_SOURCE", "-fvisibility=hidden", "-fwhole-program")
"""Compiler flags of the agents' engines, which consist of many files: these see each other's functions, and callers of
the library see only the functions that are marked INART_PUBLIC."""
# Features in /proc/cpuinfo that each level of x86-64 adds to the one below it (System V ABI).
V3 = frozenset(["avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"])
V4 = V3 | frozenset(["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"])
LEVELS: dict[str, tuple[tuple[str, frozenset[str]], ...]] = {
    "x86_64": (("x86-64-v4", V4), ("x86-64-v3", V3), ("x86-64", frozenset())),
}
"""Levels of each processor for which a wheel has libraries, the best first: the compiler's -march, and the CPU features
that the level needs."""


class BuildError(RuntimeError):
    """A C source could not be compiled, or its structures differ from Python's; the message says what to do."""


def cache_directory() -> Path:
    """Return the folder of compiled libraries, made if missing. Raise BuildError where it cannot be used."""
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


def cpu_features() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return line
    except OSError:
        pass
    return platform.processor()


def _run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    """Return what a compiler prints. Raise BuildError where it fails. Where this is interrupted, by Ctrl-C or by a
    signal whose handler raises, the compiler ends with all processes that it has started."""
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, process_group=0
    ) as process:
        try:
            printed, wrong = process.communicate()
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()  # until the last of them has closed its output
            raise
    if process.returncode:
        raise BuildError(f"{' '.join(command)} failed:\n{wrong.strip()}")
    return printed


@contextlib.contextmanager
def _ended_in_order() -> Iterator[None]:
    """Have SIGTERM raise SystemExit where it would end the process at once, and leave the compiler and its files."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _compile(command: Sequence[str], sources: Sources, include: Sequence[Path], output: Path) -> None:
    """Compile the files to the library `output`, all as one, so that calls from one file to another cost nothing.
    `command` is the compiler with its options. Raise BuildError where it fails."""
    folders = [f"-I{directory}" for directory in include]
    with tempfile.TemporaryDirectory() as scratch:
        whole = Path(scratch) / output.with_suffix(".c").name
        whole.write_text("".join(f'#include "{source.resolve()}"\n' for source in _files(sources)))
        words = [*command, "-shared", "-fPIC", *folders, str(whole), "-o", str(output), "-lm"]
        _run(words, os.environ | {"TMPDIR": scratch})  # A compiler that is killed leaves its own files.


def _compiler() -> str:
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not compiler:
        raise BuildError("no C compiler found: install one (Debian: apt-get install gcc libc6-dev) or set CC")
    return compiler


Sources = Path | Sequence[Path]
"""The C file of a library, or its files; it is named after the first."""


def engine_sources(main: Path, shared: Path) -> list[Path]:
    """Return the C files of an agent's engine: `main`, the others beside it, and those of the folder `shared`."""
    return [main, *sorted({*main.parent.glob("*.c"), *shared.glob("*.c")} - {main})]


def _files(sources: Sources) -> list[Path]:
    return [sources] if isinstance(sources, Path) else list(sources)


def _digest(sources: Sources, include: Sequence[Path]) -> Any:
    digest = hashlib.sha256()
    files = _files(sources)
    folders = sorted({*(file.parent for file in files), *include})
    for path in [*files, *(header for folder in folders for header in sorted(folder.glob("*.h")))]:
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest


def prebuilt_name(sources: Sources, include: Sequence[Path], options: Sequence[str], level: str) -> str:
    digest = _digest(sources, include)
    digest.update("\0".join([*options, level]).encode())
    return f"{_files(sources)[0].stem}-{level}-{digest.hexdigest()[:24]}.so"


def _levels(options: Sequence[str]) -> tuple[tuple[str, frozenset[str]], ...]:
    """Return the levels of this processor; a library that is not built for the CPU (no -march=native) has one level."""
    generic = (("generic", frozenset[str]()),)
    return LEVELS.get(platform.machine(), generic) if NATIVE in options else generic


def prebuild(
    sources: Sources, output: Path, *, include: Sequence[Path] = (), options: Sequence[str] = ENGINE
) -> list[Path]:
    """Compile a library for each level of this processor into the folder `output`, for a wheel. Raise BuildError where
    that fails."""
    compiler, made = _compiler(), []
    for level, _ in _levels(options):
        wanted = [option for option in options if option != NATIVE]
        if level != "generic":
            wanted.append(f"-march={level}")
        made.append(output / prebuilt_name(sources, include, options, level))
        _compile([compiler, *wanted], sources, include, made[-1])
    return made


def _prebuilt(sources: Sources, include: Sequence[Path], options: Sequence[str]) -> Path | None:
    """Return the best prebuilt library beside the first source that this machine runs, or None."""
    features = frozenset(cpu_features().split())
    for level, needs in _levels(options):
        path = _files(sources)[0].parent / prebuilt_name(sources, include, options, level)
        if needs <= features and path.exists():
            return path
    return None


def build(sources: Sources, *, include: Sequence[Path] = (), options: Sequence[str] = ENGINE) -> Path:
    """Compile C to a shared library, unless it is built already, and return its path.

    `include` has folders of headers, which count as its sources, in addition to the folders of `sources`. Raise
    BuildError where that fails.
    """
    more = os.environ.get("INART_CFLAGS", "").split()
    ready = None if more else _prebuilt(sources, include, options)
    if ready is not None:
        return ready
    compiler = _compiler()
    options = (*options, *more)
    digest = _digest(sources, include)
    version = _run([compiler, "--version"])
    digest.update("\0".join([version, *options, platform.machine(), cpu_features()]).encode())
    target = cache_directory() / f"{_files(sources)[0].stem}-{digest.hexdigest()[:24]}.so"
    if target.exists():
        return target
    # Many agents start at once; one compiles while the others wait for the lock.
    with open(target.parent / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            return target
        with _ended_in_order(), tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            output = Path(scratch) / target.name
            _compile([compiler, *options], sources, include, output)
            output.replace(target)
    return target


def load(sources: Sources, include: Sequence[Path] = (), options: Sequence[str] = ENGINE) -> ctypes.CDLL:
    """Build and load a shared library; calls into it release the GIL. Raise BuildError where that fails."""
    return ctypes.CDLL(str(build(sources, include=include, options=options)))


def check_sizes(library: ctypes.CDLL, table: str, structures: Sequence[type[ctypes.Structure]]) -> None:
    """Check that ctypes structures have the same sizes as in C. `table` is the library's array of the sizes, ended by
    0. Raise BuildError, which names the first structure that differs."""
    found = (ctypes.c_size_t * (len(structures) + 1)).in_dll(library, table)
    for structure, size in zip(structures, found, strict=False):
        if ctypes.sizeof(structure) != size:
            raise BuildError(f"{structure.__name__} has {ctypes.sizeof(structure)} bytes, {table} says {size}")
    if found[len(structures)]:
        raise BuildError(f"{table} has more structures than the {len(structures)} of Python")
