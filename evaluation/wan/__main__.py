"""`python -m evaluation.wan compare | scaling | headline`."""

import sys

from evaluation.wan import compare
from evaluation.wan.panels import panels
from evaluation.wan.report import Figure, main

FIGURES = {
    "compare": Figure(compare.compare, "all strategies on B4, Internet2, AWS and NetStorm's network", "network",
                      "ResNet152_s", ("strategy",), 1, compare.draw, compare.promised),
    "scaling": Figure(compare.scaling, "computation over the number of sites", "n", "ms", ("algorithm",), 5,
                       panels(label="ms of CPU time", log=True)),
}  # fmt: skip

sys.exit(main("wan", FIGURES, compare.headline))
