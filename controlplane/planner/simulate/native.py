"""The simulator's C part (flows.c): the types of its functions, arrays as it takes them, and the errors for what does
not exist.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

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
        "fs_set_remaining_many": (None, [handle, number, numbers, reals]),
        "fs_set_path": (number, [handle, number, number, numbers]),
        "fs_step": (number, [handle, real]),
        "fs_take_done": (None, [handle, numbers]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(lib, name)
        function.restype = result
        function.argtypes = arguments
    return lib


class SimulationError(ValueError):
    """Error of a wrong call (unknown resource, negative size, time in the past), or of a run that can never end."""


def ids_of(values: ArrayLike) -> NDArray[np.int32]:
    return np.ascontiguousarray(values, dtype=np.int32)


def reals_of(values: ArrayLike) -> NDArray[np.float64]:
    return np.ascontiguousarray(values, dtype=np.float64)


def address(array: NDArray[np.generic]) -> int:
    """Return the address of the array's content, which must live for as long as C uses it."""
    return array.__array_interface__["data"][0]  # several times faster than .ctypes.data


def existing(what: str, number: int, count: int) -> int:
    """Return the number of a resource or flow (`what`). Raise SimulationError where it is not below `count`."""
    if not 0 <= number < count:
        raise SimulationError(f"{what} {number} does not exist, there are {count}")
    return number


def existing_many(flows: ArrayLike, count: int) -> NDArray[np.int32]:
    """Return the numbers of flows as an array. Raise SimulationError where one is not below `count`."""
    ids = ids_of(flows)
    if len(ids) and not (ids.min() >= 0 and ids.max() < count):
        raise SimulationError("a flow does not exist")
    return ids


def refused(
    code: int, path: Sequence[int], groups: Sequence[int], sizes: Sequence[float], resources: int
) -> MemoryError | SimulationError:
    """Return the error for a code below 0 with which C has refused new flows; there are `resources` resources."""
    if code == -1:
        return MemoryError("no memory for flows")
    return SimulationError(
        {
            -2: f"a resource of {list(path)} does not exist, there are {resources}",
            -3: f"a group of {list(groups)} does not exist",
            -4: f"sizes must be finite and >= 0, got {list(sizes)}",
            -5: "coefficients must be > 0",
            -6: "the flows that wait for one group must stand together, and a group has one such row at a time",
        }[code]
    )
