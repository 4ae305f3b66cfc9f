"""The agents of a job in an emulated network, each a process in its host, and the results of their all-reduces."""

from __future__ import annotations

import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from controlplane.planner.job import Job
from topologies.hosts import OPERATION_SECONDS
from topologies.zygote import HostFailure, HostProcess, Zygote

HOSTS = "topologies.hosts"
MODULES = ("numpy", "worker_agent", "ps_server.__main__", HOSTS)
"""Modules that a zygote should import for these agents."""
READY_SECONDS = 120.0
# seconds until all workers have an order, and seconds that each worker adds to that
PREPARED_SECONDS, WORKER_SECONDS = 0.5, 0.05
ANSWER_SECONDS = 30.0  # seconds for a worker that has given up to say so


@dataclass(frozen=True)
class Outcome:
    """The outcome of one all-reduce on all workers of a job.

    Attributes:
        rate_mbps: wire rate of a worker from its first packet to its last answer, mean over the workers.
        mean_seconds: time from first send to last answer, mean over the workers.
        seconds: this time of the slowest worker.
        resent: packets sent again.
        duplicates: results received again.
        digests: digests of the workers' results.
        error: the largest error against the exact sum.
        bound: the largest error that is allowed.
    """

    rate_mbps: float
    mean_seconds: float
    seconds: float
    resent: int
    duplicates: int
    digests: frozenset[str]
    error: float
    bound: float

    @property
    def identical(self) -> bool:
        return len(self.digests) == 1

    @property
    def right(self) -> bool:
        """Whether all workers have the same bits, within the bound of the exact sum."""
        return self.identical and self.error <= self.bound


def outcome(replies: list[Mapping[str, Any]]) -> Outcome:
    """Return the outcome of one all-reduce from the workers' replies."""
    spans = [reply["last_answer"] - reply["first_send"] for reply in replies]
    rates = [reply["sent_bytes"] * 8 / span / 1e6 for reply, span in zip(replies, spans, strict=True)]
    checked = next(reply for reply in replies if "error" in reply)
    return Outcome(
        rate_mbps=sum(rates) / len(rates),
        mean_seconds=sum(spans) / len(spans),
        seconds=max(spans),
        resent=sum(reply["resent"] for reply in replies),
        duplicates=sum(reply["duplicates"] for reply in replies),
        digests=frozenset(reply["digest"] for reply in replies),
        error=checked["error"],
        bound=checked["bound"],
    )


class JobAgents:
    """Parameter servers and workers of one job, as a context manager that ends them when it is left.

    Args:
        controller: the controller's address.
        named: whether agents tell the controller the job's name, which is needed if it serves several jobs.
        roots_only: start no workers.
        checked: whether one worker computes the exact sum, too (of large tensors that takes time and memory).
    """

    def __init__(
        self,
        zygote: Zygote,
        controller: str,
        job: Job,
        *,
        seed: int = 0,
        named: bool = True,
        roots_only: bool = False,
        checked: bool = True,
    ) -> None:
        self.job = job
        self._zygote = zygote
        self._controller, self._seed, self._named = controller, seed, named
        self.roots: dict[str, HostProcess] = {}
        self.workers: dict[str, HostProcess] = {}
        self._roots_only, self._checked = roots_only, checked
        self._orders = 0

    def start(self) -> None:
        """Start all processes, without waiting for them."""
        for node in self.job.parameter_servers:
            if node not in self.job.both_roles:  # a worker's agent is also its host's parameter server
                self.start_root(node)
        for node in () if self._roots_only else self.job.workers:
            self.start_worker(node)

    def start_root(self, node: str) -> None:
        arguments = {"controller": self._controller, "job": self.job.name if self._named else ""}
        self.roots[node] = self._zygote.spawn(node, f"{HOSTS}:parameter_server", arguments)

    def start_worker(self, node: str) -> None:
        arguments = {
            "controller": self._controller,
            "job": self.job.name if self._named else "",
            "interface": self._zygote.emulation.interface(node),
            "seed": self._seed,
            "workers": len(self.job.workers),
            "check": self._checked and node == self.job.workers[0],
        }
        self.workers[node] = self._zygote.spawn(node, f"{HOSTS}:allreduce", arguments)

    def kill(self, node: str) -> None:
        """End the agent of this node at once with SIGKILL, as a power failure would; do nothing where there is none."""
        process = self.roots.get(node) or self.workers.get(node)
        if process is not None:
            process.kill()

    def restart(self, node: str) -> None:
        """Start a parameter server again; do nothing for a worker, because the others are in the middle of an
        operation.
        """
        if node in self.roots:
            self.start_root(node)

    def ready(self, timeout: float = READY_SECONDS) -> None:
        """Wait until all workers have joined and done a first, small all-reduce. Raise HostFailure where one fails."""
        for process in self.workers.values():
            process.receive(timeout)

    def submit(
        self, size: int, seed: int | None = None, timeout: float = OPERATION_SECONDS, at: float | None = None
    ) -> None:
        """Order an all-reduce of `size` bytes of gradients.

        Args:
            size: bytes of the gradients.
            seed: seed of the gradients (None: the agents' seed).
            timeout: seconds after which it fails.
            at: time.monotonic() at which all workers begin, if they have the order by then.
        """
        self._orders += 1
        given = {name: value for name, value in (("seed", seed), ("at", at)) if value is not None}
        for process in self.workers.values():
            process.send({"size": size, "timeout": timeout, **given})

    def collect(self, timeout: float = OPERATION_SECONDS) -> Outcome:
        """Wait for the all-reduce that was ordered, and return its outcome. Raise HostFailure where a worker fails."""
        return outcome([process.receive(timeout) for process in self.workers.values()])

    def allreduce(self, size: int, seed: int | None = None, timeout: float = OPERATION_SECONDS) -> Outcome:
        """Run one all-reduce, and return its outcome. Raise HostFailure where a worker fails."""
        self.submit(size, seed, timeout)
        return self.collect(timeout + ANSWER_SECONDS)

    def allreduce_together(self, size: int, timeout: float = OPERATION_SECONDS) -> Outcome:
        """Run one all-reduce that all workers begin at the same time, after they have made their gradients.

        Otherwise tens of processes on two cores begin up to a second apart, and the early ones measure how late the
        last one is. Raise HostFailure where a worker fails.
        """
        self.submit(size, timeout=timeout, at=time.monotonic() + PREPARED_SECONDS + WORKER_SECONDS * len(self.workers))
        return self.collect(timeout + ANSWER_SECONDS)

    def allreduce_next(self, size: int, timeout: float = OPERATION_SECONDS) -> Outcome:
        """Run one all-reduce of gradients that no all-reduce of this job had before. Raise HostFailure where a worker
        fails.
        """
        return self.allreduce(size, zlib.crc32(f"{self._seed} {self.job.name} {self._orders}".encode()), timeout)

    def leave(self, timeout: float = READY_SECONDS) -> None:
        """Let the workers leave the job in good order. Raise HostFailure where one fails."""
        for process in self.workers.values():
            process.send(None)
        self.ready(timeout)  # The last message of a worker is the value that its function returns.

    def end(self) -> None:
        """End the processes that still run."""
        for process in (*self.workers.values(), *self.roots.values()):
            process.end()

    def __enter__(self) -> JobAgents:
        try:
            self.start()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()


__all__ = ["MODULES", "HostFailure", "JobAgents", "Outcome", "outcome"]
