"""Benchmarks: the simulator's speed on CREW's training, the growth of CREW's algorithms with n, and CREW's
sensitivity.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np

from controlplane.planner.strategies.wan.crew import algorithm as crew
from evaluation.crew.figures import VARIANTS, WORKERS, WORKLOADS, compute_times, every_seed
from evaluation.crew.training import Setup, Training
from evaluation.wan.report import Row
from evaluation.wan.workloads import bandwidths


def speed(trials: int) -> list[Row]:
    """Return CPU seconds of one core for 60 workers, 50 simulated seconds, p = 5 (the default setting), seed by
    seed.
    """
    rows = []
    for network, times in WORKLOADS:
        for schedule in ("FL", "FS"):
            seconds, flows, rounds = [], [], []
            for seed in range(trials):
                rng = np.random.default_rng([seed, WORKERS])
                matrix = bandwidths(network, WORKERS, rng)
                run = Training(Setup(schedule=schedule), matrix, compute_times(times, WORKERS, rng))
                begin = time.process_time()
                rounds.append(run.run(50.0).mean_rounds)
                seconds.append(time.process_time() - begin)
                flows.append(run.sim.flows)
            row: Row = {"workload": f"{network}+{times}", "schedule": schedule, "rounds": float(np.mean(rounds))}
            row |= {"flows": int(np.mean(flows)), "cpu_s": float(np.mean(seconds)), "worst_s": max(seconds)}
            rows.append({**row, "us_per_flow": 1e6 * float(np.sum(seconds)) / float(np.sum(flows))})
    return rows


def _least_ms(work: Callable[[], object], repeat: int = 7) -> float:
    """Return the milliseconds of the fastest of several runs, since other load only adds to the time."""
    best = float("inf")
    for _ in range(repeat):
        begin = time.process_time()
        work()
        best = min(best, time.process_time() - begin)
    return 1000 * best


def complexity(trials: int) -> list[Row]:
    """Return CPU milliseconds over n at p = n / 12, and the growth since the last n as an exponent of n.

    It has LP (2) with the check of its n x n matrix; Algorithm 1; Algorithm 2 from the default splitting (P = N) to a
    group's. They run for k = 10^4 and 10^6 chunks: neither may depend on k.
    """
    rows: list[Row] = []
    before: dict[str, tuple[int, float]] = {}
    for n in (30, 60, 120, 240, 480, 960):
        spent: dict[str, list[float]] = {}
        for seed in range(trials):
            rng = np.random.default_rng([seed, n])
            matrix = bandwidths("N2", n, rng)
            group = rng.choice(n, max(2, n // 12), replace=False).tolist()
            weights = crew.optimal_split(matrix, group).weights
            everyone = crew.optimal_split(matrix, list(range(n))).weights
            work: dict[str, Callable[[], object]] = {"LP (2)": partial(crew.optimal_split, matrix, group)}
            for k, name in ((10**4, "k=1e4"), (10**6, "k=1e6")):
                work[f"Algorithm 1, {name}"] = partial(crew.split_model, weights, k)
                work[f"Algorithm 2, {name}"] = partial(crew.rearrange, weights, crew.split_model(everyone, k))
            for algorithm, call in work.items():
                spent.setdefault(algorithm, []).append(_least_ms(call))
        for algorithm, values in spent.items():
            ms = float(np.median(values))
            last = before.get(algorithm)
            grown = np.log(ms / last[1]) / np.log(n / last[0]) if last else float("nan")
            rows.append({"algorithm": algorithm, "n": n, "ms": ms, "exponent": float(grown)})
            before[algorithm] = (n, ms)
    return sorted(rows, key=lambda row: row["algorithm"])


def sensitivity(trials: int) -> list[Row]:
    """Return the rounds of every variant on N2, and the ratios of CREW's to A2A's and OPR's, by compute times and
    delays.

    compute: the distribution of compute times (`uniform`: on 0.05 .. 0.2 s; `own pace`: every worker has one, drawn
    like that). delay_s: added to every step, as control messages and latency would.
    """
    cases = [("T1", 0.0), ("T2", 0.0), ("uniform", 0.0), ("own pace", 0.0), ("T1", 0.1), ("T2", 0.1), ("T2", 0.3)]
    settings = list(product((5, 10), cases))
    calls = [partial(_run, replace(setup, p=p), *case) for p, case in settings for _, setup in VARIANTS]
    results = [float(np.mean(values)) for values in every_seed(trials, calls)]
    rows = []
    for k, (p, (compute, delay)) in enumerate(settings):
        names = (name for name, _ in VARIANTS)
        means = dict(zip(names, results[k * len(VARIANTS) : (k + 1) * len(VARIANTS)], strict=True))
        row: Row = {"p": p, "compute": compute, "delay_s": delay}
        row["over A2A"] = means["CREW (N-A, FCFS)"] / means["A2A"]
        row["over OPR"] = means["CREW (N-A, FCFS)"] / means["OPR (E-D, FS)"]
        row["over CREW (E-D, FS)"] = means["CREW (N-A, FCFS)"] / means["CREW (E-D, FS)"]
        rows.append({**row, **means})
    return rows


def _run(setup: Setup, compute: str, delay: float, seed: int) -> float:
    rng = np.random.default_rng([seed, WORKERS])
    matrix = bandwidths("N2", WORKERS, rng)
    own = np.random.default_rng([seed, WORKERS, 1])
    pace = own.uniform(0.05, 0.2, WORKERS)

    def draw(worker: int) -> float:
        return float(own.uniform(0.05, 0.2) if compute == "uniform" else pace[worker])

    times = compute_times(compute, WORKERS, rng) if compute in ("T1", "T2") else draw
    return Training(setup, matrix, lambda worker: times(worker) + delay).run(50.0).mean_rounds
