"""Ways to the mean of the workers' gradients: each takes one float32 array a worker and returns the mean."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch

from evaluation.hosts.numbers import dequantise_fields, quantise_fields
from p4src.protocol import data_values
from worker_agent.fields import Fields, bits_of, is_stochastic
from worker_agent.fixedpoint import Floats

Mean = Callable[[Sequence[Floats]], Floats]
WORDS = data_values(256)


def as_bfloat16(values: Floats) -> Floats:
    """Return the values rounded to bfloat16."""
    rounded: Floats = torch.from_numpy(np.ascontiguousarray(values)).bfloat16().float().numpy()
    return rounded


def exact(gradients: Sequence[Floats]) -> Floats:
    """Return the exact mean: computed in float64, rounded once."""
    return (np.sum([one.astype(np.float64) for one in gradients], axis=0) / len(gradients)).astype(np.float32)


def ring_in_bfloat16(gradients: Sequence[Floats]) -> Floats:
    """Return the mean as gloo and NCCL compute it of bfloat16 tensors: each of W - 1 additions of a ring is rounded,
    each part of the tensor begins at another worker, and the division comes last.
    """
    return as_bfloat16(_ring(gradients, as_bfloat16) / np.float32(len(gradients)))


def compressed_to_float16(gradients: Sequence[Floats]) -> Floats:
    """Return the mean by torch's fp16_compress_hook: float16, divided by W first, then a ring that adds in float16."""
    with np.errstate(over="ignore"):
        return _ring([as_float16(as_float16(one) / np.float32(len(gradients))) for one in gradients], as_float16)


def as_float16(values: Floats) -> Floats:
    """Return the values rounded to float16."""
    return values.astype(np.float16).astype(np.float32)


def _ring(gradients: Sequence[Floats], rounded: Callable[[Floats], Floats]) -> Floats:
    """Return the sum by a ring that rounds what it sends; each part begins at another worker."""
    total = np.empty_like(gradients[0])
    for part, piece in enumerate(np.array_split(np.arange(len(total)), len(gradients))):
        order = [gradients[(part + hop) % len(gradients)][piece] for hop in range(len(gradients))]
        sum_ = rounded(order[0])
        for one in order[1:]:
            sum_ = rounded(sum_ + rounded(one))
        total[piece] = sum_
    return total


class PowerSGD:
    """torch's powerSGD_hook (Vogels et al., NeurIPS 2019): for each matrix, all workers add up two thin matrices whose
    product approximates it. The difference is added to the next gradient (`feedback`), and the second thin matrix is
    kept for the next step. Parameters with one dimension, and all parameters in the first `after` steps, are sent as
    they are.

    Args:
        shapes: shapes of the parameters.
    """

    def __init__(self, shapes: Sequence[tuple[int, ...]], rank: int, *, feedback: bool = True, after: int = 10) -> None:
        self._shapes, self._rank, self._feedback, self._after = shapes, rank, feedback, after
        self._thin: dict[int, Floats] = {}
        self._left: dict[tuple[int, int], Floats] = {}
        self._step = 0

    def __call__(self, gradients: Sequence[Floats]) -> Floats:
        self._step += 1
        result = exact(gradients)
        first = 0
        for number, shape in enumerate(self._shapes):
            here = slice(first, first + math.prod(shape))
            first = here.stop
            if len(shape) > 1 and self._step > self._after:
                rows = [one[here].reshape(shape[0], -1) for one in gradients]
                result[here] = self._matrix(number, rows).reshape(-1)
        return result

    def _matrix(self, number: int, gradients: Sequence[Floats]) -> Floats:
        nothing = np.zeros_like(gradients[0])
        wanted = [one + self._left.get((number, worker), nothing) for worker, one in enumerate(gradients)]
        if number not in self._thin:
            drawn = np.random.default_rng(number).standard_normal((nothing.shape[1], min(self._rank, *nothing.shape)))
            self._thin[number] = drawn.astype(np.float32)
        left = np.linalg.qr(np.mean([one @ self._thin[number] for one in wanted], axis=0))[0]
        self._thin[number] = np.mean([one.T @ left for one in wanted], axis=0)
        found: Floats = (left @ self._thin[number].T).astype(np.float32)
        if self._feedback:
            for worker, one in enumerate(wanted):
                self._left[number, worker] = one - found
        return found


class InWords:
    """The engine's way, by its own code, packet by packet.

    Args:
        dtype: dtype of the tensor; bfloat16 is rounded before and after.
        feedback: the part that does not travel is added to the next gradient.
        blocks: number of exponents in a packet; the engine has one.
    """

    def __init__(self, dtype: str, bits: int | None, workers: int, *, feedback: bool = False, blocks: int = 1) -> None:
        self._words = WORDS // blocks
        self.bits, self._dtype = bits_of(dtype, bits, workers), dtype
        self._stochastic = is_stochastic(dtype, self.bits, feedback=feedback)
        self._left: list[Floats] | None = [] if feedback else None
        self._step = 0

    def __call__(self, gradients: Sequence[Floats]) -> Floats:
        self._step += 1
        workers = len(gradients)
        if self._dtype == "bfloat16":
            gradients = [as_bfloat16(one) for one in gradients]
        if self._left:
            gradients = [one + left for one, left in zip(gradients, self._left, strict=True)]
        formats = [
            Fields(self.bits, workers, self._words, self._stochastic, self._step, worker) for worker in range(workers)
        ]
        result = np.empty_like(gradients[0])
        left = [np.empty_like(result) for _ in gradients]
        for first in range(0, len(result), formats[0].values):
            here = slice(first, first + formats[0].values)
            chunks = [np.ascontiguousarray(one[here]) for one in gradients]
            biased = max(formats[0].exponent(chunk) for chunk in chunks)
            total = np.zeros(self._words, np.int32)
            for fields, chunk, rest in zip(formats, chunks, left, strict=True):
                words, rest[here] = quantise_fields(fields, chunk, biased, first)
                total += words
            result[here] = dequantise_fields(formats[0], total, len(chunks[0]), biased, mean=True)
        if self._left is not None:
            self._left = left
        return as_bfloat16(result) if self._dtype == "bfloat16" else result


class Rotated:
    """Another way, with values that are rotated before and rotated back after it: a Hadamard transform of each block of
    1,024 values whose signs were drawn (THC, NSDI '24, section 5.1), which spreads large values over their block.
    """

    SIZE = 1024

    def __init__(self, way: Mean) -> None:
        self._way = way

    def __call__(self, gradients: Sequence[Floats]) -> Floats:
        count = len(gradients[0])
        signs = np.random.default_rng(1).choice(np.array([-1, 1], np.float32), -(-count // self.SIZE) * self.SIZE)
        turned = [hadamard(signs * np.pad(one, (0, len(signs) - count))) for one in gradients]
        return (signs * hadamard(self._way(turned)))[:count]


def hadamard(values: Floats) -> Floats:
    """Return each block of Rotated.SIZE values times the orthonormal Hadamard matrix, which is its own inverse."""
    found = values.reshape(-1, Rotated.SIZE)
    half = 1
    while half < Rotated.SIZE:
        pairs = found.reshape(-1, Rotated.SIZE // (2 * half), 2, half)
        low, high = pairs[:, :, 0], pairs[:, :, 1]
        found = np.stack([low + high, low - high], axis=2).reshape(-1, Rotated.SIZE)
        half *= 2
    return (found / np.float32(math.sqrt(Rotated.SIZE))).reshape(-1)


def schemes(workers: int, shapes: Sequence[tuple[int, ...]] = ()) -> dict[str, Mean]:
    """Return the schemes by name. Schemes that keep the part which did not travel are for one training. `shapes` are
    those of the model's parameters.
    """
    made: dict[str, Mean] = {
        "float32": exact,
        "bfloat16, a ring that rounds W - 1 times": ring_in_bfloat16,
        "bfloat16 in 16 bits": InWords("bfloat16", None, workers),
    }
    for bits in (16, 10, 8):
        made[f"float32 in {bits} bits"] = InWords("float32", bits, workers)
        made[f"float32 in {bits} bits, error feedback"] = InWords("float32", bits, workers, feedback=True)
    for bits in (10, 8):
        made[f"float32 in {bits} bits, rotated"] = Rotated(InWords("float32", bits, workers))
        made[f"float32 in {bits} bits, 4 exponents"] = InWords("float32", bits, workers, blocks=4)
        with_rest = InWords("float32", bits, workers, feedback=True)
        made[f"float32 in {bits} bits, rotated, error feedback"] = Rotated(with_rest)
    made["float16, torch's fp16_compress_hook"] = compressed_to_float16
    made["PowerSGD, rank 4"] = PowerSGD(shapes, 4, feedback=False, after=0)
    made["PowerSGD, rank 4, error feedback"] = PowerSGD(shapes, 4)
    return made
