"""The paper's claims beside our numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from controlplane.planner.generators import testbed
from controlplane.planner.job import parse_job
from controlplane.planner.strategies import get_strategy
from evaluation.inart.figures import FIGURES, MODEL_WORKERS, ROUND_TRIP, VGG19_COMPUTE_SECONDS
from evaluation.inart.sweep import MODELS, STRATEGIES, TESTBED_MODELS, Case, Result, Sweep, mean_and_spread, seconds

EXAMPLE = (
    "2.5 is what the evaluator gives the paper's own plan. With one assignment per (PS, worker) 8/3 is the optimum "
    "(exact, inart-strict); with sub-models split further 3, the bound of any scheme (inart)."
)


def compared(values: dict[str, float], others: tuple[str, ...], name: str, sign: int) -> dict[str, float]:
    """Return how much inart is above (sign 1) or below (-1) the others, as a fraction of theirs."""
    return {f"{name}_{other}": sign * (values["inart"] / values[other] - 1) for other in others}


class Means:
    """Means over the seeds of what the sweep computes."""

    def __init__(self, sweep: Sweep, seeds: int) -> None:
        self.sweep, self.seeds = sweep, seeds

    def of(self, scenario: str, workers: int, strategy: str, value: Callable[[Result], float]) -> float:
        """Return the mean of one strategy's values."""
        cases = [Case(scenario, workers, seed, strategy) for seed in range(self.seeds)]
        self.sweep.ensure(cases)
        return mean_and_spread([value(self.sweep.get(case)) for case in cases])[0]

    def each(self, scenario: str, workers: int, value: Callable[[Result], float]) -> dict[str, float]:
        """Return the mean of each strategy's values."""
        return {name: self.of(scenario, workers, name, value) for name in STRATEGIES}


def claim(
    figure: int, text: str, paper: dict[str, float], ours: dict[str, float], bound_mbps: float | None = None
) -> dict[str, Any]:
    """Return the paper's numbers for a figure beside ours, and why they differ."""
    bound = {} if bound_mbps is None else {"bound_mbps": bound_mbps}
    why = FIGURES[figure].why if figure in FIGURES else EXAMPLE
    return {"claim": f"Fig. {figure}{text}", "paper": paper, "ours": ours, **bound, "why": why}


def headline(sweep: Sweep, seeds: int) -> dict[str, Any]:
    """Return the claims: rates in Mbit/s (in units of its example for Fig. 1, in Gbit/s for the testbed), times in s,
    traffic in MB. They are means over the seeds.
    """
    means = Means(sweep, seeds)
    return {"seeds": seeds, "claims": [*testbed_claims(means), *simulated_claims(means)]}


def testbed_claims(means: Means) -> list[dict[str, Any]]:
    """Return the claims of Figs. 1 to 5, of the example and the testbed."""
    topology = testbed()
    job = parse_job("", topology)
    example = {name: get_strategy(name)(topology, job).rate_mbps for name in (*STRATEGIES, "exact")}
    everyone = ("r-inart", "atp", "lbmm")
    sent = means.each("testbed", 6, lambda r: r.rate_mbps / 1e3)
    messages = means.each("testbed", 6, lambda r: ROUND_TRIP * seconds(TESTBED_MODELS["VGG19"], r.rate_mbps))
    iterations = {name: VGG19_COMPUTE_SECONDS + time for name, time in messages.items()}
    return [
        claim(1, ": sending rate of the example", {"lbmm": 4 / 3, "atp": 2.0, "inart": 2.5}, example),
        claim(
            2,
            ", testbed, W=6: InArt sends 13.4 % more than R-InArt, 36.5 % more than ATP, 72 % more than LBMM",
            {"inart": 26.2, "r-inart": 23.1, "atp": 19.25, "lbmm": 15.4},
            {**sent, **compared(sent, everyone, "above", 1)},
        ),
        claim(
            4,
            ", testbed, VGG19, W=6: an iteration takes 12 % less than with R-InArt, 19 % than ATP, 29 % than LBMM",
            {"inart": 0.69, "r-inart": 0.78, "atp": 0.85, "lbmm": 0.97},
            {**iterations, **compared(iterations, everyone, "below", -1)},
        ),
        claim(
            5,
            ", testbed, VGG19, W=6: communication takes 19 % less than with R-InArt, 32 % than ATP, 45 % than LBMM",
            {"inart": 0.31, "r-inart": 0.38, "atp": 0.45, "lbmm": 0.56},
            {**messages, **compared(messages, everyone, "below", -1)},
        ),
    ]


def simulated_claims(means: Means) -> list[dict[str, Any]]:
    """Return the claims of Figs. 8 to 13, of the simulated fabrics."""
    vgg19, lstm, resnet = MODELS["VGG19"], MODELS["LSTM"], MODELS["ResNet-50"]
    right = means.each("heterogeneous", 50, lambda r: r.rate_mbps)
    left = means.each("homogeneous", MODEL_WORKERS, lambda r: r.rate_mbps)
    right_times = means.each("heterogeneous", 50, lambda r: seconds(lstm, r.rate_mbps))
    ingress = means.each("homogeneous", MODEL_WORKERS, lambda r: r.ps_streams * vgg19 / 1e6)
    right_bound = means.of("heterogeneous", 50, "inart", lambda r: r.bound_mbps)
    left_bound = means.of("homogeneous", MODEL_WORKERS, "inart", lambda r: r.bound_mbps)
    return [
        claim(
            9,
            " right, W=50: InArt sends 97 % faster than ATP",
            {"inart": 8.73, "atp": 4.44, "above_atp": 0.97},
            {**right, **compared(right, ("atp",), "above", 1)},
            right_bound,
        ),
        claim(8, " left: sending rate, LSTM", {"inart": 10.75, "atp": 4.7}, left, left_bound),
        claim(
            10,
            " left: communication time, ResNet-50",
            {"inart": 0.068, "atp": 0.152, "lbmm": 0.35},
            means.each("homogeneous", MODEL_WORKERS, lambda r: seconds(resnet, r.rate_mbps)),
        ),
        claim(
            11,
            " right, W=50: communication time 81 % below LBMM, 49 % below ATP",
            {"inart": 1.52, "lbmm": 8.13, "atp": 2.96, "below_lbmm": 0.81, "below_atp": 0.49},
            {**right_times, **compared(right_times, ("lbmm", "atp"), "below", -1)},
        ),
        claim(
            13,
            ", VGG19: ingress traffic of the parameter servers 53 % below ATP",
            {"inart": 3.44, "atp": 7.33, "lbmm": 22.0, "below_atp": 0.53},
            {**ingress, **compared(ingress, ("atp",), "below", -1)},
        ),
        claim(
            12,
            " left, W=30: network throughput (of all workers) 1.6 times higher than ATP",
            {"inart": 420.0, "atp": 160.0, "lbmm": 90.0},
            means.each("homogeneous", 30, lambda r: 30 * r.rate_mbps),
        ),
    ]
