"""Ways to the mean of the workers' gradients: each takes one float32 array a worker and gives the mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from evaluation.hosts.numbers import dequantise_fields, quantise_fields
from p4src.protocol import data_values
from worker_agent import fixedpoint
from worker_agent.fields import Fields, bits_of, is_stochastic
from worker_agent.fixedpoint import Floats

Mean = Callable[[Sequence[Floats]], Floats]
WORDS = data_values(256)


def as_bfloat16(values: Floats) -> Floats:
    """Rounded to bfloat16."""
    rounded: Floats = torch.from_numpy(np.ascontiguousarray(values)).bfloat16().float().numpy()
    return rounded


def exact(gradients: Sequence[Floats]) -> Floats:
    """In float64, rounded once."""
    return (np.sum([one.astype(np.float64) for one in gradients], axis=0) / len(gradients)).astype(np.float32)


def ring_in_bfloat16(gradients: Sequence[Floats]) -> Floats:
    """What gloo and NCCL do to bfloat16 tensors: each of W - 1 additions of a ring is rounded, each part of the tensor
    beginning at another worker; then the division."""
    total = np.empty_like(gradients[0])
    for part, piece in enumerate(np.array_split(np.arange(len(total)), len(gradients))):
        order = [gradients[(part + hop) % len(gradients)][piece] for hop in range(len(gradients))]
        sum_ = as_bfloat16(order[0])
        for one in order[1:]:
            sum_ = as_bfloat16(sum_ + as_bfloat16(one))
        total[piece] = sum_
    return as_bfloat16(total / np.float32(len(gradients)))


class InWords:
    """As the engine sends it, by its own code, packet by packet. dtype: of the tensor: bfloat16 is rounded before and
    after. feedback: what does not travel is added to the next."""

    def __init__(self, dtype: str, bits: int | None, workers: int, *, feedback: bool = False) -> None:
        self.bits, self._dtype = bits_of(dtype, bits, workers), dtype
        self._stochastic = is_stochastic(dtype, self.bits)
        self._left: list[Floats] | None = [] if feedback else None
        self._step = 0

    def __call__(self, gradients: Sequence[Floats]) -> Floats:
        self._step += 1
        workers = len(gradients)
        if self._dtype == "bfloat16":
            gradients = [as_bfloat16(one) for one in gradients]
        if self._left:
            gradients = [one + left for one, left in zip(gradients, self._left, strict=True)]
        formats = [Fields(self.bits, workers, WORDS, self._stochastic, self._step, worker) for worker in range(workers)]
        result = np.empty_like(gradients[0])
        left = [np.empty_like(result) for _ in gradients]
        for first in range(0, len(result), formats[0].values):
            here = slice(first, first + formats[0].values)
            chunks = [np.ascontiguousarray(one[here]) for one in gradients]
            biased = max(fixedpoint.exponent(chunk) for chunk in chunks)
            total = np.zeros(WORDS, np.int32)
            for fields, chunk, rest in zip(formats, chunks, left, strict=True):
                words, rest[here] = quantise_fields(fields, chunk, biased, first)
                total += words
            result[here] = dequantise_fields(formats[0], total, len(chunks[0]), biased, mean=True)
        if self._left is not None:
            self._left = left
        return as_bfloat16(result) if self._dtype == "bfloat16" else result


def schemes(workers: int) -> dict[str, Mean]:
    """By name. Those that keep what did not travel are for one training."""
    made: dict[str, Mean] = {
        "float32": exact,
        "bfloat16, a ring that rounds W - 1 times": ring_in_bfloat16,
        "bfloat16 in 16 bits": InWords("bfloat16", None, workers),
    }
    for bits in (16, 10, 8):
        made[f"float32 in {bits} bits"] = InWords("float32", bits, workers)
        made[f"float32 in {bits} bits, error feedback"] = InWords("float32", bits, workers, feedback=True)
    return made
