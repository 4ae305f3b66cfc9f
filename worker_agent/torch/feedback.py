"""Error feedback: the part of a gradient that was rounded off is added to the next gradient.

Where values travel in few bits each worker loses a part of each value. Kept and added to the same parameter's gradient
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
    """A piece of a buffer: elements `first` to `first + count` belong to `owner`."""

    owner: Hashable
    first: int
    count: int


class Feedback:
    """The residual (the part that was rounded off) of each owner, which is a parameter or a module's part: a float32
    per element.
    """

    def __init__(self) -> None:
        self._left: dict[Hashable, torch.Tensor] = {}

    def begin(self, values: torch.Tensor, pieces: Sequence[Piece]) -> torch.Tensor:
        """Return the array to reduce with "feedback" (worker_agent/collectives.py): the values plus their residuals as
        float32, then as many zeros, which stay zero where values do not lose bits.
        """
        whole = values.new_zeros(2 * values.numel(), dtype=torch.float32)
        whole[: values.numel()].copy_(values.reshape(-1))
        for piece in pieces:
            left = self._left.get(piece.owner)
            if left is not None and left.numel() == piece.count:
                whole[piece.first : piece.first + piece.count].add_(left.to(whole.device))
        return whole

    def end(self, whole: torch.Tensor, values: torch.Tensor, pieces: Sequence[Piece]) -> torch.Tensor:
        """Copy the reduced values to `values`, and keep the new residuals."""
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
        """Return the residuals on the CPU by name, for the owners that have one."""
        return {name: self._left[owner].cpu().clone() for owner, name in names.items() if owner in self._left}

    def load(self, state: Mapping[str, torch.Tensor], names: Mapping[Hashable, str]) -> None:
        """Load residuals that `state` returned. Raise ValueError, which names them, for unknown parameters."""
        unknown = sorted(set(state) - set(names.values()))
        if unknown:
            raise ValueError(f"the model has no parameter {', '.join(unknown)}: load the state of this model")
        self._left = {owner: state[name].clone() for owner, name in names.items() if name in state}


def pieces_of(bucket: Any) -> list[Piece]:
    """Return the parameters of a bucket of DDP and the places of their gradients in its buffer."""
    start = bucket.buffer().storage_offset()
    return [
        Piece(parameter, gradient.storage_offset() - start, gradient.numel())
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True)
    ]


def names_of(model: torch.nn.Module) -> dict[Hashable, str]:
    """Return the names of a model's parameters and modules, with or without DDP around it."""
    names: dict[Hashable, str] = {
        module: f"module {name.removeprefix('module.')}" for name, module in model.named_modules()
    }
    return names | {parameter: name.removeprefix("module.") for name, parameter in model.named_parameters()}
