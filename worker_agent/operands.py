"""Arrays that operations work on (numpy's, and torch's on the CPU) as host memory."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from worker_agent.collectives import Collective

DTYPES = {"float32": 0, "float16": 1, "bfloat16": 2}
ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
BYTES = "bytes"
"""The dtype of data that travels unchanged; its elements are bytes."""
SMALL_DTYPES = {"float64": (4, 8), "int64": (5, 8), "int32": (6, 4), "int8": (7, 1), "uint8": (8, 1), "bool": (8, 1)}
"""Dtypes that only small operations take (gathered.py): the dtype's number in native/numbers.h, and bytes of an
element.
"""
NATIVE_DTYPES = {**DTYPES, BYTES: 3, **{name: number for name, (number, _) in SMALL_DTYPES.items()}}


def item_bytes(dtype: str) -> int:
    """Return the bytes of an element."""
    return SMALL_DTYPES[dtype][1] if dtype in SMALL_DTYPES else ITEM_BYTES.get(dtype, 1)


class HostArray(NamedTuple):
    """The host memory of an array: address, number of elements, the dtype's name, and the object that owns it.

    It is a tuple, because making one costs a third of what a frozen dataclass does, and each operation makes one.
    """

    address: int
    elements: int
    dtype: str
    owner: Any

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return self.elements * item_bytes(self.dtype)


def host_array(array: Any, dtype: str | None = None, *, raw: bool = False) -> HostArray:
    """Return the memory of a numpy array or torch CPU tensor, which has to be contiguous and writable.

    Args:
        array: the array or tensor.
        dtype: overrides the array's own type (numpy has no bfloat16: give uint16 values with dtype="bfloat16").
        raw: whether the memory is taken as bytes, whatever the type.

    Raises:
        TypeError, ValueError: the array cannot be used; the message says what to do.
    """
    if isinstance(array, np.ndarray):
        if not array.flags.c_contiguous or not array.flags.writeable or not array.flags.aligned:
            raise ValueError("the array must be contiguous, aligned and writable: pass a numpy.ascontiguousarray copy")
        name, address, elements, item = array.dtype.name, array.ctypes.data, array.size, array.itemsize
        if not array.dtype.isnative:
            raise TypeError("the array must have native byte order: pass array.astype(array.dtype.newbyteorder('='))")
    elif type(array).__module__.partition(".")[0] == "torch" or hasattr(array, "data_ptr"):
        if array.device.type != "cpu":
            raise ValueError(f"the tensor is on {array.device}: copy it to (pinned) host memory first")
        if not array.is_contiguous():
            raise ValueError("the tensor must be contiguous: pass tensor.contiguous() and copy back")
        name, address = str(array.dtype).removeprefix("torch."), array.data_ptr()
        elements, item = array.numel(), array.element_size()
    else:
        raise TypeError(f"all-reduce takes a numpy array or a torch CPU tensor, not {type(array).__name__}")
    if raw:
        return HostArray(address, elements * item, BYTES, array)
    name = dtype or name
    if name not in NATIVE_DTYPES or name == BYTES:
        raise TypeError(
            f"cannot all-reduce {name}: float32, float16 and bfloat16 are supported, and of a few values "
            f"{', '.join(SMALL_DTYPES)}"
        )
    if item != item_bytes(name):
        raise TypeError(f"elements of {item} bytes cannot be {name}")
    return HostArray(address, elements, name, array)


def operand(array: Any, op: Collective, dtype: str | None = None) -> HostArray:
    """Return the memory of an operation's array, which is the array itself where it is such memory already. Raise
    TypeError or ValueError for an array that the operation cannot take, as host_array does.
    """
    return array if isinstance(array, HostArray) else host_array(array, dtype, raw=op.raw)
