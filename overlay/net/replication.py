"""Installs tasks' multicasts (L3) on switches: labels, groups and ports, beside the entries of other jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from controlplane.common.log_lines import calling
from controlplane.planner.entries import RuleSet
from controlplane.planner.plan.limits import Limits
from controlplane.planner.plan.model import Multicast
from controlplane.planner.plan.task import Task
from controlplane.planner.rules import Deployment, Taken, build_multicasts, routes
from controlplane.planner.topology import Topology
from controlplane.service.room import first_label, found, last_label, union
from controlplane.service.switches import Switches
from controlplane.targets.base import SwitchAddress, SwitchTarget, empty
from controlplane.targets.registry import kind_to_connect
from controlplane.targets.switches_file import connect_targets
from overlay.net.multicast import Carrier

CONNECT_SECONDS = 15.0
JOB_ID = 0xFFFE
"""The default number of the overlay's job on the wire: jobs whose gradients switches add are numbered from 1."""


class Replication:
    """Installs the multicasts of tasks on the switches of a topology, and removes them. For use by one thread.

    Args:
        topology: the network.
        limits: limits of the switches' program.
        connect: returns the connected targets of all switches; called for the first task with a multicast. From
            then on the switches are kept filled with the topology's IPv4 routes and the tasks' entries; entries of
            other jobs stay.
        job_id: number of the overlay's job on the wire.
        log: gets each line of log.
    """

    def __init__(
        self,
        topology: Topology,
        limits: Limits,
        connect: Callable[[], Sequence[SwitchTarget]],
        *,
        job_id: int = JOB_ID,
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.topology, self.limits, self.job_id = topology, limits, job_id
        self.carrier = Carrier(job_id, limits.values_per_packet)
        self._connect, self._log = connect, log
        self.running: Switches | None = None
        self._next = first_label(job_id)
        self._installed: dict[int, Mapping[str, RuleSet]] = {}  # task -> switch -> entries
        self._over: set[int] = set()  # tasks whose entries the next write removes
        self._pruned: dict[int, Task] = {}  # tasks whose trees lose branches with the next write

    @property
    def switches(self) -> Switches:
        """The switches, connected and filled. Raises FabricError."""
        if self.running is None:
            targets = self._connect()
            base = {name: RuleSet(name, (), (), entries) for name, entries in routes(self.topology).items()}
            jobs = found(targets)
            jobs.pop(self.job_id, None)  # entries that an earlier coordinator left
            self.running = Switches(targets, base, jobs, calling(self._log))
            self.running.fill()
            self.running.watch()
        return self.running

    def install(self, task: Task) -> Task:
        """Install the task's multicasts. Return the task with their labels when they are on all switches. Raise
        FabricError, DoesNotFit or PlanError, and nothing has been changed then.
        """
        copied = _copied(task)
        if not copied:
            return task
        with self.switches.placing:
            kept = self._kept()
            if self._next + len(copied) > last_label(self.job_id):
                self._next = first_label(self.job_id)
            made = self._entries(copied, self._next, kept)
            self._write({**kept, task.number: made.rulesets})
            self._next = made.next_label
        labels = made.multicasts
        return replace(task, trees=tuple(replace(tree, label=labels.get(tree.root, 0)) for tree in task.trees))

    def prune(self, task: Task) -> None:
        """Have the next write remove the branches of the receivers that a task with the op "copy" has lost. The label
        stays, and each switch keeps some of its ports, so the other receivers get every packet in whatever order
        switches are written.
        """
        if task.number in self._installed:
            self._pruned[task.number] = task

    def settle(self) -> None:
        """Write the removals that `prune` has left for the next write. Raise FabricError."""
        if self._pruned.keys() - self._over:
            with self.switches.placing:
                self._write(self._kept())

    def remove(self, number: int) -> None:
        """Have the next write remove the entries of a task that is over."""
        if number in self._installed:
            self._over.add(number)

    def close(self) -> None:
        """Disconnect from the switches. Entries stay until another coordinator replaces them; no agent uses their
        labels.
        """
        if self.running is not None:
            self.running.close()
            self.running = None

    def _kept(self) -> dict[int, Mapping[str, RuleSet]]:
        """Return the entries of each task that is not over, without the branches that have been pruned."""
        kept = {number: rules for number, rules in self._installed.items() if number not in self._over}
        for number in self._pruned.keys() & kept.keys():
            task = self._pruned[number]
            kept[number] = self._entries(_copied(task), task.trees[0].label, kept).rulesets
        return kept

    def _entries(
        self, copied: tuple[Multicast, ...], label: int, beside: Mapping[int, Mapping[str, RuleSet]]
    ) -> Deployment:
        """Return the entries for these multicasts, with labels from `label` on, beside all entries on the switches and
        those of `beside`: entries of tasks that are over are removed only when the new ones are on the switches.
        """
        others = self.switches.taken(without=[self.job_id])
        taken = {}
        for name, own in self.switches.rules(self.job_id).items():
            all_own = union(own, [rules[name] for rules in beside.values() if name in rules])
            taken[name] = _both(others[name], Taken.by(all_own))
        return build_multicasts(copied, self.topology, self.limits, first_label=label, taken=taken)

    def _write(self, there: dict[int, Mapping[str, RuleSet]]) -> None:
        names = list(self.topology.switches)
        whole = {name: union(empty(name), [rules[name] for rules in there.values() if name in rules]) for name in names}
        self.switches.install(self.job_id, whole)
        self._installed = there
        self._over &= there.keys()
        self._pruned.clear()


def p4runtime(
    topology: Topology, switches: Sequence[SwitchAddress], log: Callable[[str], None] = lambda line: None
) -> Replication:
    """Return the replication by switches that speak P4Runtime; the coordinator becomes their primary controller. Raise
    ArtifactError.
    """
    kind = kind_to_connect("bmv2")

    def connect() -> list[SwitchTarget]:
        return connect_targets(switches, kind, CONNECT_SECONDS, calling(log))

    return Replication(topology, kind.limits, connect, log=log)


def _copied(task: Task) -> tuple[Multicast, ...]:
    return tuple(Multicast(tree.root, "L3", tree.routes) for tree in task.trees if tree.routes)


def _both(one: Taken, other: Taken) -> Taken:
    return Taken(one.labels + other.labels, one.groups | other.groups, (*one.slots, *other.slots))
