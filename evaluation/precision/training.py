"""Data-parallel training in one process: the examples' models, every worker's gradient of every step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from evaluation.precision.schemes import Mean
from examples import train_digits, train_gpt
from worker_agent.fixedpoint import Floats


@dataclass
class Task:
    """A model and its training data.

    Attributes:
        loss: called as loss(step, worker); returns the loss of this worker's part of the batch, with the present
            model.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loss: Callable[[int, int], torch.Tensor]

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the model's parameters."""
        return [tuple(parameter.shape) for parameter in self.model.parameters()]


def gpt(workers: int, seed: int) -> Task:
    """Return the task of examples/train_gpt.py: to predict the next bytes of Python's documentation."""
    torch.manual_seed(seed)
    corpus, length, batch = train_gpt.text(), 64, 4
    model = train_gpt.GPT(64, 2, 4, length)
    span = torch.arange(length + 1)

    def loss(step: int, worker: int) -> torch.Tensor:
        draws = torch.Generator().manual_seed(seed + 7919 * step)
        starts = torch.randint(len(corpus) - len(span), (workers, batch), generator=draws)[worker]
        sequences = corpus[starts[:, None] + span]
        return nn.functional.cross_entropy(model(sequences[:, :-1]).flatten(0, 1), sequences[:, 1:].flatten())

    return Task(model, torch.optim.AdamW(model.parameters(), lr=1e-3), loss)


def digits(workers: int, seed: int) -> Task:
    """Return the task of examples/train_digits.py: a convolution net on scikit-learn's digits."""
    torch.manual_seed(seed)
    data, batch = train_digits.digits(), 16
    model = train_digits.make_model(data, 32)

    def loss(step: int, worker: int) -> torch.Tensor:
        draws = torch.Generator().manual_seed(seed + 7919 * step)
        chosen = torch.randint(len(data.train_labels), (workers, batch), generator=draws)[worker]
        return nn.functional.cross_entropy(model(data.train_images[chosen]), data.train_labels[chosen])

    return Task(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), loss)


TASKS = {"gpt": gpt, "digits": digits}


def train(
    task: Task, mean: Mean, workers: int, steps: int, see: Callable[[int, list[Floats]], None] | None = None
) -> list[float]:
    """Train, and return the losses, averaged over the workers. `see` is called with each step and the workers'
    gradients in it.
    """
    parameters = list(task.model.parameters())
    losses = []
    for step in range(steps):
        gradients, total = [], 0.0
        for worker in range(workers):
            task.optimizer.zero_grad()
            loss = task.loss(step, worker)
            loss.backward()
            total += loss.item()
            flat = [p.grad.reshape(-1) if p.grad is not None else torch.zeros(p.numel()) for p in parameters]
            gradients.append(torch.cat(flat).numpy())
        losses.append(total / workers)
        if see is not None:
            see(step, gradients)
        reduced = torch.from_numpy(mean(gradients))
        for parameter, piece in zip(parameters, reduced.split([p.numel() for p in parameters]), strict=True):
            parameter.grad = piece.view_as(parameter).clone()
        task.optimizer.step()
    return losses
