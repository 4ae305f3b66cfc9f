"""Small operations: one round, any dtype, any way of merging, the same bits for all, also when packets are lost."""

from __future__ import annotations

import functools
import importlib
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from evaluation.hosts.star import TreeShape
from p4src.protocol import data_values
from tests.hosts.conftest import WORKERS
from tests.hosts.rig import DEADLINE, Rig, finish
from tests.support.waiting import wait_until
from worker_agent.collectives import MERGES, collective
from worker_agent.errors import AllReduceError, MismatchError
from worker_agent.gathered import MOST_PACKETS, gathered_words
from worker_agent.operands import SMALL_DTYPES

MakeRig = Callable[..., Rig]
Array = NDArray[Any]
ONE = (TreeShape(0, 1.0, True),)
NUMPY: dict[str, Any] = {
    "max": np.maximum,
    "min": np.minimum,
    "product": np.multiply,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def arrays(dtype: str, elements: int, seed: int = 1) -> list[Array]:
    """One a worker."""
    random = np.random.default_rng(seed)
    if dtype.startswith("float"):
        wide = random.standard_normal((WORKERS, elements)) * np.exp2(random.integers(-12, 12, (WORKERS, elements)))
        return list(wide.astype(dtype))
    if dtype == "bool":
        return list(random.integers(0, 2, (WORKERS, elements)).astype(bool))
    limits = np.iinfo(dtype)
    return list(random.integers(limits.min, limits.max, (WORKERS, elements), dtype, endpoint=True))


def run(rig: Rig, before: list[Array], op: str, dtype: str | None = None) -> list[Array]:
    after = [array.copy() for array in before]
    finish([engine.allreduce_async(one, op, dtype=dtype) for engine, one in zip(rig.engines, after, strict=True)])
    return after


def test_any_type_and_merge(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.faults(loss=0.02, duplicate=0.1, reorder=0.1, hold_seconds=0.002)
    for dtype in ("float32", "float16", *SMALL_DTYPES):
        for merge in MERGES:
            if merge in ("and", "or", "xor") and dtype.startswith("float"):
                continue
            before = arrays(dtype, 5)
            with np.errstate(over="ignore"):
                wide = [one.astype(np.float64) if dtype.startswith("float") else one for one in before]
                expected = functools.reduce(NUMPY[merge], wide).astype(dtype)
            for after in run(rig, before, merge):
                assert after.tobytes() == expected.tobytes(), f"{merge} of {dtype}"
    for engine in rig.engines:
        assert engine.stats().operations_failed == 0


def test_a_mean_of_float64_is_finite_if_only_the_sum_is_not(make_rig: MakeRig) -> None:
    largest = np.finfo(np.float64).max
    before = [np.array([largest, -largest, 1e308, 1.0, np.inf if worker else 1.0]) for worker in range(WORKERS)]
    for after in run(make_rig(), before, "mean"):
        assert after[:2].tolist() == [largest, -largest] and after[3:].tolist() == [1.0, np.inf]
        assert np.isclose(after[2], 1e308, rtol=1e-15)
    torch = pytest.importorskip("torch")
    alike = importlib.import_module("worker_agent.torch.alike")
    merged = alike._merged([torch.from_numpy(one) for one in before], collective("mean"))
    assert merged.numpy().tobytes() == after.tobytes(), "the fallback has the same bits"


def test_sums_are_those_of_double_precision_rounded_once_and_integers_wrap(make_rig: MakeRig) -> None:
    rig = make_rig()
    for seed in range(20):
        for dtype in ("float32", "float16", "float64"):
            before = arrays(dtype, 9, seed)
            total = before[0].astype(np.float64)
            for one in before[1:]:
                total = total + one
            for op, exact in (("sum", total), ("mean", total / WORKERS)):
                expected = exact.astype(np.float32).astype(dtype) if dtype == "float16" else exact.astype(dtype)
                assert {after.tobytes() for after in run(rig, before, op)} == {expected.tobytes()}, f"{op} of {dtype}"
        for dtype in ("int64", "int32", "int8", "uint8"):
            before = arrays(dtype, 9, seed)
            expected = np.add.reduce(before, dtype=np.dtype(dtype))
            assert {after.tobytes() for after in run(rig, before, "sum")} == {expected.tobytes()}, dtype


def test_nan_and_infinities_are_each_values_own(make_rig: MakeRig) -> None:
    rig = make_rig()
    before = [np.array([1, 1e38, np.inf, np.inf, np.nan, 1e-45], np.float32) for _ in range(WORKERS)]
    before[1][3] = -np.inf
    for op, expected in (
        ("sum", [4, np.inf, np.inf, np.nan, np.nan, 4 * np.float32(1e-45)]),
        ("max", [1, 1e38, np.inf, np.inf, np.nan, 1e-45]),
    ):
        for after in run(rig, before, op):
            assert np.array_equal(after, np.array(expected, np.float32), equal_nan=True), op


@pytest.mark.parametrize("gathers", [False, True])
def test_parts(make_rig: MakeRig, gathers: bool) -> None:
    """Reduce-scatter, all-gather and broadcast that are small go the same way."""
    rig = make_rig(gathers=gathers)
    rig.faults(loss=0.02, duplicate=0.1)
    before = arrays("float32", 3 * WORKERS)
    total = np.sum([one.astype(np.float64) for one in before], axis=0).astype(np.float32)
    for worker, after in enumerate(run(rig, before, "scatter sum")):
        own = slice(3 * worker, 3 * worker + 3)
        assert (after[own] == total[own]).all()
        rest = np.delete(np.arange(len(total)), own)
        assert (after[rest] == before[worker][rest]).all(), "left as it was"
    gathered = np.concatenate([one[3 * worker : 3 * worker + 3] for worker, one in enumerate(before)])
    for after in run(rig, before, "gather"):
        assert after.tobytes() == gathered.tobytes()
    for source in range(WORKERS):
        for after in run(rig, before, f"broadcast {source}"):
            assert after.tobytes() == before[source].tobytes()


def test_one_round_of_packets(make_rig: MakeRig) -> None:
    """What says what the operation is travels beside the data, not before it."""
    rig = make_rig(ONE, without=["s1"])
    rig.faults(delay_seconds=0.05)

    def seconds() -> float:
        """Of one operation, in two packets of each worker."""
        packets = [engine.stats().trees[0].chunks_sent for engine in rig.engines]
        after = [np.full(1, worker, np.float32) for worker in range(WORKERS)]
        works = rig.submit(after)
        finish(works)
        sent = [engine.stats().trees[0].chunks_sent for engine in rig.engines]
        assert [now - before for now, before in zip(sent, packets, strict=True)] == [2] * WORKERS
        assert all(one[0] == 6 for one in after)
        return max(work.seconds for work in works)

    # Four hops of 50 ms, each once: a busy machine may be late in some operations, but twice the way is never quicker.
    wait_until(lambda: seconds() < 2 * 4 * 0.05, "an operation takes one round")


@pytest.mark.parametrize(
    "other", [("float32", "max", 4), ("int32", "sum", 4), ("float32", "sum", 5), ("float32", "sum", 5000)]
)
def test_workers_that_differ_get_an_error(make_rig: MakeRig, other: tuple[str, str, int]) -> None:
    dtype, op, elements = other
    rig = make_rig()
    works = [engine.allreduce_async(np.ones(4, np.float32)) for engine in rig.engines[1:]]
    works.append(rig.engines[0].allreduce_async(np.ones(elements, dtype), op))
    for work in works:
        with pytest.raises(MismatchError):
            work.wait(DEADLINE)


def test_what_only_small_operations_can_do_is_refused_beyond(make_rig: MakeRig) -> None:
    rig = make_rig()
    with pytest.raises(ValueError, match="too large"):
        rig.engines[0].allreduce_async(np.ones(5000, np.int64))
    with pytest.raises(ValueError, match="too large"):
        rig.engines[0].allreduce_async(np.ones(5000, np.float32), "max")
    with pytest.raises(TypeError, match="complex64"):
        rig.engines[0].allreduce_async(np.ones(1, np.complex64))


def test_many_at_once_and_each_waited_for_by_several_threads(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.faults(loss=0.02)
    tensors = [[np.full(2, worker + number, np.float32) for worker in range(WORKERS)] for number in range(100)]
    works = [work for after in tensors for work in rig.submit(after)]
    failures: list[BaseException] = []

    def wait() -> None:
        try:
            finish(works[::-1])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=wait) for _ in range(3)]
    for thread in threads:
        thread.start()
    finish(works)
    for thread in threads:
        thread.join(DEADLINE)
    assert not failures
    for number, after in enumerate(tensors):
        assert all((one == 6 + 4 * number).all() for one in after)


def test_who_waits_is_told_when_the_engine_ends(make_rig: MakeRig) -> None:
    """An engine may be closed while others wait in it."""
    rig = make_rig()
    ended: list[type[BaseException]] = []
    work = rig.engines[0].allreduce_async(np.ones(1, np.float32))  # the others never take part

    def wait() -> None:
        try:
            work.wait(DEADLINE)
        except AllReduceError as error:
            ended.append(type(error))

    threads = [threading.Thread(target=wait) for _ in range(2)]
    for thread in threads:
        thread.start()
    with pytest.raises(TimeoutError):
        work.wait(0.05)
    rig.engines[0].close()
    for thread in threads:
        thread.join(DEADLINE)
    assert [error.__name__ for error in ended] == ["AbortedError"] * 2


def test_which_operations_are_small() -> None:
    data = data_values(256)
    sizes = {workers: gathered_words(collective("sum"), "float32", 1, workers, data) for workers in (2, 8, 200, 1023)}
    assert sizes == {2: 126, 8: 30, 200: 1, 1023: 0}
    most = MOST_PACKETS * 126
    assert gathered_words(collective("sum"), "float32", most, 2, data)
    assert not gathered_words(collective("sum"), "float32", most + 1, 2, data)
    assert not gathered_words(collective("sum bits=32"), "float32", 1, 2, data), "they asked for fixed point"
    assert gathered_words(collective("sum"), "float64", 1, 200, data) == 0, "not one value"
    assert gathered_words(collective("broadcast 3"), "bytes", 1, 1023, data) == 254
