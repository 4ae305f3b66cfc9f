"""Error feedback: what of a gradient did not travel is added to the next one.

Where values travel in few bits each worker loses a part of each value. Kept, and added to the same parameter's gradient
in the next step, it arrives later instead of never (Seide et al. 2014, "1-bit stochastic gradient descent"; Karimireddy
et al. 2019, "Error feedback fixes SignSGD").
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Piece:
    """Elements `first` to `first + count` of a buffer belong to `owner`."""

    owner: Hashable
    first: int
    count: int


class Feedback:
    """What did not travel, of each owner (a parameter, or a module's part): float32, as many as its elements."""

    def __init__(self) -> None:
        self._left: dict[Hashable, torch.Tensor] = {}

    def begin(self, values: torch.Tensor, pieces: Sequence[Piece]) -> torch.Tensor:
        """What to reduce with "feedback" (worker_agent/collectives.py): float32, the values and what was left of them,
        then as many zeros, which stay so where values travel another way."""
        whole = values.new_zeros(2 * values.numel(), dtype=torch.float32)
        whole[: values.numel()].copy_(values.reshape(-1))
        for piece in pieces:
            left = self._left.get(piece.owner)
            if left is not None and left.numel() == piece.count:
                whole[piece.first : piece.first + piece.count].add_(left.to(whole.device))
        return whole

    def end(self, whole: torch.Tensor, values: torch.Tensor, pieces: Sequence[Piece]) -> torch.Tensor:
        """The reduced values to `values`, and what did not travel is kept."""
        count = values.numel()
        for piece in pieces:
            left = whole[count + piece.first : count + piece.first + piece.count]
            kept = self._left.get(piece.owner)
            if kept is None or kept.numel() != piece.count or kept.device != left.device:
                self._left[piece.owner] = left.clone()
            else:
                kept.copy_(left)
        return values.copy_(whole[:count].view_as(values))

    def state(self, names: Mapping[Hashable, str]) -> dict[str, torch.Tensor]:
        """By name, of those that have one; on the CPU."""
        return {name: self._left[owner].cpu().clone() for owner, name in names.items() if owner in self._left}

    def load(self, state: Mapping[str, torch.Tensor], names: Mapping[Hashable, str]) -> None:
        """What `state` gave. Raises ValueError that names what is not there."""
        unknown = sorted(set(state) - set(names.values()))
        if unknown:
            raise ValueError(f"the model has no parameter {', '.join(unknown)}: load the state of this model")
        self._left = {owner: state[name].clone() for owner, name in names.items() if name in state}


def pieces_of(bucket: Any) -> list[Piece]:
    """The parameters of a bucket of DDP, and where in its buffer each one's gradient is."""
    start = bucket.buffer().storage_offset()
    return [
        Piece(parameter, gradient.storage_offset() - start, gradient.numel())
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True)
    ]


def names_of(model: torch.nn.Module) -> dict[Hashable, str]:
    """Of a model's parameters and modules, whether DDP is around it or not."""
    names: dict[Hashable, str] = {
        module: f"module {name.removeprefix('module.')}" for name, module in model.named_modules()
    }
    return names | {parameter: name.removeprefix("module.") for name, parameter in model.named_parameters()}
