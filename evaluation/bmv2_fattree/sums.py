"""Checks the sums that a training got through the switches, and computes the effect of rounding alone on a training.

Losses cannot show whether sums are right: each step builds on the last one, and training amplifies a difference in the
last bit with every step. So every all-reduce of the training is checked by itself. Each worker keeps its gradients and
the results; when the training is over (its times are measured) the workers compute the exact sums over gloo, compare
value by value with the bound of `worker_agent.fixedpoint`, and compare the bits with each other's.
"""

# Without "from __future__ import annotations", because torch reads the annotations of a communication hook.

import hashlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from scipy.ndimage import maximum_filter1d

from evaluation.bmv2_fattree.results import Checked
from p4src.protocol import PROTOCOL
from worker_agent.fixedpoint import FLOAT32_BITS, fraction_bits, mixed_bits

Floats = npt.NDArray[np.float64]
Hook = Callable[[Any, dist.GradBucket], torch.futures.Future[torch.Tensor]]

MOST_BYTES = 256 << 20
"""Most bytes that a worker keeps; later steps are not checked, and the report says how many those are."""
SHOWN = 8
NEIGHBOURS = 2 * PROTOCOL.targets["v1model"].values_per_packet - 1
"""Number of values around a value, among which are all those in its packet, with which it shares its exponent."""


def steps_of(biggest: npt.NDArray[np.float32], nodes: int, mixed: bool = False) -> Floats:
    """Return, by value, the largest step to which fixed point may have rounded it: 2^(e - F) of its packet.

    Args:
        biggest: for each value, the largest magnitude of a finite value in the contributions of the nodes.
        nodes: number of contributions.
        mixed: some values are not finite, and the finite ones in the same chunks have fewer bits.
    """
    bits = mixed_bits(nodes) if mixed else fraction_bits(nodes)
    around = maximum_filter1d(biggest.astype(np.float64), size=NEIGHBOURS, mode="constant", cval=0.0)
    result: Floats = np.where(around > 0, np.ldexp(1.0, np.frexp(around)[1] - bits), 0.0)
    return result


def bounds(biggest: npt.NDArray[np.float32], magnitudes: Floats, nodes: int, ranks: int, mixed: bool = False) -> Floats:
    """Return the allowed error of each value of a mean over nodes x ranks: fixed point's W/2 steps, and float32's
    rounding of the sum, of the mean, and of the sums of each node's ranks before.

    Args:
        biggest: as in `steps_of`.
        magnitudes: for each value, the sum of the absolute values of all finite contributions.
        nodes: number of nodes.
        ranks: number of ranks of a node.
        mixed: as in `steps_of`.
    """
    quantisation = nodes / 2 * steps_of(biggest * np.float32(ranks), nodes, mixed)
    rounding = (magnitudes + quantisation) * 2.0**-FLOAT32_BITS + 2.0**-149
    result: Floats = (quantisation + (2 + ranks - 1) * rounding) / (nodes * ranks) + 2.0**-149
    return result


def errors(result: npt.NDArray[np.float32], exact: Floats, allowed: Floats) -> Floats:
    """Return, by value, the error as a fraction of the allowed one; above 1 it is wrong.

    Where the exact value is not finite, the result must not be finite either.
    """
    finite = np.isfinite(exact)
    with np.errstate(invalid="ignore"):
        share: Floats = np.abs(result.astype(np.float64) - exact) / allowed
    share[finite & ~np.isfinite(result)] = np.inf
    share[~finite] = np.where(np.isfinite(result[~finite]), np.inf, 0.0)
    return share


class Recorder:
    """A wrapper of a communication hook that keeps each bucket's gradients and result."""

    def __init__(self, hook: Hook, most_bytes: int = MOST_BYTES) -> None:
        self._inner, self._room = hook, most_bytes
        self._kept: list[list[torch.Tensor]] = []
        self._unchecked = 0

    def hook(self, state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        given = bucket.buffer()
        needed = 2 * given.numel() * given.element_size()
        if needed > self._room:
            self._unchecked += 1
            return self._inner(state, bucket)
        self._room -= needed
        kept = [given.detach().cpu().clone()]
        self._kept.append(kept)  # The order of the calls is the same on all ranks.

        def keep(done: torch.futures.Future[Any]) -> torch.Tensor:
            value = done.value()
            got: torch.Tensor = value[0] if isinstance(value, list) else value
            kept.append(got.detach().cpu().clone())
            return got

        return self._inner(state, bucket).then(keep)

    def check(self, nodes: int, ranks: int) -> Checked:
        """Check all buckets when the training is over; all ranks must call it, over the default process group."""
        found = Checked(unchecked=self._unchecked)
        for number, (given, got) in enumerate(self._kept):
            share = self._shares(given, got, nodes, ranks)
            worst = float(share.max(initial=0.0))
            found.buckets += 1
            found.largest = max(found.largest, worst) if np.isfinite(worst) else float("inf")
            same = self._identical(got)
            if worst <= 1.0 and same:
                continue
            found.wrong_buckets += 1
            if len(found.wrong) < SHOWN:
                many = int((share > 1.0).sum())
                what = f"{many} of {len(share)} values, by up to {worst:.3g} times the bound" if many else ""
                differ = "" if same else "not the same bits on all workers"
                found.wrong.append(f"all-reduce {number}: " + "; ".join(filter(None, (what, differ))))
        return found

    @staticmethod
    def _shares(given: torch.Tensor, got: torch.Tensor, nodes: int, ranks: int) -> Floats:
        exact, finite = given.double(), torch.nan_to_num(given, 0.0, 0.0, 0.0)
        magnitudes, biggest = finite.double().abs(), finite.float().abs()
        dist.all_reduce(exact)
        dist.all_reduce(magnitudes)
        dist.all_reduce(biggest, dist.ReduceOp.MAX)
        mixed = not bool(torch.isfinite(exact).all())
        allowed = bounds(biggest.numpy(), magnitudes.numpy(), nodes, ranks, mixed)
        return errors(got.float().numpy(), exact.numpy() / (nodes * ranks), allowed)

    @staticmethod
    def _identical(got: torch.Tensor) -> bool:
        digest = int.from_bytes(hashlib.sha256(got.numpy().tobytes()).digest()[:7], "big")
        both = torch.tensor([digest, -digest])
        dist.all_reduce(both, dist.ReduceOp.MAX)
        return int(both[0]) == -int(both[1])


def rounded_hook(seed: int, nodes: int) -> Hook:
    """Return a hook that averages a bucket over gloo, with errors like those of fixed point.

    Each of `nodes` contributions has an error that is uniform within half a step; the errors are the same on all ranks,
    drawn with `seed`. gloo's own errors are not among them: float32's rounding in its ring is part of the difference
    between a training over gloo and one through the switches.
    """
    drawn = np.random.default_rng(seed)

    def hook(_: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        # It is drawn here, not below: buckets are called in the same order on all ranks, and completed in any order.
        noise = np.clip(drawn.standard_normal(buffer.numel()) * np.sqrt(nodes / 12), -nodes / 2, nodes / 2)
        exact, biggest = buffer.double(), buffer.detach().abs()
        both = [dist.all_reduce(exact, async_op=True), dist.all_reduce(biggest, dist.ReduceOp.MAX, async_op=True)]

        def perturb(_done: torch.futures.Future[Any]) -> torch.Tensor:
            exact.add_(torch.from_numpy(noise * steps_of(biggest.numpy(), nodes)))
            return buffer.copy_(exact.div_(dist.get_world_size()))

        return torch.futures.collect_all([work.get_future() for work in both]).then(perturb)

    return hook
