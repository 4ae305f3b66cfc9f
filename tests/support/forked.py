"""Processes that are forked from one that has imported PyTorch, because each import takes seconds of CPU."""

from __future__ import annotations

import multiprocessing
from multiprocessing.context import ForkServerContext

MODULES: list[str] = []
"""What the process has imported that others are forked from."""


def forks_with(*modules: str) -> ForkServerContext:
    """Return what makes processes, forked from one that has imported these modules, and those of other tests."""
    MODULES.extend(sorted({*modules, "torch._dynamo"} - set(MODULES)))  # DistributedDataParallel imports the latter.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(MODULES)
    return context
