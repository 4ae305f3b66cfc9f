"""The roots that one host runs for a job: those of the current plan, of the next one, and of the one before.

A parameter server's process has one `Versions` object, and so has the agent of a worker whose host is a parameter
server, too.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from controlplane.common.agentconfig import REFUSED, ROOT_ADDS, SWITCH_ADDS, AgentConfig, ReroutedTree
from controlplane.common.rpc import inart_pb2 as pb
from ps_server.server import Server, library
from worker_agent.adding import Busy, OfSwitch
from worker_agent.errors import AgentError
from worker_agent.plan_versions import PlanVersions
from worker_agent.reporter import Statistics, scalars, totals


class Versions(PlanVersions):
    """The versions of a job's plan at a root. All methods are called by one thread at a time, except `open_chunks` and
    `statistics`.
    """

    joins_late = True

    def __init__(self) -> None:
        """Load the engine. Raise AgentError where it cannot be compiled.

        Where no wheel has brought the engine, it is compiled here and not when the first configuration comes: an agent
        that has joined and then compiles for long counts as hanging.
        """
        library()
        self._server: Server | None = None
        self._next: Server | None = None
        self._old: Server | None = None
        self._busy, self._switch = Busy(), OfSwitch()

    def configure(self, config: AgentConfig, interface: str) -> None:
        self.withdraw()
        self.retire()
        if self._server is None:
            self._server = Server(config, interface)
        else:
            self._server.reconfigure(config)

    def prepare(self, config: AgentConfig, interface: str, again: bool) -> int:
        if again:  # the old version's operations have been stopped
            self.withdraw()
            self.retire()
        if self._next is not None or self._old is not None:
            raise AgentError("the update before this one has not ended")
        self._next = Server(config, interface)
        return 0

    def switch_over(self, first_operation: int, given: Mapping[int, int]) -> None:
        """Run the prepared version beside the old one, which goes on to answer the workers' last operations before this
        point.
        """
        self._old, self._server, self._next = self._server, self._next, None

    def withdraw(self) -> None:
        successor, self._next = self._next, None
        if successor is not None:
            successor.close()

    def retire(self) -> None:
        old, self._old = self._old, None
        if old is not None:
            old.close()

    def rerouted(self, trees: Sequence[ReroutedTree]) -> None:
        for server in (self._server, self._next, self._old):
            if server is not None:
                server.rerouted(trees)

    def stop(self, reason: str) -> None:
        """Do nothing, since without workers nothing arrives, and a new epoch starts afresh."""

    def end(self, in_order: bool) -> None:
        self.withdraw()
        self.retire()
        if self._server is not None:
            self._server.close()
            self._server = None

    @property
    def server(self) -> Server:
        """The root of the current plan; where none runs, this raises AgentError."""
        if self._server is None:
            raise AgentError("the server is closed")
        return self._server

    def open_chunks(self) -> Mapping[int, int]:
        return self.server.open_chunks()

    def statistics(self) -> Statistics:
        server = self.server
        stats = server.stats()
        numbers = scalars(stats) | totals(stats.trees)
        trees = []
        for tree in stats.trees:
            report = pb.TreeReport(tree=tree.tree, missing=tree.missing, waiting_seconds=tree.waiting_seconds)
            if tree.missing:
                report.oldest_chunk = tree.oldest_incomplete
            trees.append(report)
        wrong = {f"{REFUSED} of {name}": float(packets) for name, packets in server.suspects(stats).items()}
        refused = sum(tree.check_failures for tree in stats.trees)
        numbers |= {REFUSED: refused, **server.wrong_packets(stats)} if refused else {}
        numbers |= {**wrong, "ingress_bytes": stats.ingress_bytes}
        come, threads = stats.bytes_received, max(1, stats.io.threads)
        if adds := self._busy.note(come, stats.cpu_seconds, time.monotonic(), threads):
            numbers[ROOT_ADDS] = adds
        if server.config.adds:
            numbers[SWITCH_ADDS] = self._switch.mbps(server.config.values_per_packet)
        return numbers, trees
