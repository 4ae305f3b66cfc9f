"""The parameter server of a host that is worker and parameter server at once, which runs in the worker's agent.

The controller knows one agent a node, so a host of both roles has one: it joins as a worker, and its configuration has
the trees that it is the root of beside those that it sends into. Packets to itself stay on the host (native/io.h, `enum
io_reach`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from controlplane.common.agentconfig import REFUSED, ROOT_ADDS, SUSPECT, AgentConfig, ReroutedTree
from controlplane.common.rpc import inart_pb2 as pb
from worker_agent.errors import AgentError

LINGER_SECONDS, LINGER_MOST_SECONDS = 1.0, 5.0
"""Seconds for which a root goes on to answer other workers after its own worker has left in good order, as their last
results may have been lost: until nothing has come for LINGER_SECONDS, and at most LINGER_MOST_SECONDS (a controller
gives other agents as much time).
"""
KEPT = ("ingress_bytes", "results_dropped", ROOT_ADDS)
ADDED = frozenset((REFUSED, "duplicates", "refused", "malformed", "unknown", "other_epoch", "other_source")) | {
    "send_errors",
    "kernel_drops",
}
"""Statistics of a root that are its own, and those that are added to the worker's of the same name."""


class OwnRoot:
    """The versions of the root on a worker's host (ps_server/versions.py), where the configuration is of both roles;
    elsewhere it does nothing.
    """

    def __init__(self) -> None:
        self._versions: Any = None

    def configure(self, config: AgentConfig, interface: str) -> None:
        """Run `config` from now on. Raise AgentError, ValueError or OSError where the root cannot run."""
        if config.both_roles:
            self._made().configure(config, interface)
        else:
            self.end()

    def prepare(self, config: AgentConfig, interface: str, anew: bool) -> None:
        """Make ready for `config` beside the configuration that runs. Raise AgentError, ValueError or OSError where the
        root cannot run.
        """
        if config.both_roles:
            self._made().prepare(config, interface, anew)

    def switch_over(self) -> None:
        """Switch over to the prepared configuration; this method and those below do as the methods of the same name in
        `PlanVersions`.
        """
        if self._versions is not None:
            self._versions.switch_over(0, {})

    def withdraw(self) -> None:
        if self._versions is not None:
            self._versions.withdraw()

    def retire(self) -> None:
        if self._versions is not None:
            self._versions.retire()

    def rerouted(self, trees: Sequence[ReroutedTree]) -> None:
        if self._versions is not None:
            self._versions.rerouted(trees)

    def linger(self) -> None:
        """Go on to answer other workers for a while, before the end in good order."""
        end, before = time.monotonic() + LINGER_MOST_SECONDS, -1
        while self._versions is not None and time.monotonic() < end:
            try:
                come = self._versions.server.stats().packets_received
            except AgentError:
                return
            if come == before:
                return
            before = come
            time.sleep(LINGER_SECONDS)

    def end(self) -> None:
        versions, self._versions = self._versions, None
        if versions is not None:
            versions.end(in_order=True)

    def add_to(self, numbers: dict[str, float], trees: Sequence[pb.TreeReport]) -> None:
        """Add the root's report to the worker's: the workers that it waits for, and its counters of packets."""
        if self._versions is None:
            return
        try:
            own: Mapping[str, float]
            own, reports = self._versions.statistics()
        except AgentError:
            return  # the root is just being changed
        for name, value in own.items():
            if name in KEPT or name.startswith(SUSPECT) or name.startswith(f"{REFUSED} of "):
                numbers[name] = value
            elif name in ADDED:
                numbers[name] = numbers.get(name, 0.0) + value
        known = {report.tree: report for report in reports}
        for report in trees:
            if report.tree in known:
                report.missing.extend(known[report.tree].missing)
                report.waiting_seconds = known[report.tree].waiting_seconds

    def _made(self) -> Any:
        if self._versions is None:
            try:
                # It is imported by name: ps_server depends on this package, and most workers never need it.
                self._versions = import_module("ps_server.versions").Versions()
            except ImportError as error:
                raise AgentError(f"this host is a parameter server, too, and has no ps_server: {error}") from None
        return self._versions
