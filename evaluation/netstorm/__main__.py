"""The command `python -m evaluation.netstorm run | fig13 .. fig20 | headline`."""

import sys

from evaluation.netstorm import figures
from evaluation.wan.panels import panels
from evaluation.wan.report import Figure, main

NETWORK = ("network",)
SPEED = "times STAR's speed"
BARS = panels(label=SPEED, as_bars=True)
FIGURES = {
    "fig13": Figure(figures.fig13, "the systems, static and dynamic", "system", "over_star", NETWORK, 3, BARS),
    "fig14": Figure(figures.fig14, "one root: STAR, BKT, MST, FAPT", "topology", "over_star", NETWORK, 3,
                    panels("hops", label=SPEED, as_bars=True)),
    "fig15": Figure(figures.fig15, "1 to 9 roots", "roots", "over_star", NETWORK, 2, panels(label=SPEED)),
    "fig16": Figure(figures.fig16, "seconds with and without awareness", "awareness", "seconds", ("start",), 3,
                    panels("paths", label="seconds of an iteration", as_bars=True)),
    "fig17": Figure(figures.fig17, "gain of auxiliary paths", "length", "gain_%", ("bound",), 2,
                    panels("network", "assigned", label="% faster")),
    "fig18": Figure(figures.fig18, "ablation: lite, std, all", "system", "over_star", NETWORK, 3, BARS),
    "fig19a": Figure(figures.fig19a, "model sizes", "model", "seconds", ("system",), 1,
                     panels(label="seconds of an iteration", as_bars=True)),
    "fig19b": Figure(figures.fig19b, "cluster sizes", "nodes", "throughput", (), 2,
                     panels(label="samples per second, 5 nodes = 1")),
    "fig20": Figure(figures.fig20, "hyperparameters", "value", "over_star", (), 1, panels("parameter", label=SPEED)),
}  # fmt: skip

if sys.argv[1:2] == ["run"]:  # `run` trains over an emulated network and needs root, unlike the figures.
    from evaluation.wan.train import main as run

    sys.exit(run("netstorm", sys.argv[2:]))
sys.exit(main("netstorm", FIGURES, figures.headline, others={"run": "training across an emulated WAN (root)"}))
