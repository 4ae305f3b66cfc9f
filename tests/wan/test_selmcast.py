"""SelMcast's selections are feasible and follow the pseudo-code; they are compared with brute force, flow and MILP."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.planner.strategies.wan.errors import WanError
from controlplane.planner.strategies.wan.links import Links
from controlplane.planner.strategies.wan.selmcast import algorithm as selmcast
from controlplane.planner.strategies.wan.selmcast import shared
from evaluation.selmcast.figures import simulated
from evaluation.selmcast.optimum import optimal_equal
from evaluation.selmcast.ssp import Setup, Training
from tests.support.examples import examples


@st.composite
def instances(draw: st.DrawFn, largest: int = 8, equal: bool = False) -> selmcast.Instance:
    n = draw(st.integers(1, largest))
    rates = st.lists(st.integers(1, 8), min_size=n, max_size=n)
    bits = st.lists(st.lists(st.sampled_from([False, False, True]), min_size=n, max_size=n), min_size=n, max_size=n)
    return selmcast.instance(
        draw(rates),
        draw(rates),
        draw(st.lists(st.integers(0, n - 1), min_size=n, max_size=n)),
        layer=draw(st.sampled_from(["L3", "L7"])),
        volumes=2.0 if equal else draw(rates),
        must=draw(bits),
        stale=np.arange(n * n).reshape(n, n) % 5,
    )


def check(x: np.ndarray, task: selmcast.Instance) -> None:
    assert not x.diagonal().any()
    assert (x.sum(axis=1) >= task.receivers).all()
    assert (x | ~task.must).all()


def literal_bsp(task: selmcast.Instance) -> np.ndarray:
    """Algorithm 1 line by line with Python's lists and no shortcut; of equals the larger volume comes first."""
    n, v = task.n, task.volumes
    x = task.must.copy()
    for i in sorted(range(n), key=lambda i: (-x[i].sum(), -v[i])):
        q = max(0, int(task.receivers[i] - x[i].sum()))
        load = {j: (v[i] + sum(v[k] * x[k, j] for k in range(n) if k != j)) / task.download[j] for j in range(n)}
        for j in sorted((j for j in range(n) if j != i and not x[i, j]), key=lambda j: (load[j], j))[:q]:
            x[i, j] = True
    t = selmcast.completion(x, task)
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j and not x[i, j]]
    for i, j in sorted(pairs, key=lambda e: -task.stale[e]):
        y = x.copy()
        y[i, j] = True
        out = selmcast.sent(y, v, task.layer)[i] / task.upload[i]
        if max(out, (v @ y)[j] / task.download[j]) <= t * (1 + 1e-9):
            x = y
    return x


@settings(max_examples=examples(150), deadline=None)
@given(instances())
def test_selection_is_the_pseudo_codes(task: selmcast.Instance) -> None:
    x = selmcast.select(task)
    check(x, task)
    assert (x == literal_bsp(task)).all()


@settings(max_examples=examples(60), deadline=None)
@given(instances())
def test_random_selection_takes_exactly_the_required_receivers(task: selmcast.Instance) -> None:
    x = selmcast.orpheus(task, np.random.default_rng(0))
    check(x, task)
    assert (x.sum(axis=1) == np.maximum(task.receivers, task.must.sum(axis=1))).all()


@settings(max_examples=examples(25), deadline=None)
@given(instances(4, equal=True))
def test_the_flow_optimum_is_the_best_of_all_selections(task: selmcast.Instance) -> None:
    n = task.n
    pairs = [(i, j) for i in range(n) for j in range(n) if i != j]
    free = [pair for pair in pairs if not task.must[pair]]
    best: tuple[float, int] | None = None
    for bits in itertools.product([False, True], repeat=len(free)):
        x = task.must.copy()
        for pair, bit in zip(free, bits, strict=True):
            x[pair] = bit
        if (x.sum(axis=1) >= task.receivers).all():
            key = (round(selmcast.completion(x, task), 9), -int(x.sum()))
            best = key if best is None or key < best else best
    x = optimal_equal(task)
    check(x, task)
    assert (round(selmcast.completion(x, task), 9), -int(x.sum())) == best


def test_unequal_volumes_have_no_flow_formulation() -> None:
    with pytest.raises(WanError, match="does not hold"):
        optimal_equal(selmcast.instance([1, 1], [1, 1], 1, volumes=[1, 2]))


@settings(max_examples=examples(40), deadline=None)
@given(instances(6))
def test_max_min_never_beats_the_planned_time(task: selmcast.Instance) -> None:
    x = selmcast.select(task)
    assert simulated(x, task) >= selmcast.completion(x, task) * (1 - 1e-9)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda: selmcast.instance([], [], 0), "at least one"),
        (lambda: selmcast.instance([1, 1], [1], 1), "as many"),
        (lambda: selmcast.instance([1, 1], [1, 1], 2), "can have"),
        (lambda: selmcast.instance([0, 1], [1, 1], 1), r"\[0\] have receivers but no upload"),
        (lambda: selmcast.instance([1, 1], [1, 0], 1), r"\[0\] have more receivers"),
        (lambda: selmcast.instance([1, 1], [0, 1], 0, must=[[0, 0], [1, 0]]), "must receive"),
        (lambda: selmcast.instance([1, 1], [1, 1], 1, volumes=[1, 0]), "volumes"),
        (lambda: selmcast.instance([1, -1], [1, 1], 1), "upload"),
        (lambda: selmcast.instance([1, 1], [1, 1], 1, layer="L2"), "layer"),
    ],
)
def test_wrong_instances_name_the_worker(wrong, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(WanError, match=message):
        wrong()


@settings(max_examples=examples(40), deadline=None)
@given(st.integers(2, 9), st.data())
def test_ties_are_broken_alike_and_loads_stay_even(n: int, data: st.DataObject) -> None:
    """On equal links the greedy choice is always the same, and at most one delivery over the optimum. The worker that
    chooses last may find that the least loaded receiver is itself.
    """
    p = data.draw(st.integers(1, n - 1))
    task = selmcast.instance(np.full(n, 5.0 * n), np.full(n, 5.0), p, layer="L3")
    x = selmcast.select(task)
    assert (x == selmcast.select(task)).all()
    best = selmcast.completion(optimal_equal(task), task)
    assert best <= selmcast.completion(x, task) * (1 + 1e-9) <= best + 0.2 + 1e-6
    assert np.ptp(x.sum(axis=0)) <= 2


@settings(max_examples=examples(40), deadline=None)
@given(instances(6), st.data())
def test_workers_that_cannot_receive_are_never_chosen(task: selmcast.Instance, data: st.DataObject) -> None:
    deaf = data.draw(st.integers(0, task.n - 1))
    down = task.download.copy()
    down[deaf] = 0
    few = np.minimum(task.receivers, max(0, task.n - 2))
    must = task.must.copy()
    must[:, deaf] = False
    cut = selmcast.instance(task.upload, down, few.tolist(), layer=task.layer, volumes=task.volumes, must=must)
    for x in (selmcast.select(cut), selmcast.orpheus(cut, np.random.default_rng(0))):
        check(x, cut)
        assert not x[:, deaf].any()


def test_one_worker_has_nobody_to_send_to() -> None:
    task = selmcast.instance([1], [1], 0)
    for choose in (selmcast.select, optimal_equal):
        assert not choose(task).any()


def big_switch(task: selmcast.Instance) -> Links:
    """Return the paper's network as links: an upload and a download for each worker."""
    names = [str(k) for k in range(task.n)]
    up = {(name, "switch"): rate for name, rate in zip(names, task.upload, strict=True)}
    down = {("switch", name): rate for name, rate in zip(names, task.download, strict=True)}
    return Links(names, {(i, j): (i, "switch", j) for i in names for j in names}, up | down)


@settings(max_examples=examples(100), deadline=None)
@given(instances())
def test_with_a_row_for_each_link_of_a_big_switch_it_is_the_same(task: selmcast.Instance) -> None:
    assert (shared.select(task, big_switch(task)) == literal_bsp(task)).all()


# --- SSP ---


def literal_ssp(task: selmcast.Instance, now: selmcast.Ongoing, eta: float) -> np.ndarray:
    """Algorithm 2 from line 5 on, line by line, with line 32's x read as y and the order of line 13."""
    n, x, v = task.n, now.x, now.remaining
    y = np.zeros((n, n), bool)
    for i, j in itertools.product(range(n), repeat=2):
        if x[i, j] and (task.must[i, j] or v[i, j] < eta * task.volumes[i]):
            y[i, j] = True
    order = sorted(now.active, key=lambda i: now.waits[i])
    for i in order:
        q = max(0, int(task.receivers[i] - y[i].sum()))
        free = [j for j in range(n) if x[i, j] and not y[i, j]]
        load = {j: (v[i, j] + sum(v[k, j] for k in range(n) if y[k, j])) / task.download[j] for j in free}
        for j in sorted(free, key=lambda j: (load[j], j))[:q]:
            y[i, j] = True

    def out(i: int) -> float:
        amounts = [v[i, j] for j in range(n) if y[i, j]]
        return (max(amounts, default=0.0) if task.layer == "L3" else sum(amounts)) / task.upload[i]

    def into(j: int) -> float:
        return sum(v[k, j] for k in range(n) if y[k, j]) / task.download[j]

    t = {i: max([now.waits[i], out(i), *(into(j) for j in range(n) if y[i, j])]) * (1 + 1e-9) for i in order}
    pairs = [(i, j) for i in range(n) for j in range(n) if x[i, j] and not y[i, j]]
    for i, j in sorted(pairs, key=lambda e: -task.stale[e]):
        y[i, j] = True
        y[i, j] = t[i] >= out(i) and t[i] >= into(j)
    return y


@settings(max_examples=examples(100), deadline=None)
@given(instances(), st.sampled_from([0.0, 0.5, 0.75, 1.0]), st.data())
def test_ssp_selection_is_the_pseudo_codes(task: selmcast.Instance, eta: float, data: st.DataObject) -> None:
    """Draw a state in which some workers send to some receivers, with a part of the volume left each; the last worker
    is new. Rates are powers of two, so that equal times are equal in floating point, too, in whatever order they are
    added up.
    """
    task = replace(task, upload=2.0 ** (task.upload // 3), download=2.0 ** (task.download // 3))
    n = task.n
    active = sorted({*data.draw(st.lists(st.integers(0, n - 1), max_size=n)), n - 1})
    alike = data.draw(st.booleans())  # In this case a sender has equally much left for each receiver.
    x, v = np.zeros((n, n), bool), np.zeros((n, n))
    for i in active:
        row = np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n)))
        x[i] = np.arange(n) != i if i == active[-1] else row & (np.arange(n) != i)
        parts = [4] * n if i == active[-1] else data.draw(st.lists(st.integers(0, 4), min_size=n, max_size=n))
        parts = parts[:1] * n if alike else parts
        v[i] = np.where(x[i], np.array(parts) / 4 * task.volumes[i], 0.0)
    waits = np.array(data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)), float)
    now = selmcast.Ongoing(x, v, waits, active)
    expected = literal_ssp(task, now, eta)
    assert (selmcast.select_ssp(task, now, eta=eta) == expected).all()
    if alike:  # Otherwise the sender's own link, which counts here and not in the paper, distinguishes receivers.
        assert (shared.select_ssp(task, now, big_switch(task), eta=eta) == expected).all()


@settings(max_examples=examples(100), deadline=None)
@given(instances(), st.data())
def test_ssp_only_drops_receivers_and_keeps_nearly_complete_ones(task: selmcast.Instance, data: st.DataObject) -> None:
    n = task.n
    x = ~np.eye(n, dtype=bool)
    part = np.array(data.draw(st.lists(st.integers(0, 10), min_size=n, max_size=n))) / 10
    v = np.where(x, (part * task.volumes)[:, None], 0.0)
    waits = np.array(data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)), float)
    now = selmcast.Ongoing(x, v, waits, range(n))
    y = selmcast.select_ssp(task, now, eta=0.75)
    assert not (y & ~x).any()
    check(y, task)
    assert y[x & (v < 0.75 * task.volumes[:, None])].all()


def test_ssp_of_one_new_worker_extends_the_basic_selection() -> None:
    """Workers 1, 2, 3 have downloads of 1, 2, 4: the new worker 0 takes 3 (0.25 s); no other worker has it by then."""
    task = selmcast.instance([9] * 4, [1, 1, 2, 4], 1)
    x = np.zeros((4, 4), bool)
    x[0, 1:] = True
    y = selmcast.select_ssp(task, selmcast.Ongoing(x, np.where(x, 1.0, 0.0), np.zeros(4), [0]))
    assert np.flatnonzero(y[0]).tolist() == [3]
    waiting = selmcast.Ongoing(x, np.where(x, 1.0, 0.0), np.array([0.5, 0, 0, 0]), [0])
    assert np.flatnonzero(selmcast.select_ssp(task, waiting)[0]).tolist() == [2, 3]  # The worker would wait anyway.


def test_load_of_intermediate_links_counts() -> None:
    """0's path to 2 is wider than to 1, but 3 sends to 4 over it: alone 0 takes 2, and beside 3's multicast 1."""
    names = [str(k) for k in range(5)]
    ways: dict[tuple[str, str], str] = {(i, j): i + j for i in names for j in names}
    ways |= {("0", "2"): "0ab2", ("3", "4"): "3ab4"}
    rates = {("0", "1"): 2.0, ("0", "a"): 3.0, ("a", "b"): 3.0, ("b", "2"): 3.0, ("3", "a"): 9.0, ("b", "4"): 9.0}
    x = np.zeros((5, 5), bool)
    x[0, [1, 2]] = x[3, 4] = True
    for beside, chosen in ((False, 2), (True, 1)):
        must = np.zeros((5, 5), bool)
        must[3, 4] = beside
        task = selmcast.instance([9] * 5, [9] * 5, [1, 0, 0, 0, 0], must=must)
        now = selmcast.Ongoing(x, np.where(x, 1.0, 0.0), np.zeros(5), [3, 0] if beside else [0])
        assert np.flatnonzero(shared.select_ssp(task, now, Links(names, ways, rates))[0]).tolist() == [chosen]


@pytest.mark.parametrize("scheme", ["SelMcast", "Orpheus"])
def test_training_keeps_its_promises(scheme: str) -> None:
    run = Training(Setup(scheme, n=8, threshold=2, k=3), 1)
    busy, scale = run.run(20.0)
    assert 0 < busy < 1
    manager = run.policy
    assert min(manager.scales) >= manager.p and scale >= manager.p / 8
    assert manager.stale.max() <= 3 + 1  # Every pair meets at least once in k + 1 rounds.
    assert manager.round.max() - manager.round.min() <= 2 + 1


@pytest.mark.parametrize("wrong", [{"n": 1}, {"fraction": 1.0}, {"gamma": 2.0}, {"scheme": "x"}])
def test_wrong_setups_say_what_they_need(wrong: dict) -> None:
    with pytest.raises(ValueError, match=r"must|known"):
        Setup(**wrong)


def test_training_repeats_exactly_and_follows_bandwidths() -> None:
    results = {g: Training(Setup(n=6, gamma=g), 5).run(5.0) for g in (0.0, 0.5)}
    assert results[0.5] == Training(Setup(n=6, gamma=0.5), 5).run(5.0)
    assert results[0.0] != results[0.5]
