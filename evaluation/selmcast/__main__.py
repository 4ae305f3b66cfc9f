"""The command `python -m evaluation.selmcast run | fig4 .. fig13 | headline`."""

import sys

from evaluation.selmcast import figures
from evaluation.wan.panels import panels
from evaluation.wan.report import Figure, main

BSP = panels("layer", "bandwidths", metrics=("completion", "receivers", "median_ms"))
SSP = panels("workload", metrics=("utilisation", "scale"))
SCHEME = ("scheme",)
FIGURES = {
    "fig4": Figure(figures.fig4, "BSP: completion, receivers and computation over n", "n", "completion", SCHEME,
                   draw=BSP),
    "fig5": Figure(figures.fig5, "BSP: completion over p/n", "p/n", "completion", SCHEME, draw=BSP),
    "fig6": Figure(figures.fig6, "BSP, mu = 1/p: receivers over n", "n", "receivers", SCHEME, draw=BSP),
    "fig7": Figure(figures.fig7, "SSP: utilisation and scale", "workload", "utilisation", SCHEME, 3,
                   panels("seconds", metrics=("utilisation", "scale"), as_bars=True)),
    "fig8": Figure(figures.fig8, "SSP over p/n", "p/n", "scale", SCHEME, 3, SSP),
    "fig9": Figure(figures.fig9, "SSP over k", "k", "scale", SCHEME, 3, SSP),
    "fig10": Figure(figures.fig10, "SSP over its threshold, with k alike", "ssp", "scale", SCHEME, 3, SSP),
    "fig11": Figure(figures.fig11, "SSP over eta", "eta", "scale", SCHEME, 3, SSP),
    "fig12": Figure(figures.fig12, "SSP over the volume", "volume", "scale", SCHEME, 3, SSP),
    "fig13": Figure(figures.fig13, "SSP with changing bandwidths, over gamma", "gamma", "scale", SCHEME, 3, SSP),
}  # fmt: skip

if sys.argv[1:2] == ["run"]:  # `run` trains over an emulated network and needs root, unlike the figures.
    from evaluation.wan.train import main as run

    sys.exit(run("selmcast", sys.argv[2:]))
sys.exit(main("selmcast", FIGURES, figures.headline, others={"run": "training across an emulated WAN (root)"}))
