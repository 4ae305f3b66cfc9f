"""The sums of a training are judged by themselves: right sums pass however far losses drift, and one wrong sum is
noticed.
"""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from evaluation.bmv2_fattree.results import Checked, Training
from tests.support.forked import forks_with
from topologies.ports import free_port
from worker_agent import fixedpoint

torch = pytest.importorskip("torch", reason="torch is not installed")

from evaluation.bmv2_fattree import sums  # noqa: E402  # it imports torch

VALUES = 256
SECONDS = 240


def mean_by_fixed_point(given: list[np.ndarray], first: int = 101) -> np.ndarray:
    """Return the mean as the network computes it, chunk by chunk; the first chunk is short, as after another tree's
    part.
    """
    workers, size = len(given), len(given[0])
    result = np.empty(size, np.float32)
    edges = [0, *range(first, size, VALUES), size]
    for start, end in pairwise(edges):
        chunks = [one[start:end] for one in given]
        biased = max(fixedpoint.exponent(chunk) for chunk in chunks)
        total = np.sum([fixedpoint.quantise(chunk, biased, workers) for chunk in chunks], axis=0, dtype=np.int32)
        result[start:end] = fixedpoint.dequantise(np.asarray(total), biased, workers, mean=True)
    return result


def shares(given: list[np.ndarray], result: np.ndarray) -> np.ndarray:
    exact = np.sum([one.astype(np.float64) for one in given], axis=0)
    finite = [np.nan_to_num(one, nan=0.0, posinf=0.0, neginf=0.0) for one in given]
    magnitudes = np.sum([np.abs(one.astype(np.float64)) for one in finite], axis=0)
    mixed = not np.isfinite(exact).all()
    allowed = sums.bounds(np.max(np.abs(finite), axis=0), magnitudes, len(given), 1, mixed)
    return sums.errors(result, exact / len(given), allowed)


def gradients(workers: int, seed: int, size: int = 5000) -> list[np.ndarray]:
    """Return gradients with zeros and with magnitudes that differ by ten orders over the array."""
    drawn = np.random.default_rng(seed)
    scale = np.exp(np.cumsum(drawn.normal(0, 0.3, size)) - 5).astype(np.float32)
    made = [(drawn.standard_normal(size) * scale).astype(np.float32) for _ in range(workers)]
    for one in made:
        one[:600] = 0
    return made


@pytest.mark.parametrize("workers", [2, 12, 50])
@pytest.mark.parametrize("seed", range(5))
def test_fixed_point_results_are_within_the_bounds(workers: int, seed: int) -> None:
    given = gradients(workers, seed)
    share = shares(given, mean_by_fixed_point(given))
    assert share.max() <= 1.0
    assert share.max() > 0.01, "the bounds are not so wide that they say nothing"


def test_a_missing_or_doubled_contribution_and_a_flipped_bit_are_not() -> None:
    given = gradients(12, 3)
    right = mean_by_fixed_point(given)
    place = 600 + int(np.abs(given[4][600:]).argmax())
    for change in (-1.0, 1.0):
        wrong = right.copy()
        wrong[place] += np.float32(change * given[4][place] / 12)
        assert np.flatnonzero(shares(given, wrong) > 1.0).tolist() == [place]
    total = mean_by_fixed_point(given).view(np.uint32)
    flipped = total.copy()
    flipped[place] ^= 1 << 15
    assert np.flatnonzero(shares(given, flipped.view(np.float32)) > 1.0).tolist() == [place]


def test_nonfinite_values_must_be_nonfinite_in_both() -> None:
    given = gradients(2, 1)
    result = mean_by_fixed_point(given)
    result[900] = np.nan
    assert shares(given, result)[900] == np.inf
    given[0][900] = np.inf
    assert shares(given, result)[900] == 0.0
    result[900] = 1.0
    assert shares(given, result)[900] == np.inf


def training(inart: float, rounded: float | None, checked: Checked) -> Training:
    """Return 60 steps whose losses differ from gloo's by these amounts at the last step, growing from 1e-8."""
    gloo = [2.3 * 0.97**step for step in range(60)]

    def drifted(last: float) -> list[float]:
        return [loss * (1 + 1e-8 * (last / 1e-8) ** (step / 59)) for step, loss in enumerate(gloo)]

    return Training(
        loss_gloo=gloo, loss_inart=drifted(inart), seconds_gloo=8.0, seconds_inart=4.0, strategy="inart", workers=12,
        dataset="digits", parameters=49_265, test_accuracy_gloo=0.9, test_accuracy_inart=0.9, sums=checked,
        loss_rounded=[] if rounded is None else drifted(rounded),
    )  # fmt: skip


ALL_RIGHT = Checked(buckets=120, largest=0.4)


def test_losses_that_rounding_has_driven_apart_agree_when_all_sums_are_right() -> None:
    assert training(1e-5, None, ALL_RIGHT).agrees
    assert training(1.8e-3, 1.2e-3, ALL_RIGHT).agrees, "as seen with 12 workers and 60 steps"
    assert not training(1.8e-3, None, ALL_RIGHT).agrees
    assert not training(1.8e-3, 1e-5, ALL_RIGHT).agrees, "rounding does not explain that"


def test_one_wrong_sum_is_no_agreement_however_near_the_losses_are() -> None:
    wrong = Checked(buckets=120, wrong_buckets=1, wrong=["all-reduce 7: 1 of 100 values"], largest=9.0)
    assert not training(1e-7, None, wrong).agrees
    assert not training(1e-7, None, Checked()).agrees, "nothing was checked"


# -- with a training ---------------------------------------------------------------------------------------------------


class _State:
    """Replaces InArtState."""

    in_network, falls = True, 0

    def __init__(self, *_: Any, **__: Any) -> None:
        self.calls = 0

    def close(self) -> None: ...


def _fixed_point_hook(wrong_call: int) -> Any:
    """Return a hook that sums all gradients by fixed point, gathered over gloo; in one call one value of the result
    lacks a contribution.
    """
    import torch.distributed as dist

    def hook(state: _State, bucket: Any) -> Any:
        given = bucket.buffer()
        gathered = [torch.empty_like(given) for _ in range(dist.get_world_size())]
        dist.all_gather(gathered, given)
        mean = mean_by_fixed_point([one.numpy() for one in gathered])
        if state.calls == wrong_call:
            place = int(np.abs(gathered[1].numpy()).argmax())
            mean[place] -= np.float32(gathered[1].numpy()[place] / len(gathered))
        state.calls += 1
        future: Any = torch.futures.Future()
        future.set_result(torch.from_numpy(mean))
        return future

    return hook


def _rank(rank: int, port: int, kind: str, connection: Any) -> None:
    import worker_agent
    from evaluation.bmv2_fattree.training import train

    worker_agent.InArtState = _State  # type: ignore[assignment,misc]
    worker_agent.inart_hook = _fixed_point_hook(5 if kind == "wrong" else -1)
    environment = {
        "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0", "GROUP_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
    }  # fmt: skip
    hook = "gloo" if kind in ("gloo", "rounded") else "inart"
    options = ["--hook", hook, "--steps", "12", "--width", "4", "--rate", "0.1"]
    connection.send(train(None, environment=environment, options=options, rounded=kind == "rounded"))  # type: ignore[arg-type]


FORKS = forks_with("evaluation.bmv2_fattree.training", "examples.train_digits", "sklearn.datasets", __name__)


def trained(kind: str) -> dict[str, Any]:
    """Return rank 0's report of a training of two ranks, forked from a process that has imported torch."""
    port = free_port()
    ends = [FORKS.Pipe() for _ in range(2)]
    processes = [FORKS.Process(target=_rank, args=(i, port, kind, ends[i][1])) for i in range(2)]
    for process in processes:
        process.start()
    for _, theirs in ends:
        theirs.close()  # This end is closed so that a rank that ends without a message is noticed.
    try:
        assert ends[0][0].poll(SECONDS), "the training does not end"
        report: dict[str, Any] = ends[0][0].recv()
        for process in processes:
            process.join(SECONDS)
        return report
    finally:
        for process in processes:
            process.kill()


@pytest.mark.timeout(600)
def test_every_sum_of_a_training_is_checked_and_one_wrong_value_is_found() -> None:
    right, wrong = trained("right"), trained("wrong")
    checked = Checked(**right["sums"])
    assert checked.right and checked.buckets >= 12 and not checked.unchecked
    assert 0 < checked.largest <= 1
    found = Checked(**wrong["sums"])
    assert found.wrong_buckets == 1 and not found.right
    assert found.wrong[0].startswith("all-reduce 5: 1 of ")


def test_gloo_with_rounding_errors_is_as_far_off_as_fixed_point_may_be() -> None:
    """The rank is alone in its process group, so gloo itself rounds nothing."""
    import torch.distributed as dist

    nodes = 12
    given = gradients(1, 2)[0]
    buffer = torch.from_numpy(given.copy())
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        result = sums.rounded_hook(1, nodes)(None, SimpleNamespace(buffer=lambda: buffer)).wait().numpy()  # type: ignore[arg-type]
    finally:
        dist.destroy_process_group()
    step = sums.steps_of(np.abs(given), nodes)
    error = np.abs(result.astype(np.float64) - given)
    assert (error <= nodes / 2 * step + np.abs(given) * 2.0**-23).all()
    there = step > np.abs(given) * 2.0**-22  # Elsewhere float32 rounds more than the fixed point does.
    assert there.sum() > 1000
    assert 0.7 < np.sqrt(np.mean((error[there] / step[there]) ** 2)) < 1.3, "as the sum of 12 uniform errors: 1 step"


@pytest.mark.timeout(600)
def test_a_training_with_rounding_errors_goes_as_one_without() -> None:
    gloo, rounded = (trained(kind)["losses"] for kind in ("gloo", "rounded"))
    assert rounded == pytest.approx(gloo, rel=1e-5)
