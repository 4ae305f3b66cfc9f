"""The numbers of the protocol in numpy: the reference for the C engine, and the error bound.

A chunk of float32 values travels as 32-bit integers with one exponent e that all workers agreed on (the largest that
any of them needs; e is the smallest integer with |x| < 2^e):

    q = round(x * 2^(F - e)),  F = 30 - ceil(log2 W)         on each of W workers, to nearest even
    sum = (q_1 + ... + q_W) * 2^(e - F)                      exact in integers: |q_1 + ... + q_W| <= 2^30

The mean is the sum divided by W in float32. It is finite for all finite values, also if the sum is not: the integer sum
of a chunk of large values is divided before it is multiplied by 2^(e - F), which changes no other bit. Means that are
rounded beyond the largest value of the type are limited to it.

Each q is off by at most 1/2, so before the last rounding (to float32, or to the tensor's own dtype) the sum is off by
at most W/2 * 2^(e - F). "Numbers" in docs/protocol.md describes the protocol.

A chunk has fewer bits, F' = mixed_bits(W), where any worker has a NaN or an infinity in its group of 8 chunks. Beside
the finite values its words count the workers that contribute +Inf and those that contribute -Inf (NaN counts as both):

    word = round(x * 2^(F' - e)) + unit * (plus + (W + 1) * minus) - bias

A value to which any worker contributed a NaN or an infinity is what IEEE addition gives; the others are off by at most
W/2 * 2^(e - F'). F' is 26 for 2 workers, 24 for 4, 21 for 8, 18 for 16, 12 for 64, 6 for 256, 1 for 1023.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

BIAS = 1024
NONFINITE = 4096
FLOAT32_BITS = 24

Floats = NDArray[np.float32]
Integers = NDArray[np.int32]


def fraction_bits(workers: int) -> int:
    """Return F, the number of bits below 2^e that a value keeps."""
    return 30 - (workers - 1).bit_length()


def mixed_bits(workers: int, width: int = 32) -> int:
    """Return F', the number of bits below 2^e that a value keeps in a chunk with NaN or infinities: the most for which
    the sum fits into `width` bits.

    Return -1 where there is no room for a sum (which happens in fields of few bits with many workers, fields.py).
    """
    bits = -1
    while bits < 29 and (2 * (workers << bits + 1) + 1) * (workers + 1) ** 2 + workers <= 1 << width:
        bits += 1
    return bits


class Mixed(NamedTuple):
    """The layout of words, or of fields in words, of chunks with NaN or infinities.

    Attributes:
        bits: F', or -1 where there is no room for a sum.
        most: the largest possible sum of the finite values.
        unit: what a worker with +Inf adds.
    """

    workers: int
    bits: int
    most: int
    unit: int
    bias: int

    @classmethod
    def of(cls, workers: int, width: int = 32) -> Mixed:
        """Return the layout of `width` bits for so many workers."""
        bits = mixed_bits(workers, width)
        most = workers << max(bits, 0)
        largest = (1 << width - 1) - (width < 32)
        return cls(workers, bits, most, 2 * most + 1, (largest - most) // workers)

    def integers(self, chunk: Floats, finite: int) -> NDArray[np.int64]:
        """Return a worker's integers; `finite` is the agreed biased exponent of the finite values, 0 where all are
        zero.
        """
        words = np.zeros(chunk.shape, np.int64)
        if self.bits < 0:
            return words
        if finite:
            there = np.where(np.isfinite(chunk), chunk, 0).astype(np.float64)
            words = _fixed(there, self.bits, finite - BIAS).astype(np.int64)
        words += self.unit * (np.isposinf(chunk) | np.isnan(chunk))
        words += self.unit * (self.workers + 1) * (np.isneginf(chunk) | np.isnan(chunk))
        return words - self.bias

    def floats(self, sums: NDArray[np.int64], finite: int, mean: bool) -> Floats:
        """Return the float32 sums (or means) from the summed integers."""
        if self.bits < 0:
            return np.full(sums.shape, np.nan, np.float32)
        counts, rest = np.divmod(sums + self.bias * self.workers + self.most, self.unit)
        minus, plus = np.divmod(counts, self.workers + 1)
        result = np.zeros(sums.shape, np.float32)
        if finite:
            with np.errstate(over="ignore", under="ignore"):
                exact = np.ldexp((rest - self.most).astype(np.float64), finite - BIAS - self.bits)
                result = (exact / (self.workers if mean else 1)).astype(np.float32)
        result[plus > 0] = np.inf
        result[minus > 0] = -np.inf
        result[(plus > 0) & (minus > 0)] = np.nan
        return result


def exponent(chunk: Floats) -> int:
    """Return the biased exponent that a chunk needs: 0 when its finite values are zero, and 4096 more when it holds NaN
    or infinities.
    """
    finite = chunk[np.isfinite(chunk)].astype(np.float64)
    flag = NONFINITE if finite.size < chunk.size else 0
    most = np.abs(finite).max(initial=0.0)
    if most == 0:
        return flag
    return flag + BIAS + int(np.frexp(most)[1])


def _fixed(values: NDArray[np.float64], bits: int, e: int) -> NDArray[np.float64]:
    """Convert values to fixed point, and clip those that are too large for the sum, because they were written to the
    array during the operation.
    """
    return np.rint(np.clip(np.ldexp(values, bits - e), -(2.0**bits), 2.0**bits))


def quantise(chunk: Floats, biased: int, workers: int) -> Integers:
    """Return the integers for the packet, given the agreed biased exponent."""
    if biased >= NONFINITE:
        return Mixed.of(workers).integers(chunk, biased - NONFINITE).astype(np.int32)
    if biased == 0:
        return np.zeros(chunk.shape, np.int32)
    return _fixed(chunk.astype(np.float64), fraction_bits(workers), biased - BIAS).astype(np.int32)


def dequantise(sums: Integers, biased: int, workers: int, mean: bool = False) -> Floats:
    """Return the float32 sum (or mean) of a chunk from the summed integers."""
    if biased >= NONFINITE:
        return Mixed.of(workers).floats(sums.astype(np.int64), biased - NONFINITE, mean)
    if biased == 0:
        return np.zeros(sums.shape, np.float32)
    return scaled(sums.astype(np.int64), biased - BIAS - fraction_bits(workers), workers if mean else 1)


def scaled(sums: NDArray[np.int64], shift: int, divisor: int) -> Floats:
    """Return sums * 2^shift / divisor, rounded to float32 before and after the division.

    If the result is normal, the bits are those of a division before the multiplication, which is exact. So a sum beyond
    float32 does not matter for a mean that is within it.
    """
    with np.errstate(over="ignore", under="ignore"):
        if shift > 0:
            divided = sums.astype(np.float32) / np.float32(divisor)
            return np.ldexp(divided.astype(np.float64), shift).astype(np.float32)
        return np.ldexp(sums.astype(np.float64), shift).astype(np.float32) / np.float32(divisor)


LARGEST = {"float16": 65504.0, "bfloat16": float.fromhex("0x1.fep127"), "float32": float(np.finfo(np.float32).max)}
"""The largest finite value of each type."""


def limited(means: Floats, biased: int, dtype: str) -> Floats:
    """Return the means of a chunk with this exponent, limited to the largest finite value of the type. No mean of
    finite values is larger, but the rounding to steps may have gone beyond.
    """
    if biased >= NONFINITE or biased - BIAS < np.frexp(LARGEST[dtype])[1]:
        return means
    return np.clip(means, np.float32(-LARGEST[dtype]), np.float32(LARGEST[dtype]))


def error_bound(chunks: Sequence[Floats], mean: bool = False, mixed: bool = False) -> float:
    """Return the largest possible distance of a float32 result from the exact sum (or mean) of one chunk's finite
    values.

    `chunks` has one array per worker. The bound is W/2 * 2^(e - F), plus the rounding of the result to float32 (twice
    for a mean). F' takes the place of F where a worker has NaN or an infinity, and where `mixed` says that a worker has
    one in another chunk of the group. The bound is infinite when the sum of the magnitudes (or their mean) leaves
    float32.
    """
    workers = len(chunks)
    biased = [exponent(chunk) for chunk in chunks]
    most_biased = max(each % NONFINITE for each in biased)
    if most_biased == 0:
        return 0.0
    bits = mixed_bits(workers) if mixed or max(biased) >= NONFINITE else fraction_bits(workers)
    chunks = [np.where(np.isfinite(chunk), chunk, 0) for chunk in chunks]
    e = most_biased - BIAS
    quantisation = float(np.ldexp(workers / 2, e - bits))
    most = float(np.sum([np.abs(chunk.astype(np.float64)) for chunk in chunks], axis=0).max()) + quantisation
    if most / (workers if mean else 1) >= float(np.finfo(np.float32).max):
        return float("inf")
    rounding = max(most * 2.0**-FLOAT32_BITS, 2.0**-150)
    if not mean:
        return quantisation + rounding
    return (quantisation + rounding) / workers + max(most / workers * 2.0**-FLOAT32_BITS, 2.0**-150)
