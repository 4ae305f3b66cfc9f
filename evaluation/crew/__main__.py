"""`python -m evaluation.crew fig4 .. fig11 | speed | complexity | sensitivity | headline`."""

import sys

from evaluation.crew import benchmark, figures
from evaluation.wan.report import Figure, main

FIGURES = {
    "fig4": Figure(figures.fig4, "seconds of one partial reduce", "scheme", "mean", ("network", "p"), 30),
    "fig5": Figure(figures.fig5, "rounds in 50 s: A2A, OPR, CREW", "scheme", "mean", ("p", "workload")),
    "fig6": Figure(figures.fig6, "blocking and non-blocking scatter", "p", "mean", ("workload", "scatter")),
    "fig7": Figure(figures.fig7, "flow schedules", "p", "mean", ("workload", "schedule")),
    "fig8": Figure(figures.fig8, "rounds in 50 s with faulty connections", "faulty", "mean",
                   ("workload", "p", "failover")),
    "fig9": Figure(figures.fig9, "longer compute times, 100 s", "compute", "mean", ("workload", "p")),
    "fig10": Figure(figures.fig10, "larger models, 100 s", "model", "mean", ("workload", "p")),
    "fig11": Figure(figures.fig11, "wrong bandwidth estimates: seconds of a reduce", "noise", "mean",
                    ("workload", "p", "split")),
    "speed": Figure(benchmark.speed, "the simulator: CPU seconds of a 60-worker, 50-second run", "workload", "cpu_s",
                    ("schedule",), 3),
    "complexity": Figure(benchmark.complexity, "milliseconds of LP (2), Algorithms 1 and 2 over n", "n", "ms",
                         ("algorithm",), 3),
    "sensitivity": Figure(benchmark.sensitivity, "CREW's gain on N2 by compute times and delays", "compute", "over A2A",
                          ("p", "delay_s"), 5),
}  # fmt: skip

sys.exit(main("crew", FIGURES, figures.headline))
