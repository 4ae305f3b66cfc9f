"""APSP's Table III (Fig. 4 draws it), Figs. 5 and 6, and its headline (section V).

There are two models of a path's time: `stored` (|p| D / b, as printed) and `fluid` (hops pipelined, D / b). Baselines
place the server and are routed as APSP routes; `shortest` means that their flows take shortest paths instead. Each
seed varies the links' lengths by about 20 % (evaluation/wan/networks.py) and draws the rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import networkx as nx
import numpy as np

from controlplane.planner.strategies.wan.apsp import algorithm as apsp
from evaluation.wan.networks import LAWS, by_distance
from evaluation.wan.report import Claim, Row, claim
from evaluation.wan.runs import spread
from evaluation.wan.workloads import MODELS

NETWORKS = ("b4", "internet2")
DELAYS: tuple[apsp.Delay, ...] = ("stored", "fluid")
PAPER = {  # Table III: seconds for a random, the most connected, and APSP's server
    ("b4", "ResNet50"): (14.88, 7.36, 5.88),
    ("b4", "ResNet152"): (37.68, 19.20, 14.40),
    ("b4", "AlexNet"): (39.74, 20.48, 18.20),
    ("b4", "VGG-Net"): (87.18, 44.16, 39.26),
    ("internet2", "ResNet50"): (12.54, 12.26, 9.82),
    ("internet2", "ResNet152"): (32.72, 32.00, 25.60),
    ("internet2", "AlexNet"): (34.90, 34.14, 27.30),
    ("internet2", "VGG-Net"): (75.24, 73.60, 58.88),
}


def seconds(graph: nx.DiGraph, delay: apsp.Delay, seed: int) -> dict[str, float]:
    """Return the seconds per epoch and Mbit of the model, for each way to place the server (means over its places)."""
    routed = {root: apsp.place(graph, 1.0, seed=seed, roots=[root], delay=delay) for root in graph.nodes}
    best = min(routed.values(), key=lambda placement: placement.time)
    short = {root: apsp.epoch_time(graph, apsp.shortest_routes(graph, root), 1.0, delay) for root in graph.nodes}
    connected = apsp.most_connected(graph)
    return {
        "random": float(np.mean([p.time for p in routed.values()])),
        "most_connected": float(np.mean([routed[root].time for root in connected])),
        "random_shortest": float(np.mean(list(short.values()))),
        "most_connected_shortest": float(np.mean([short[root] for root in connected])),
        "apsp": best.time,
        "shortest_routing": short[best.root],
        "balanced_routing": apsp.epoch_time(graph, apsp.balanced_routes(graph, best.root), 1.0, delay),
    }


Case = tuple[str, apsp.Delay, float, str]  # network, delay, least Mbit/s, law


def _one(item: tuple[Case, int]) -> dict[str, float]:
    (name, delay, least, law), seed = item
    graph = by_distance(name, seed=seed, least=least, law=law)
    return seconds(graph, delay, seed)


def _runs(cases: Sequence[Case], trials: int) -> list[dict[str, np.ndarray]]:
    """Return, for each case, the values over the seeds of each number that `seconds` returns."""
    results = spread(_one, [(case, seed) for case in cases for seed in range(trials)])
    chunks = [results[k : k + trials] for k in range(0, len(results), trials)]
    return [{key: np.array([run[key] for run in runs]) for key in runs[0]} for runs in chunks]


PLACES: list[tuple[str, apsp.Delay]] = [(name, delay) for name in NETWORKS for delay in DELAYS]


def _less(ours: np.ndarray, other: np.ndarray) -> str:
    """Return the saving in percent: mean (5th to 95th percentile)."""
    less = 100 * (1 - ours / other)
    low, high = np.percentile(less, [5, 95])
    return f"{less.mean():.1f} ({low:.0f} to {high:.0f})"


def table3(trials: int) -> list[Row]:
    """Return the rows of Table III."""
    rows = []
    cases: list[Case] = [(*place, 500.0, "linear") for place in PLACES]
    for (name, delay), runs in zip(PLACES, _runs(cases, trials), strict=True):
        for model, mbit in MODELS.items():
            paper = PAPER[name, model]
            rows.append(
                {
                    "network": name,
                    "model": model,
                    "delay": delay,
                    **{key: float(runs[key].mean()) * mbit for key in ("random", "most_connected", "apsp")},
                    "paper": "/".join(map(str, paper)),
                    "less_than_random_%": _less(runs["apsp"], runs["random"]),
                    "less_than_connected_%": _less(runs["apsp"], runs["most_connected"]),
                    "paper_%": f"{100 * (1 - paper[2] / paper[0]):.1f}/{100 * (1 - paper[2] / paper[1]):.1f}",
                    "seeds": trials,
                }
            )
    return rows


def fig4(trials: int) -> list[Row]:
    """Return the rows of Fig. 4, which draws Table III, one per bar; the paper's own rows have delay "paper"."""
    rows = []
    cases: list[Case] = [(*place, 500.0, "linear") for place in PLACES]
    found = dict(zip(PLACES, _runs(cases, trials), strict=True))
    for name in NETWORKS:
        for model, mbit in MODELS.items():
            for k, key in enumerate(("random", "most_connected", "apsp")):
                for delay in DELAYS:
                    value = float(found[name, delay][key].mean()) * mbit
                    row: Row = {"network": name, "delay": delay, "model": model, "scheme": key}
                    rows.append({**row, "seconds": value, "seeds": trials})
                row = {"network": name, "delay": "paper", "model": model, "scheme": key}
                rows.append({**row, "seconds": PAPER[name, model][k], "seeds": 1})
    order = (*DELAYS, "paper")
    return sorted(rows, key=lambda row: (NETWORKS.index(row["network"]), order.index(row["delay"])))


def _series(trials: int, keys: tuple[str, ...]) -> list[Row]:
    rows = []
    cases: list[Case] = [
        (*place, least, "linear") for place in PLACES for least in (500.0, 1000.0, 2000.0, 3000.0, 4000.0, 5000.0)
    ]
    for (name, delay, least, _), runs in zip(cases, _runs(cases, trials), strict=True):
        for key in keys:
            values = runs[key] * MODELS["ResNet152"]
            low, high = (float(x) for x in np.percentile(values, [5, 95]))
            rows.append(
                {"network": name, "delay": delay, "least_mbps": int(least), "scheme": key,
                 "seconds": float(values.mean()), "low": low, "high": high, "seeds": trials}
            )  # fmt: skip
    return rows


fig5 = partial(_series, keys=("random", "most_connected", "apsp"))
fig6 = partial(_series, keys=("shortest_routing", "balanced_routing", "apsp"))


def laws(trials: int) -> list[Row]:
    """Return the headline's numbers under other readings of "bandwidth by distance"."""
    rows = []
    cases: list[Case] = [(*place, 500.0, law) for law in LAWS for place in PLACES]
    for (name, delay, _, law), times in zip(cases, _runs(cases, trials), strict=True):
        rows.append(
            {"law": law, "network": name, "delay": delay,
             "less_than_random_%": float(100 * (1 - times["apsp"] / times["random"]).mean()),
             "spread": _less(times["apsp"], times["random"]),
             "less_than_connected_%": _less(times["apsp"], times["most_connected"]),
             "paper_%": "54.2 to 61.8 / 11 to 25" if name == "b4" else "21.7 / 20.0", "seeds": trials}
        )  # fmt: skip
    return rows


def headline(trials: int) -> list[Claim]:
    """Return how much less time APSP takes than a random server, in percent. The aim is at least the paper's."""
    claims = []
    cases: list[Case] = [(*place, 500.0, "linear") for place in PLACES]
    papers = {"b4": ("52 to 62 % (54.2 to 61.8 by Table III)", 52), "internet2": ("21.7 %", 21)}
    for (name, delay), runs in zip(PLACES, _runs(cases, trials), strict=True):
        paper, least = papers[name]
        less = 100 * (1 - runs["apsp"] / runs["random"])
        connected, short = (
            float((100 * (1 - runs["apsp"] / runs[key])).mean()) for key in ("most_connected", "random_shortest")
        )
        note = f"than the most connected: {connected:.1f} %; than random with shortest paths: {short:.1f} %"
        text = f"% less time than with a random server, {name}, {delay}"
        aim = least if delay == "stored" or name == "internet2" else None
        claims.append(claim(text, paper, less.tolist(), least=aim, note=note))
    return claims
