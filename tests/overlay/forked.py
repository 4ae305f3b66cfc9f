"""Processes that are forked from one that has imported PyTorch, because each import takes seconds of CPU."""

from __future__ import annotations

import multiprocessing

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.overlay.site_training", "tests.overlay.training", "torch._dynamo"])
"""DistributedDataParallel imports the last one when it is used."""
