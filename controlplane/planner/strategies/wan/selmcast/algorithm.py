"""SelMcast's decisions, to which workers each worker multicasts its model (Luo et al., "Efficient Parameter
Synchronization ... Selective Multicast"), with Orpheus's random choice and the exact optimum.

The network is a non-blocking switch: worker i sends with upload[i] (the paper's ingress) and receives with download[j]
(its egress). x[i, j] is set where j receives i's model. In layer L3 a multicast leaves its sender once, in L7 once per
receiver.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from controlplane.planner.strategies.wan.errors import WanError

Layer = Literal["L3", "L7"]
Bools = NDArray[np.bool_]
Reals = NDArray[np.float64]
TOLERANCE = 1 + 1e-9


@dataclass(frozen=True)
class Instance:
    """An instance of the selection.

    Attributes:
        upload: Mbit/s of each worker, shape (n,).
        download: Mbit/s of each worker, shape (n,).
        volumes: Mbit of each worker's model, shape (n,).
        receivers: The least number of receivers of each worker, p_i, shape (n,).
        must: Pairs that have to be selected, D, shape (n, n).
        stale: Rounds since i last selected j, c, shape (n, n).
        layer: "L3" or "L7".
    """

    upload: Reals
    download: Reals
    volumes: Reals
    receivers: NDArray[np.int64]
    must: Bools
    stale: NDArray[np.int64]
    layer: Layer

    @property
    def n(self) -> int:
        return len(self.upload)


def instance(
    upload: ArrayLike,
    download: ArrayLike,
    receivers: int | Sequence[int],
    *,
    layer: Layer = "L3",
    volumes: ArrayLike = 1.0,
    must: ArrayLike | None = None,
    stale: ArrayLike | None = None,
) -> Instance:
    """Return the checked and completed instance. Raise WanError, naming the worker, where it cannot be."""
    up, down = np.asarray(upload, float), np.asarray(download, float)
    n = len(up)
    if n < 1 or len(down) != n:
        raise WanError(f"{n} uploads and {len(down)} downloads: there must be as many, at least one")
    wanted = np.broadcast_to(np.asarray(receivers), (n,)).astype(np.int64)
    sizes = np.broadcast_to(np.asarray(volumes, float), (n,)).copy()
    forced = np.zeros((n, n), bool) if must is None else np.asarray(must, bool).copy()
    age = np.zeros((n, n), np.int64) if stale is None else np.asarray(stale, np.int64)
    if layer not in ("L3", "L7"):
        raise WanError(f"layer must be L3 or L7, got {layer!r}")
    if (wanted < 0).any() or (wanted > n - 1).any():
        raise WanError(f"{n} workers can have 0 .. {n - 1} receivers, got {wanted.tolist()}")
    if not (np.isfinite(sizes).all() and (sizes > 0).all()):
        raise WanError("volumes must be > 0")
    for what, values in (("upload", up), ("download", down)):
        if np.isnan(values).any() or (values < 0).any():
            raise WanError(f"{what} bandwidths must be >= 0")
    np.fill_diagonal(forced, False)
    silent = np.flatnonzero((up == 0) & ((wanted > 0) | forced.any(axis=1)))
    if len(silent):
        raise WanError(f"workers {silent.tolist()} have receivers but no upload bandwidth")
    deaf = np.flatnonzero((down == 0) & forced.any(axis=0))
    if len(deaf):
        raise WanError(f"workers {deaf.tolist()} must receive but have no download bandwidth")
    if wanted.max(initial=0) > (down > 0).sum() - 1 and (down == 0).any():
        few = [i for i in range(n) if wanted[i] > (down > 0).sum() - (down[i] > 0)]
        if few:
            raise WanError(f"workers {few} have more receivers to find than there are with download bandwidth")
    return Instance(up, down, sizes, wanted, forced, age, layer)


def sent(x: Bools, volumes: Reals, layer: Layer) -> Reals:
    """Return s_i of Eq. (9) when nothing is delivered yet: the Mbit that leave each sender."""
    return volumes * (x.any(axis=1) if layer == "L3" else x.sum(axis=1))


def _over(amount: Reals, rate: Reals) -> Reals:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(amount > 0, amount / rate, 0.0)


def completion(x: Bools, task: Instance) -> float:
    """Return t of (10) and (11): the seconds until all is delivered, every transfer ending at the same time."""
    out = _over(sent(x, task.volumes, task.layer), task.upload)
    into = _over(task.volumes @ x, task.download)
    return float(max(out.max(), into.max()))


def select(task: Instance) -> Bools:
    """Return the selection of Algorithm 1. It leaves ties open: of senders the one with the larger volume comes first,
    as late transfers should be small; else the number decides ((load, id), then (i, j) in the Pareto improvement).

    The basic selection takes O(n^2 log n); the paper derives O(n^4) and claims O(n^3).
    """
    volumes, layer = task.volumes, task.layer
    x = task.must.copy()
    load = volumes @ x
    for i in np.lexsort((-volumes, -x.sum(axis=1))):
        q = int(task.receivers[i] - x[i].sum())
        if q <= 0:
            continue
        with np.errstate(divide="ignore"):
            key = (volumes[i] + load) / task.download
        key[x[i]] = np.inf
        key[i] = np.inf
        chosen = np.argsort(key, kind="stable")[:q]
        x[i, chosen] = True
        load[chosen] += volumes[i]
    # Pareto improvement: add pairs that fit in before t. Loads only grow, so a pair that does not fit now never will.
    t = completion(x, task) * TOLERANCE
    room = t * task.download
    budget = t * task.upload
    fits = ~x & (load[None, :] + volumes[:, None] <= room[None, :])
    np.fill_diagonal(fits, False)
    out = sent(x, volumes, layer)
    one_more = volumes if layer == "L3" else out + volumes
    fits &= (np.maximum(out, one_more) <= budget)[:, None]
    rows, columns = np.nonzero(fits)
    order = np.argsort(-task.stale[rows, columns], kind="stable")
    left, spare, sizes = (room - load).tolist(), (budget - out).tolist(), volumes.tolist()
    for i, j in zip(rows[order].tolist(), columns[order].tolist(), strict=True):
        size = sizes[i]
        if left[j] >= size and (layer == "L3" or spare[i] >= size):
            x[i, j] = True
            left[j] -= size
            spare[i] -= size
    return x


def orpheus(
    task: Instance, rng: np.random.Generator, senders: Sequence[int] | None = None, *, allowed: Bools | None = None
) -> Bools:
    """Return a selection of random receivers: first all of D, then random ones up to p_i (as the paper modifies
    Orpheus).

    `senders` are the workers whose receivers are drawn (default: all); the other rows of x are D's. `allowed` has the
    pairs that may be drawn (default: all).
    """
    x = task.must.copy()
    for i in range(task.n) if senders is None else senders:
        q = int(task.receivers[i] - x[i].sum())
        if q > 0:
            free = np.flatnonzero(~x[i] & (task.download > 0) & (True if allowed is None else allowed[i]))
            x[i, rng.choice(free[free != i], q, replace=False)] = True
    return x


# --- SSP ---


@dataclass(frozen=True)
class Ongoing:
    """State that SSP's manager knows when a worker becomes ready.

    Attributes:
        x: The present receivers, (n, n); for the newly ready worker, all others.
        remaining: v_ij, in Mbit.
        waits: tau_i, the seconds that i would wait if its multicast were done.
        active: G, the workers that multicast, with the new one.
    """

    x: Bools
    remaining: Reals
    waits: Reals
    active: Sequence[int]


def select_ssp(task: Instance, now: Ongoing, *, eta: float = 0.75) -> Bools:
    """Return the receivers that stay (y), by Algorithm 2. They are among x: a receiver that was left out is not taken
    in again in this round.

    Corrections of the print: line 2's v_i is v_kappa (the caller sets it); line 32's sum is over y. The order of tau
    is line 13's (non-decreasing); the text has the other one. Ties are broken by number.
    """
    if not 0 <= eta <= 1:
        raise WanError(f"eta must be between 0 and 1, got {eta}")
    x, v = now.x, now.remaining
    n = task.n
    y = x & (task.must | (v < eta * task.volumes[:, None]))
    load = np.where(y, v, 0.0).sum(axis=0)
    order = sorted(now.active, key=lambda i: (now.waits[i], i))
    for i in order:
        q = int(task.receivers[i] - y[i].sum())
        if q <= 0:
            continue
        with np.errstate(divide="ignore"):
            key = np.where(x[i] & ~y[i], (v[i] + load) / task.download, np.inf)
        chosen = np.argsort(key, kind="stable")[:q]
        chosen = chosen[np.isfinite(key[chosen])]
        y[i, chosen] = True
        load[chosen] += v[i, chosen]
    # Deadlines t_i of the basic selection; then add receivers that fit in before them.
    active = np.zeros(n, bool)
    active[list(now.active)] = True
    kept = np.where(y, v, 0.0)
    out = kept.max(axis=1) if task.layer == "L3" else kept.sum(axis=1)
    into = _over(load, task.download)
    deadline = np.maximum(now.waits, np.maximum(_over(out, task.upload), np.where(y, into[None, :], 0.0).max(axis=1)))
    deadline = deadline * TOLERANCE
    fits = x & ~y & active[:, None] & (load[None, :] + v <= deadline[:, None] * task.download[None, :])
    rows, columns = np.nonzero(fits)
    if len(rows) == 0:
        return y
    by_age = np.argsort(-task.stale[rows, columns], kind="stable")
    loads, outs, ends = load.tolist(), out.tolist(), deadline.tolist()
    down, up = task.download.tolist(), task.upload.tolist()
    sizes = v[rows, columns][by_age].tolist()
    for i, j, size in zip(rows[by_age].tolist(), columns[by_age].tolist(), sizes, strict=True):
        s = max(outs[i], size) if task.layer == "L3" else outs[i] + size
        if s <= ends[i] * up[i] and loads[j] + size <= ends[i] * down[j]:
            y[i, j] = True
            outs[i] = s
            loads[j] += size
    return y
