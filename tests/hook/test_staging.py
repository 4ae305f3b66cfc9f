"""Staging of buckets in progress, on the CPU and on CUDA devices, with an all-reduce that the test completes."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
import torch.distributed as dist

from tests.support.waiting import wait_until
from worker_agent import AbortedError, InArtState, Work, inart_hook
from worker_agent.errors import AllReduceError
from worker_agent.lane import Lane
from worker_agent.torch.result import Completion
from worker_agent.torch.staging import CudaStaging

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


class Reducer:
    """Keeps its arrays; `complete` multiplies them by `factor` and finishes the operation."""

    world_size = 1

    def __init__(self, factor: float = 2.0) -> None:
        self.factor = factor
        self.under_way: list[tuple[torch.Tensor, Work]] = []
        self.closed = False

    def allreduce_async(self, array, op="sum", *, dtype=None) -> Work:
        assert str(op) == "mean"
        work = Work(array.numel(), array.numel() * array.element_size())
        self.under_way.append((array, work))
        return work

    def complete(self, position: int, error: AllReduceError | None = None) -> None:
        array, work = self.under_way[position]

        def run() -> None:
            if error is None:
                array.mul_(self.factor)
            work.finish(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def state(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield InArtState(agent=Reducer(), fallback=False)
    dist.destroy_process_group()


class Bucket:
    """The methods of a GradBucket that the hook uses."""

    def __init__(self, buffer: torch.Tensor) -> None:
        self._buffer = buffer

    def buffer(self) -> torch.Tensor:
        return self._buffer


def test_buckets_complete_in_any_order_and_the_hook_does_not_wait(state):
    buffers = [torch.full((100,), float(number)) for number in range(5)]
    futures = [inart_hook(state, Bucket(buffer)) for buffer in buffers]
    assert not any(future.done() for future in futures)
    for position in (3, 0, 4, 2, 1):
        state.reducer.complete(position)
        assert futures[position].done()
    for number, future in enumerate(futures):
        assert future.wait() is buffers[number] or torch.equal(future.wait(), buffers[number])
        assert torch.equal(buffers[number], torch.full((100,), 2.0 * number))


def test_failure_fails_only_its_bucket(state):
    good, bad = torch.ones(10), torch.ones(10)
    futures = [inart_hook(state, Bucket(bad)), inart_hook(state, Bucket(good))]
    state.reducer.complete(0, AbortedError("w2 is gone"))
    state.reducer.complete(1)
    with pytest.raises(RuntimeError, match="w2 is gone"):
        futures[0].wait()
    assert torch.equal(futures[1].wait(), torch.full((10,), 2.0))


def test_types_and_devices_that_cannot_be_reduced(state):
    with pytest.raises(TypeError, match="gradients are float64, InArt reduces float32, float16, bfloat16"):
        inart_hook(state, Bucket(torch.ones(3, dtype=torch.float64)))
    with pytest.raises(TypeError, match="gradients are on meta"):
        inart_hook(state, Bucket(torch.ones(3, device="meta")))


def test_agent_given_by_the_caller_stays_open(state):
    reducer = state.reducer
    state.close()
    assert not reducer.closed
    assert not state.in_network


def test_wrong_number_of_workers_is_no_silent_wrong_mean(tmp_path):
    reducer = Reducer()
    reducer.world_size = 3
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with pytest.raises(RuntimeError, match="the job has 3 workers, the process group 1 ranks"):
            InArtState(agent=reducer, fallback=False)
        with pytest.warns(UserWarning, match="the job has 3 workers.* That stays so") as warned:
            state = InArtState(agent=reducer)
        assert "until it is back" not in str(warned[0].message)
        assert not state.in_network
        state.close()
        with pytest.raises(RuntimeError, match="not both"):
            InArtState("127.0.0.1:1", agent=reducer, fallback=False)
    finally:
        dist.destroy_process_group()


def test_state_before_the_process_group(tmp_path):
    with pytest.raises(RuntimeError, match="init_process_group"):
        InArtState(agent=Reducer())


def test_future_in_python_and_continuations():
    completion = Completion(torch.ones(3))
    doubled = completion.future.then(lambda future: future.value()[0] * 2)
    completion.finish(None)
    assert doubled.wait() == 2.0


@needs_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_cuda_bucket_goes_through_pinned_memory(dtype):
    reducer = Reducer()
    lane = Lane(reducer.allreduce_async)
    staging = CudaStaging(lane)
    buffer = torch.arange(1 << 20, device="cuda").to(dtype)
    expected = buffer * 2
    # This work on the compute stream must be complete before the copy.
    for _ in range(20):
        buffer.mul_(2).div_(2)
    future = staging.start(buffer)
    lane.close()
    wait_until(lambda: reducer.under_way)
    host, _ = reducer.under_way[0]
    assert host.is_pinned()
    assert host.device.type == "cpu"
    reducer.complete(0)
    result = future.wait()
    assert torch.equal(result, expected)


@needs_gpu
def test_cuda_buffers_are_used_again():
    reducer = Reducer()
    lane = Lane(reducer.allreduce_async)
    staging = CudaStaging(lane)
    addresses = set()
    for number in range(10):
        future = staging.start(torch.full((1000,), float(number), device="cuda"))
        while len(reducer.under_way) <= number:
            pass
        reducer.complete(number)
        assert torch.equal(future.wait(), torch.full((1000,), 2.0 * number, device="cuda"))
        torch.cuda.synchronize()
        addresses.add(reducer.under_way[number][0].data_ptr())
    lane.close()
    assert len(addresses) == 1


@needs_gpu
def test_cuda_failure_is_an_error():
    reducer = Reducer()
    lane = Lane(reducer.allreduce_async)
    staging = CudaStaging(lane)
    future = staging.start(torch.ones(10, device="cuda"))
    lane.close()
    wait_until(lambda: reducer.under_way)
    reducer.complete(0, AbortedError("w2 is gone"))
    with pytest.raises(RuntimeError, match="w2 is gone"):
        future.wait()


def test_the_engine_accepts_numpy_arrays_too():
    """The wrapper of local agents needs the memory addresses of both kinds of array."""
    from worker_agent.local import bytes_of

    tensor, array = torch.ones(3, dtype=torch.bfloat16), np.ones(3, np.float16)
    assert len(bytes_of(tensor)) == len(bytes_of(array)) == 6
    bytes_of(tensor)[:] = bytes(6)
    assert not tensor.any()
