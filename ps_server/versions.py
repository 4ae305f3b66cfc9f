"""The roots that one host runs for a job: of the plan that holds, of the one that comes next, and of the one before.

A parameter server's process has one of these, and so has the agent of a worker whose host is a parameter server, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from controlplane.common.agentconfig import REFUSED, AgentConfig, RepairedTree
from controlplane.common.rpc import inart_pb2 as pb
from ps_server.server import Server
from worker_agent.errors import AgentError
from worker_agent.member import scalars


class Versions:
    """Called by one thread at a time; only `statistics` may come from another."""

    def __init__(self) -> None:
        self._server: Server | None = None
        self._next: Server | None = None
        self._old: Server | None = None

    def configure(self, config: AgentConfig, interface: str) -> None:
        """Run `config` from now on, whatever ran before. Raises AgentError, ValueError, OSError."""
        self.withdraw()
        self.retire()
        if self._server is None:
            self._server = Server(config, interface)
        else:
            self._server.reconfigure(config)

    def prepare(self, config: AgentConfig, interface: str, anew: bool) -> None:
        """Make ready for `config` beside what runs. anew: nobody waits for what was before. Raises AgentError,
        ValueError, OSError."""
        if anew:
            self.withdraw()
            self.retire()
        if self._next is not None or self._old is not None:
            raise AgentError("the update before this one has not ended")
        self._next = Server(config, interface)

    def switch_over(self) -> None:
        """What was prepared holds. Both run: the workers' last operations before this are still answered by the old."""
        self._old, self._server, self._next = self._server, self._next, None

    def withdraw(self) -> None:
        """What was prepared is not needed."""
        successor, self._next = self._next, None
        if successor is not None:
            successor.close()

    def retire(self) -> None:
        """What ran before the last switch-over is not needed any more."""
        old, self._old = self._old, None
        if old is not None:
            old.close()

    def repaired(self, trees: Sequence[RepairedTree]) -> None:
        """Trees were led another way."""
        for server in (self._server, self._next, self._old):
            if server is not None:
                server.repaired(trees)

    def end(self) -> None:
        """Give everything back."""
        self.withdraw()
        self.retire()
        if self._server is not None:
            self._server.close()
            self._server = None

    @property
    def server(self) -> Server:
        """The root of the plan that holds. Raises AgentError: nothing runs."""
        if self._server is None:
            raise AgentError("the server is closed")
        return self._server

    def open_chunks(self) -> Mapping[int, int]:
        """By tree, its oldest chunk that somebody is missing from. Raises AgentError: nothing runs."""
        return self.server.open_chunks()

    def statistics(self) -> tuple[Mapping[str, float], Sequence[pb.TreeReport]]:
        """For the controller's status. Raises AgentError: nothing runs."""
        server = self.server
        stats = server.stats()
        numbers = scalars(stats)
        trees = []
        for tree in stats.trees:
            report = pb.TreeReport(tree=tree.tree, missing=tree.missing, waiting_seconds=tree.waiting_seconds)
            if tree.missing:
                report.oldest_chunk = tree.oldest_incomplete
            trees.append(report)
        wrong = {f"{REFUSED} of {name}": float(packets) for name, packets in server.suspects(stats).items()}
        refused = sum(tree.check_failures for tree in stats.trees)
        numbers |= {REFUSED: refused, **server.wrong_packets(stats)} if refused else {}
        return {**numbers, **wrong, "ingress_bytes": stats.ingress_bytes}, trees
