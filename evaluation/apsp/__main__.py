"""`python -m evaluation.apsp table3 | fig4 | fig5 | fig6 | laws | scaling | headline`."""

import sys

from evaluation.apsp import figures
from evaluation.wan.report import Figure, main

SERIES = ("network", "delay", "scheme")
FIGURES = {
    "table3": Figure(figures.table3, "seconds per epoch by placement", "model", "apsp", ("network", "delay"), 3),
    "fig4": Figure(figures.fig4, "table3, a row per bar", "model", "seconds", SERIES, 3),
    "fig5": Figure(figures.fig5, "placements over the least bandwidth", "least_mbps", "seconds", SERIES, 2),
    "fig6": Figure(figures.fig6, "routings over the least bandwidth", "least_mbps", "seconds", SERIES, 2),
    "laws": Figure(figures.laws, "other readings of bandwidth by distance", "law", "less_than_random_%",
                   ("network", "delay"), 5),
    "scaling": Figure(figures.scaling, "computation over the number of nodes", "n", "seconds", ("algorithm",), 1),
}

sys.exit(main("apsp", FIGURES, figures.headline))
