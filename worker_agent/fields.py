"""Several values in each word of 32 bits: the numpy reference for native/fields.h, and the error bound.

Switches add words and do not know their content. A word of n fields of w bits (w = 32 / n, rounded down) is

    word = sum_i q_i * 2^(w i),    q = round(x * 2^(F - e)),    |q| <= M = floor((2^(w-1) - 1) / W)

on each of W workers, where F is the number of bits of M, and the exponent e of the chunk is the smallest with |x| <=
M * 2^(e - F) for all values of all workers. So no value is cut off: a step is the smallest power of two of which M
cover the largest value. The sum of all workers' words is the same
expression of the sums Q_i of the fields, each below 2^(w-1) in magnitude, so no field runs into its neighbour, the word
never wraps, and each Q_i can be read from it. A result is Q * 2^(e - F).

Rounding is to nearest even where a field has as many bits as the tensor's own type (float16 and bfloat16 in 16 bits);
with fewer bits it is stochastic (up or down by chance), so that the errors cancel out over many steps. The chance is a
function of the operation's seed, the worker's number and the value's position in the array, so the same inputs give the
same bits, whatever the plan, the losses and the number of trees. docs/protocol.md describes this in "Fields in words".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from worker_agent import fixedpoint
from worker_agent.fixedpoint import BIAS, NONFINITE, Floats, Integers, Mixed

FIELDS = {32: 1, 16: 2, 10: 3, 8: 4}
"""Maps the bits per value to the number of values that share a word."""
OWN_BITS = {"float32": 32, "float16": 16, "bfloat16": 16}
SIGNIFICANT = {"float16": 11, "bfloat16": 8}
"""The bits of these types' significands: where a field keeps fewer, they travel in 32 bits unless 16 are requested."""


def most_steps(bits: int, workers: int) -> int:
    """Return M, the largest integer that a worker may send for a value in `bits` bits (fewer than 32)."""
    return ((1 << bits - 1) - 1) // workers


def field_bits(bits: int, workers: int) -> int:
    """Return F, the number of bits of M. A step is 2^(e - F) for a chunk whose exponent is e."""
    return most_steps(bits, workers).bit_length()


def bits_of(dtype: str, asked: int | None, workers: int) -> int:
    """Return the bits per value.

    Where `asked` is None, that is 32 for float32, and 16 for float16 and bfloat16 as long as a field keeps all their
    bits with this number of workers. Raise ValueError, which lists the possible values, for others.
    """
    own = OWN_BITS[dtype]
    if asked is None:
        return own if own == 32 or most_steps(own, workers) >= (1 << SIGNIFICANT[dtype]) - 1 else 32
    there = [bits for bits in FIELDS if bits == 32 or most_steps(bits, workers)]
    if asked not in there:
        raise ValueError(f"bits must be one of {', '.join(map(str, there))} for {workers} workers, not {asked}")
    return asked


def is_stochastic(dtype: str, bits: int, *, feedback: bool = False) -> bool:
    """Return whether values of this type are rounded stochastically in this many bits, which are fewer than its own.

    With error feedback they are rounded to nearest: the part that is rounded off is sent later, so nothing is lost on
    average anyway, and rounding to nearest has half the variance.
    """
    return bits < OWN_BITS[dtype] and not feedback


@dataclass(frozen=True)
class Fields:
    """The encoding of a worker's values.

    Attributes:
        bits: bits per value.
        workers: number of workers.
        words: number of a packet's data words.
        stochastic: whether values are rounded by chance.
        seed: seed of these random numbers.
        worker: this worker's number.
    """

    bits: int
    workers: int
    words: int
    stochastic: bool = False
    seed: int = 0
    worker: int = 0

    @property
    def values(self) -> int:
        """The most values of a chunk."""
        return FIELDS[self.bits] * self.words

    @property
    def most(self) -> int:
        """The largest integer that a worker may send."""
        return most_steps(self.bits, self.workers)

    def exponent(self, chunk: Floats) -> int:
        """Return the biased exponent that a chunk needs, with the same marks as fixedpoint.exponent."""
        biased = fixedpoint.exponent(chunk)
        if not biased % NONFINITE:
            return biased
        largest = np.abs(chunk[np.isfinite(chunk)].astype(np.float64)).max()
        steps = np.ldexp(largest, field_bits(self.bits, self.workers) - (biased % NONFINITE - BIAS))
        return biased + int(steps > self.most)

    def integers(self, chunk: Floats, biased: int, position: int = 0) -> NDArray[np.int64]:
        """Return the integer q of each value, given the agreed biased exponent; `position` is the first value's place
        in the array.
        """
        if biased >= NONFINITE:
            return Mixed.of(self.workers, self.bits).integers(chunk, biased - NONFINITE)
        if biased == 0:
            return np.zeros(chunk.shape, np.int64)
        shift = field_bits(self.bits, self.workers) - (biased - BIAS)
        with np.errstate(under="ignore"):
            scaled = np.ldexp(chunk.astype(np.float64), shift).astype(np.float32)
        scaled = np.clip(scaled, np.float32(-self.most), np.float32(self.most))
        if self.stochastic:
            return np.floor(scaled + self._up(chunk.size, position)).astype(np.int64)
        return np.rint(scaled).astype(np.int64)

    def quantise(self, chunk: Floats, biased: int, position: int = 0) -> Integers:
        """Return the data words of the chunk's packet; the arguments are those of `integers`."""
        words = np.zeros(self.words, np.int64)
        values = self.integers(chunk, biased, position)
        for field, first in enumerate(range(0, values.size, self.words)):
            here = values[first : first + self.words]
            words[: here.size] += here << (field * self.bits)
        return words.astype(np.int32)

    def residual(self, chunk: Floats, biased: int, position: int = 0) -> Floats:
        """Return the rounded-off part of each value; zero for a chunk with NaN or infinities."""
        if biased == 0 or biased >= NONFINITE:
            return np.zeros(chunk.shape, np.float32)
        step = float(np.ldexp(1.0, biased - BIAS - field_bits(self.bits, self.workers)))
        return (chunk.astype(np.float64) - self.integers(chunk, biased, position) * step).astype(np.float32)

    def dequantise(self, sums: Integers, count: int, biased: int, mean: bool = False) -> Floats:
        """Return the float32 sums (or means) of `count` values from the summed words."""
        half = 1 << (self.bits - 1)
        shifted = sums.astype(np.int64) + sum(half << (field * self.bits) for field in range(FIELDS[self.bits]))
        fields = [(shifted >> (field * self.bits) & (2 * half - 1)) - half for field in range(FIELDS[self.bits])]
        values = np.concatenate(fields)[:count]
        if biased >= NONFINITE:
            return Mixed.of(self.workers, self.bits).floats(values, biased - NONFINITE, mean)
        if biased == 0:
            return np.zeros(count, np.float32)
        shift = biased - BIAS - field_bits(self.bits, self.workers)
        return fixedpoint.scaled(values, shift, self.workers if mean else 1)

    def _up(self, count: int, position: int) -> Floats:
        """Return the numbers that are added before rounding down: each one of 256 steps, from 1/512 to 511/512."""
        key = _mix(_mix(_mix(self.seed & 0xFFFFFFFF) ^ (self.seed >> 32)) + self.worker)
        places = np.arange(position, position + count, dtype=np.uint64) * np.uint64(0x9E3779B1) + np.uint64(key)
        drawn = _mix_all(places & np.uint64(0xFFFFFFFF)) >> np.uint64(24)
        return ((2 * drawn.astype(np.float32) + 1) / np.float32(512)).astype(np.float32)


def error_bound(chunks: Sequence[Floats], bits: int, mean: bool = False, stochastic: bool = False) -> float:
    """Return the largest possible distance of a float32 result from the exact sum (or mean) of one chunk's values,
    which travel in fewer than 32 bits (for 32 bits: fixedpoint.error_bound).

    `chunks` has one array of finite values per worker. A step is 2^(e - F). Rounded to nearest, a value is off by at
    most half a step, and rounded stochastically by less than one.
    """
    workers = len(chunks)
    biased = max(Fields(bits, workers, 1).exponent(chunk) for chunk in chunks)
    if biased == 0:
        return 0.0
    step = float(np.ldexp(1.0, biased - BIAS - field_bits(bits, workers)))
    quantisation = step * workers * (1.0 if stochastic else 0.5)
    largest = float(np.sum([np.abs(chunk.astype(np.float64)) for chunk in chunks], axis=0).max()) + quantisation
    if largest / (workers if mean else 1) >= float(np.finfo(np.float32).max):
        return float("inf")
    rounding = max(largest * 2.0**-fixedpoint.FLOAT32_BITS, 2.0**-150)
    return (quantisation + 2 * rounding) / workers + 2.0**-150 if mean else quantisation + rounding


def _mix(x: int) -> int:
    return int(_mix_all(np.array([x & 0xFFFFFFFF], np.uint64))[0])


def _mix_all(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Apply a permutation of the 32-bit numbers that leaves no visible pattern (Wellons, "Prospecting for hash
    functions").
    """
    x = (x ^ x >> np.uint64(16)) * np.uint64(0x7FEB352D) & np.uint64(0xFFFFFFFF)
    x = (x ^ x >> np.uint64(15)) * np.uint64(0x846CA68B) & np.uint64(0xFFFFFFFF)
    return x ^ x >> np.uint64(16)
