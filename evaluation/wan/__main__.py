"""The command `python -m evaluation.wan run | train | measured | through | compare | scaling | headline`."""

import sys
from functools import partial

from evaluation.wan import compare
from evaluation.wan.report import Figure, main, plot

FIGURES = {
    "compare": Figure(compare.compare, "all strategies on B4, Internet2, AWS and NetStorm's network", "network",
                      "ResNet152_s", ("strategy",), 1, compare.draw, compare.promised),
    "scaling": Figure(compare.scaling, "computation over the number of sites", "n", "ms", ("algorithm",), 5,
                       partial(plot, label="ms of CPU time", log=True)),
}  # fmt: skip

if sys.argv[1:2] == ["run"]:  # `run` synchronises over an emulated network and needs root, unlike the figures.
    from evaluation.wan import emulated

    sys.exit(emulated.main(sys.argv[2:]))
if sys.argv[1:2] == ["train"]:
    from evaluation.wan.train import main as train

    sys.exit(train("wan", sys.argv[2:]))
if sys.argv[1:2] == ["measured"]:
    from evaluation.wan.measured import main as measured

    sys.exit(measured(sys.argv[2:]))
if sys.argv[1:2] == ["through"]:
    from evaluation.wan.through import main as through

    sys.exit(through(sys.argv[2:]))
OTHERS = {
    "run": "synchronisations across an emulated WAN, beside those simulated (root)",
    "train": "training across an emulated WAN, beside training simulated (root)",
    "measured": "what run and train have measured, read again",
    "through": "what one site carries on one core",
}
sys.exit(main("wan", FIGURES, compare.headline, others=OTHERS))
