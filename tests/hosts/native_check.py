"""The engines' check word (worker_agent/native/check.h) for Python."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from controlplane.common.native_build import load
from worker_agent.native_engine import NATIVE

Wire = NDArray[np.int32]


@cache
def _library() -> ctypes.CDLL:
    library = load(Path(__file__).resolve().with_suffix(".c"), include=[NATIVE])
    library.checks_make.restype = ctypes.c_void_p
    for name in ("prime", "result", "question", "exponent"):
        getattr(library, f"checks_{name}").restype = ctypes.c_uint32
    library.checks_free.restype = None
    return library


class NativeCheck:
    """The same interface as checkword.Check, by the C engine; words are a packet's, the check word included."""

    def __init__(self, key: bytes, workers: int, values: int) -> None:
        self.values = values
        self._made = ctypes.c_void_p(_library().checks_make(key, workers, values))
        weakref.finalize(self, _library().checks_free, self._made)

    @property
    def prime(self) -> int:
        return int(_library().checks_prime(self._made))

    def _given(
        self, words: Sequence[int] | Wire, workers: Sequence[int]
    ) -> tuple[NDArray[np.uint32], tuple[object, ...]]:
        wire = np.array(np.asarray(words, np.int64) % (1 << 32), ">u4")
        set_ = (ctypes.c_uint32 * len(workers))(*workers)
        return wire, (self._made, ctypes.c_void_p(wire.ctypes.data), set_, len(workers))

    def word(self, data: Sequence[int] | Wire, workers: Sequence[int], tree: int, kind: int, sequence: int) -> int:
        wire, given = self._given([*data, 0], workers)
        _library().checks_write(*given, tree, int(kind), ctypes.c_uint64(sequence))
        return int(wire[-1])

    def right(self, words: Sequence[int] | Wire, workers: Sequence[int], tree: int, kind: int, sequence: int) -> bool:
        _wire, given = self._given(words, workers)
        return bool(_library().checks_right(*given, tree, int(kind), ctypes.c_uint64(sequence)))

    def result(self, data: Sequence[int] | Wire, tree: int, kind: int, sequence: int, *, complete: int) -> int:
        wire, _ = self._given([*data, 0], ())
        pointer, place = ctypes.c_void_p(wire.ctypes.data), ctypes.c_uint64(sequence)
        return int(_library().checks_result(self._made, pointer, tree, int(kind), place, complete))

    def question(self, words: Sequence[int] | Wire, **header: int) -> int:
        """Return the check word of a question; header: as for checkword.Check.question."""
        wire, _ = self._given([*words, 0], ())
        names = ("flags", "attempt", "count", "tree", "sequence", "complete")
        given = [ctypes.c_uint32(header[name]) for name in names]
        return int(_library().checks_question(self._made, ctypes.c_void_p(wire.ctypes.data), *given))

    def exponent_word(self, tree: int, sequence: int, position: int, exponent: int) -> int:
        return int(_library().checks_exponent(self._made, tree, ctypes.c_uint64(sequence), position, exponent))

    def maximum_right(self, words: Sequence[int] | Wire, tree: int, sequence: int) -> bool:
        wire, _ = self._given(words, ())
        pointer = ctypes.c_void_p(wire.ctypes.data)
        return bool(_library().checks_maximum_right(self._made, pointer, tree, ctypes.c_uint64(sequence)))

    def one_pass(self, values: NDArray[np.float32], biased: int, divisor: float) -> bool:
        """Return whether one pass over a chunk's numbers and their check word gives the same as two passes."""
        pointer = ctypes.c_void_p(values.ctypes.data)
        return bool(_library().checks_one_pass(self._made, pointer, biased, ctypes.c_float(divisor)))

    def streamed(self, words: Sequence[int] | Wire, offset: int) -> bool:
        """Return whether one pass that copies words to memory, so many bytes after a line's begin, and finds their
        check word gives the same as two passes.
        """
        wire, (made, *_) = self._given(words, ())
        memory = np.zeros(self.values + 64, np.uint32)
        pointer = -(-memory.ctypes.data // 64) * 64 + offset
        return bool(_library().checks_streamed(made, ctypes.c_void_p(wire.ctypes.data), ctypes.c_void_p(pointer)))

    def sealed(self, exponents: Sequence[int], first: int, tree: int, sequence: int) -> list[int]:
        """Return the words of a MAXIMUM chunk with these exponents, each twice, and 0 for those before `first`."""
        count = len(exponents)
        words = np.zeros(self.values, np.uint32)
        words[first:count] = exponents[first:count]
        pointer = ctypes.c_void_p(words.ctypes.data)
        _library().checks_seal_exponents(self._made, pointer, first, tree, ctypes.c_uint64(sequence))
        return [int(word) for word in words[: 2 * count].byteswap()]
