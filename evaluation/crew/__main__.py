"""The command `python -m evaluation.crew run | fig3 | fig4 .. fig11 | speed | headline`."""

import sys

from evaluation.crew import benchmark, figures
from evaluation.wan.panels import panels
from evaluation.wan.report import Figure, main

ROUNDS = panels("workload", label="rounds per worker")
FIGURES = {
    "fig4": Figure(figures.fig4, "seconds of one partial reduce", "scheme", "mean", (), 30,
                   panels("network", "p", label="seconds", as_bars=True, log=True)),
    "fig5": Figure(figures.fig5, "rounds in 50 s: A2A, OPR, CREW", "workload", "mean", ("scheme",), 10,
                   panels("p", label="rounds per worker in 50 s", as_bars=True, log=True)),
    "fig6": Figure(figures.fig6, "blocking and non-blocking scatter", "p", "mean", ("scatter",), 5, ROUNDS),
    "fig7": Figure(figures.fig7, "flow schedules", "p", "mean", ("schedule",), draw=ROUNDS),
    "fig8": Figure(figures.fig8, "rounds in 50 s with faulty connections", "faulty", "mean", ("failover", "p"), 3,
                   ROUNDS),
    "fig9": Figure(figures.fig9, "longer compute times, 100 s", "compute", "mean", ("p",), draw=ROUNDS),
    "fig10": Figure(figures.fig10, "larger models, 100 s", "model", "mean", ("p",), 5, ROUNDS),
    "fig11": Figure(figures.fig11, "wrong bandwidth estimates: seconds of a reduce", "noise", "mean", ("split",),
                    draw=panels("workload", "p", label="seconds of a reduce")),
    "speed": Figure(benchmark.speed, "the simulator: CPU seconds of a 60-worker, 50-second run", "workload", "cpu_s",
                    ("schedule",), 3, panels(as_bars=True)),
}  # fmt: skip

if sys.argv[1:2] == ["run"]:  # `run` trains over an emulated network and needs root, unlike the figures.
    from evaluation.wan.train import main as run

    sys.exit(run("crew", sys.argv[2:]))
if sys.argv[1:2] == ["fig3"]:
    from evaluation.crew.fig3 import main as fig3

    sys.exit(fig3(sys.argv[2:]))
OTHERS = {"run": "training across an emulated WAN (root)", "fig3": "real training: rounds to an accuracy"}
sys.exit(main("crew", FIGURES, figures.headline, others=OTHERS))
