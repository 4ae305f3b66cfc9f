"""All-reduce over real interfaces is right and the same everywhere, whatever the network does."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evaluation.hosts.star import TreeShape
from p4src.protocol import data_values
from tests.hosts.conftest import WORKERS
from tests.hosts.rig import Rig, check, finish, tensors
from tests.support.waiting import wait_until
from worker_agent.collectives import Operation
from worker_agent.fields import error_bound as narrow_bound
from worker_agent.fixedpoint import error_bound
from worker_agent.io_options import IoOptions
from worker_agent.split import lane_shares, ranges
from worker_agent.work import Work

MakeRig = Callable[..., Rig]
VALUES = data_values(64)


def starts(rig: Rig, elements: int) -> list[int]:
    config = rig.job.workers[0]
    cut = ranges(elements, data_values(config.values_per_packet), lane_shares(config))
    return [first for first, count in cut if count]


def reduce_and_check(rig: Rig, seed: int, elements: int, mean: bool = False) -> None:
    before = tensors(seed, len(rig.engines), elements)
    after = [tensor.copy() for tensor in before]
    finish(rig.submit(after, "mean" if mean else "sum"))
    check(before, after, starts(rig, elements), VALUES, mean)


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param({}, id="perfect"),
        pytest.param({"loss": 0.01}, id="loss of 1 %"),
        pytest.param({"loss": 0.1}, id="loss of 10 %"),
        pytest.param({"duplicate": 0.3}, id="duplication"),
        pytest.param({"reorder": 0.3, "hold_seconds": 0.005}, id="reordering"),
        pytest.param({"delay_seconds": 0.02}, id="delay"),
        pytest.param(
            {"loss": 0.03, "duplicate": 0.1, "reorder": 0.1, "hold_seconds": 0.01, "delay_seconds": 0.002},
            id="everything",
        ),
    ],
)
def test_sums_are_right_and_the_same_everywhere(make_rig: MakeRig, faults: dict[str, float]) -> None:
    rig = make_rig()
    rig.faults(**faults)
    for seed, elements in enumerate([1, VALUES, 50_000, 20_001]):
        reduce_and_check(rig, seed, elements, mean=seed % 2 == 1)
    assert rig.engines[0].stats().operations_done == 4
    if "loss" in faults:
        assert sum(engine.stats().resent for engine in rig.engines) > 0


def test_the_check_takes_less_than_a_hundredth_of_the_bytes(make_rig: MakeRig) -> None:
    """Without it all words of a packet would be data, and exponents would be in packets once. An exponent a chunk and a
    word for eight chunks, which say how values are scaled, are needed without it, too.
    """
    values, elements = 256, 500_000
    rig = make_rig((TreeShape(),), values=values)
    finish(rig.submit([np.ones(elements, np.float32) for _ in rig.engines]))
    chunks = -(-elements // values)
    needed = chunks + -(-(chunks + chunks // 8) // values)
    for engine in rig.engines:
        sent = engine.stats().trees[0].chunks_sent
        assert needed < sent <= 1.01 * needed


@pytest.mark.parametrize("threads", [1, 3])
def test_any_number_of_threads_gives_the_same_sums(make_rig: MakeRig, threads: int) -> None:
    rig = make_rig(io=IoOptions(threads))
    rig.faults(loss=0.02, duplicate=0.05, reorder=0.05, hold_seconds=0.005)
    for seed, elements in enumerate([1, 30_000, 20_001]):
        reduce_and_check(rig, seed, elements)
    stats = rig.engines[0].stats()
    assert stats.io.threads == threads
    assert stats.packets_sent > stats.io.messages_sent > 0, "super-frames"
    # Two trees end at the second server, on ports of their own.
    assert [server.stats().io.threads for server in rig.servers] == [1, min(threads, 2)]


def test_chunks_lost_together_are_resent_together(make_rig: MakeRig) -> None:
    """All packets are lost for a while, and no later packet is sent that could be answered: this costs one timeout, not
    many.
    """
    lost = 64
    rig = make_rig((TreeShape(0, 1.0, True),), slots=2 * lost)
    reduce_and_check(rig, 0, 4 * lost * VALUES)  # This opens the window.
    sent = [engine.stats().trees[0].chunks_sent for engine in rig.engines]
    rig.faults(loss=1.0)
    # Each has an exponent chunk, on which its data waits.
    before = [tensors(seed, WORKERS, 1) for seed in range(lost)]
    after = [[tensor.copy() for tensor in operation] for operation in before]
    works = [work for operation in after for work in rig.submit(operation, "sum bits=32")]
    wait_until(
        lambda: all(
            engine.stats().trees[0].chunks_sent - first == lost and engine.stats().trees[0].resent_timeout
            for engine, first in zip(rig.engines, sent, strict=True)
        ),
        "all are lost, and a timer has run",
    )
    rig.faults()
    timeouts = [engine.stats().trees[0].resent_timeout for engine in rig.engines]
    finish(works)
    for sent_values, sums in zip(before, after, strict=True):
        check(sent_values, sums, [0], VALUES)
    for engine, first in zip(rig.engines, timeouts, strict=True):
        tree = engine.stats().trees[0]
        # On a slow machine, packets that the first answers allow are answered before all are resent, and show the gap.
        assert tree.resent_recovery and tree.resent_recovery + tree.resent_gap > lost / 2
        assert tree.resent_timeout - first < lost / 2  # A machine that is too slow has some more timeouts than one.


def test_any_size(make_rig: MakeRig) -> None:
    rig = make_rig(slots=16)

    @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
    @given(
        st.integers(1, 300_000) | st.integers(1, 40).map(lambda chunks: chunks * VALUES), st.booleans(), st.booleans()
    )
    def run(elements: int, mean: bool, lossy: bool) -> None:
        rig.faults(loss=0.01 if lossy else 0.0)
        reduce_and_check(rig, elements, elements, mean)

    run()


@pytest.mark.parametrize("first", [0, 1])
def test_a_tensor_that_is_larger_than_caches(make_rig: MakeRig, first: int) -> None:
    """Results are written past these elements, where memory is aligned."""
    rig = make_rig((TreeShape(0, 1.0, True),), workers=2, slots=512, without=["s1"])
    elements = (9 << 20) // 4 + 5
    before = [np.random.default_rng(worker).integers(-99, 99, elements).astype(np.float32) for worker in range(2)]
    after = [np.concatenate([np.full(first, 7, np.float32), tensor]) for tensor in before]
    finish(rig.submit([tensor[first:] for tensor in after]))
    for tensor in after:
        assert (tensor[:first] == 7).all()
        assert (tensor[first:] == before[0] + before[1]).all()


def test_an_empty_all_reduce_completes_at_once(make_rig: MakeRig) -> None:
    rig = make_rig()
    finish(rig.submit([np.empty(0, np.float32)] * WORKERS))
    assert rig.engines[0].stats().packets_sent == 0


@pytest.mark.parametrize("lossy", [False, True])
def test_many_operations_in_flight(make_rig: MakeRig, lossy: bool) -> None:
    """The operations are more than the windows hold, of mixed sizes; each gets its own result."""
    rig = make_rig(slots=32)
    rig.faults(loss=0.01 if lossy else 0.0, reorder=0.05 if lossy else 0.0, hold_seconds=0.003)
    sizes = [1, 5000, 63, 64, 65, 20_000, 7, 3000] * 5
    before = [tensors(seed, WORKERS, size) for seed, size in enumerate(sizes)]
    after = [[tensor.copy() for tensor in row] for row in before]
    works = [rig.submit(row) for row in after]
    for index, row in enumerate(works):
        finish(row)
        check(before[index], after[index], starts(rig, sizes[index]), VALUES)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("op", ["sum", "mean"])
def test_narrow_dtypes(make_rig: MakeRig, dtype: str, op: Operation) -> None:
    torch = pytest.importorskip("torch")
    rig = make_rig()
    rig.faults(loss=0.01)
    kind = getattr(torch, dtype)
    before = [
        torch.randn(10_000, generator=torch.Generator().manual_seed(worker)).to(kind) for worker in range(WORKERS)
    ]
    after = [tensor.clone() for tensor in before]
    finish([engine.allreduce_async(tensor, op) for engine, tensor in zip(rig.engines, after, strict=True)])
    exact = sum(tensor.double() for tensor in before) / (WORKERS if op == "mean" else 1)
    unit = 2.0**-11 if dtype == "float16" else 2.0**-8  # This is half an ulp, relative.
    for result in after:
        assert torch.equal(result.view(torch.uint16), after[0].view(torch.uint16))
    # Two values share a word; beside the format's own rounding, the error of this is the stated one, chunk by chunk.
    values = 2 * VALUES
    for begin in range(0, 10_000, values):
        chunk = slice(begin, begin + values)
        bound = narrow_bound([tensor[chunk].float().numpy() for tensor in before], 16, mean=op == "mean")
        error = (after[0][chunk].double() - exact[chunk]).abs()
        assert (error <= (exact[chunk].abs() + bound) * unit + bound).all()


def test_nan_and_infinities_arrive(make_rig: MakeRig) -> None:
    rig = make_rig()
    before = tensors(3, WORKERS, 1000)
    before[0][10] = np.nan
    before[1][11] = np.inf
    before[2][12] = -np.inf
    before[1][13], before[3][13] = np.inf, -np.inf
    after = [tensor.copy() for tensor in before]
    finish(rig.submit(after))
    for result in after:
        assert result.tobytes() == after[0].tobytes()
    assert np.isnan(after[0][10]) and np.isposinf(after[0][11]) and np.isneginf(after[0][12]) and np.isnan(after[0][13])
    touched = [10, 11, 12, 13]
    for each in (*before, after[0]):
        each[touched] = 0
    others = slice(8 * VALUES, 1000)
    assert starts(rig, 1000)[1] >= 8 * VALUES, "the first tree has a group of 8 chunks"
    exact = np.sum([tensor.astype(np.float64) for tensor in before], axis=0)
    for begin in range(0, 8 * VALUES, VALUES):
        chunk = slice(begin, begin + VALUES)
        bound = error_bound([tensor[chunk] for tensor in before], mixed=True)
        assert np.abs(after[0][chunk].astype(np.float64) - exact[chunk]).max() <= bound
    check([tensor[others] for tensor in before], [after[0][others]], [0], VALUES)


@pytest.mark.parametrize("op", ["sum", "mean", "scatter sum"])
def test_every_value_of_masked_logits_equals_ieee_addition(make_rig: MakeRig, op: Operation) -> None:
    """Every second value is -inf at all workers, with NaN and infinities at some: the values beside them are exact."""
    rig = make_rig()
    before = tensors(4, WORKERS, 2000 * WORKERS)
    for tensor in before:
        tensor[::2] = -np.inf
    before[1][101:2000:14] = np.nan
    before[2][103:2000:14] = np.inf
    before[3][103:2000:28] = -np.inf
    before[0][200:2000:16] = np.inf
    after = [tensor.copy() for tensor in before]
    finish(rig.submit(after, op))
    part = len(before[0]) // (WORKERS if op == "scatter sum" else 1)
    with np.errstate(invalid="ignore"):
        exact = np.sum([tensor.astype(np.float64) for tensor in before], axis=0) / (WORKERS if op == "mean" else 1)
    for worker, result in enumerate(after if op == "scatter sum" else after[:1]):
        own = slice(worker * part, (worker + 1) * part)
        finite, got = np.isfinite(exact[own]), result[own]
        assert np.array_equal(np.isnan(got), np.isnan(exact[own]))
        assert np.array_equal(got[np.isinf(got)], exact[own][np.isinf(exact[own])])
        found = [np.where(np.isfinite(tensor[own]), tensor[own], 0) for tensor in before]
        error = np.abs(got[finite].astype(np.float64) - exact[own][finite])
        assert error.max() <= 2.0**-20 * np.max([np.abs(tensor).max() for tensor in found])


def test_one_worker_alone(make_rig: MakeRig) -> None:
    rig = make_rig(workers=1)
    reduce_and_check(rig, 1, 5000)


def test_a_callback_may_submit_the_next_operation(make_rig: MakeRig) -> None:
    rig = make_rig()
    second: list[Work] = []
    rows = [tensors(6, WORKERS, 1000), tensors(7, WORKERS, 2000)]
    after = [[tensor.copy() for tensor in row] for row in rows]
    lock = threading.Lock()

    def follow(worker: int) -> Callable[[Work], None]:
        def callback(_: Work) -> None:
            work = rig.engines[worker].allreduce_async(after[1][worker])
            with lock:
                second.append(work)

        return callback

    for worker, work in enumerate(rig.submit(after[0])):
        work.add_done_callback(follow(worker))
    wait_until(lambda: len(second) == WORKERS, "all callbacks have run")
    finish(second)
    check(rows[1], after[1], starts(rig, 2000), VALUES)


def test_a_late_worker_costs_few_packets(make_rig: MakeRig) -> None:
    """Nothing is lost, so nothing is flushed except what a worker sends now and then to report which workers it waits
    for.
    """
    rig = make_rig()
    before = tensors(8, WORKERS, 60_000)
    after = [tensor.copy() for tensor in before]
    works = [engine.allreduce_async(tensor) for engine, tensor in zip(rig.engines[:-1], after, strict=False)]
    wait_until(lambda: all(tree.resent_timeout >= 3 for tree in rig.engines[0].stats().trees), "timers have run")
    wait_until(lambda: rig.servers[0].stats().trees[0].missing == ("w3",), "the root knows whom they wait for")
    works.append(rig.engines[-1].allreduce_async(after[-1]))
    finish(works)
    check(before, after, starts(rig, 60_000), VALUES)
    verdicts = rig.switch.verdicts()
    assert verdicts["flushed"] + verdicts["stale"] < 0.1 * verdicts["absorbed"]
    assert verdicts["flushed"] <= 20


def test_a_switch_that_forgets_everything_costs_time_and_no_wrong_sum(make_rig: MakeRig) -> None:
    rig = make_rig(rate_mbps=100)
    before = tensors(9, WORKERS, 300_000)
    after = [tensor.copy() for tensor in before]
    works = rig.submit(after)
    reboots = 0
    while reboots < 10 and not all(work.done() for work in works):
        target = rig.servers[0].stats().trees[0].completed + 100
        wait_until(
            lambda target=target: (
                rig.servers[0].stats().trees[0].completed >= target  # type: ignore[misc]
                or all(work.done() for work in works)
            ),
            "progress between reboots",
        )
        rig.switch.forget()
        reboots += 1
    assert reboots >= 3
    finish(works)
    check(before, after, starts(rig, 300_000), VALUES)


def test_the_rate_is_kept(make_rig: MakeRig) -> None:
    """The rate is never above the configured one, except for the first wake-up's packets; it may be lower on a slow
    machine.
    """
    rig = make_rig([TreeShape(0, 1.0, True)], rate_mbps=40, slots=512)
    reduce_and_check(rig, 1, 100_000)
    assert 0 < rig.engines[0].stats().measured_mbps < 40 * 1.03
