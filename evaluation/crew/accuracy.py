"""One run of CREW's Fig. 3 with real training: 8 workers use partial reduces of x seconds until all reach an accuracy.

PyTorch trains in 8 threads with their agents on this machine; tasks go over TCP, and their members wait until x seconds
(0.8 to 1.2 of it, drawn for each task) are over. The paper trains MobileNet on MNIST; we train a convolutional network
on the handwritten digits that ship with scikit-learn. The target accuracy, x and the number of workers are the paper's.
A round's computing takes 0.3 s in the mean, spread like LSTM training (T1). If it always took the same time, workers
that were in a group would be ready at the same time and soon form the same group for ever, which the paper's random
groups rule out.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from controlplane.planner.strategies.wan.crew.policy import Crew, CrewSettings
from topologies.load import cpu_times

if TYPE_CHECKING:  # They import PyTorch, which takes long.
    from evaluation.wan.learning import Lesson, Point
    from overlay import Agent
    from overlay.net.agent import Done

WORKERS = 8
COMPUTE_SECONDS = 0.3


@dataclass(frozen=True)
class Run:
    """The settings of a run.

    Attributes:
        alike: images are dealt at random (IID); else they are sorted by label, and each worker gets two parts of
            16.
        x: mean seconds of a partial reduce of p workers.
        compute_s: mean seconds of a round's computing.
        seconds: time limit.
    """

    alike: bool
    p: int
    x: float
    seed: int
    target: float = 0.95
    seconds: float = 900.0
    compute_s: float = COMPUTE_SECONDS


@dataclass(frozen=True)
class Trained:
    """The results of a run.

    Attributes:
        accuracies: accuracy of each worker's model after each of its rounds.
        at_s: times of these, in seconds.
        groups: group of each task, in order.
        seconds: duration of the run.
        cpu_idle: fraction of all processors' time that was idle.
        alone: rounds without a group because the controller did not answer (the machine was too busy).
    """

    run: Run
    accuracies: tuple[tuple[float, ...], ...]
    at_s: tuple[tuple[float, ...], ...]
    groups: tuple[tuple[int, ...], ...]
    seconds: float
    cpu_idle: float
    alone: int = 0

    @property
    def rounds(self) -> list[int | None]:
        """Number of rounds until each worker's model reached the accuracy; None for one that did not reach it."""
        target = self.run.target
        return [next((k for k, found in enumerate(own, 1) if found >= target), None) for own in self.accuracies]


class _Training:
    """State that the threads of a run share: the accuracies that they reached, their groups, and whether the run is
    over.

    Attributes:
        index: number of each node.
        over: set when every worker has reached the accuracy, or one has ended early.
    """

    def __init__(self, run: Run, index: Mapping[str, int]) -> None:
        self.run, self.index = run, index
        self.points: list[list[Point]] = [[] for _ in range(WORKERS)]
        self.groups: dict[int, tuple[int, ...]] = {}
        self.alone: list[Done] = []
        self.ended: list[int] = []
        self.missing = set(range(WORKERS))
        self.over = threading.Event()

    def slowed(self, done: Done) -> None:
        """Take note of a task, and wait until it has taken as long as the run's partial reduces are to take."""
        if len(done.participants) < self.run.p:
            self.alone.append(done)
            return
        self.groups[done.task] = tuple(sorted(self.index[node] for node in done.participants))
        wanted = self.run.x * float(np.random.default_rng([self.run.seed, done.task]).uniform(0.8, 1.2))
        self.over.wait(max(0.0, wanted - done.seconds))

    def told(self, worker: int, point: Point) -> None:
        """Take note of a worker's accuracy after a round."""
        self.points[worker].append(point)
        if point.accuracy >= self.run.target:
            self.missing.discard(worker)
            if not self.missing:
                self.over.set()

    def train(self, agent: Agent, worker: int, lesson: Lesson) -> None:
        """Train as one worker, until its agent is closed."""
        from evaluation.wan.learning import learn

        told = partial(self.told, worker)
        learn(agent, worker, WORKERS, lesson, rounds=10**6, told=told, slowed=self.slowed)
        if not self.over.is_set():
            self.ended.append(worker)
            self.over.set()


def trained(run: Run) -> Trained:
    """Train, and return the results. Raise OverlayError if a worker ends early, as the others' groups then change."""
    import torch

    from evaluation.wan.learning import Lesson, warm
    from overlay import Agent, Coordinator, OverlayError

    torch.set_num_threads(1)
    lesson = Lesson(compute_s=run.compute_s, alike=run.alike, seed=run.seed)
    warm(lesson)
    bandwidth = np.full((WORKERS, WORKERS), 1000.0)
    np.fill_diagonal(bandwidth, np.inf)
    policy = Crew([f"h{k}" for k in range(WORKERS)], bandwidth, run.p, settings=CrewSettings(chunk_values=8192))
    training = _Training(run, policy.index)
    points, groups = training.points, training.groups
    with Coordinator(policy) as coordinator:
        agents = [Agent(coordinator.address, node, listen=("127.0.0.1", 0)) for node in policy.nodes]
        for agent in agents:
            agent.wait_joined()
        threads = [
            threading.Thread(target=training.train, args=(agents[k], k, lesson), daemon=True) for k in range(WORKERS)
        ]
        idle, total = cpu_times()
        begin = time.monotonic()
        for thread in threads:
            thread.start()
        training.over.wait(run.seconds)
        took = time.monotonic() - begin
        training.over.set()
        idle, total = (after - before for after, before in zip(cpu_times(), (idle, total), strict=True))
        for agent in agents:
            agent.close()
        for thread in threads:
            thread.join(10)
    if training.ended:
        first = training.ended[0]
        raise OverlayError(f"worker {first} ended after {len(points[first])} rounds, before it was told to")
    return Trained(
        run,
        tuple(tuple(point.accuracy for point in own) for own in points),
        tuple(tuple(point.at_s for point in own) for own in points),
        tuple(groups[number] for number in sorted(groups)),
        took,
        idle / max(total, 1),
        len(training.alone),
    )
