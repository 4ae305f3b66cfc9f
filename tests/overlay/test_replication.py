"""Copies by switches while multicasts come, lose receivers and end: every remaining receiver gets all of its
packets.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.planner.entries import Forward, LabelEntry, MulticastGroup, Replicate, RuleSet
from controlplane.planner.plan.limits import DoesNotFit, Limits
from controlplane.planner.plan.task import Task
from controlplane.planner.rules import Taken
from controlplane.planner.strategies.wan.policy import (
    Abort,
    Back,
    Changed,
    Drop,
    Finished,
    Lost,
    Pace,
    Progress,
    Ready,
    Release,
    Start,
)
from controlplane.targets.base import Operation, difference, empty
from overlay.core.systems import make
from overlay.net.replication import Replication
from tests.overlay.test_multicast import ring
from topologies.wan.networks import emulated

LIMITS = Limits(256, 64, label_table_size=14, route_table_size=100, multicast_groups=14)
TOPOLOGY = emulated(ring(), 1.0)


class Switches:
    """Switches in memory with the interface of controlplane.service.switches. Entries change one by one, on all
    switches in any order, and after each change every packet of `sent` must still reach all of its receivers.
    """

    def __init__(self, rng: random.Random) -> None:
        self.placing = threading.RLock()
        self.there = {name: empty(name) for name in TOPOLOGY.switches}
        self.sent: dict[int, Task] = {}
        self.rng, self.most = rng, 0

    def taken(self, *, without: int) -> dict[str, Taken]:
        return {name: Taken.by(empty(name)) for name in self.there}

    def rules(self, job: int) -> dict[str, RuleSet]:
        return dict(self.there)

    def install(self, job: int, rulesets: Mapping[str, RuleSet]) -> None:
        todo = {name: list(difference(self.there[name], rules)) for name, rules in rulesets.items()}
        while any(todo.values()):
            name = self.rng.choice([name for name, changes in todo.items() if changes])
            self._apply(name, todo[name].pop(0))
            self.check()
        self.most = max(self.most, *(len(rules.labels) for rules in self.there.values()))

    def _apply(self, name: str, change: Any) -> None:
        rules = self.there[name]
        labels = {(entry.ingress_port, entry.label): entry for entry in rules.labels}
        groups = {group.group: group for group in rules.groups}
        item = change.item
        table, key = (labels, (item.ingress_port, item.label)) if isinstance(item, LabelEntry) else (groups, item.group)
        assert isinstance(item, LabelEntry | MulticastGroup)
        if change.operation is Operation.DELETE:
            del table[key]
        else:
            table[key] = item
        self.there[name] = RuleSet(name, tuple(labels.values()), tuple(groups.values()), ())

    def check(self) -> None:
        for task in self.sent.values():
            (tree,) = task.trees
            reached = sorted(self._copies(tree.root, TOPOLOGY.access_switch(tree.root), tree.label))
            assert set(tree.receivers) <= set(reached) and len(set(reached)) == len(reached)

    def _copies(self, before: str, node: str, label: int) -> Iterator[str]:
        if TOPOLOGY.kind(node) == "server":
            yield node
            return
        rules = self.there[node]
        port = TOPOLOGY.port(node, before)
        for entry in rules.labels:
            if (entry.ingress_port, entry.label) != (port, label):
                continue
            ports: tuple[int, ...] = ()
            if isinstance(entry.action, Forward):
                ports = (entry.action.port,)
            elif isinstance(entry.action, Replicate):
                (ports,) = [group.ports for group in rules.groups if group.group == entry.action.group]
            for neighbour in TOPOLOGY.neighbours(node):
                if TOPOLOGY.port(node, neighbour) in ports:
                    yield from self._copies(node, neighbour, label)


@settings(max_examples=15, deadline=None)
@given(st.randoms(use_true_random=False), st.sampled_from(["selmcast-l3", "orpheus-l3"]))
def test_remaining_receivers_of_a_multicast_get_all_of_its_packets(rng: random.Random, system: str) -> None:
    """Run a manager's orders, with agents that are ready, done, lost and back in any order."""
    policy = make(system, ring(), 1000, p=4, chunk=100, seed=rng.randint(0, 99))
    switches = Switches(rng)
    replication = Replication(TOPOLOGY, LIMITS, lambda: ())
    replication.running = switches  # type: ignore[assignment]
    waiting: dict[int, set[str]] = {}
    free, now = set(policy.nodes), 0.0

    def obey(event: Any) -> None:
        for order in policy.handle(event, now):
            match order:
                case Start(task):
                    task.check()
                    installed = replication.install(task)
                    switches.sent[task.number] = installed
                    waiting[task.number] = set(task.awaited)
                    switches.check()
                case Drop(number, nodes):
                    switches.sent[number] = switches.sent[number].without(nodes)
                    replication.prune(switches.sent[number])
                    over(number, nodes)
                case Abort(number):
                    replication.remove(number)
                    switches.sent.pop(number)
                    waiting.pop(number)
                case Pace(number, mbps):
                    assert number in switches.sent and mbps > 0
                case Release(node) if node in policy.nodes:
                    free.add(node)
        replication.settle()

    def over(number: int, nodes: Any) -> None:
        waiting[number] -= set(nodes)
        if not waiting[number]:
            del waiting[number], switches.sent[number]
            replication.remove(number)

    for node in policy.nodes:
        obey(Back(node))
    for _ in range(40):
        now += 0.1
        kind = rng.random()
        if kind < 0.4 and free:
            node = rng.choice(sorted(free))
            free.discard(node)
            obey(Ready(node, 1000))
        elif kind < 0.85 and waiting:
            number = rng.choice(sorted(waiting))
            receiver = rng.choice(sorted(waiting[number]))
            obey(Progress(switches.sent[number].trees[0].root, number, receiver, rng.random()))
            over(number, [receiver])
            obey(Finished(receiver, number))
        elif kind < 0.9:
            obey(Changed("h0", "h1", rng.choice([1.0, 50.0])))
        elif kind < 0.95:
            obey(Lost("h1", "h2"))
        else:
            node = rng.choice(policy.nodes)
            obey(Lost(node))
            obey(Back(node))
            free.add(node)
    assert switches.most <= 2 * len(policy.nodes)


def test_replication_that_does_not_fit_changes_nothing() -> None:
    policy = make("selmcast-l3", ring(), 1000, p=4, chunk=100, seed=1)
    replication = Replication(TOPOLOGY, replace(LIMITS, label_table_size=1), lambda: ())
    switches = replication.running = Switches(random.Random(1))  # type: ignore[assignment]
    for node in policy.nodes:
        policy.handle(Back(node), 0.0)
    (first,) = policy.handle(Ready("h0", 1000), 1.0)
    (*_, second) = [order for order in policy.handle(Ready("h1", 1000), 1.0) if isinstance(order, Start)]
    assert isinstance(first, Start)
    switches.sent[1] = replication.install(first.task)
    before = dict(switches.there)
    with pytest.raises(DoesNotFit):
        replication.install(second.task)
    assert switches.there == before
