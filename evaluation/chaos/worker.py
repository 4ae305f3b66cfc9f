"""A worker under chaos, in its host: all-reduces of whole numbers, each compared with the exact sum bit for bit."""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from topologies.zygote import Channel
from worker_agent.errors import AbortedError

HERE = "evaluation.chaos.worker"
LARGEST = 1 << 17
"""Largest of a worker's values, which are whole numbers. Fixed point carries them exactly, and so does float32 the sum
of up to 64 workers' values, so a result is right when it is the sum to the last bit.
"""
JOIN_SECONDS = 120.0
FORKED = 2


def contribution(seed: int, worker: int, elements: int) -> npt.NDArray[np.float32]:
    """Return the contribution of this worker (by its number) to one all-reduce."""
    drawn = np.random.default_rng([seed, worker, elements])
    return drawn.integers(-LARGEST, LARGEST, elements, dtype=np.int32).astype(np.float32)


def exact_sum(seed: int, workers: list[int], elements: int) -> npt.NDArray[np.float32]:
    """Return the sum that all workers must get."""
    total = np.zeros(elements, np.int64)
    for worker in workers:
        total += contribution(seed, worker, elements).astype(np.int64)
    return total.astype(np.float32)


def judged(values: npt.NDArray[np.float32], expected: npt.NDArray[np.float32]) -> dict[str, Any] | None:
    """Return how many values are wrong, and the first of them; None where all are right."""
    wrong = np.flatnonzero(values != expected)
    if not len(wrong):
        return None
    first = int(wrong[0])
    return {"values": len(wrong), "of": len(values), "first": first, "got": float(values[first]),
            "expected": float(expected[first])}  # fmt: skip


def run(channel: Channel, *, controller: str, job: str, workers: list[str], patience: float) -> None:
    """Join, and do what each message asks for, until null comes.

        {"operation", "elements": list, "seed", "seconds"}   all-reduces of so many elements each, all started at once
        {"fork": seconds}                                    fork children that end so many seconds later
        {"forked": true}                                     tell how they ended

    The answer to an operation has "right" (all ended well), "wrong" (see `judged`, one entry per wrong tensor), "error"
    and "ended" (the epoch that ended with it, or 0), and what a forger would like to know: the epoch and the trees'
    next sequence numbers.
    """
    os.environ["INART_JOB"] = job
    worker = Worker(controller, workers, patience)
    worker.agent.wait_ready(JOIN_SECONDS)
    channel.send({"joined": worker.agent.index})
    while (order := channel.receive()) is not None:
        if "fork" in order:
            worker.fork(order["fork"])
        elif "forked" in order:
            channel.send({"forked": worker.forked()})
        else:
            channel.send(worker.operate(order))
    worker.agent.close()


class Worker:
    """An agent that does operations as `run` describes. `workers` are the numbers of all workers of the job."""

    def __init__(self, controller: str, workers: list[str], patience: float) -> None:
        self._controller, self._workers, self._patience = controller, workers, patience
        self._children: list[Any] = []
        self.agent = self._join()

    def _join(self) -> Any:
        from worker_agent.agent import Agent

        return Agent(self._controller, operation_timeout=self._patience, log=lambda line: print(line, flush=True))

    def operate(self, order: dict[str, Any]) -> dict[str, Any]:
        answer: dict[str, Any] = {
            "operation": order["operation"], "right": False, "wrong": [], "error": "", "ended": 0
        }  # fmt: skip
        epoch = 0
        until = time.monotonic() + order["seconds"]
        try:
            self.agent.wait_ready(order["seconds"])
            config = self.agent.config
            epoch = config.epoch
            tensors = [contribution(order["seed"] + i, config.index, n) for i, n in enumerate(order["elements"])]
            works = [self.agent.allreduce_async(tensor, "sum") for tensor in tensors]
            for work in works:
                work.wait(max(0.0, until - time.monotonic()))
        except Exception as error:  # an error of any kind is reported to the parent
            answer["error"] = f"{type(error).__name__}: {error}"
            if isinstance(error, (AbortedError, TimeoutError)):
                answer["ended"] = epoch
            if isinstance(error, TimeoutError) or not self._lives():
                self.agent.close(announce=False)
                self.agent = self._join()
            return answer
        config = self.agent.config or config
        numbers = [self._workers.index(name) for name in config.workers]
        for i, (tensor, work) in enumerate(zip(tensors, works, strict=True)):
            if work.workers not in (0, len(numbers)):
                answer["error"] = f"a sum of {work.workers} workers, where the job has {len(numbers)}"
                return answer
            wrong = judged(tensor, exact_sum(order["seed"] + i, numbers, len(tensor)))
            if wrong is not None:
                answer["wrong"].append(wrong)
        answer["right"] = True
        answer["epoch"], answer["sequences"] = config.epoch, self._sequences()
        return answer

    def _sequences(self) -> dict[str, int]:
        """Return the sequence numbers by tree."""
        try:
            return {str(tree.tree): tree.next_sequence for tree in self.agent.stats().trees}
        except Exception:  # the plan is being replaced
            return {}

    def _lives(self) -> bool:
        """Return whether the agent may be ready again by itself."""
        try:
            self.agent.wait_change(0.0)
        except Exception:
            return False
        return True

    def fork(self, seconds: float) -> None:
        """Fork as a DataLoader does: the children have all of this process's memory, and end by themselves."""
        context = multiprocessing.get_context("fork")
        self._children = [context.Process(target=_child, args=(seconds,)) for _ in range(FORKED)]
        for child in self._children:
            child.start()

    def forked(self) -> list[int | None]:
        """Return the exit statuses of the children; below 0 for the signal that ended one, None for one that has not
        ended.
        """
        for child in self._children:
            child.join(30.0)
        return [child.exitcode for child in self._children]


def _child(seconds: float) -> None:
    time.sleep(seconds)
    gc.collect()
