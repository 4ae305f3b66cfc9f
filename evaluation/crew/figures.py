"""CREW's figures 4 to 11 and its headline (section V). Figure 3, which trains a network, is in fig3.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from controlplane.planner.simulate import Simulator
from controlplane.planner.strategies.wan.crew import all_reduce as allreduce
from evaluation.crew.times import ring_time, server_time
from evaluation.crew.training import MODEL_MBIT, Result, Setup, Training, one_reduce
from evaluation.wan.report import Claim, Row, claim
from evaluation.wan.runs import spread
from evaluation.wan.workloads import RUNTIMES, bandwidths

WORKERS = 60
WORKLOADS = (("N1", "T1"), ("N1", "T2"), ("N2", "T1"), ("N2", "T2"))
TIMES = {"T1": "lstm", "T2": "transformer"}


def compute_times(times: str, n: int, rng: np.random.Generator, factor: float = 1.0) -> Callable[[int], float]:
    """Return a function that draws a worker's next step: T1 or T2 scaled to 0.05 .. 0.2 s, times `factor`."""
    pools: list[Iterator[float]] = [iter(()) for _ in range(n)]
    streams = rng.spawn(n)

    def draw(worker: int) -> float:
        value = next(pools[worker], None)
        if value is None:
            pools[worker] = iter((factor * RUNTIMES[TIMES[times]].between(streams[worker], 512, 0.05, 0.2)).tolist())
            value = next(pools[worker])
        return value

    return draw


def simulate(
    setup: Setup, workload: tuple[str, str], seed: int, *, seconds: float = 50.0, factor: float = 1.0, n: int = WORKERS
) -> Result:
    """Simulate one run. The same seed gives all schemes the same bandwidths and compute times."""
    network, times = workload
    rng = np.random.default_rng([seed, n])
    matrix = bandwidths(network, n, rng)
    return Training(setup, matrix, compute_times(times, n, rng, factor)).run(seconds)


def rounds(
    setup: Setup, workload: tuple[str, str], seed: int, *, seconds: float = 50.0, factor: float = 1.0, n: int = WORKERS
) -> float:
    """Return the mean number of synchronised rounds per worker of one run."""
    return simulate(setup, workload, seed, seconds=seconds, factor=factor, n=n).mean_rounds


def _mean(values: Iterable[float]) -> dict[str, float]:
    array = np.array(list(values))
    return {"mean": float(array.mean()), "low": float(array.min()), "high": float(array.max())}


Run = tuple[Callable[..., Any], int]  # a function and the seed with which to call it


def _one(run: Run) -> Any:
    return run[0](run[1])


def every_seed(trials: int, calls: Iterable[Callable[..., Any]]) -> list[list[Any]]:
    """Return the result of each call for each seed, computed on all cores."""
    runs = [(call, seed) for call in calls for seed in range(trials)]
    results = spread(_one, runs)
    return [results[k : k + trials] for k in range(0, len(results), trials)]


def _sweep(trials: int, settings: Iterable[tuple[Row, Callable[[int], float]]]) -> list[Row]:
    """Return a row per setting: its labels, and the mean, least and greatest over the seeds."""
    labels, calls = zip(*settings, strict=True)
    return [{**row, **_mean(values)} for row, values in zip(labels, every_seed(trials, calls), strict=True)]


# --- figure 4: one partial reduce ---


def tree_seconds(
    trees: list[tuple[allreduce.SpanningTree, float]], matrix: NDArray[np.float64], model_mbit: float, pipelined: bool
) -> float:
    """Return the seconds to reduce up and broadcast down the trees.

    If pipelined, they are the fullest link's; otherwise a tree's block goes on only when it is complete at a node (as
    the paper's simulator delivers blocks), and links serve first come, first served.
    """
    if pipelined:
        return allreduce.fullest_link(trees, matrix) * model_mbit
    n = len(matrix)
    sim = Simulator(matrix.ravel(), "fcfs")

    def down(tree: allreduce.SpanningTree, share: float, node: int) -> None:
        for child, parent in tree.edges:
            if parent == node:
                sim.send(share * model_mbit, [parent * n + child], partial(down, tree, share, child))

    def up(tree: allreduce.SpanningTree, share: float, missing: dict[int, int], node: int) -> None:
        missing[node] -= 1
        if missing[node] > 0:
            return
        if node == tree.root:
            down(tree, share, node)
            return
        parent = next(p for c, p in tree.edges if c == node)
        sim.send(share * model_mbit, [node * n + parent], partial(up, tree, share, missing, parent))

    for tree, share in trees:
        nodes = {tree.root, *(c for c, _ in tree.edges)}
        missing = {v: 1 + sum(p == v for _, p in tree.edges) for v in nodes}
        for node in sorted(nodes):
            up(tree, share, missing, node)
    return sim.run()


def reduce_seconds(scheme: str, matrix: NDArray[np.float64], members: list[int], seed: int) -> float:
    """Return the seconds of one partial reduce of the default model."""
    if scheme in ("CREW", "OPR", "A2A"):
        return one_reduce(Setup(scheme, len(members)), matrix, members)
    if scheme == "PS":
        return server_time(matrix, members, allreduce.parameter_server(matrix)) * MODEL_MBIT
    if scheme == "Ring":
        return ring_time(matrix, allreduce.greedy_ring(matrix, members, seed)) * MODEL_MBIT
    name, _, pipelined = scheme.partition("-")
    if name == "BLINK":
        trees = allreduce.blink(matrix, members)
    else:
        trees = allreduce.topo_adopt(matrix, members, seed=seed)
    return tree_seconds(trees, matrix, MODEL_MBIT, bool(pipelined))


FIG4 = ("PS", "Ring", "ToA", "BLINK", "ToA-pipelined", "BLINK-pipelined", "A2A", "OPR", "CREW")


def random_reduce(scheme: str, network: str, p: int, seed: int) -> float:
    """Return the seconds of a partial reduce of p random workers."""
    rng = np.random.default_rng([seed, WORKERS])
    matrix = bandwidths(network, WORKERS, rng)
    members = sorted(rng.choice(WORKERS, p, replace=False).tolist())
    return reduce_seconds(scheme, matrix, members, seed)


def fig4(trials: int) -> list[Row]:
    """Return rows per network: compute times do not matter for one reduce, so each network stands for two workloads."""
    return _sweep(
        trials,
        (
            ({"network": network, "p": p, "scheme": scheme}, partial(random_reduce, scheme, network, p))
            for network in ("N1", "N2")
            for p in (5, 10)
            for scheme in FIG4
        ),
    )


# --- figures 5 to 11: rounds in a fixed time ---

VARIANTS = [
    ("A2A", Setup("A2A", schedule="FS")),
    *(
        (f"{scheme} ({'N-A' if aware else 'E-D'}, {'FCFS' if schedule == 'FL' else 'FS'})",
         Setup(scheme, network_aware=aware, schedule=schedule))
        for scheme in ("OPR", "CREW")
        for aware, schedule in ((False, "FS"), (True, "FS"), (False, "FL"), (True, "FL"))
    ),
]  # fmt: skip


def fig5(trials: int) -> list[Row]:
    """Return rows with two counts: `mean` synchronised rounds per worker, and `trained` local steps that each has
    finished.
    """
    rows = []
    settings = list(product((5, 10), WORKLOADS, VARIANTS))
    calls = [partial(simulate, replace(setup, p=p), workload) for p, workload, (_, setup) in settings]
    for (p, workload, (name, _)), results in zip(settings, every_seed(trials, calls), strict=True):
        row: Row = {"p": p, "workload": "+".join(workload), "scheme": name}
        row |= _mean(r.mean_rounds for r in results)
        rows.append({**row, "trained": float(np.mean([r.trained.mean() for r in results]))})
    return rows


def fig6(trials: int) -> list[Row]:
    """Return rows with the times of a reduce.

    `reduce_s` is the time from the forming of a group to its end, in seconds. `wait_s` is the time from a worker's
    being ready to the forming of its group, the most that scatter can gain by not blocking.
    """
    scatter = {"blocking": Setup(), "non-blocking": Setup(blocking=False)}
    rows = []
    settings = list(product(WORKLOADS, (4, 6, 8, 10, 12), scatter.items()))
    calls = [partial(simulate, replace(setup, p=p), workload) for workload, p, (_, setup) in settings]
    for (workload, p, (name, _)), results in zip(settings, every_seed(trials, calls), strict=True):
        row: Row = {"workload": "+".join(workload), "p": p}
        row |= {"scatter": name, **_mean(r.mean_rounds for r in results)}
        row["reduce_s"] = float(np.mean([np.mean(r.durations) for r in results]))
        rows.append({**row, "wait_s": float(np.mean([np.mean(r.waits) for r in results]))})
    return rows


def fig7(trials: int) -> list[Row]:
    return _sweep(
        trials,
        (
            ({"workload": "+".join(w), "p": p, "schedule": s}, partial(rounds, Setup(p=p, schedule=s), w))
            for w in WORKLOADS
            for p in (4, 8, 12)
            for s in ("FL", "TL", "FS", "C1", "C2")
        ),
    )


def broken(count: int, seed: int, n: int = WORKERS) -> tuple[tuple[int, int], ...]:
    """Return `count` random connections between n workers."""
    rng = np.random.default_rng([seed, count, 8])
    pairs = [(i, j) for i in range(n) for j in range(i + 1, n)]
    return tuple(pairs[k] for k in rng.choice(len(pairs), count, replace=False))


def rounds_with_faults(p: int, count: int, avoid: bool, workload: tuple[str, str], seed: int) -> float:
    return rounds(Setup(p=p, broken=broken(count, seed), avoid=avoid), workload, seed)


def fig8(trials: int) -> list[Row]:
    """Return rows in which a broken connection's block goes to one replacement (`Eq. (3)`), and rows in which
    splittings omit the connection (`avoid`).
    """
    return _sweep(
        trials,
        (
            (
                {"workload": "+".join(w), "p": p, "failover": "avoid" if avoid else "Eq. (3)", "faulty": f},
                partial(rounds_with_faults, p, f, avoid, w),
            )
            for w in WORKLOADS
            for avoid in (False, True)
            for p in (4, 5, 10)
            for f in (0, 10, 20, 40, 80, 160)
        ),
    )


def fig9(trials: int) -> list[Row]:
    return _sweep(
        trials,
        (
            (
                {"workload": network + "+T2", "p": p, "compute": f"{factor}x"},
                partial(rounds, Setup(p=p), (network, "T2"), seconds=100.0, factor=factor),
            )
            for network in ("N1", "N2")
            for p in (4, 5, 10, 12)
            for factor in (1, 2, 3, 4, 5, 6)
        ),
    )


def fig10(trials: int) -> list[Row]:
    return _sweep(
        trials,
        (
            (
                {"workload": "+".join(w), "p": p, "model": f"{factor}x"},
                partial(rounds, Setup(p=p, model_mbit=factor * MODEL_MBIT), w, seconds=100.0),
            )
            for w in WORKLOADS
            for p in (4, 5, 10, 12)
            for factor in (1, 2, 4, 8)
        ),
    )


def noisy_seconds(noise: float, aware: bool, workload: tuple[str, str], p: int, seed: int) -> float:
    """Return the mean seconds of a partial reduce if the controller assumes b (1 + x), x uniform on [-noise, noise]."""
    network, times = workload
    rng = np.random.default_rng([seed, WORKERS])
    matrix = bandwidths(network, WORKERS, rng)
    belief = matrix * (1 + np.random.default_rng([seed, 11]).uniform(-noise, noise, matrix.shape))
    setup = Setup(p=p, network_aware=aware, estimate=belief)
    return float(np.mean(Training(setup, matrix, compute_times(times, WORKERS, rng)).run(50.0).durations))


def fig11(trials: int) -> list[Row]:
    return _sweep(
        trials,
        (
            (
                {"workload": "+".join(w), "p": p, "split": "N-A" if aware else "E-D", "noise": noise},
                partial(noisy_seconds, noise, aware, w, p),
            )
            for w in (("N1", "T2"), ("N2", "T2"))
            for p in (5, 10)
            for aware in (True, False)
            for noise in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
        ),
    )


# --- headline ---


def _spread(workload: tuple[str, str], values: list[float]) -> str:
    low, high = np.percentile(values, [5, 95])
    return f"{'+'.join(workload)} {np.mean(values):.1f} ({low:.1f} to {high:.1f})"


def headline(trials: int) -> list[Claim]:
    """Return the claims. The paper says "up to": the workload with the largest mean counts, and the note has all."""
    ratios: dict[tuple[str, str, int], list[list[float]]] = {}
    against = {"A2A": Setup("A2A", schedule="FS"), "OPR": Setup("OPR", schedule="FS", network_aware=False)}
    settings = list(product((5, 10), WORKLOADS))
    setups = (Setup(), *against.values())
    results = every_seed(trials, [partial(simulate, replace(s, p=p), w) for p, w in settings for s in setups])
    for k, (p, _) in enumerate(settings):
        best, *others = results[len(setups) * k : len(setups) * (k + 1)]
        for scheme, slow in zip(against, others, strict=True):
            pairs = list(zip(best, slow, strict=True))
            whole = [ours.mean_rounds / other.mean_rounds for ours, other in pairs]
            ratios.setdefault((scheme, "synchronised", p), []).append(whole)
            trained = [float(ours.trained.mean() / other.trained.mean()) for ours, other in pairs]
            ratios.setdefault((scheme, "trained", p), []).append(trained)
    claims = []
    for (scheme, counted, p), values in ratios.items():
        low, high = (12, 15) if scheme == "A2A" else ((8, 9) if p == 5 else (4, 5))
        other = "A2A" if scheme == "A2A" else "OPR (E-D, FS)"
        claims.append(
            claim(f"rounds ({counted}) of CREW over {other}, p={p}, best workload", f"{low} to {high}",
                  max(values, key=lambda v: float(np.mean(v))), least=low, top=high,
                  note=", ".join(_spread(w, v) for w, v in zip(WORKLOADS, values, strict=True)))
        )  # fmt: skip
    return claims
