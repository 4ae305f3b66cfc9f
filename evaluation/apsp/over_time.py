"""APSP over time: bandwidths are drawn anew, and the server and its routes follow (APSP paper, end of IV) or stay."""

from __future__ import annotations

import networkx as nx
import numpy as np

from controlplane.planner.strategies.wan.apsp.policy import Apsp, ApspSettings
from controlplane.planner.strategies.wan.policy import Changed
from controlplane.planner.wan_networks import by_distance
from evaluation.wan.report import Row
from evaluation.wan.runs import spread
from overlay.sim.simulation import Simulation
from topologies.wan.networks import emulated, scaled

VALUES = 6_000_000
CHUNK = 100_000
TOTAL_MBPS = 2000.0
"""Sum over all links, so small that hosts, at 1 Gbit/s, are not the bottleneck."""

REDRAWS = 6
ROUNDS_EACH = 3
LEAST = 0.1
"""Lowest fraction of a link's bandwidth that is left; the fraction is drawn evenly from here to 1."""

SCHEMES = ("follows", "routes only", "stays")


def drawn(graph: nx.DiGraph, seed: int, k: int) -> dict[tuple[str, str], float]:
    rng = np.random.default_rng([seed, k])
    return {(u, v): data["mbps"] * float(rng.uniform(LEAST, 1.0)) for u, v, data in graph.edges(data=True)}


def one(item: tuple[str, str, int]) -> Row:
    """Simulate rounds one after the other; all links are drawn anew after every few of them."""
    network, scheme, seed = item
    graph, _ = scaled(by_distance(network, seed=seed or None), TOTAL_MBPS)
    named = nx.relabel_nodes(graph, {node: f"h{node}" for node in graph})
    first = Apsp(named, settings=ApspSettings(seed=seed, delay="fluid")).placement.root  # chunks are pipelined
    policy = Apsp(
        named,
        settings=ApspSettings(seed=seed, change=None if scheme == "stays" else 0.05, delay="fluid", chunk_values=CHUNK),
        root=None if scheme == "follows" else first,
    )
    servers, seconds = set(), []
    run: Simulation

    def finished(task: object, s: float) -> None:
        seconds.append(s)
        servers.add(policy.placement.root)
        if len(seconds) % ROUNDS_EACH == 0:
            for (u, v), mbps in drawn(graph, seed, len(seconds)).items():
                run.set_rate(f"dc{u}", f"dc{v}", mbps)
                run.tell(Changed(f"h{u}", f"h{v}", mbps))

    run = Simulation(policy, emulated(graph, 5.0), VALUES, finished=finished)
    run.run(REDRAWS * ROUNDS_EACH)
    return {
        "network": network, "scheme": scheme, "seed": seed, "seconds": float(np.mean(seconds[ROUNDS_EACH:])),
        "servers": len(servers), "decisions": policy.decisions,
    }  # fmt: skip


def over_time(trials: int) -> list[Row]:
    """Return rows: seconds is the mean of a synchronisation after the first redraw, servers the number of server
    places.
    """
    items = [(n, scheme, seed) for n in ("b4", "internet2") for scheme in SCHEMES for seed in range(trials)]
    rows = spread(one, items)
    found: list[Row] = []
    for network in ("b4", "internet2"):
        for scheme in SCHEMES:
            own = [row for row in rows if (row["network"], row["scheme"]) == (network, scheme)]
            found.append({
                "network": network, "scheme": scheme, "seconds": float(np.mean([row["seconds"] for row in own])),
                "servers": float(np.mean([row["servers"] for row in own])),
                "decisions": float(np.mean([row["decisions"] for row in own])), "seeds": trials,
            })  # fmt: skip
    return found
