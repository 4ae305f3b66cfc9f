"""Means of few bits: sites add integers, nothing is rounded on the way, and all sites get the same bits.

1. Sites agree on the largest magnitude of each block of BLOCK values (a round of its own, of 1 / BLOCK of the values).
   A block has values of one tensor only, since magnitudes of different tensors may differ by any factor.
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
from collections.abc import Iterator, Sequence
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
    library.fields_squares.argtypes, library.fields_squares.restype = (pointer, size), ctypes.c_double
    return library


def squares_of(values: Floats) -> float:
    """Return the sum of the squares, in double precision: 0 only if all values are 0, finite only if all are."""
    return float(_library().fields_squares(values.ctypes.data, values.size))


def scales_of(values: Floats, sizes: Sequence[int] = ()) -> Floats:
    """Return the largest magnitude of each block; NaN for a block that has one.

    Args:
        values: float32, one dimension, contiguous.
        sizes: numbers of values of the tensors that `values` consists of; () for one tensor.
    """
    sizes = sizes or (values.size,)
    scales = np.empty(sum(math.ceil(size / BLOCK) for size in sizes), np.float32)
    library, source, out = _library(), values.ctypes.data, scales.ctypes.data
    for size in sizes:
        library.fields_scales(source, size, BLOCK, out)
        source, out = source + 4 * size, out + 4 * math.ceil(size / BLOCK)
    return scales


def pack(
    values: Floats, scales: Floats, fraction: float, bits: int, sites: int, *, sizes: Sequence[int] = ()
) -> tuple[Floats, Floats]:
    """Return the words of this site's part of the mean, in the memory of float32 values, and the part of `values` that
    rounding left out, which is 0 if `fraction` is 0.

    Args:
        values: float32, one dimension, contiguous.
        scales: scales of the blocks, on which all sites have agreed.
        fraction: this site's part of the mean.
        bits: bits of a value.
        sites: number of sites.
        sizes: numbers of values of the tensors that `values` consists of; () for one tensor.
    """
    sizes = sizes or (values.size,)
    words = np.zeros(sum(word_values(size, bits, sites) for size in sizes), np.float32)
    left = np.empty_like(values)
    library, rest = _library(), left.ctypes.data
    for size, source, scale, word in _places((values, scales, words), bits, sites, sizes):
        library.fields_pack(
            source, size, BLOCK, scale, fraction, levels(bits, sites), width(bits, sites), word, rest,
        )  # fmt: skip
        rest += 4 * size
    return words, left


def unpack(words: Floats, scales: Floats, bits: int, sites: int, out: Floats, *, sizes: Sequence[int] = ()) -> None:
    """Write the mean that the sum of all sites' words represents into `out`, which consists of tensors of `sizes`."""
    library = _library()
    for size, target, scale, word in _places((out, scales, words), bits, sites, sizes or (out.size,)):
        library.fields_unpack(word, size, BLOCK, scale, levels(bits, sites), width(bits, sites), target)


def _places(
    arrays: tuple[Floats, Floats, Floats], bits: int, sites: int, sizes: Sequence[int]
) -> Iterator[tuple[int, int, int, int]]:
    """Yield each tensor's number of values, and the addresses of its parts of values, scales and words."""
    value, scale, word = (each.ctypes.data for each in arrays)
    for size in sizes:
        yield size, value, scale, word
        value += 4 * size
        scale += 4 * math.ceil(size / BLOCK)
        word += 4 * word_values(size, bits, sites)
