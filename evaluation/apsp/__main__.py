"""`python -m evaluation.apsp table3 | fig4 | fig5 | fig6 | headline`."""

import sys

from evaluation.apsp import figures
from evaluation.wan.report import Figure, main

TABLE = Figure(figures.table3, "seconds per epoch by placement (fig4 draws table3)", "model", "apsp",
               ("network", "delay"), 3)  # fmt: skip
SERIES = ("network", "delay", "scheme")
FIGURES = {
    "table3": TABLE,
    "fig4": TABLE,
    "fig5": Figure(figures.fig5, "placements over the least bandwidth", "least_mbps", "seconds", SERIES, 2),
    "fig6": Figure(figures.fig6, "routings over the least bandwidth", "least_mbps", "seconds", SERIES, 2),
}

sys.exit(main("apsp", FIGURES, figures.headline))
