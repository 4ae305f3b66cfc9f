"""NetStorm's figures 13 to 20 and its headline (section IX), as iterations per second over those of STAR (MXNET).

The paper does not print STAR's root: figures take a random one per seed; the headline gives an average one and the
worst. MXNET with one server sends a tensor whole; both that and NetStorm's chunks, which favour it, are given. Links
are directed (each direction drawn on its own, as in the authors' scripts), 20 to 155 Mbit/s, redrawn every 3 minutes
when dynamic. `hops` says whether a hop delivers in chunks (pipelined), or a root's whole share at once (Theorem 1).
Connections share links max-min, as TCP's do, and headers and acknowledgements take their part (overlay/sim).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import networkx as nx
import numpy as np

from evaluation.netstorm.training import ALEXNET_PARAMETERS, MILLION, Setup, Training
from evaluation.wan.networks import netstorm_draw, random_network
from evaluation.wan.report import Claim, Row, claim
from evaluation.wan.runs import spread

SECONDS = 1800.0
STAR = Setup("STAR", roots=1, aware=False, auxiliary=False)
SYSTEMS = {
    "MXNET": STAR,
    "MLNET": Setup("BKT", roots=1, aware=False, auxiliary=False),
    "TSEngine": Setup("MST", roots=1, auxiliary=False),
    "NetStorm-lite": Setup(aware=False, auxiliary=False),
    "NetStorm-std": Setup(auxiliary=False),
    "NetStorm": Setup(),
}
MODELS = {"MobileNet": 4.2, "ResNet18": 11.7, "ResNet50": 25.6, "ResNet101": 44.5, "ResNet152": 60.2, "AlexNet": 61.0}


def _redraw(graph: nx.DiGraph, seed: int, now: float) -> nx.DiGraph:
    rng = np.random.default_rng([seed, int(now)])
    drawn = graph.copy()
    for _, _, data in drawn.edges(data=True):
        data["mbps"] = float(rng.integers(20, 156))
    return drawn


def speed(
    setup: Setup, dynamic: bool, seed: int, *, nodes: int = 9, root: int | None = None, seconds: float = SECONDS
) -> float:
    """Return the iterations per second. The same seed gives all systems the same network and the same changes."""
    rng = np.random.default_rng([seed, nodes])
    graph = netstorm_draw(rng) if nodes == 9 else random_network(nodes, rng)
    place = int(rng.integers(nodes)) if root is None else root
    change = partial(_redraw, graph, seed) if dynamic else None
    return Training(setup, graph, change=change, root=place, guesses=seed).run(seconds)


_whole = partial(replace, whole=True, probe_chunks=1)
Run = tuple[Setup, bool, int, int, int | None]  # setup, dynamic, seed, nodes, root


def _one(run: Run) -> float:
    setup, dynamic, seed, nodes, root = run
    return speed(setup, dynamic, seed, nodes=nodes, root=root)


def _speeds(runs: Iterable[Run]) -> dict[Run, float]:
    each = list(dict.fromkeys(runs))
    return dict(zip(each, spread(_one, each), strict=True))


@dataclass(frozen=True)
class Setting:
    """A row: its labels, its setup, and the STAR that it is compared with."""

    labels: Row
    setup: Setup
    star: Setup = STAR
    nodes: int = 9


NAMES = {False: "static", True: "dynamic"}


def _rows(trials: int, settings: Sequence[Setting], *, networks: Sequence[bool] = (False, True)) -> list[Row]:
    """Return rows. In them, `seconds` is the time of an iteration, and `over_star` the iterations per second over
    STAR's, mean and 5th to 95th percentile.
    """
    cases = [(dynamic, setting) for dynamic in networks for setting in settings]
    found = _speeds(
        (setup, dynamic, seed, setting.nodes, None)
        for dynamic, setting in cases
        for setup in (setting.setup, setting.star)
        for seed in range(trials)
    )
    rows = []
    for dynamic, setting in cases:
        own, base = (
            np.array([found[setup, dynamic, seed, setting.nodes, None] for seed in range(trials)])
            for setup in (setting.setup, setting.star)
        )
        low, high = np.percentile(own / base, [5, 95])
        row: Row = {"network": NAMES[dynamic], **setting.labels}
        row |= {"seconds": float((1 / own).mean()), "over_star": float((own / base).mean())}
        rows.append({**row, "low": float(low), "high": float(high), "seeds": trials})
    return rows


def fig13(trials: int) -> list[Row]:
    """Return the systems over MXNET in chunks; the others also with whole tensors."""
    settings = [Setting({"system": k}, SYSTEMS[k]) for k in ("MXNET", "MLNET", "TSEngine", "NetStorm")]
    settings += [Setting({"system": f"{k}, whole"}, _whole(SYSTEMS[k])) for k in ("MXNET", "MLNET", "TSEngine")]
    return _rows(trials, settings)


def fig14(trials: int) -> list[Row]:
    """Return trees with one root and no auxiliary paths, over a STAR of the same kind.

    They are also given as in Theorem 1, with a root's model in one piece.
    """
    settings = []
    for hops, base in (
        ("chunks", Setup()),
        ("stored", Setup(chunk_values=round(ALEXNET_PARAMETERS * MILLION), probe_chunks=1)),
    ):
        setups = {
            name: replace(base, topology=name, roots=1, aware=name in ("MST", "FAPT"), auxiliary=False)
            for name in ("STAR", "BKT", "MST", "FAPT")
        }
        settings += [Setting({"hops": hops, "topology": k}, setup, setups["STAR"]) for k, setup in setups.items()]
    return _rows(trials, settings)


def fig15(trials: int) -> list[Row]:
    """Return rows by number of roots, in which `over_one` is the speed over that of the same system with one root."""
    rows = _rows(trials, [Setting({"roots": k}, Setup(roots=k)) for k in range(1, 10)])
    one = {row["network"]: row["over_star"] for row in rows if row["roots"] == 1}
    return [{**row, "over_one": row["over_star"] / one[row["network"]]} for row in rows]


def fig16(trials: int) -> list[Row]:
    """Return rows that start from guesses, as the authors do, and from the true rates."""
    settings = [
        Setting(
            {"start": "known" if known else "guessed", "paths": "auxiliary" if auxiliary else "primary",
             "awareness": awareness},
            Setup(aware=awareness != "none", full=awareness == "full", auxiliary=auxiliary, known=known),
        )
        for known in (False, True)
        for auxiliary in (False, True)
        for awareness in ("none", "passive", "full")
    ]  # fmt: skip
    return _rows(trials, settings, networks=(True,))


def fig17(trials: int) -> list[Row]:
    """Return the gain of auxiliary paths, for both readings of when a chunk gets its path; `low` and `high` are over
    the seeds.
    """
    plain = SYSTEMS["NetStorm-std"]
    cases = [
        ({"network": NAMES[dynamic], "assigned": "lazily" if lazy else "at once", "bound": bound, "length": length},
         Setup(busy_bound=bound, auxiliary_length=length, lazy=lazy), dynamic)
        for dynamic in (False, True)
        for lazy in (True, False)
        for bound in (1, 2, 4)
        for length in (1, 3, 5)
    ]  # fmt: skip
    found = _speeds(
        (s, dynamic, seed, 9, None) for _, own, dynamic in cases for s in (plain, own) for seed in range(trials)
    )
    rows = []
    for labels, setup, dynamic in cases:
        gains = [
            100 * (found[setup, dynamic, seed, 9, None] / found[plain, dynamic, seed, 9, None] - 1)
            for seed in range(trials)
        ]
        rows.append(
            {**labels, "gain_%": float(np.mean(gains)), "low": min(gains), "high": max(gains), "seeds": trials}
        )  # fmt: skip
    return rows


def fig18(trials: int) -> list[Row]:
    return _rows(trials, [Setting({"system": k}, v) for k, v in SYSTEMS.items() if k.startswith(("MX", "Net"))])


def fig19a(trials: int) -> list[Row]:
    """Return the seconds of an iteration over the model's million parameters."""
    settings = []
    for model, size in MODELS.items():
        star, ours = (replace(SYSTEMS[k], parameters=size) for k in ("MXNET", "NetStorm"))
        labels = {"model": model, "parameters_M": size}
        settings += [
            Setting({**labels, "system": "MXNET"}, star, star),
            Setting({**labels, "system": "NetStorm"}, ours, star),
        ]
    return _rows(trials, settings, networks=(True,))


def fig19b(trials: int) -> list[Row]:
    """Return rows by cluster size. In them, `throughput` is the samples per second, as every node brings its own, over
    those of five nodes, and `efficiency` the throughput per node.
    """
    sizes = (5, 7, 9, 11, 13, 15)
    rows = _rows(trials, [Setting({"nodes": n}, Setup(), nodes=n) for n in sizes], networks=(True,))
    rate = {row["nodes"]: row["nodes"] / row["seconds"] for row in rows}
    for row in rows:
        row["throughput"] = rate[row["nodes"]] / rate[5]
        row["efficiency"] = row["throughput"] * 5 / row["nodes"]
    return rows


SENSITIVITY: dict[str, Sequence[float]] = {
    "chunk_values": (500_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000),
    "update": (1.0, 5.0, 20.0, 60.0),
    "update_rate": (0.0, 0.2, 0.5, 1.0),
    "probe_values": (100_000, 500_000, 1_000_000, 2_000_000),
    "probe_chunks": (1, 4, 8, 32, 128),
}


def fig20(trials: int) -> list[Row]:
    settings = [
        Setting({"parameter": name, "value": value}, Setup(**{name: value}))  # type: ignore[arg-type]
        for name, values in SENSITIVITY.items()
        for value in values
    ]
    return _rows(trials, settings, networks=(True,))


def headline(trials: int) -> list[Claim]:
    """Return the claims, against MXNET as it is: tensors whole, the worst place for its server ("up to")."""
    stars = {"tensors whole": _whole(STAR), "in chunks": STAR}
    ours, std, lite = (SYSTEMS[k] for k in ("NetStorm", "NetStorm-std", "NetStorm-lite"))
    cases = [(dynamic, seed) for dynamic in (True, False) for seed in range(trials)]
    runs: list[Run] = [(star, *case, 9, root) for case in cases for star in stars.values() for root in range(9)]
    runs += [(setup, *case, 9, None) for case in cases for setup in (ours, std, lite)]
    found = _speeds(runs)
    claims = []
    for dynamic, paper, aim in ((True, "6.5", 6.5), (False, "9.2", 9.2)):
        name = NAMES[dynamic]
        seeds = range(trials)
        fast = {s: np.array([found[s, dynamic, seed, 9, None] for seed in seeds]) for s in (ours, std, lite)}
        for kind, star in stars.items():
            rooted = np.array([[found[star, dynamic, seed, 9, root] for root in range(9)] for seed in seeds])
            for place, base in (("worst", rooted.min(axis=1)), ("average", rooted.mean(axis=1))):
                values = fast[ours] / base
                least = aim if (kind, place) == ("tensors whole", "worst") else None
                note = f"median {np.median(values):.2f}, most {values.max():.2f}"
                text = f"times MXNET ({kind}, {place} root), {name}"
                claims.append(claim(text, f"up to {paper}", values.tolist(), least=least, note=note))
        aware, more = 100 * (fast[std] / fast[lite] - 1), 100 * (fast[ours] / fast[std] - 1)
        claims.append(claim(f"% faster by passive awareness, {name}", "20" if dynamic else "", aware.tolist()))
        claims.append(claim(f"% faster by auxiliary paths, {name}", "30 to 65" if dynamic else "", more.tolist()))
    return claims
