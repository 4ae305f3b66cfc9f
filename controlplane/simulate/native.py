"""Compiles flows.c with the system compiler at first use and keeps the library, keyed by source, flags and compiler.

The cache is ``$INART_CACHE``, else ``$XDG_CACHE_HOME/inart``, else ``~/.cache/inart``.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).resolve().parent / "flows.c"
# No contraction: the same numbers on every machine.
FLAGS = ("-std=c11", "-O2", "-ffp-contract=off", "-fPIC", "-shared", "-Wall", "-Wextra")


class BuildError(RuntimeError):
    """The simulator's C part cannot be compiled; says what to install."""


def _directory() -> Path:
    configured = os.environ.get("INART_CACHE")
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = Path(configured) if configured else user / "inart"
    path.mkdir(parents=True, exist_ok=True)
    return path


def _compile() -> Path:
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if not compiler:
        raise BuildError("the simulator needs a C compiler: install gcc or clang, or name one in CC")
    version = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=False).stdout
    key = hashlib.sha256("\0".join((SOURCE.read_text(), *FLAGS, version)).encode()).hexdigest()[:16]
    target = _directory() / f"simulate-{key}.so"
    if target.exists():
        return target
    handle, name = tempfile.mkstemp(dir=target.parent, suffix=".so")
    os.close(handle)
    command = [compiler, *FLAGS, "-o", name, str(SOURCE), "-lm"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        os.unlink(name)
        raise BuildError(f"{compiler} cannot compile {SOURCE}:\n{done.stderr.strip()}")
    os.replace(name, target)  # several processes may build at once: the last one wins, all are alike
    return target


@cache
def library() -> ctypes.CDLL:
    """The compiled library with its functions' types. Raises BuildError."""
    lib = ctypes.CDLL(str(_compile()))
    handle, number, real = ctypes.c_void_p, ctypes.c_int, ctypes.c_double
    numbers, reals = ctypes.c_void_p, ctypes.c_void_p
    signatures: dict[str, tuple[object, list[object]]] = {
        "fs_new": (handle, [number, reals, number]),
        "fs_free": (None, [handle]),
        "fs_now": (real, [handle]),
        "fs_active": (number, [handle]),
        "fs_set_capacity": (None, [handle, number, real]),
        "fs_carried": (real, [handle, number]),
        "fs_groups": (number, [handle, number, number]),
        "fs_watch": (None, [handle, number, number]),
        "fs_hold": (number, [handle, number]),
        "fs_release": (number, [handle, number]),
        "fs_add": (number, [handle, number, numbers, reals, numbers, numbers, reals, numbers, numbers]),
        "fs_remaining": (real, [handle, number]),
        "fs_remaining_many": (None, [handle, number, numbers, reals]),
        "fs_set_group_many": (None, [handle, number, numbers, numbers]),
        "fs_rate": (real, [handle, number]),
        "fs_set_remaining": (number, [handle, number, real]),
        "fs_set_remaining_many": (None, [handle, number, numbers, reals]),
        "fs_set_path": (number, [handle, number, number, numbers]),
        "fs_set_priority": (None, [handle, number, number]),
        "fs_step": (number, [handle, real]),
        "fs_take_done": (None, [handle, numbers]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(lib, name)
        function.restype = result
        function.argtypes = arguments
    return lib
