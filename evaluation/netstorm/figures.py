"""NetStorm's figures 13 to 20 and its headline (section IX), as iterations per second over those of STAR (MXNET).

STAR's root is not printed: figures take a random one per seed; the headline gives an average one and the worst. MXNET
with one server sends a tensor whole; as that and in NetStorm's chunks, which is kinder to it, both are given. Directed
links (each way drawn on its own, as the authors' scripts do), 20 to 155 Mbit/s, redrawn every 3 minutes when dynamic.
`hops` says how a hop delivers: in chunks (pipelined), or a root's whole share at once (Theorem 1).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import networkx as nx
import numpy as np

from evaluation.netstorm.training import ALEXNET_PARAMETERS, ALEXNET_TENSORS, Setup, Training
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
    return Training(setup, graph, change=change, root=place, guesses=seed).run(seconds)


def whole(setup: Setup) -> Setup:
    """Tensors are not cut, as in systems with one server."""
    return replace(setup, tensors=ALEXNET_TENSORS, chunk=math.inf, probe_count=1)


def _rows(
    trials: int,
    settings: Iterable[tuple[dict[str, Any], Setup]],
    *,
    nodes: int = 9,
    star: Setup = STAR,
    networks: Sequence[bool] = (False, True),
) -> list[Row]:
    """networks: dynamic or not."""
    rows = []
    for dynamic in networks:
        base = [speed(star, dynamic, seed, nodes=nodes) for seed in range(trials)]
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
    """Over MXNET in chunks; the others also with whole tensors."""
    settings = [({"system": k}, SYSTEMS[k]) for k in ("MXNET", "MLNET", "TSEngine", "NetStorm")]
    settings += [({"system": f"{k}, tensors whole"}, whole(SYSTEMS[k])) for k in ("MXNET", "MLNET", "TSEngine")]
    return _rows(trials, settings)


def fig14(trials: int) -> list[Row]:
    """One root, no auxiliary paths; also as Theorem 1 has it, a root's model in one piece. Over a STAR of that kind."""
    rows: list[Row] = []
    for hops, chunk in (("chunks", 1.0), ("stored", ALEXNET_PARAMETERS)):
        settings: list[tuple[dict[str, Any], Setup]] = []
        for name in ("STAR", "BKT", "MST", "FAPT"):
            aware = "passive" if name in ("MST", "FAPT") else "none"
            setup = Setup(name, 1, aware, False, chunk=chunk, probe_count=8 if chunk == 1 else 1)
            settings.append(({"topology": name, "hops": hops}, setup))
        rows += _rows(trials, settings, star=settings[0][1])
    return rows


def fig15(trials: int) -> list[Row]:
    return _rows(trials, [({"roots": k}, Setup(roots=k)) for k in range(1, 10)])


def fig16(trials: int) -> list[Row]:
    """From guesses, as the authors start, and from what is."""
    settings = [
        ({"awareness": aware, "auxiliary": auxiliary, "start": "known" if known else "guessed"},
         Setup(awareness=aware, auxiliary=auxiliary, known=known))
        for known in (False, True)
        for auxiliary in (False, True)
        for aware in ("none", "passive", "full")
    ]  # fmt: skip
    return _rows(trials, settings, networks=(True,))


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
        star, ours = (replace(SYSTEMS[k], parameters=size) for k in ("MXNET", "NetStorm"))
        settings = [({"x": model, "system": "MXNET"}, star), ({"x": model, "system": "NetStorm"}, ours)]
        rows += _rows(trials, settings, star=star, networks=(True,))
    for nodes in (5, 7, 9, 11, 13, 15):
        settings = [({"x": f"{nodes} nodes", "system": "NetStorm"}, Setup(roots=nodes))]
        rows += _rows(trials, settings, nodes=nodes, networks=(True,))
    return rows


SENSITIVITY: dict[str, Sequence[float]] = {
    "chunk": (0.5, 1.0, 2.0, 4.0, 8.0),
    "update": (1.0, 5.0, 20.0, 60.0),
    "update_rate": (0.0, 0.2, 0.5, 1.0),
    "probe_size": (0.1, 0.5, 1.0, 2.0),
    "probe_count": (1, 4, 8, 32, 128),
}


def fig20(trials: int) -> list[Row]:
    settings = [
        ({"parameter": name, "value": value}, Setup(**{name: value}))  # type: ignore[arg-type]
        for name, values in SENSITIVITY.items()
        for value in values
    ]
    return _rows(trials, settings, networks=(True,))


def headline(trials: int) -> list[Claim]:
    """The aim is held against MXNET as it is: tensors whole, the worst place for its server ("up to")."""
    claims = []
    for dynamic, paper, aim in ((True, "6.5", 6.5), (False, "9.2", 9.2)):
        name = "dynamic" if dynamic else "static"
        over: dict[str, list[float]] = {}
        aware, more = [], []
        for seed in range(trials):
            ours = speed(SYSTEMS["NetStorm"], dynamic, seed)
            for kind, star in (("tensors whole", whole(STAR)), ("in chunks", STAR)):
                stars = [speed(star, dynamic, seed, root=root) for root in range(9)]
                over.setdefault(f"{kind}, worst root", []).append(ours / min(stars))
                over.setdefault(f"{kind}, average root", []).append(ours / float(np.mean(stars)))
            std = speed(SYSTEMS["NetStorm-std"], dynamic, seed)
            more.append(100 * (ours / std - 1))
            aware.append(100 * (std / speed(SYSTEMS["NetStorm-lite"], dynamic, seed) - 1))
        for kind, values in over.items():
            least = aim if kind == "tensors whole, worst root" else None
            note = f"median {np.median(values):.2f}, most {max(values):.2f}"
            claims.append(claim(f"times MXNET ({kind}), {name}", f"up to {paper}", values, least=least, note=note))
        claims.append(claim(f"% faster by passive awareness, {name}", "20" if dynamic else "", aware))
        claims.append(claim(f"% faster by auxiliary paths, {name}", "30 to 65" if dynamic else "", more))
    return claims
