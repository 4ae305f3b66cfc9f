"""Workers and servers on one star of namespaces with softswitch in the middle, assembled anew for each test."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from controlplane.common.agentconfig import AgentConfig
from evaluation.hosts.network import StarNetwork, inside
from evaluation.hosts.star import Star
from ps_server.server import Server
from tests.hosts.raw import RawSocket
from tests.support.star_switch import Faults, Switch
from worker_agent.collectives import Operation
from worker_agent.engine import Engine
from worker_agent.fixedpoint import error_bound
from worker_agent.io_options import IoOptions
from worker_agent.work import Work

Floats = NDArray[np.float32]
DEADLINE = 100.0


def raw_socket(namespace: str, interface: str) -> RawSocket:
    """A packet socket that sends any frame and receives packets of ours."""
    with inside(namespace):
        return RawSocket(interface, DEADLINE)


class Rig:
    """The agents of `job` on `network` (whose hosts they are), and `switch` with the job's tables between them."""

    def __init__(
        self,
        network: StarNetwork,
        switch: Switch,
        job: Star,
        *,
        timeout: float = DEADLINE,
        without: Sequence[str] = (),
        io: IoOptions | None = None,
        anybody: bool = False,
    ) -> None:
        """Start the agents. anybody: agents also accept packets from addresses that have no part in the job, such as
        those of tests that replace agents (and so wherever some are left out).
        """
        if anybody or without:
            job = replace(
                job,
                workers=tuple(replace(config, sources=()) for config in job.workers),
                servers=tuple(replace(config, sources=()) for config in job.servers),
            )
        self.network, self.switch, self.job = network, switch, job
        self._stack = ExitStack()
        self.engines: list[Engine] = []
        self.servers: list[Server] = []
        switch.renew(job.rules, job.workers[0].values_per_packet)
        with self._stack as stack:
            self._serve(stack, [config for config in job.servers if config.node not in without], io)
            for config in job.workers:
                if config.node not in without:
                    with inside(network.hosts[config.node]):
                        self.engines.append(stack.enter_context(Engine(config, "data0", timeout, io)))
            self._stack = stack.pop_all()

    def _serve(self, stack: ExitStack, servers: Sequence[AgentConfig], io: IoOptions | None = None) -> None:
        for config in servers:
            with inside(self.network.hosts[config.node]):
                self.servers.append(stack.enter_context(Server(config, "data0", io)))

    def start_servers(self) -> None:
        """Start the agents that were left out."""
        there = [server.config.node for server in self.servers]
        self._serve(self._stack, [config for config in self.job.servers if config.node not in there])

    def faults(self, **faults: float) -> None:
        """Inject faults (see Faults)."""
        self.switch.faults(Faults(**faults))

    def raw(self, node: str) -> RawSocket:
        """Return a packet socket on a host's interface; it is closed with the rig."""
        return self._stack.enter_context(raw_socket(self.network.hosts[node], "data0"))

    def raw_port(self, node: str) -> RawSocket:
        """Return a packet socket at the switch's end of a host's link: what it sends reaches the host."""
        return self._stack.enter_context(raw_socket(self.network.middle, f"p-{node}"))

    def submit(self, tensors: Sequence[Floats], op: Operation = "sum") -> list[Work]:
        """Run one operation with a tensor per worker."""
        return [engine.allreduce_async(tensor, op) for engine, tensor in zip(self.engines, tensors, strict=True)]

    def renew(self, epoch: int) -> None:
        """Restart all agents."""
        for server in self.servers:
            server.reconfigure(replace(server.config, epoch=epoch))
        for engine in self.engines:
            engine.reconfigure(replace(engine.config, epoch=epoch))

    def close(self) -> None:
        self._stack.close()

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def tensors(seed: int, workers: int, elements: int) -> list[Floats]:
    """Return values of very different magnitudes, so that exponents differ among chunks and workers."""
    result = []
    for worker in range(workers):
        random = np.random.default_rng([seed, worker])
        scale = np.exp2(random.integers(-40, 40, -(-elements // 100))).repeat(100)[:elements]
        result.append((random.standard_normal(elements) * scale).astype(np.float32))
    return result


def finish(works: Sequence[Work]) -> None:
    """Wait for all operations."""
    for work in works:
        work.wait(DEADLINE)


def check(
    before: Sequence[Floats], after: Sequence[Floats], starts: Sequence[int], values: int, mean: bool = False
) -> None:
    """Check that results have the same bits everywhere and are, chunk by chunk, within the bound of the float64
    reference. `starts`: where the trees' parts begin (chunks are counted from there).
    """
    for result in after[1:]:
        assert result.tobytes() == after[0].tobytes(), "the workers' results differ"
    exact = np.sum([tensor.astype(np.float64) for tensor in before], axis=0) / (len(before) if mean else 1)
    bounds = [*starts, len(exact)]
    for first, last in itertools.pairwise(bounds):
        for begin in range(first, last, values):
            end = min(begin + values, last)
            bound = error_bound([tensor[begin:end] for tensor in before], mean)
            error = np.abs(after[0][begin:end].astype(np.float64) - exact[begin:end]).max()
            assert error <= bound, f"elements {begin} to {end}: off by {error}, allowed is {bound}"
