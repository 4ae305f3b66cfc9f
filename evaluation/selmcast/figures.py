"""SelMcast's figures 4 to 13 and its headline (section IV). Figures 1 to 3 are explanations without results.

There are two readings of the bandwidths: `printed` is that of section IV-A, lambda = 0.5 and so [0.5, 1.5] of the mean;
`quarter`, [0.75, 1.25], gives the published completion times.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from controlplane.planner.simulate import BigSwitch, Simulator
from controlplane.planner.strategies.wan.selmcast import algorithm as selmcast
from evaluation.selmcast.optimum import optimal_equal
from evaluation.selmcast.ssp import Setup, Training
from evaluation.wan.report import Claim, Row, claim
from evaluation.wan.runs import spread, watched

READINGS = {"printed": 0.5, "quarter": 0.25}
SIMULATED = 3  # seeds per setting that are also simulated
SECONDS = 60.0  # the paper: 600; fig7 has both
WORKLOADS = ("lstm", "transformer", "resnet50")


def draw(
    n: int, fraction: float, layer: selmcast.Layer, *, reading: str, seed: int, ratio: float = 1.0
) -> selmcast.Instance:
    rng = np.random.default_rng([seed, n])
    spread = READINGS[reading]
    down, up = 1 + spread * rng.uniform(-1, 1, n), ratio * (1 + spread * rng.uniform(-1, 1, n))
    return selmcast.instance(up, down, max(1, round(fraction * n)), layer=layer)


def simulated(x: NDArray[np.bool_], task: selmcast.Instance) -> float:
    """Return the seconds under per-flow max-min fairness if all multicasts start together."""
    switch = BigSwitch(task.upload.tolist(), task.download.tolist())
    sim = Simulator(switch.capacities)
    for i in range(task.n):
        ids = np.flatnonzero(x[i]).tolist()
        if task.layer == "L3" and ids:
            sim.send(float(task.volumes[i]), switch.multicast(i, ids))
        elif task.layer == "L7":
            for j in ids:
                sim.send(float(task.volumes[i]), switch.unicast(i, j))
    return sim.run()


def _choose(scheme: str, task: selmcast.Instance, seed: int) -> NDArray[np.bool_]:
    if scheme == "SelMcast":
        return selmcast.select(task)
    if scheme == "Optimal":
        return optimal_equal(task)
    return selmcast.orpheus(task, np.random.default_rng([seed, 2]))


def bsp(
    labels: dict[str, Any], n: int, fraction: float, layer: selmcast.Layer, *, trials: int, ratio: float = 1.0
) -> list[Row]:
    """Return a row per scheme and reading: the planned completion over the ideal p v / b, the simulated one (max-min)
    over the planned one, receivers / n, and CPU ms.
    """
    rows = []
    for reading in READINGS:
        for scheme in ("Orpheus", "SelMcast", "Optimal"):
            times, planned, fair, receivers = [], [], [], []
            for seed in range(trials):
                task = draw(n, fraction, layer, reading=reading, seed=seed, ratio=ratio)
                begin = time.process_time()
                x = _choose(scheme, task, seed)
                times.append(1000 * (time.process_time() - begin))
                ideal = max(1, round(fraction * n))
                planned.append(selmcast.completion(x, task) / ideal)
                if seed < SIMULATED:
                    fair.append(simulated(x, task) / selmcast.completion(x, task))
                receivers.append(x.sum() / n / n)
            rows.append(
                {
                    **labels,
                    "layer": layer,
                    "bandwidths": reading,
                    "scheme": scheme,
                    "completion": float(np.mean(planned)),
                    "simulated": float(np.mean(fair)),
                    "receivers": float(np.mean(receivers)),
                    "median_ms": float(np.median(times)),
                }
            )
    return rows


def fig4(trials: int) -> list[Row]:
    return [
        row
        for layer, n in watched(product(("L3", "L7"), (50, 100, 150, 200)), 8)
        for row in bsp({"n": n}, n, 0.3, layer, trials=trials)  # type: ignore[arg-type]
    ]


def fig5(trials: int) -> list[Row]:
    return [
        row
        for layer, f in watched(product(("L3", "L7"), (0.1, 0.2, 0.3, 0.4, 0.5)), 10)
        for row in bsp({"p/n": f}, 200, f, layer, trials=trials)  # type: ignore[arg-type]
    ]


def fig6(trials: int) -> list[Row]:
    return [row for n in (50, 100, 150, 200) for row in bsp({"n": n}, n, 0.3, "L3", trials=trials, ratio=1 / (0.3 * n))]


# --- SSP ---


def ssp(trials: int, settings: Iterable[tuple[dict[str, Any], dict[str, Any]]], seconds: float = SECONDS) -> list[Row]:
    """Return a row per setting, workload and scheme: mean utilisation and mean receivers / n."""
    rows = []
    cases = list(product(settings, WORKLOADS, ("Orpheus", "SelMcast")))
    runs = [
        (Setup(scheme, workload, **changes), seed, seconds)
        for (_, changes), workload, scheme in cases
        for seed in range(trials)
    ]
    results = spread(_trained, runs)
    for k, ((labels, _), workload, scheme) in enumerate(cases):
        busy, scale = np.mean(results[k * trials : (k + 1) * trials], axis=0)
        row = {**labels, "workload": workload, "scheme": scheme}
        rows.append({**row, "utilisation": float(busy), "scale": float(scale)})
    return rows


def _trained(run: tuple[Setup, int, float]) -> tuple[float, float]:
    setup, seed, seconds = run
    return Training(setup, seed).run(seconds)


def _over(name: str, key: str, values: Iterable[Any]) -> Callable[[int], list[Row]]:
    return partial(ssp, settings=[({name: value}, {key: value}) for value in values])


def fig7(trials: int) -> list[Row]:
    """Return rows for 60 and 600 s, the latter from at most three seeds."""
    short = ssp(trials, [({"seconds": SECONDS}, {})])
    return short + ssp(min(trials, 3), [({"seconds": 10 * SECONDS}, {})], 10 * SECONDS)


fig8 = _over("p/n", "fraction", (0.05, 0.1, 0.2, 0.3, 0.4))
fig9 = _over("k", "k", (1, 2, 4, 8, 16, None))
fig10 = partial(ssp, settings=[({"ssp": v}, {"threshold": v, "k": v}) for v in (1, 2, 4, 8, 16)])
fig11 = _over("eta", "eta", (0.0, 0.25, 0.5, 0.75, 1.0))
fig12 = partial(ssp, settings=[({"volume": f"2^{e}"}, {"volume": 1600.0 * 2.0**e}) for e in range(-4, 5, 2)])
fig13 = _over("gamma", "gamma", (0.0, 0.25, 0.5, 0.75, 1.0))


def headline(trials: int) -> list[Claim]:
    claims = []
    for reading in READINGS:
        aim = reading == "quarter"
        for layer, paper in (("L3", 1.02), ("L7", 1.32)):
            tasks = [draw(100, 0.3, layer, reading=reading, seed=seed) for seed in range(trials)]  # type: ignore[arg-type]
            ours = [selmcast.completion(selmcast.select(task), task) / 30 for task in tasks]
            best = [selmcast.completion(optimal_equal(task), task) / 30 for task in tasks]
            random = [selmcast.completion(_choose("Orpheus", task, k), task) / 30 for k, task in enumerate(tasks)]
            text = f"completion over ideal, n=100, {layer}, bandwidths {reading}"
            note = f"exact optimum {np.mean(best):.3f}"
            claims.append(claim(f"{text}: SelMcast", str(paper), ours, most=paper + 0.01 if aim else None, note=note))
            low, high = (1.5, 1.8) if aim else (None, None)
            claims.append(claim(f"{text}: Orpheus", "1.67", random, least=low, most=high))
    times = []
    for seed in range(trials):
        task = draw(200, 0.3, "L7", reading="printed", seed=seed)
        begin = time.process_time()
        selmcast.select(task)
        times.append(1000 * (time.process_time() - begin))
    claims.append(claim("selection at n=200, CPU ms", "tens of milliseconds", times, most=100))
    return claims
