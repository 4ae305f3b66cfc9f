"""NetStorm's figures 13 to 20 and its headline (section IX), as iterations per second over those of STAR (MXNET).

STAR's root is not printed: figures take a random one per seed; the headline gives that and the worst one. Directed
links (each way drawn on its own, as the authors' scripts do), 20 to 155 Mbit/s, redrawn every 3 minutes when dynamic.
`hops` says how a hop delivers: in chunks (pipelined), or a root's whole share at once (Theorem 1).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import networkx as nx
import numpy as np

from evaluation.netstorm.training import ALEXNET_PARAMETERS, Setup, Training
from evaluation.wan.networks import netstorm_draw
from evaluation.wan.report import Claim, Row, claim

SECONDS = 1800.0
STAR = Setup("STAR", roots=1, awareness="none", auxiliary=False)
SYSTEMS = {
    "MXNET": STAR,
    "MLNET": Setup("BKT", roots=1, awareness="none", auxiliary=False),
    "TSEngine": Setup("MST", roots=1, auxiliary=False),
    "NetStorm-lite": Setup(awareness="none", auxiliary=False),
    "NetStorm-std": Setup(auxiliary=False),
    "NetStorm": Setup(),
}
MODELS = {"MobileNet": 4.2, "ResNet18": 11.7, "ResNet50": 25.6, "ResNet101": 44.5, "ResNet152": 60.2, "AlexNet": 61.0}


def random_network(n: int, rng: np.random.Generator) -> nx.DiGraph:
    """A ring of n nodes with n // 2 chords (13 links for 9 nodes, as the paper's), 20 to 155 Mbit/s."""
    links = [(i, (i + 1) % n) for i in range(n)]
    while len(links) < n + n // 2:
        u, v = sorted(rng.choice(n, 2, replace=False).tolist())
        if (u, v) not in links and (v, u) not in links:
            links.append((u, v))
    graph = nx.DiGraph()
    graph.add_nodes_from(range(n))
    for u, v in links:
        graph.add_edge(u, v, mbps=float(rng.integers(20, 156)))
        graph.add_edge(v, u, mbps=float(rng.integers(20, 156)))
    return graph


def _redraw(graph: nx.DiGraph, seed: int, now: float) -> nx.DiGraph:
    rng = np.random.default_rng([seed, int(now)])
    drawn = graph.copy()
    for _, _, data in drawn.edges(data=True):
        data["mbps"] = float(rng.integers(20, 156))
    return drawn


def speed(
    setup: Setup, dynamic: bool, seed: int, *, nodes: int = 9, root: int | None = None, seconds: float = SECONDS
) -> float:
    """Iterations per second. The same seed gives all systems the same network and the same changes."""
    rng = np.random.default_rng([seed, nodes])
    graph = netstorm_draw(rng) if nodes == 9 else random_network(nodes, rng)
    place = int(rng.integers(nodes)) if root is None else root
    change = partial(_redraw, graph, seed) if dynamic else None
    return Training(setup, graph, change=change, root=place).run(seconds)


def _rows(trials: int, settings: Iterable[tuple[dict[str, Any], Setup]], *, nodes: int = 9) -> list[Row]:
    rows = []
    for dynamic in (False, True):
        base = [speed(STAR, dynamic, seed, nodes=nodes) for seed in range(trials)]
        for labels, setup in settings:
            own = [speed(setup, dynamic, seed, nodes=nodes) for seed in range(trials)]
            row: Row = {"network": "dynamic" if dynamic else "static", **labels}
            row["seconds"] = float(np.mean(1 / np.array(own)))
            over = np.array(own) / base
            row["over_star"] = float(over.mean())
            row["low"], row["high"] = (float(x) for x in np.percentile(over, [5, 95]))
            row["seeds"] = trials
            rows.append(row)
    return rows


def fig13(trials: int) -> list[Row]:
    return _rows(trials, [({"system": k}, SYSTEMS[k]) for k in ("MXNET", "MLNET", "TSEngine", "NetStorm")])


def fig14(trials: int) -> list[Row]:
    """One root, no auxiliary paths; also as Theorem 1 has it, a root's model in one piece."""
    rows: list[tuple[dict[str, Any], Setup]] = []
    for hops, chunk in (("chunks", 1.0), ("stored", ALEXNET_PARAMETERS)):
        for name in ("STAR", "BKT", "MST", "FAPT"):
            aware = "passive" if name in ("MST", "FAPT") else "none"
            setup = Setup(name, 1, aware, False, chunk=chunk, probe_count=8 if chunk == 1 else 1)
            rows.append(({"topology": name, "hops": hops}, setup))
    return _rows(trials, rows)


def fig15(trials: int) -> list[Row]:
    return _rows(trials, [({"roots": k}, Setup(roots=k)) for k in range(1, 10)])


def fig16(trials: int) -> list[Row]:
    return _rows(trials, [({"awareness": a}, Setup(awareness=a)) for a in ("none", "passive", "full")])


def fig17(trials: int) -> list[Row]:
    """Gain of auxiliary paths, 1 = none; both readings of when a chunk gets its path."""
    rows = []
    for dynamic in (False, True):
        plain = [speed(SYSTEMS["NetStorm-std"], dynamic, seed) for seed in range(trials)]
        for lazy in (True, False):
            for bound in (1, 2, 4):
                for length in (1, 3, 5):
                    setup = Setup(busy_bound=bound, auxiliary_length=length, lazy=lazy)
                    gains = [speed(setup, dynamic, seed) / plain[seed] for seed in range(trials)]
                    rows.append(
                        {"network": "dynamic" if dynamic else "static", "assigned": "lazily" if lazy else "at once",
                         "busy_bound": bound, "auxiliary_length": length, "gain_%": 100 * (float(np.mean(gains)) - 1),
                         "low": 100 * (min(gains) - 1), "high": 100 * (max(gains) - 1), "seeds": trials}
                    )  # fmt: skip
    return rows


def fig18(trials: int) -> list[Row]:
    return _rows(trials, [({"system": k}, v) for k, v in SYSTEMS.items() if k.startswith(("MX", "Net"))])


def fig19(trials: int) -> list[Row]:
    rows: list[Row] = []
    for model, size in MODELS.items():
        settings = [({"x": model, "system": k}, Setup(**{**vars(SYSTEMS[k]), "parameters": size}))
                    for k in ("MXNET", "NetStorm")]  # fmt: skip
        rows += [row for row in _rows(trials, settings) if row["network"] == "dynamic"]
    for nodes in (5, 7, 9, 11, 13, 15):
        settings = [({"x": f"{nodes} nodes", "system": "NetStorm"}, Setup(roots=nodes))]
        rows += [row for row in _rows(trials, settings, nodes=nodes) if row["network"] == "dynamic"]
    return rows


SENSITIVITY: dict[str, Sequence[float]] = {
    "chunk": (0.5, 1.0, 2.0, 4.0, 8.0),
    "update": (1.0, 5.0, 20.0, 60.0),
    "probe_size": (0.1, 0.5, 1.0, 2.0),
    "probe_count": (1, 4, 8, 32, 128),
}


def fig20(trials: int) -> list[Row]:
    settings = [
        ({"parameter": name, "value": value}, Setup(**{name: value}))  # type: ignore[arg-type]
        for name, values in SENSITIVITY.items()
        for value in values
    ]
    return [row for row in _rows(trials, settings) if row["network"] == "dynamic"]


def headline(trials: int) -> list[Claim]:
    claims = []
    for dynamic, paper, aim in ((True, "6.5", 6.5), (False, "9.2", 9.2)):
        name = "dynamic" if dynamic else "static"
        worst, typical, aware, more = [], [], [], []
        for seed in range(trials):
            ours = speed(SYSTEMS["NetStorm"], dynamic, seed)
            stars = [speed(STAR, dynamic, seed, root=root) for root in range(9)]
            worst.append(ours / min(stars))
            typical.append(ours / float(np.mean(stars)))
            std = speed(SYSTEMS["NetStorm-std"], dynamic, seed)
            more.append(100 * (ours / std - 1))
            aware.append(100 * (std / speed(SYSTEMS["NetStorm-lite"], dynamic, seed) - 1))
        claims.append(claim(f"times MXNET with the worst root, {name}", f"up to {paper}", worst, least=aim))
        claims.append(claim(f"times MXNET with an average root, {name}", f"up to {paper}", typical))
        if dynamic:
            claims.append(claim("% faster by passive awareness, dynamic", "20", aware, least=0))
            claims.append(claim("% faster by auxiliary paths, dynamic", "30 to 65", more, least=0))
    return claims
