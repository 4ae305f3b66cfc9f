"""All WAN strategies on the same networks: seconds per synchronisation, and how far from the bound.

Bound: no set of aggregation trees, with whatever roots, moves the model faster (column generation's dual bound,
controlplane/wan/packing.py); a synchronisation takes at least model / bound. Everything pipelined, up and down at once;
`stored` is the same plan when each hop waits for all of a tree's share, `max_min` when its trees are not paced at the
plan's rates but share the links max-min.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import networkx as nx
import numpy as np

from controlplane.simulate.plans import synchronisation_seconds
from controlplane.strategies import get_strategy
from controlplane.wan import crew, netstorm, selmcast
from controlplane.wan.packing import pack
from evaluation.apsp.figures import MODELS
from evaluation.wan.networks import aws, by_distance, netstorm_draw, overlay, whole_job
from evaluation.wan.report import Claim, Row, claim

STRATEGIES = ("apsp", "apsp-exact", "netstorm", "tsengine", "crew", "wan")
QUICK = tuple(name for name in STRATEGIES if name != "apsp-exact")  # its MILPs take most of a minute per network


def _jitter(graph: nx.DiGraph, seed: int) -> nx.DiGraph:
    """Each direction's bandwidth times exp(N(0, 0.2)); seed 0: as measured."""
    result = graph.copy()
    rng = np.random.default_rng(seed)
    for _, _, data in result.edges(data=True):
        data["mbps"] *= float(np.exp(rng.normal(0, 0.2))) if seed else 1.0
    return result


def networks(seed: int) -> Iterator[nx.DiGraph]:
    yield by_distance("b4", seed=seed or None)
    yield by_distance("internet2", seed=seed or None)
    yield _jitter(aws(), seed)
    yield netstorm_draw(np.random.default_rng(seed))


def _rates(graph: nx.DiGraph, seed: int, simulated: bool, strategies: Sequence[str] = STRATEGIES) -> list[Row]:
    """Per strategy: seconds per Mbit (paced, unpaced, stored; the last two are simulated), and the gap to the bound."""
    topology, job = overlay(graph), whole_job(graph, 125_000)  # 1 Mbit
    bound = pack(graph).bound
    rows = []
    for name in strategies:
        plan = get_strategy(name)(topology, job, seed=seed)
        plan.check(topology)
        rows.append(
            {
                "strategy": name,
                "seconds": 1 / plan.rate_mbps,
                "max_min": synchronisation_seconds(plan, topology) if simulated else float("nan"),
                "stored": synchronisation_seconds(plan, topology, stored=True) if simulated else float("nan"),
                "gap": 1 - plan.rate_mbps / bound,
                "trees": len(plan.trees),
            }
        )
    return rows


def compare(trials: int) -> list[Row]:
    rows: list[Row] = []
    results_by_seed = [[(g.graph["name"], _rates(g, seed, True)) for g in networks(seed)] for seed in range(trials)]
    for runs in zip(*results_by_seed, strict=True):
        for k, name in enumerate(STRATEGIES):
            own = [results[k] for _, results in runs]
            row: Row = {"network": runs[0][0], "strategy": name}
            unit = float(np.mean([r["seconds"] for r in own]))
            row |= {f"{model}_s": unit * mbit for model, mbit in MODELS.items()}
            row["gap_%"] = 100 * float(np.mean([r["gap"] for r in own]))
            row["max_min_ResNet152_s"] = float(np.mean([r["max_min"] for r in own])) * MODELS["ResNet152"]
            row["stored_ResNet152_s"] = float(np.mean([r["stored"] for r in own])) * MODELS["ResNet152"]
            row["trees"] = float(np.mean([r["trees"] for r in own]))
            rows.append(row)
    return rows


def headline(trials: int) -> list[Claim]:
    """Without apsp-exact, for its time: a star like apsp's, it is far from the best (see `compare`)."""
    names = [graph.graph["name"] for graph in networks(0)]
    gaps: dict[str, list[float]] = {name: [] for name in names}
    ahead: dict[str, list[float]] = {name: [] for name in names}
    for seed in range(trials):
        for graph in networks(seed):
            rows = {row["strategy"]: row for row in _rates(graph, seed, False, QUICK)}
            name = graph.graph["name"]
            gaps[name].append(100 * rows["wan"]["gap"])
            ahead[name].append(min(r["seconds"] for s, r in rows.items() if s != "wan") / rows["wan"]["seconds"])
    claims = []
    for name in names:
        worst = f"worst {max(gaps[name]):.2f} %"
        claims.append(claim(f"gap of wan to its bound, %, {name}", "(aim: 5)", gaps[name], most=5, note=worst))
        least = f"least {min(ahead[name]):.3f}"
        claims.append(
            claim(f"best other's time over wan's, {name}", "(aim: at least 1)", ahead[name], least=1, note=least)
        )
    return claims


def scaling(trials: int) -> list[Row]:
    """CPU seconds of the algorithms over the number of sites (full meshes); the least of the trials."""
    rows = []
    for n in (10, 20, 40, 80):
        rng = np.random.default_rng(n)
        matrix = rng.uniform(10, 100, (n, n))
        graph = nx.DiGraph()
        for i in range(n):
            for j in range(n):
                if i != j:
                    graph.add_edge(i, j, mbps=float(matrix[i, j]))
        task = selmcast.instance(matrix[0], matrix[1], max(1, n // 3), layer="L7")
        members = list(range(0, n, 2))
        jobs: dict[str, Callable[[], object]] = {
            "crew split": partial(crew.optimal_split, matrix, members),
            "selmcast selection": partial(selmcast.select, task),
            "netstorm, one root": partial(netstorm.fastest_tree, graph, 0),
        }
        for name, run in jobs.items():
            best = float("inf")
            for _ in range(trials):
                begin = time.process_time()
                run()
                best = min(best, time.process_time() - begin)
            rows.append({"algorithm": name, "n": n, "ms": 1000 * best})
    return rows
