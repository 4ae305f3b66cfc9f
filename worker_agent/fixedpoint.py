"""The numbers of the protocol in numpy: the reference for the C engine, and the error bound.

A chunk of float32 values travels as 32-bit integers with one exponent e that all workers agreed on (the largest that
any of them needs; e is the smallest integer with |x| < 2^e):

    q = round(x * 2^(F - e)),  F = 30 - ceil(log2 W)         on each of W workers, to nearest even
    sum = (q_1 + ... + q_W) * 2^(e - F)                      exact in integers: |q_1 + ... + q_W| <= 2^30

Each q is off by at most 1/2, so before the last rounding (to float32, or to the tensor's own dtype) the sum is off by
at most W/2 * 2^(e - F). docs/architecture.md, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

BIAS = 1024
NONFINITE = 4096
CODE_NAN, CODE_PLUS, CODE_MINUS = 1, 1 << 10, 1 << 20
FLOAT32_BITS = 24

Floats = NDArray[np.float32]
Integers = NDArray[np.int32]


def fraction_bits(workers: int) -> int:
    """F: how many bits below 2^e a value keeps."""
    return 30 - (workers - 1).bit_length()


def exponent(chunk: Floats) -> int:
    """The biased exponent that a chunk needs: 0 when its finite values are zero; + 4096 when it holds NaN or Inf."""
    finite = chunk[np.isfinite(chunk)].astype(np.float64)
    flag = NONFINITE if finite.size < chunk.size else 0
    most = np.abs(finite).max(initial=0.0)
    if most == 0:
        return flag
    return flag + BIAS + int(np.frexp(most)[1])


def quantise(chunk: Floats, biased: int, workers: int) -> Integers:
    """The integers that travel, given the agreed biased exponent."""
    if biased >= NONFINITE:
        codes = np.zeros(chunk.shape, np.int32)
        codes[np.isnan(chunk)] = CODE_NAN
        codes[np.isposinf(chunk)] = CODE_PLUS
        codes[np.isneginf(chunk)] = CODE_MINUS
        return codes
    if biased == 0:
        return np.zeros(chunk.shape, np.int32)
    return np.rint(np.ldexp(chunk.astype(np.float64), fraction_bits(workers) - (biased - BIAS))).astype(np.int32)


def dequantise(sums: Integers, biased: int, workers: int, mean: bool = False) -> Floats:
    """The float32 sum (or mean) of a chunk from the summed integers."""
    if biased >= NONFINITE:
        nan, plus, minus = (sums >> shift & 1023 for shift in (0, 10, 20))
        result = np.full(sums.shape, np.nan, np.float32)
        result[(nan == 0) & (plus > 0) & (minus == 0)] = np.inf
        result[(nan == 0) & (minus > 0) & (plus == 0)] = -np.inf
        return result
    if biased == 0:
        return np.zeros(sums.shape, np.float32)
    with np.errstate(over="ignore", under="ignore"):
        result = np.ldexp(sums.astype(np.float64), biased - BIAS - fraction_bits(workers)).astype(np.float32)
        return result / np.float32(workers) if mean else result


def error_bound(chunks: Sequence[Floats], mean: bool = False) -> float:
    """How far a float32 result may be from the exact sum (or mean) of one chunk's finite values, one array a worker:
    W/2 * 2^(e - F), and the rounding of the result to float32 (twice for a mean). Infinite when the sum of the bound's
    magnitudes leaves float32."""
    workers = len(chunks)
    biased = max(exponent(chunk) for chunk in chunks)
    if biased == 0:
        return 0.0
    e = (biased % NONFINITE) - BIAS
    quantisation = float(np.ldexp(workers / 2, e - fraction_bits(workers)))
    most = float(np.sum([np.abs(chunk.astype(np.float64)) for chunk in chunks], axis=0).max()) + quantisation
    if most >= float(np.finfo(np.float32).max):
        return float("inf")
    rounding = max(most * 2.0**-FLOAT32_BITS, 2.0**-150)
    if not mean:
        return quantisation + rounding
    return (quantisation + rounding) / workers + max(most / workers * 2.0**-FLOAT32_BITS, 2.0**-150)
