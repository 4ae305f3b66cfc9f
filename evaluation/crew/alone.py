"""Fig. 3's training in one thread and without a network, which shows the effect of the groups alone."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from torch import nn

from evaluation.crew.accuracy import WORKERS, Run
from evaluation.wan.learning import Lesson, accuracy, beginning, images, shares
from evaluation.wan.workloads import RUNTIMES

Group = tuple[int, ...]
MOST_ROUNDS = 300


class Workers:
    """The workers, like the sites of evaluation/wan/learning.py. accuracies: of each after each of its rounds."""

    def __init__(self, run: Run) -> None:
        self.lesson = Lesson(alike=run.alike, seed=run.seed)
        self.parts = shares(images().train_labels, WORKERS, alike=run.alike, seed=run.seed)
        self.models = [beginning(self.lesson) for _ in range(WORKERS)]
        self.optimizers = [
            torch.optim.SGD(model.parameters(), lr=self.lesson.rate, momentum=self.lesson.momentum)
            for model in self.models
        ]
        self.generators = [torch.Generator().manual_seed(1000 * run.seed + k) for k in range(WORKERS)]
        self.accuracies: list[list[float]] = [[] for _ in range(WORKERS)]

    def meet(self, group: Group) -> None:
        """Run a round on each worker of the group, and average their models."""
        data = images()
        for k in group:
            for _ in range(self.lesson.steps):
                own = self.parts[k]
                chosen = own[torch.randint(len(own), (self.lesson.batch,), generator=self.generators[k])]
                self.optimizers[k].zero_grad()
                logits = self.models[k](data.train_images[chosen])
                nn.functional.cross_entropy(logits, data.train_labels[chosen]).backward()
                self.optimizers[k].step()
        with torch.no_grad():
            for alike in zip(*(self.models[k].parameters() for k in group), strict=True):
                mean = torch.stack(list(alike)).mean(0)
                for parameter in alike:
                    parameter.copy_(mean)
        found = accuracy(self.models[group[0]], data)
        for k in group:
            self.accuracies[k].append(found)


def at_random(run: Run) -> Iterator[Group]:
    """Yield groups: all workers, dealt into groups anew every round; p must divide their number."""
    rng = np.random.default_rng(run.seed)
    while True:
        for group in rng.permutation(WORKERS).reshape(-1, run.p).tolist():
            yield tuple(sorted(group))


def by_queue(run: Run) -> Iterator[Group]:
    """Yield groups of a queue: the first p ready workers are a group; times of computing and of tasks as in
    `trained`.
    """
    times = [np.random.default_rng([run.seed, k]) for k in range(WORKERS)]
    ready: list[tuple[float, int]] = []
    queue: list[int] = []
    number = 0

    def compute(k: int, since: float) -> None:
        heapq.heappush(ready, (since + float(RUNTIMES["lstm"].with_mean(times[k], 1, run.compute_s)[0]), k))

    for k in range(WORKERS):
        compute(k, 0.0)
    while True:
        now, k = heapq.heappop(ready)
        queue.append(k)
        if len(queue) == run.p:
            number += 1
            end = now + run.x * float(np.random.default_rng([run.seed, number]).uniform(0.8, 1.2))
            for member in queue:
                compute(member, end)
            yield tuple(sorted(queue))
            queue = []


GROUPS = {"random": at_random, "queue": by_queue}


def rounds_to(run: Run, groups: Iterable[Group]) -> list[int | None]:
    """Return each worker's rounds until its model has the accuracy; None: not within MOST_ROUNDS of the fastest
    worker.
    """
    torch.set_num_threads(1)
    workers, reached = Workers(run), dict[int, int]()
    for group in groups:
        workers.meet(group)
        for k in group:
            if workers.accuracies[k][-1] >= run.target:
                reached.setdefault(k, len(workers.accuracies[k]))
        if len(reached) == WORKERS or len(workers.accuracies[group[0]]) >= MOST_ROUNDS:
            break
    return [reached.get(k) for k in range(WORKERS)]
