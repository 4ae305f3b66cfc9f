"""Measures how long plans take and how large their linear programs are."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from controlplane.planner.evaluate import bound, evaluate
from controlplane.planner.generators import fattree
from controlplane.planner.job import place_job
from controlplane.planner.routing import Network
from controlplane.planner.strategies import get_strategy
from controlplane.planner.strategies.fabric.bounds import cheap_bound
from controlplane.planner.strategies.fabric.capacity import build_program
from controlplane.planner.strategies.fabric.inart import TOLERANCE


class Target(NamedTuple):
    """A fat-tree of k pods whose links between switches have a `divisor`-th of a server's rate, a job on it, and the
    seconds that the whole plan may take.

    Attributes:
        kinds: 1 to measure the homogeneous fat-tree alone, 2 to measure also one with links of 10 to 30 Mbit/s.
    """

    k: int
    workers: int
    parameter_servers: int
    seconds: float
    divisor: float = 1.0
    kinds: int = 2


TARGETS: tuple[tuple[Any, ...], ...] = (
    Target(6, 50, 4, 0.2),
    Target(8, 120, 8, 1.0),
    Target(16, 1008, 16, 4.0),
    Target(16, 1008, 16, 8.0, 16.0, 1),
    Target(32, 8128, 64, 60.0, 1.0, 1),
)
WORKERS_AND_SERVERS = {4: (12, 2), 6: (50, 4), 8: (120, 8)}  # workers and parameter servers of the fat-tree of k pods


@dataclass(frozen=True)
class Timing:
    """The times of one instance.

    Attributes:
        seconds: time from loaded inputs to the integer, routed plan, the least of the repetitions.
        cpu_seconds: CPU time of the same repetition.
        divisor: as in Target.
        memory_mb: the most memory that the process has had until then, which is an upper bound of the instance's
            own.
        rows, columns, nonzeros: size of the program without links.
        bound_mbps: the bound of section 7.
    """

    k: int
    workers: int
    parameter_servers: int
    scenario: str
    seconds: float
    cpu_seconds: float
    target_seconds: float
    trees: int
    rate_mbps: float
    bound_mbps: float
    rows: int
    columns: int
    nonzeros: int
    divisor: float
    memory_mb: float


def measure_times(repetitions: int, progress: Any = None) -> list[Timing]:
    """Measure homogeneous and heterogeneous (10 to 30 Mbit/s) fat-trees of TARGETS."""
    results = []
    for k, workers, servers, target, divisor, kinds in (Target(*each) for each in TARGETS):
        for scenario, spread in (("homogeneous", None), ("heterogeneous", (10.0, 30.0)))[:kinds]:
            topology = fattree(k, heterogeneous=spread, seed=1, oversubscription=divisor)
            job = place_job(topology, workers, servers, seed=1)
            times = []
            for _ in range(repetitions):
                begin, cpu = time.perf_counter(), time.process_time()
                plan = get_strategy("inart")(topology, job)
                times.append((time.perf_counter() - begin, time.process_time() - cpu))
            memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            evaluation = evaluate(plan, topology)
            program = build_program(Network(topology), job)
            seconds, cpu = min(times)
            sizes = len(program.rows), program.columns, program.nonzeros
            rates = evaluation.rate_mbps, evaluation.bound_mbps
            result = Timing(
                k, workers, servers, scenario, seconds, cpu, target, len(plan.trees), *rates, *sizes, divisor, memory
            )
            results.append(result)
            if progress is not None:
                progress(result)
    return results


def time_line(timing: Timing) -> str:
    return (
        f"k={timing.k:<3}W={timing.workers:<5}S={timing.parameter_servers:<3} links/{timing.divisor:<3g}"
        f"{timing.scenario:<14}{timing.seconds:>8.3f} s (cpu {timing.cpu_seconds:.3f}, target "
        f"{timing.target_seconds:g}) {timing.memory_mb:>5.0f} MB  "
        f"{timing.trees:>4} trees  {timing.rate_mbps:.4f} of {timing.bound_mbps:.4f} Mbit/s  "
        f"program {timing.rows} rows x {timing.columns} columns, {timing.nonzeros} nonzeros"
    )


def times_json(timings: list[Timing]) -> dict[str, Any]:
    return {"cores": os.cpu_count(), "load": os.getloadavg()[0], "instances": [asdict(timing) for timing in timings]}


@dataclass(frozen=True)
class Binding:
    """`inart` on one instance, beside the bounds; rates are the evaluator's, for the integer plan.

    Attributes:
        limit_mbps: the best cheap bound, which `what` names.
        bound_mbps: bound of switches, parameter servers and workers' links alone.
        gap: 1 - rate / limit.
        binding: whether links between switches limit the rate.
        seconds: CPU time.
    """

    k: int
    workers: int
    divisor: float
    scenario: str
    seed: int
    rate_mbps: float
    limit_mbps: float
    what: str
    bound_mbps: float
    gap: float
    binding: bool
    trees: int
    seconds: float


def measure_binding(k: int, divisor: float, scenario: str, seed: int) -> Binding:
    """Compute one plan and its bounds."""
    spread = (10.0, 30.0) if scenario == "heterogeneous" else None
    topology = fattree(k, heterogeneous=spread, seed=seed, oversubscription=divisor)
    workers, servers = WORKERS_AND_SERVERS[k]
    job = place_job(topology, workers, servers, seed=seed)
    begin = time.process_time()
    plan = get_strategy("inart")(topology, job)
    seconds = time.process_time() - begin
    rate, slack, limit = plan.rate_mbps, bound(topology, job), cheap_bound(topology, job)
    return Binding(
        k, workers, divisor, scenario, seed, rate, limit.mbps, limit.what, slack, max(0.0, 1 - rate / limit.mbps),
        rate < slack * (1 - TOLERANCE), len(plan.trees), seconds,
    )  # fmt: skip


def binding_line(found: Binding) -> str:
    return (
        f"k={found.k:<3}W={found.workers:<5}links/{found.divisor:<4g}{found.scenario:<14} seed {found.seed:<3}"
        f"{found.rate_mbps:>8.4f} of {found.limit_mbps:.4f} (without links {found.bound_mbps:.4f}) "
        f"gap {100 * found.gap:>6.3f} %  {found.trees:>4} trees {found.seconds:>7.2f} s cpu  {found.what}"
    )
