"""A worker that begins an operation while the job does not run either waits or gets an error at once, as it asks."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from controlplane.common.agentconfig import AgentConfig
from tests.deploy.job import configs
from tests.hosts.test_relay import SECONDS, Engine
from worker_agent import worker_versions
from worker_agent.agent import Agent
from worker_agent.collectives import Collective
from worker_agent.errors import AbortedError, AgentError
from worker_agent.operands import HostArray

CONFIG = replace(configs("127.0.0.1")["w1"], epoch=7)


class Summing(Engine):
    """Ends every operation at once, and has nothing to report."""

    def __init__(self, config: AgentConfig, interface: str, operation_timeout: float) -> None:
        super().__init__(config)

    def open_chunks(self) -> dict[int, int]:
        return {}

    def stats(self) -> Any:
        raise AgentError("nothing is counted")

    def submit(self, memory: HostArray, op: Collective) -> Any:
        work = super().submit(memory, op)
        memory.owner[:] *= 2
        work.finish(None)
        return work


class Waiting(Agent):
    """An agent of a job without a controller: the test sends what a controller would.

    tried: an operation was begun in vain.
    """

    def __init__(self, folder: Path, operation_timeout: float = SECONDS) -> None:
        self.tried = threading.Event()
        super().__init__(f"unix:{folder}/nobody", "w1", operation_timeout=operation_timeout)

    def allreduce_async(self, *arguments: Any, **options: Any) -> Any:
        try:
            return super().allreduce_async(*arguments, **options)
        except AbortedError:
            self.tried.set()
            raise


@pytest.fixture(autouse=True)
def engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the agent makes is no engine that needs a network."""
    monkeypatch.setattr(worker_versions, "Engine", Summing)


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Waiting]:
    made = Waiting(tmp_path)
    yield made
    made.close()


def test_an_all_reduce_begun_between_two_epochs_is_done_in_the_next(agent: Waiting) -> None:
    """A worker was lost and is back; the controller has begun an epoch of which this worker has not heard yet."""
    agent.on_configuration(CONFIG)
    agent.on_abort("w2 is gone (its connection ended)", ("w2",))
    with pytest.raises(AbortedError):
        agent.allreduce_async(np.ones(3, np.float32))
    agent.tried.clear()
    array = np.ones(3, np.float32)
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(agent.allreduce, array)
        assert agent.tried.wait(SECONDS)
        agent.on_configuration(replace(CONFIG, epoch=8))
        done.result(SECONDS)
    assert (array == 2.0).all()


def test_an_all_reduce_waits_for_an_epoch_no_longer_than_an_operation_may_take(tmp_path: Path) -> None:
    agent = Waiting(tmp_path, operation_timeout=0.3)
    try:
        agent.on_configuration(CONFIG)
        agent.on_abort("w2 is gone (its connection ended)", ("w2",))
        began = time.monotonic()
        with pytest.raises(AbortedError):
            agent.allreduce(np.ones(3, np.float32))
        assert time.monotonic() - began >= 0.3
    finally:
        agent.close()


def test_a_closed_agent_refuses_operations_without_waiting(agent: Waiting) -> None:
    agent.on_configuration(CONFIG)
    agent.close()
    with pytest.raises(AbortedError, match="closed"):
        agent.allreduce(np.ones(3, np.float32))
