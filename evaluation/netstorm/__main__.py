"""`python -m evaluation.netstorm fig13 .. fig20 | headline`."""

import sys

from evaluation.netstorm import figures
from evaluation.wan.report import Figure, main

NETWORK = ("network",)
FIGURES = {
    "fig13": Figure(figures.fig13, "the systems, static and dynamic", "system", "over_star", NETWORK, 3),
    "fig14": Figure(figures.fig14, "one root: STAR, BKT, MST, FAPT", "topology", "over_star", ("network", "hops"), 3),
    "fig15": Figure(figures.fig15, "1 to 9 roots", "roots", "over_star", NETWORK, 2),
    "fig16": Figure(figures.fig16, "seconds with and without awareness", "awareness", "seconds",
                    ("start", "auxiliary"), 3),
    "fig17": Figure(figures.fig17, "gain of auxiliary paths", "busy_bound", "gain_%",
                    ("network", "assigned", "auxiliary_length"), 2),
    "fig18": Figure(figures.fig18, "ablation: lite, std, all", "system", "over_star", NETWORK, 3),
    "fig19": Figure(figures.fig19, "model and cluster sizes", "x", "over_star", ("system",), 1),
    "fig20": Figure(figures.fig20, "hyperparameters", "value", "over_star", ("parameter",), 1),
}  # fmt: skip

sys.exit(main("netstorm", FIGURES, figures.headline))
