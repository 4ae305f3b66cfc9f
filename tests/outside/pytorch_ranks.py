"""PyTorch's own test class for backends (`distributed_test.py` of the wheel), with our backend in gloo's place.

The suite decides by the name in $BACKEND which tests it runs. Under the name "gloo" it runs what gloo must pass, so
this is what it is told: its default process group, and every group that it makes without naming a backend, is made with
"inart". A group for which a test itself asks gloo stays gloo's. Under the name "inart" ($BACKEND=inart) it runs what
it lets plugins run; under "true gloo" ($INART_OUTSIDE_TRUE_GLOO=1) nothing is replaced, for comparison.

Importing this reads $BACKEND, $WORLD_SIZE and $TEMP_DIR, as the suite does. Ranks are forked from one process that has
imported all of it: importing it takes seconds of CPU.
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import sys
import unittest
import warnings
from typing import Any

import torch.distributed as dist
from torch.testing._internal.common_distributed import DistTestCases

import worker_agent.torch.backend
from worker_agent.torch.backend import NAME, BackendOptions

TRUE_GLOO = "INART_OUTSIDE_TRUE_GLOO"
AGENTS = "INART_OUTSIDE_AGENTS"

if os.environ["BACKEND"] == NAME:
    # torch_ucc and others do the same: the suite asks these sets what a backend can do.
    for feature in ("ddp", "subgroup", "plugin"):
        DistTestCases.backend_feature[feature].add(NAME)

from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend  # noqa: E402

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["tests.outside.pytorch_ranks", "torch._dynamo"])


class TestInArt(TestDistBackend, DistributedTest._DistTestBase):
    """The suite.

    A method that runs on the main process starts the ranks and waits for them, as MultiProcessTestCase does.
    """

    def setUp(self) -> None:
        super().setUp()
        self._start_processes(self._rank)

    def _rank(self, *, target: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what `multiprocessing.Process` would, with the current environment of this process, which changes from
        test to test.
        """
        return processes.Process(target=run_rank, name=name, args=(dict(os.environ), *args), kwargs=kwargs)


def names() -> list[str]:
    """Return the names of all tests in alphabetical order."""
    return unittest.TestLoader().getTestCaseNames(TestInArt)


def run_rank(environment: dict[str, str], rank: int, *args: Any, **kwargs: Any) -> None:
    """Run one rank of one test."""
    os.environ.update(environment)
    faulthandler.enable()
    if os.environ.get(TRUE_GLOO) != "1":
        os.environ["INART_AGENT"] = os.environ[AGENTS].split()[rank]
        replace_gloo()
    TestInArt._run(rank, *args, **kwargs)


def replace_gloo() -> None:
    """Make "inart" the backend of process groups that name none and of the default group, also for small tensors."""
    warnings.filterwarnings("ignore", category=worker_agent.torch.hook.FallbackWarning)
    options = BackendOptions(smallest=1, timeout=30.0)
    init_process_group, new_group = dist.init_process_group, dist.new_group

    def init(backend: str | None = None, *args: Any, **kwargs: Any) -> None:
        init_process_group(NAME, *args, pg_options=options, **kwargs)

    def make_group(ranks: Any = None, timeout: Any = None, backend: str | None = None, **more: Any) -> Any:
        if backend is None:
            more.setdefault("pg_options", options)
        return new_group(ranks, timeout, backend, **more)

    dist.init_process_group, dist.new_group = init, make_group


def main(name: str) -> unittest.TestResult:
    """Run one test and return unittest's result."""
    result = unittest.TestResult()
    TestInArt(name).run(result)
    return result


if __name__ == "__main__":
    sys.exit("python -m tests.outside.pytorch runs these")
