"""Arguments of the simulator: arrays as its C code takes them, and the errors for what does not exist."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray


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
