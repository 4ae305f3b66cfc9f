"""The command `python -m evaluation.apsp run | table3 | fig4 | fig5 | fig6 | laws | headline`."""

import sys

from evaluation.apsp import figures
from evaluation.wan.panels import panels
from evaluation.wan.report import Figure, main

SCHEME = ("scheme",)
SECONDS = "seconds per epoch"
LINES = panels("network", "delay", label=SECONDS + ", ResNet152")
FIGURES = {
    "table3": Figure(figures.table3, "seconds per epoch by placement", "model", "apsp", ("delay",), 3,
                     panels("network", label=SECONDS, as_bars=True)),
    "fig4": Figure(figures.fig4, "table3, a row per bar", "model", "seconds", SCHEME, 3,
                   panels("network", "delay", label=SECONDS, as_bars=True)),
    "fig5": Figure(figures.fig5, "placements over the least bandwidth", "least_mbps", "seconds", SCHEME, 2, LINES),
    "fig6": Figure(figures.fig6, "routings over the least bandwidth", "least_mbps", "seconds", SCHEME, 2, LINES),
    "laws": Figure(figures.laws, "other readings of bandwidth by distance", "law", "less_than_random_%", ("delay",), 5,
                   panels("network", label="% less time than a random server", as_bars=True)),
}  # fmt: skip

if sys.argv[1:2] == ["run"]:  # `run` trains over an emulated network and needs root, unlike the figures.
    from evaluation.wan.train import main as run

    sys.exit(run("apsp", sys.argv[2:]))
sys.exit(main("apsp", FIGURES, figures.headline, others={"run": "training across an emulated WAN (root)"}))
