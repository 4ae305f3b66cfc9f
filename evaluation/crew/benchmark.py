"""The simulator's speed on CREW's training."""

from __future__ import annotations

import time

import numpy as np

from evaluation.crew.figures import WORKERS, WORKLOADS, compute_times
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
