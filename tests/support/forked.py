"""Processes that are forked from one that has imported PyTorch, because each import takes seconds of CPU."""

from __future__ import annotations

import importlib
import multiprocessing
import os
from collections.abc import Iterable
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.context import ForkServerContext
from unittest import mock

MODULES: list[str] = []
"""What the process has imported that others are forked from."""


def forks_with(*modules: str) -> ForkServerContext:
    """Return what makes processes, forked from one that has imported these modules, and those of other tests."""
    MODULES.extend(sorted({*modules, "torch._dynamo"} - set(MODULES)))  # DistributedDataParallel imports the latter.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(MODULES)
    return context


def preload() -> None:
    """Import in this process what the server of forks has to have."""
    for name in MODULES:
        importlib.import_module(name)


def fork_server() -> None:
    """Start the server of forks as a fork of this process, which has one thread, and has imported everything: not as a
    program that imports it again.
    """

    def fork(_: str, command: list[str], kept: Iterable[int]) -> int:
        server = os.fork()
        if server:
            return server
        try:
            for descriptor in {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, *kept}:
                try:
                    os.close(descriptor)
                except OSError:
                    continue  # This was the descriptor that listed them.
            exec(command[-1], {})
        finally:
            os._exit(0)

    resource_tracker.ensure_running()
    with mock.patch.object(util, "spawnv_passfds", fork):
        forkserver.ensure_running()
