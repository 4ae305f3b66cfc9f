"""Counts the forward passes of models with the hook, so that ranks notice that one of them has skipped a backward pass.

The gradients of such a rank's next pass are added to those that the others have of the pass before: the operations are
the same, so none fails until the others wait for an operation that never begins. Therefore the ranks compare their
numbers of forward passes when they agree on a step. A difference is a warning instead of an error, because a forward
pass without a backward pass may be intended.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

logger = logging.getLogger("inart")


class Passes:
    """The forward passes of one state's models that need gradients.

    Attributes:
        begun: their number.
    """

    def __init__(self) -> None:
        self.begun = 0
        self._reported = False

    def follow(self, model: DistributedDataParallel) -> None:
        """Count the forward passes of a model from now on."""
        model.register_forward_pre_hook(self._begin)

    def _begin(self, model: Any, _: object) -> None:
        # A compiled model is not counted, on no rank: the compiler would have to trace this object.
        if torch.compiler.is_compiling() or not torch.is_grad_enabled() or not model.training:
            return
        joins = getattr(getattr(model, "_join_config", None), "enable", False)  # Ranks run out of data one by one.
        if model.require_backward_grad_sync and not joins:
            self.begun += 1

    def differ(self, least: int, most: int) -> bool:
        """Return whether the ranks have to be asked for their numbers, as these are the least and the most of them."""
        return least != most and not self._reported

    def report(self, step: int, numbers: Sequence[str]) -> None:
        """Warn that the ranks' numbers of forward passes differ at a step. Only the first difference is reported."""
        self._reported = True
        ranks: dict[str, list[str]] = {}
        for rank, number in enumerate(numbers):
            ranks.setdefault(number, []).append(str(rank))
        found = ", ".join(f"{number} on rank {', '.join(of)}" for number, of in sorted(ranks.items(), key=_fewest))
        text = (
            f"step {step}: the ranks' numbers of forward passes differ: {found}. A rank that skips a backward pass "
            "adds its gradients to those of another step: call backward on all ranks or on none"
        )
        warnings.warn_explicit(text, UserWarning, "inart", 1)
        if logger.hasHandlers():
            logger.warning("%s", text)


def _fewest(item: tuple[str, list[str]]) -> int:
    return len(item[1])


def follow_models(state_class: type, passes_of: Any) -> None:
    """Make DDP give each model that gets a state of this class to `passes_of(state)`."""
    register: Any = DistributedDataParallel.register_comm_hook
    if hasattr(register, "inart"):
        return

    def register_comm_hook(self: DistributedDataParallel, state: object, hook: Any) -> None:
        register(self, state, hook)
        if isinstance(state, state_class):
            passes_of(state).follow(self)

    register_comm_hook.inart = True  # type: ignore[attr-defined]
    register_comm_hook.__doc__ = register.__doc__
    DistributedDataParallel.register_comm_hook = register_comm_hook  # type: ignore[method-assign]
