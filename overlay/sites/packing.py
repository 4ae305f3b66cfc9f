"""Means of few bits: sites add integers, nothing is rounded on the way, and all sites get the same bits.

1. Sites agree on the largest magnitude of each block of BLOCK values (a round of its own, of 1 / BLOCK of the values).
2. Each rounds its part of the weighted mean to whole quanta of the block, and packs these integers into fields of
   64-bit words. Sites on the way add words.
3. All take the same words apart, with the same scales.

With W sites a field has `bits` and ceil(log2 W) bits, so that each site's part of an even mean has `bits` of its own,
and the sum of all always fits: parts are at most `fraction` of the scale, fractions sum to 1, and each rounding adds at
most 1/2. The mean differs from the exact one by at most W / 2 quanta; a quantum is the scale / levels(bits, W). The
part that rounding left out is returned, to be added to the site's next values (error feedback).
"""

from __future__ import annotations

import ctypes
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from controlplane.common.native_build import ENGINE, load

Floats = NDArray[np.float32]

BLOCK = 512
BITS = (4, 8, 16)
SOURCE = Path(__file__).parent / "native" / "fields.c"


def width(bits: int, sites: int) -> int:
    """Return the bits of a field, in which the integers of so many sites are added."""
    return bits + max(0, math.ceil(math.log2(sites)))


def levels(bits: int, sites: int) -> int:
    """Return the number of quanta in a block's scale: the largest sum that fits when every site has rounded up."""
    return max(1, 2 ** (width(bits, sites) - 1) - 2 - math.ceil(sites / 2))


def bits_a_value(bits: int, sites: int) -> float:
    """Return the bits that a value takes on the network, with its part of the block's scale: words hold whole fields
    only.
    """
    return 64 / (64 // width(bits, sites)) + 32 / BLOCK


def word_values(values: int, bits: int, sites: int) -> int:
    """Return the number of float32 values, which is even, whose memory the words of this many values take."""
    return 2 * math.ceil(values / (64 // width(bits, sites)))


@cache
def _library() -> Any:
    library = load(SOURCE, options=ENGINE)
    pointer, size, number = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_float
    library.fields_scales.argtypes = (pointer, size, size, pointer)
    library.fields_pack.argtypes = (pointer, size, size, pointer, number, number, ctypes.c_int, pointer, pointer)
    library.fields_unpack.argtypes = (pointer, size, size, pointer, number, ctypes.c_int, pointer)
    for function in (library.fields_scales, library.fields_pack, library.fields_unpack):
        function.restype = None
    return library


def scales_of(values: Floats) -> Floats:
    """Return the largest magnitude of each block; NaN for a block that has one."""
    scales = np.empty(math.ceil(values.size / BLOCK), np.float32)
    _library().fields_scales(values.ctypes.data, values.size, BLOCK, scales.ctypes.data)
    return scales


def pack(values: Floats, scales: Floats, fraction: float, bits: int, sites: int) -> tuple[Floats, Floats]:
    """Return the words of this site's part of the mean, in the memory of float32 values, and the part of `values` that
    rounding left out.

    Args:
        values: float32, one dimension, contiguous.
        scales: scales of the blocks, on which all sites have agreed.
        fraction: this site's part of the mean.
        bits: bits of a value.
        sites: number of sites.
    """
    words = np.zeros(word_values(values.size, bits, sites), np.float32)
    left = np.empty_like(values)
    _library().fields_pack(
        values.ctypes.data, values.size, BLOCK, scales.ctypes.data, fraction, levels(bits, sites), width(bits, sites),
        words.ctypes.data, left.ctypes.data,
    )  # fmt: skip
    return words, left


def unpack(words: Floats, scales: Floats, bits: int, sites: int, out: Floats) -> None:
    """Write the mean that the sum of all sites' words represents into `out`."""
    _library().fields_unpack(
        words.ctypes.data, out.size, BLOCK, scales.ctypes.data, levels(bits, sites), width(bits, sites),
        out.ctypes.data,
    )  # fmt: skip
