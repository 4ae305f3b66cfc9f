"""The streams of agents that have joined a job, and what the agents report. The roster's lock protects all of it."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from controlplane.common.agentconfig import REFUSED, AgentConfig
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.service.core.state import State

FRESH_SECONDS = 3.0
"""Reports older than this are stale."""
BUSY_SECONDS = 0.2
"""Least seconds between two reports from which a tree's rate is computed; over less time, the rate says little."""


@dataclass
class Member:
    """The stream of events to an agent that has joined, and what the agent has reported. The agent's state is in the
    core (core/state.py).

    Attributes:
        events: what to send to the agent; None ends its stream.
        heard: the round (`Rounds`) of its last report, or the one in which its epoch began.
        began: when its epoch began, in seconds.
        oldest: by tree, its oldest open chunk, and since when it has been that one.
        rates: by tree, its Mbit/s while it was busy, between its last two reports.
    """

    node: str
    connection: int
    peer: str
    agent: str
    events: queue.SimpleQueue[pb.Event | None] = field(default_factory=queue.SimpleQueue)
    statistics: dict[str, float] = field(default_factory=dict)
    trees: dict[int, pb.TreeReport] = field(default_factory=dict)
    reported: float | None = None
    heard: int = 0
    began: float = 0.0
    oldest: dict[int, tuple[int, float]] = field(default_factory=dict)
    rates: dict[int, float] = field(default_factory=dict)

    def begin(self, heard: int) -> None:
        """Begin an epoch in this round of reports: what the agent has reported of an earlier epoch is forgotten."""
        self.heard = heard
        self.statistics, self.trees, self.oldest, self.rates = {}, {}, {}, {}
        self.reported, self.began = None, time.monotonic()

    def refused(self, report: pb.ReportRequest) -> str:
        """Return, in words, how many packets the agent's check has refused since its last report; "" where it has
        refused none."""
        new = {
            name: int(count - self.statistics.get(name, 0))
            for name, count in report.statistics.items()
            if name.startswith(REFUSED) and count > self.statistics.get(name, 0)
        }
        if REFUSED not in new:
            return ""
        whose = [f"{count} of {name.partition(' of ')[2]}" for name, count in new.items() if name != REFUSED]
        return f"{new[REFUSED]} sums or packets that were not what the workers had sent" + (
            f" ({', '.join(whose)})" if whose else ""
        )

    def take(self, report: pb.ReportRequest, now: float) -> None:
        """Take a report of the running epoch, which came at `now` (time.monotonic)."""
        self.statistics = dict(report.statistics)
        self.rates = dict(_rates(self.trees, report.trees))
        self.trees = {tree.tree: tree for tree in report.trees}
        self.reported = now
        oldest = {}
        for tree in report.trees:
            if tree.HasField("oldest_chunk"):
                chunk, since = self.oldest.get(tree.tree, (None, now))
                since = min(now - tree.waiting_seconds, since if chunk == tree.oldest_chunk else now)
                oldest[tree.tree] = tree.oldest_chunk, since
        self.oldest = oldest

    def waits(self, now: float) -> float:
        """Return for how many seconds the agent's oldest open chunk has been the same, on the tree where that is
        longest."""
        return max((now - since for _, since in self.oldest.values()), default=0.0)


def round_trips_ms(members: Iterable[Member]) -> dict[int, dict[str, float]]:
    """Return each worker's shortest round trip of this epoch by tree and node, in ms, where one was reported."""
    found: dict[int, dict[str, float]] = {}
    for member in members:
        for number, tree in member.trees.items() if member.reported is not None else ():
            if tree.round_trip_seconds > 0:
                found.setdefault(number, {})[member.node] = 1e3 * tree.round_trip_seconds
    return found


def workers(configs: Mapping[str, AgentConfig], members: Mapping[str, Member]) -> list[Member]:
    """Return the workers of a plan, whose agents' configurations are given; none while one of them has not joined."""
    nodes = [node for node, config in configs.items() if config.role == "worker"]
    return [members[node] for node in nodes] if all(node in members for node in nodes) else []


def tree_rates(workers: Iterable[Member], now: float) -> dict[int, float]:
    """Return, by tree, the Mbit/s between the last two reports of the worker that waited least there.

    Only trees on which each of these workers was busy count. On the others a worker that is late keeps the rest
    waiting, which says nothing about the network.
    """
    found: dict[int, list[float]] = {}
    count = 0
    for member in workers:
        count += 1
        if member.reported is not None and now - member.reported < FRESH_SECONDS:
            for tree, rate in member.rates.items():
                found.setdefault(tree, []).append(rate)
    return {tree: max(rates) for tree, rates in found.items() if len(rates) == count}


def standing(workers: Iterable[Member], now: float) -> tuple[dict[int, float], set[int]]:
    """Return the trees without a result in this epoch for which each of these workers waits now, with the seconds for
    which the last worker has waited; and the trees that have had a result."""
    waits: dict[int, list[float]] = {}
    moving: set[int] = set()
    count = 0
    for member in workers:
        count += 1
        moving.update(number for number, tree in member.trees.items() if tree.answered_bytes > 0)
        if member.reported is not None and now - member.reported < FRESH_SECONDS:
            for number, (_, since) in member.oldest.items():
                waits.setdefault(number, []).append(now - since)
    return {
        tree: min(seconds) for tree, seconds in waits.items() if len(seconds) == count and tree not in moving
    }, moving


def waited_for(configs: Mapping[str, AgentConfig], members: Mapping[str, Member], now: float) -> dict[str, float]:
    """Return the nodes for which others wait, each with the seconds for which they have waited at most. A parameter
    server waits for the workers whose part of its oldest chunk it lacks; a worker waits for the root of its tree.
    `configs` are those of the running plan, and `members` its agents by node."""
    roots = {tree.tree: node for node, config in configs.items() for tree in config.root_trees}
    found: dict[str, float] = {}
    for node, member in members.items():
        for number, (_, since) in member.oldest.items():
            root = roots.get(number, node)
            for other in member.trees[number].missing if root == node else (root,):
                found[other] = max(found.get(other, 0.0), now - since)
    return found


def lacking(
    configs: Mapping[str, AgentConfig], members: Mapping[str, Member], tree: int
) -> tuple[str, tuple[str, ...]]:
    """Return the root of a tree, and the workers whose part it lacks, as the root has reported. `configs` are those of
    the running plan, and `members` its agents by node."""
    root = next((node for node, config in configs.items() if any(one.tree == tree for one in config.root_trees)), "")
    report = members[root].trees.get(tree) if root in members else None
    return root, tuple(report.missing) if report is not None else ()


def status(
    state: State, configs: Mapping[str, AgentConfig], members: Mapping[str, Member], now: float
) -> pb.StatusReply:
    """Return the agents of a job and its trees, as `status` shows them. `configs` are those of the running plan, by
    node."""
    running = state.running and not state.missing()
    reply = pb.StatusReply(epoch=state.epoch, state="running" if running else "waiting")
    reply.update = str(state.migration) if state.migration is not None else ""
    for node, config in configs.items():
        agent = reply.agents.add(node=node, role=config.role, reported_seconds=-1)
        member = members.get(node)
        if member is not None:
            agent.joined, agent.peer, agent.joined_seconds = True, member.peer, now - state.nodes[node].since
            agent.statistics.update(member.statistics)
            if member.reported is not None:
                agent.reported_seconds = now - member.reported
        for tree in config.root_trees:
            line = reply.trees.add(tree=tree.tree, root=node)
            report = member.trees.get(tree.tree) if member else None
            if report is not None and report.HasField("oldest_chunk"):
                line.oldest_chunk = report.oldest_chunk
                line.missing.extend(report.missing)
                line.waiting_seconds = report.waiting_seconds
    reply.trees.sort(key=lambda tree: tree.tree)
    return reply


def _rates(before: Mapping[int, pb.TreeReport], trees: Iterable[pb.TreeReport]) -> Iterator[tuple[int, float]]:
    for tree in trees:
        last = before.get(tree.tree)
        if last is not None and last.busy_seconds > 0:
            busy, nbytes = tree.busy_seconds - last.busy_seconds, tree.answered_bytes - last.answered_bytes
            if busy >= BUSY_SECONDS and nbytes >= 0:
                yield tree.tree, 8e-6 * nbytes / busy
