"""The engine's conversions of fields one chunk at a time (native/numbers.c), and the speed of all conversions."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from controlplane.common.native_build import load
from worker_agent.c_structures import Header
from worker_agent.fields import FIELDS, Fields
from worker_agent.fixedpoint import BIAS, fraction_bits
from worker_agent.native_engine import NATIVE
from worker_agent.operands import DTYPES

Array = NDArray[Any]


@cache
def _library() -> ctypes.CDLL:
    return load(Path(__file__).resolve().parent / "native" / "numbers.c", include=[NATIVE])


def pointer(array: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


class NativeFields(ctypes.Structure):
    """The structure struct inart_fields of native/fields.h."""

    _fields_ = Header(NATIVE / "fields.h").fields("inart_fields", float=ctypes.c_float)


@cache
def native_fields(fields: Fields) -> NativeFields:
    """Return the form of these fields in C."""
    library = _library()
    library.numbers_fields_of.restype = NativeFields
    assert library.numbers_fields_size() == ctypes.sizeof(NativeFields), "the structure is C's"
    made: NativeFields = library.numbers_fields_of(
        FIELDS[fields.bits], fields.workers, fields.stochastic, ctypes.c_uint64(fields.seed), fields.worker
    )
    return made


def quantise_fields(
    fields: Fields, chunk: Array, biased: int, position: int = 0, dtype: str = "float32"
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """Return the quantised fields and the residual of a chunk by the C engine, as Fields.quantise and Fields.residual
    do.
    """
    wire = np.empty(fields.words, ">i4")
    residual = np.empty(chunk.size, np.float32)
    _library().numbers_fields_quantise(
        ctypes.byref(native_fields(fields)),
        pointer(chunk),
        ctypes.c_size_t(chunk.size),
        ctypes.c_size_t(fields.words),
        DTYPES[dtype],
        biased,
        position,
        pointer(wire),
        pointer(residual),
    )
    return wire.astype(np.int32), residual


def dequantise_fields(
    fields: Fields, sums: NDArray[np.int32], count: int, biased: int, *, mean: bool = False, dtype: str = "float32"
) -> Array:
    """Dequantise fields by the C engine, as Fields.dequantise does; the result has the dtype's bits (bfloat16 as
    uint16).
    """
    wire = sums.astype(">i4")
    result: Array = np.empty(count, {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}[dtype])
    _library().numbers_fields_dequantise(
        ctypes.byref(native_fields(fields)),
        pointer(wire),
        ctypes.c_size_t(count),
        ctypes.c_size_t(fields.words),
        biased,
        int(mean),
        DTYPES[dtype],
        pointer(result),
    )
    return result


def best_seconds(function: Callable[[], object], repeat: int = 7) -> float:
    """Return the CPU seconds of the fastest of a few calls, in this thread."""
    best = float("inf")
    for _ in range(repeat):
        start = time.thread_time()
        function()
        best = min(best, time.thread_time() - start)
    return best


def speeds(megabytes: int = 25, values: int = 256, workers: int = 4) -> list[tuple[str, float, float]]:
    """Return (name, GB/s of numpy, GB/s of the C engine), per core, over a float32 tensor that is larger than the
    caches.
    """
    chunks = megabytes * 1_000_000 // (4 * values)
    x = np.random.default_rng(1).standard_normal(chunks * values, dtype=np.float32)
    gigabytes = x.nbytes / 1e9
    biased, scale = BIAS + 3, np.float32(2.0 ** (fraction_bits(workers) - 3))
    wire = np.empty(x.size, ">i4")
    integers = np.rint(x * scale).astype(np.int32)
    exponents = np.empty(chunks, np.int32)
    back = np.empty_like(x)
    frames = np.empty(chunks, np.dtype([("header", "V38"), ("values", ">i4", (values,))]))
    library, c = _library(), ctypes.c_size_t

    def frame_integers() -> None:
        frames["header"] = bytes(38)
        frames["values"] = integers.reshape(chunks, values)

    def frame_floats() -> None:
        frames["header"] = bytes(38)
        frames["values"] = np.rint(x * scale).reshape(chunks, values)

    cases: list[tuple[str, Callable[[], object], Callable[[], object]]] = [
        (
            "exponents",
            lambda: np.frexp(np.abs(x).reshape(chunks, values).max(axis=1)),
            lambda: library.numbers_exponent_all(pointer(x), c(chunks), c(values), pointer(exponents)),
        ),
        (
            "quantise",
            lambda: np.copyto(wire, np.rint(x * scale).astype(np.int32)),
            lambda: library.numbers_quantise_all(pointer(x), c(chunks), c(values), biased, workers, pointer(wire)),
        ),
        (
            "packetise",
            frame_integers,
            lambda: library.numbers_packetise(pointer(integers), c(chunks), c(values), biased, workers, 0),
        ),
        (
            "quantise + packetise",
            frame_floats,
            lambda: library.numbers_packetise(pointer(x), c(chunks), c(values), biased, workers, 1),
        ),
        (
            "dequantise",
            lambda: np.copyto(back, wire.astype(np.float32) / scale),
            lambda: library.numbers_dequantise_all(pointer(wire), c(chunks), c(values), biased, workers, pointer(back)),
        ),
    ]
    return [(name, gigabytes / best_seconds(numpy), gigabytes / best_seconds(native)) for name, numpy, native in cases]
