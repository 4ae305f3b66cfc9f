"""`inart allreduce`: all-reduces made-up tensors and prints how fast and how exact that was.

Every worker can compute the exact sum without asking the others: worker i has s_i * r, with the same random vector r
everywhere and a random whole number s_i of its own. Both have half of the format's bits, so each product is exact.
"""

from __future__ import annotations

import hashlib
import statistics
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from controlplane.common.numbers import short
from p4src.protocol import data_values
from worker_agent import fixedpoint
from worker_agent.agent import Agent
from worker_agent.collectives import Operation, collective
from worker_agent.errors import AgentError
from worker_agent.fields import Fields, bits_of, field_bits, is_stochastic
from worker_agent.fixedpoint import BIAS, fraction_bits
from worker_agent.operands import ITEM_BYTES

HALF_BITS = {"float32": 12, "float16": 5, "bfloat16": 4}
"""Half of the format's significant bits, the hidden one included."""

SMALLEST = {"float32": 2.0**-149, "float16": 2.0**-24, "bfloat16": 2.0**-133}


@dataclass(frozen=True)
class Trial:
    """The all-reduces of a trial.

    Attributes:
        nbytes: bytes of the tensor.
        repeat: number of all-reduces, after a small one that gets all workers to the start.
        timeout: seconds to wait for the job, and for each all-reduce.
        bits: bits that each value travels in; None: as many as its type has.
    """

    nbytes: int
    repeat: int = 5
    dtype: str = "float32"
    op: Operation = "sum"
    seed: int = 0
    timeout: float = 600.0
    bits: int | None = None


@dataclass(frozen=True)
class TrialResult:
    """The figures of one worker.

    Attributes:
        seconds: the time of each all-reduce.
        algorithm_mbps: tensor bits over the mean of these times.
        measured_rate_mbps: wire bits of the chunks over the time in which they were sent and answered, on all trees
            together.
        planned_rate_mbps: the rate that the plan allows.
        error: largest distance of a value from the exact result.
        error_bound: the distance that the number format allows.
        digest: a digest of the result's bytes, the same on all workers.
    """

    node: str
    workers: int
    epoch: int
    dtype: str
    op: str
    nbytes: int
    seconds: list[float]
    algorithm_mbps: float
    measured_rate_mbps: float
    planned_rate_mbps: float
    error: float
    error_bound: float
    digest: str
    resent: int
    cpu_seconds: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        typical = statistics.mean(self.seconds)
        times = ", ".join(f"{seconds:.3f}" for seconds in self.seconds)
        return "\n".join(
            (
                f"{self.node}: {self.op} of {self.nbytes} bytes {self.dtype} over {self.workers} workers, "
                f"epoch {self.epoch}",
                f"  time                {typical:.3f} s ({times})",
                f"  algorithm bandwidth {short(self.algorithm_mbps)} Mbit/s",
                f"  wire rate           {short(self.measured_rate_mbps)} Mbit/s "
                f"of {short(self.planned_rate_mbps)} planned",
                f"  error               {self.error:.3g} (bound {self.error_bound:.3g})",
                f"  resent              {self.resent} packets; I/O thread {self.cpu_seconds:.2f} s CPU",
                f"  result              {self.digest}",
            )
        )


class WrongResult(AgentError):
    """The result is further from the exact sum than the number format allows."""


def encode(values: NDArray[np.float64], dtype: str) -> NDArray[Any]:
    """Return values as an array of the format; numpy has no bfloat16, which is the upper halves of float32 (exact for
    these values).
    """
    if dtype == "bfloat16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(dtype)


def decode(array: NDArray[Any], dtype: str) -> NDArray[np.float64]:
    """Return the values of an array that `encode` made."""
    if dtype == "bfloat16":
        return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return array.astype(np.float64)


def make_data(trial: Trial, workers: int, index: int) -> tuple[NDArray[Any], NDArray[np.float64], float]:
    """Return this worker's data, the exact sum (or mean), and the bound of the result's error."""
    elements = max(1, trial.nbytes // ITEM_BYTES[trial.dtype])
    half = HALF_BITS[trial.dtype]
    common = np.random.default_rng(trial.seed)
    scales = common.integers(1, 1 << half, workers) * common.choice((-1, 1), workers)
    # Magnitudes over 2^-12..1: chunks differ in their exponents, and not every value survives quantising exactly.
    vector = common.integers(1 - (1 << half), 1 << half, elements).astype(np.float64)
    vector *= np.exp2(-half - common.integers(0, 13, elements) - float(half))
    data = encode(vector * scales[index], trial.dtype)
    exact = vector * scales.sum()
    largest = float(np.abs(vector).max()) * int(np.abs(scales).max())
    bits = bits_of(trial.dtype, trial.bits, workers)
    kept = fraction_bits(workers) if bits == 32 else field_bits(bits, workers)
    one = np.array([largest], np.float32)
    exponent = (fixedpoint.exponent(one) if bits == 32 else Fields(bits, workers, 1).exponent(one)) - BIAS
    steps = workers if is_stochastic(trial.dtype, bits) else workers / 2
    bound = float(np.ldexp(steps, exponent - kept))
    if collective(trial.op).mean:
        exact, bound = exact / workers, bound / workers
    # The result's own rounding: to float32, for a mean again, and to the tensor's format.
    unit = 2.0 ** (1 - 2 * half)
    bound += 3 * unit * (float(np.abs(exact).max()) + bound) / 2 + SMALLEST[trial.dtype]
    return data, exact, bound


def since(before: float, after: float) -> float:
    """Return the growth of a counter, or `after` where a migration began the counter anew."""
    return after - before if after >= before else after


def run(agent: Agent, trial: Trial) -> TrialResult:
    """Run a trial. Raise AgentError when an all-reduce fails, WrongResult when its result is wrong."""
    config = agent.wait_ready(trial.timeout)
    data, exact, bound = make_data(trial, len(config.workers), config.index)
    agent.allreduce(np.ones(data_values(config.values_per_packet), np.float32), timeout=trial.timeout)
    before = agent.stats()
    seconds = []
    result = data
    for _ in range(trial.repeat):
        result = data.copy()
        work = agent.allreduce_async(result, trial.op, dtype=trial.dtype, bits=trial.bits, seed=trial.seed)
        work.wait(trial.timeout)
        seconds.append(work.seconds)
    after = agent.stats()
    error = float(np.abs(decode(result, trial.dtype) - exact).max())
    if not error <= bound:
        raise WrongResult(f"{config.node}: the result is off by {error:.4g}, more than the bound of {bound:.4g}")
    return TrialResult(
        node=config.node,
        workers=len(config.workers),
        epoch=config.epoch,
        dtype=trial.dtype,
        op=str(trial.op),
        nbytes=data.nbytes,
        seconds=seconds,
        algorithm_mbps=data.nbytes * 8e-6 / statistics.mean(seconds),
        measured_rate_mbps=after.measured_mbps,
        planned_rate_mbps=sum(tree.rate_mbps for tree in config.worker_trees),
        error=error,
        error_bound=bound,
        digest=hashlib.sha256(result.tobytes()).hexdigest()[:16],
        resent=int(since(before.resent, after.resent)),
        cpu_seconds=since(before.cpu_seconds, after.cpu_seconds),
    )
