"""The simulator's C part (flows.c) with the types of its functions."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

from controlplane.common.native_build import load

SOURCE = Path(__file__).resolve().parent / "flows.c"
# Without contraction and a CPU's own instructions, results are the same on every machine.
OPTIONS = ("-std=c11", "-O2", "-ffp-contract=off", "-Wall", "-Wextra")


@cache
def library() -> ctypes.CDLL:
    """Return the compiled library with its functions' types. Raise BuildError where it cannot be compiled."""
    lib = load(SOURCE, options=OPTIONS)
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
