"""SelMcast's bulk-synchronous rounds one after the other: Algorithm 1 each time, every pair within k + 1 rounds."""

from __future__ import annotations

import numpy as np

from controlplane.planner.plan.task import Task
from controlplane.planner.strategies.wan.selmcast.policy import MulticastSettings, SelMcastRounds
from controlplane.planner.topology import Topology
from evaluation.wan.report import Row
from evaluation.wan.runs import spread
from overlay.sim.simulation import Simulation

NODES = 20
ROUNDS = 12
RECEIVERS = 6  # p = 0.3 n
VALUES, CHUNK = 1_000_000, 250_000
MBPS = 100.0


def star(up: np.ndarray, down: np.ndarray) -> Topology:
    """Return a topology with a core that does not block, as in the paper: only uploads and downloads limit."""
    nodes = {"core": {"kind": "switch"}} | {f"h{k}": {"kind": "server"} for k in range(len(up))}
    links = [(f"h{k}", "core", {"bandwidth_mbps": float(rate)}) for k, rate in enumerate(up)]
    links += [("core", f"h{k}", {"bandwidth_mbps": float(rate)}) for k, rate in enumerate(down)]
    return Topology(nodes, links, "star")


def one(item: tuple[str, int | None, int]) -> Row:
    scheme, k, seed = item
    rng = np.random.default_rng(seed)
    up, down = (MBPS * rng.uniform(0.75, 1.25, NODES) for _ in range(2))
    policy = SelMcastRounds(
        [f"h{i}" for i in range(NODES)],
        up,
        down,
        RECEIVERS,
        settings=MulticastSettings(scheme=scheme, k=k, seed=seed, chunk_values=CHUNK),
    )
    seconds: list[float] = []
    met = np.zeros((NODES, NODES), bool)
    ages: list[int] = []
    last = np.zeros((NODES, NODES), int)

    def finished(task: Task, s: float) -> None:
        seconds.append(s)
        for tree in task.trees:
            for receiver in tree.receivers:
                i, j = int(tree.root[1:]), int(receiver[1:])
                ages.append(len(seconds) - int(last[i, j]))
                met[i, j], last[i, j] = True, len(seconds)

    Simulation(policy, star(up, down), VALUES, finished=finished).run(ROUNDS)
    least = RECEIVERS * VALUES * 32e-6 / MBPS  # seconds if all links had MBPS
    return {
        "scheme": scheme, "k": "none" if k is None else k, "completion": float(np.mean(seconds)) / least,
        "slowest": float(np.max(seconds)) / least, "pairs_met_%": 100 * met.sum() / (NODES * (NODES - 1)),
        "oldest": max(*ages, ROUNDS + 1 - int(last[~np.eye(NODES, dtype=bool)].min())),
    }  # fmt: skip


def rounds(trials: int) -> list[Row]:
    """Return rows: completion is a round's mean over p times volume / bandwidth, oldest the rounds between a pair's
    multicasts.
    """
    kinds: list[tuple[str, int | None]] = [("SelMcast", 4), ("SelMcast", 8), ("SelMcast", None), ("Orpheus", 4)]
    rows = spread(one, [(scheme, k, seed) for scheme, k in kinds for seed in range(trials)])
    found: list[Row] = []
    for start in range(0, len(rows), trials):
        own = rows[start : start + trials]
        mean = {key: float(np.mean([row[key] for row in own])) for key in own[0] if key not in ("scheme", "k")}
        found.append({"scheme": own[0]["scheme"], "k": own[0]["k"], **mean, "seeds": trials})
    return found
