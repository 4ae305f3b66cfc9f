"""`python -m evaluation.selmcast fig4 .. fig13 | complexity | headline`."""

import sys

from evaluation.selmcast import figures
from evaluation.wan.report import Figure, main

BSP = ("layer", "bandwidths", "scheme")
SSP = ("workload", "scheme")
FIGURES = {
    "fig4": Figure(figures.fig4, "BSP: completion, receivers and computation over n", "n", "completion", BSP),
    "fig5": Figure(figures.fig5, "BSP: completion over p/n", "p/n", "completion", BSP),
    "fig6": Figure(figures.fig6, "BSP, mu = 1/p: receivers over n", "n", "receivers", BSP),
    "fig7": Figure(figures.fig7, "SSP: utilisation and scale", "workload", "utilisation", ("scheme", "seconds"), 3),
    "fig8": Figure(figures.fig8, "SSP over p/n", "p/n", "scale", SSP, 3),
    "fig9": Figure(figures.fig9, "SSP over k", "k", "scale", SSP, 3),
    "fig10": Figure(figures.fig10, "SSP over its threshold, with k alike", "ssp", "scale", SSP, 3),
    "fig11": Figure(figures.fig11, "SSP over eta", "eta", "scale", SSP, 3),
    "fig12": Figure(figures.fig12, "SSP over the volume", "volume", "scale", SSP, 3),
    "fig13": Figure(figures.fig13, "SSP with changing bandwidths, over gamma", "gamma", "scale", SSP, 3),
    "complexity": Figure(figures.complexity, "milliseconds of a selection over n", "n", "ms", ("algorithm",), 5),
}

sys.exit(main("selmcast", FIGURES, figures.headline))
