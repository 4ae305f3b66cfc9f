"""Reduce-scatter, all-gather and broadcast over real interfaces are right whatever the network does, and need few
bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evaluation.hosts.star import TreeShape
from p4src.protocol import data_values, frame_bytes
from tests.hosts.conftest import WORKERS
from tests.hosts.rig import Floats, Rig, finish, tensors
from tests.hosts.test_allreduce import VALUES, reduce_and_check
from tests.support.waiting import wait_until
from worker_agent.errors import MismatchError
from worker_agent.fixedpoint import error_bound
from worker_agent.split import lane_shares, ranges

MakeRig = Callable[..., Rig]
FAULTS = [
    pytest.param({}, id="perfect"),
    pytest.param({"loss": 0.01}, id="loss of 1 %"),
    pytest.param({"loss": 0.1}, id="loss of 10 %"),
    pytest.param({"duplicate": 0.3}, id="duplication"),
    pytest.param({"reorder": 0.3, "hold_seconds": 0.005}, id="reordering"),
    pytest.param(
        {"loss": 0.03, "duplicate": 0.1, "reorder": 0.1, "hold_seconds": 0.01, "delay_seconds": 0.002},
        id="everything",
    ),
]


def starts(rig: Rig, part: int) -> list[int]:
    """Return where the shares of a part begin that the trees' lanes have."""
    config = rig.job.workers[0]
    cut = ranges(part, data_values(config.values_per_packet), lane_shares(config), at_once=len(rig.engines))
    return [first for first, count in cut if count]


def scatter_and_check(rig: Rig, seed: int, part: int, mean: bool = False) -> None:
    workers = len(rig.engines)
    before = tensors(seed, workers, part * workers)
    after = [tensor.copy() for tensor in before]
    finish(rig.submit(after, "scatter mean" if mean else "scatter sum"))
    bounds = [*starts(rig, part), part]
    for worker, result in enumerate(after):
        exact = np.sum([tensor.astype(np.float64) for tensor in before], axis=0) / (workers if mean else 1)
        for one in range(workers):
            if one != worker:
                same = slice(one * part, one * part + part)
                assert result[same].tobytes() == before[worker][same].tobytes(), "the others' parts are left alone"
        for tree, first in enumerate(bounds[:-1]):
            for begin in range(first, bounds[tree + 1], VALUES):
                here = slice(worker * part + begin, worker * part + min(begin + VALUES, bounds[tree + 1]))
                bound = error_bound([tensor[here] for tensor in before], mean)
                assert np.abs(result[here].astype(np.float64) - exact[here]).max() <= bound


def noise(seed: int, elements: int, dtype: Any) -> np.ndarray[Any, Any]:
    size = elements * np.dtype(dtype).itemsize
    return np.frombuffer(np.random.default_rng(seed).bytes(size), dtype).copy()


def gather_and_check(rig: Rig, seed: int, part: int, dtype: Any = np.float64) -> None:
    workers = len(rig.engines)
    wanted = noise(seed, part * workers, dtype)
    arrays = []
    for worker in range(workers):
        array = noise(seed + 1, part * workers, dtype)
        array[worker * part : (worker + 1) * part] = wanted[worker * part : (worker + 1) * part]
        arrays.append(array)
    finish([engine.allreduce_async(array, "gather") for engine, array in zip(rig.engines, arrays, strict=True)])
    for array in arrays:
        assert array.tobytes() == wanted.tobytes()


def broadcast_and_check(rig: Rig, seed: int, elements: int, source: int, dtype: Any = np.int64) -> None:
    arrays = [noise(seed + worker, elements, dtype) for worker in range(len(rig.engines))]
    wanted = arrays[source].tobytes()
    works = [engine.allreduce_async(a, f"broadcast {source}") for engine, a in zip(rig.engines, arrays, strict=True)]
    finish(works)
    for array in arrays:
        assert array.tobytes() == wanted


@pytest.mark.parametrize("faults", FAULTS)
def test_every_worker_gets_its_own_part(make_rig: MakeRig, faults: dict[str, float]) -> None:
    rig = make_rig(gathers=True)
    rig.faults(**faults)
    for seed, part in enumerate([1, VALUES, 4_000, 3_001]):
        scatter_and_check(rig, seed, part, mean=seed % 2 == 1)
        gather_and_check(rig, seed, part, np.float64 if seed % 2 else np.uint8)
        broadcast_and_check(rig, seed, 2 * part, seed)
        reduce_and_check(rig, seed, part)
    assert rig.engines[0].stats().operations_done == 16
    if "loss" in faults:
        assert sum(engine.stats().resent for engine in rig.engines) > 0


@pytest.mark.parametrize("faults", FAULTS)
def test_gathers_beside_reductions_are_right(make_rig: MakeRig, faults: dict[str, float]) -> None:
    """A tree has two directions, and operations of both are under way at once, in any order on each worker."""
    rig = make_rig(gathers=True, beside=True)
    rig.faults(**faults)
    for seed in range(3):
        before = tensors(seed, WORKERS, 3_000 * WORKERS)
        scattered = [tensor.copy() for tensor in before]
        wanted = noise(seed, 4_000 * WORKERS, np.int32)
        gathered = [np.zeros_like(wanted) for _ in before]
        for worker, array in enumerate(gathered):
            array[worker * 4_000 : (worker + 1) * 4_000] = wanted[worker * 4_000 : (worker + 1) * 4_000]
        works = []
        for worker, engine in enumerate(rig.engines):
            both = [(scattered[worker], "scatter sum"), (gathered[worker], "gather")]
            for array, op in reversed(both) if (worker + seed) % 2 else both:
                works.append(engine.allreduce_async(array, op))
        finish(works)
        for worker, array in enumerate(gathered):
            assert array.tobytes() == wanted.tobytes()
            own = slice(worker * 3_000, (worker + 1) * 3_000)
            exact = np.sum([tensor[own].astype(np.float64) for tensor in before], axis=0)
            assert np.allclose(scattered[worker][own], exact, rtol=1e-5, atol=np.abs(exact).max() * 1e-6)
        reduce_and_check(rig, seed, 3_001)
        broadcast_and_check(rig, seed, 5_000, seed)
    assert rig.engines[0].stats().operations_done == 12


def test_a_gather_does_not_wait_for_a_reduction_that_somebody_is_late_for(make_rig: MakeRig) -> None:
    rig = make_rig(gathers=True, beside=True)
    arrays = [np.full(8_000, float(worker), np.float32) for worker in range(WORKERS)]
    early = [engine.allreduce_async(a, "scatter sum") for engine, a in zip(rig.engines[1:], arrays[1:], strict=True)]
    gather_and_check(rig, 1, 5_000)
    assert not any(work.done() for work in early)
    late = rig.engines[0].allreduce_async(arrays[0], "scatter sum")
    finish([*early, late])
    for worker, array in enumerate(arrays):
        assert (array[worker * 2_000 : (worker + 1) * 2_000] == 6).all()
    trees = rig.engines[0].stats().trees
    assert all(tree.oldest_unanswered == tree.next_sequence for tree in trees), "nothing is open"
    assert all(not engine.open_chunks() for engine in rig.engines)


@pytest.mark.parametrize("slots", [1, 2, 8])
def test_small_windows(make_rig: MakeRig, slots: int) -> None:
    rig = make_rig(slots=slots, gathers=slots != 2)
    rig.faults(loss=0.01)
    scatter_and_check(rig, 1, 2_000)
    gather_and_check(rig, 2, 500)
    broadcast_and_check(rig, 3, 2_000, 1)


def test_any_sizes_in_any_order_many_at_a_time(make_rig: MakeRig) -> None:
    """Each operation gets its own result, whatever comes before and after."""
    rig = make_rig(slots=32)
    kinds = st.sampled_from(["sum", "scatter sum", "gather", "broadcast 2"])

    @settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.tuples(kinds, st.integers(1, 3_000)), min_size=1, max_size=8), st.booleans())
    def run(operations: list[tuple[str, int]], lossy: bool) -> None:
        rig.faults(loss=0.02 if lossy else 0.0, reorder=0.05 if lossy else 0.0, hold_seconds=0.003)
        rows: list[tuple[str, int, list[Floats], list[Floats]]] = []
        works = []
        for seed, (op, part) in enumerate(operations):
            before = tensors(seed, WORKERS, part * WORKERS)
            rows.append((op, part, before, [tensor.copy() for tensor in before]))
            works.append(rig.submit(rows[-1][3], op))
        for (op, part, before, after), row in zip(rows, works, strict=True):
            finish(row)
            total = np.sum([tensor.astype(np.float64) for tensor in before], axis=0)
            scale = np.sum([np.abs(tensor.astype(np.float64)) for tensor in before], axis=0).max()
            for worker in range(WORKERS):
                own = slice(worker * part, (worker + 1) * part)
                if op == "gather":
                    assert all(result[own].tobytes() == before[worker][own].tobytes() for result in after)
                elif op.startswith("broadcast"):
                    assert after[worker].tobytes() == before[2].tobytes()
                else:
                    assert np.abs(after[worker][own] - total[own]).max() <= scale * 2.0**-23

    run()


def test_a_late_worker_is_waited_for(make_rig: MakeRig) -> None:
    rig = make_rig()
    for op in ("scatter sum", "gather", "broadcast 0"):
        arrays = tensors(1, WORKERS, 4_000 * WORKERS)
        before = [array.copy() for array in arrays]
        works = [engine.allreduce_async(array, op) for engine, array in zip(rig.engines[:-1], arrays, strict=False)]
        resent = sum(tree.resent_timeout for tree in rig.engines[0].stats().trees)
        wait_until(
            lambda resent=resent: (  # type: ignore[misc]
                sum(tree.resent_timeout for tree in rig.engines[0].stats().trees) > resent
            ),
            "timers have run",
        )
        assert not any(work.done() for work in works), "also who has all that it needs: its own may be asked for again"
        works.append(rig.engines[-1].allreduce_async(arrays[-1], op))
        finish(works)
        if op == "broadcast 0":
            assert all(array.tobytes() == before[0].tobytes() for array in arrays)


def test_different_operations_are_an_error_on_every_worker(make_rig: MakeRig) -> None:
    rig = make_rig()
    ops = ["gather", "scatter sum", "gather", "broadcast 1"]
    arrays = [np.ones(400, np.float32) for _ in range(WORKERS)]
    works = [engine.allreduce_async(array, op) for engine, array, op in zip(rig.engines, arrays, ops, strict=True)]
    for work in works:
        with pytest.raises(MismatchError):
            work.wait(30)
    rig.renew(epoch=2)
    gather_and_check(rig, 1, 1000)


def test_impossible_operations_are_refused(make_rig: MakeRig) -> None:
    engine = make_rig().engines[0]
    with pytest.raises(ValueError, match="10 elements, which are not 4 parts"):
        engine.allreduce_async(np.ones(10, np.float32), "scatter sum")
    with pytest.raises(ValueError, match="no worker 4: the job has 4"):
        engine.allreduce_async(np.ones(10, np.float32), "broadcast 4")
    with pytest.raises(ValueError, match='op must be one of "sum", "mean", "scatter sum"'):
        engine.allreduce_async(np.ones(10, np.float32), "gather 1")
    with pytest.raises(ValueError, match="scatter sum of 8000 elements of int32 is too large"):
        engine.allreduce_async(np.ones(8000, np.int32), "scatter sum")


def test_a_scattered_sum_comes_down_once_and_a_gathered_chunk_goes_up_once(make_rig: MakeRig) -> None:
    """The load on the links is compared with an all-reduce of the same array: smaller loads are the purpose of these
    operations.
    """
    rig = make_rig([TreeShape(0, 1.0, True)], slots=256, rate_mbps=200)
    part, frame = 64 * VALUES, frame_bytes(64)
    chunks = part * WORKERS // VALUES

    def bytes_of(run: Callable[[], None]) -> tuple[float, float]:
        """Return the frames that a worker sends and receives, per chunk of the array."""
        rig.faults()
        before = [engine.stats() for engine in rig.engines]
        run()
        after = [engine.stats() for engine in rig.engines]
        pairs = list(zip(before, after, strict=True))
        sent = sum(new.bytes_sent - old.bytes_sent for old, new in pairs)
        received = sum(new.bytes_received - old.bytes_received for old, new in pairs)
        return sent / (chunks * frame * WORKERS), received / (chunks * frame * WORKERS)

    sent, received = bytes_of(lambda: scatter_and_check(rig, 1, part))
    assert sent < 1.3  # On a loaded machine some frames are sent again.
    assert received < 1 / WORKERS + 0.3
    sent, received = bytes_of(lambda: gather_and_check(rig, 1, part, np.float32))
    assert sent < 1 / WORKERS + 0.3
    assert received < 1.3
    sent, received = bytes_of(lambda: broadcast_and_check(rig, 1, part * WORKERS, 0, np.int32))
    assert sent < 1 / WORKERS + 0.3
    assert received < 1.3
    rig = make_rig([TreeShape(0, 1.0, True)], slots=256, rate_mbps=200, gathers=True)
    sent, received = bytes_of(lambda: gather_and_check(rig, 1, part, np.float32))
    assert sent < 1 / WORKERS + 0.3
    assert received < 1, "a worker's own part, a fourth, does not come back"
