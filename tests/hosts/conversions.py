"""The engine's conversions one chunk at a time, beside those of evaluation/hosts/numbers.py (conversions.c)."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from controlplane.common.native_build import load
from evaluation.hosts.numbers import Array, native_fields, pointer
from worker_agent.fields import Fields
from worker_agent.native_engine import NATIVE
from worker_agent.operands import DTYPES


@cache
def library() -> ctypes.CDLL:
    return load(Path(__file__).with_name("conversions.c"), include=[NATIVE])


def exponent(chunk: Array, dtype: str = "float32") -> int:
    """Return a chunk's exponent by the C engine, as fixedpoint.exponent does; `chunk` has the dtype's bits (bfloat16 as
    uint16).
    """
    return int(library().conversions_exponent(pointer(chunk), ctypes.c_size_t(chunk.size), DTYPES[dtype]))


def fields_exponent(fields: Fields, chunk: Array, dtype: str = "float32") -> int:
    """Return a chunk's exponent in these fields by the C engine, as Fields.exponent does."""
    size, form = ctypes.c_size_t(chunk.size), native_fields(fields)
    return int(library().conversions_fields_exponent(ctypes.byref(form), pointer(chunk), size, DTYPES[dtype]))


def quantise(chunk: Array, biased: int, workers: int, dtype: str = "float32") -> NDArray[np.int32]:
    """Quantise a chunk by the C engine, as fixedpoint.quantise does."""
    wire = np.empty(chunk.size, ">i4")
    size = ctypes.c_size_t(chunk.size)
    library().conversions_quantise(pointer(chunk), size, DTYPES[dtype], biased, workers, pointer(wire))
    return wire.astype(np.int32)


def dequantise(sums: NDArray[np.int32], biased: int, workers: int, mean: bool = False, dtype: str = "float32") -> Array:
    """Dequantise sums by the C engine, as fixedpoint.dequantise does; the result has the dtype's bits (bfloat16 as
    uint16).
    """
    wire = sums.astype(">i4")
    result: Array = np.empty(sums.size, {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}[dtype])
    size = ctypes.c_size_t(sums.size)
    library().conversions_dequantise(pointer(wire), size, biased, workers, int(mean), DTYPES[dtype], pointer(result))
    return result


def pairs(
    fields: Fields, chunk: Array, biased: int, sums: NDArray[np.int32], *, mean: bool = False
) -> tuple[int, NDArray[np.int32], Array] | None:
    """Return the exponent and words of a whole chunk of bfloat16 (as bits), and the values of `sums`, by the C engine's
    short way. Return None where that does not take the chunk. Raise AssertionError where the check word is wrong, or
    more was written.
    """
    values = fields.words + 1
    exponent, wire, there = ctypes.c_int32(), np.zeros(values, ">i4"), np.zeros(values, ">i4")
    there[:-1] = sums
    back: Array = np.full(2 * values + 1, 77, np.uint16)
    right = library().conversions_pairs(
        ctypes.byref(native_fields(fields)),
        pointer(chunk),
        ctypes.c_size_t(values),
        biased,
        int(mean),
        ctypes.byref(exponent),
        pointer(wire),
        pointer(there),
        pointer(back),
    )
    if right < 0:
        return None
    assert right == 1 and back[-1] == 77
    return exponent.value, wire[:-1].astype(np.int32), back[: 2 * fields.words]
