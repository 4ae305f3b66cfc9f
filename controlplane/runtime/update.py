"""Changing the plan of a job that runs: the new version's entries beside the old, switch over, drain, old ones out.

Nothing stops meanwhile: a worker holds back operations for as long as the controller needs to hear from all of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from controlplane.evaluate import evaluate
from controlplane.plan import Plan, PlanError
from controlplane.plan.limits import DoesNotFit, Limits, limited
from controlplane.plan.replan import Difference, difference, replan
from controlplane.rules import Deployment, RuleSet
from controlplane.runtime.handover import HandoverError
from controlplane.runtime.room import build_beside, union
from controlplane.runtime.roster import Roster
from controlplane.runtime.switches import Switches
from controlplane.targets import fabric
from controlplane.topology import Topology, TopologyError

PREPARE_SECONDS = 15.0
SAME = 1e-6


class UpdateError(Exception):
    """The plan was not changed; the message says why, and what runs is what ran before."""


@dataclass(frozen=True)
class Update:
    """What a change of plan did. Rates in Mbit/s per worker; rate_before: of the old plan in the new state.

    changed: False: the plan that runs is right for the new state. entries_added, entries_removed: of all switches.
    epoch, first_operation: where the job changed over; 0 when it was not running. held_seconds: the longest that a
    worker may have held operations back. seconds: until the old version was gone.
    """

    plan: Plan
    rate_before: float
    trees: Difference
    changed: bool = False
    entries_added: int = 0
    entries_removed: int = 0
    epoch: int = 0
    first_operation: int = 0
    held_seconds: float = 0.0
    seconds: float = 0.0


class Updater:
    """Changes the plan of one deployed job, one change at a time.

    Args:
        plan, topology, deployment: what is installed now.
        limits: of the switches.
        switches: where it is installed, as job `job_id`.
        pace: share of the planned rate at which agents send.
        check: raises DoesNotFit where the switches cannot hold or carry a plan (`Kind.check`).
        left: what other jobs leave of a state of the network.
        changed: called when another plan runs.
    """

    def __init__(
        self,
        plan: Plan,
        topology: Topology,
        deployment: Deployment,
        *,
        limits: Limits,
        switches: Switches,
        roster: Roster,
        log: Callable[[str], None] = lambda line: None,
        job_id: int = 1,
        pace: float = 1.0,
        check: Callable[[Plan, Topology], None] = lambda plan, topology: None,
        left: Callable[[Topology], Topology] = lambda topology: topology,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.plan = plan
        self.topology = topology
        self._whole = topology
        self._deployment = deployment
        self._limits = limits
        self._switches = switches
        self._roster = roster
        self._log = log
        self._job_id = job_id
        self._pace = pace
        self._check = check
        self._left = left
        self._changed = changed
        self._lock = threading.Lock()

    @property
    def deployment(self) -> Deployment:
        """What is installed now."""
        return self._deployment

    def state(
        self, topology: Topology | None = None, changes: Iterable[str] = (), without: Iterable[str] = ()
    ) -> Topology:
        """The network's present state: `topology` (None: the last one), with `changes` and without some switches.

        Raises:
            TopologyError: it is not a state of the deployed network, or a change is not one.
        """
        base = topology or self.topology
        for u, v in base.links:
            if not self._whole.has_link(u, v):
                raise TopologyError(f"link {u} -> {v} is not one of the deployed network")
        for u, v in base.links:
            for switch, other in ((u, v), (v, u)):
                if self._whole.kind(switch) == "switch" and base.port(switch, other) != self._whole.port(switch, other):
                    raise TopologyError(
                        f"switch {switch} has {other} at port {self._whole.port(switch, other)} in the deployed "
                        f"network, at {base.port(switch, other)} in this one: give the ports in the file"
                    )
        for server in base.servers:
            if base.address(server) != self._whole.address(server):
                raise TopologyError(f"server {server} has another address in the deployed network: give it in the file")
        for switch in without:
            if base.kind(switch) != "switch":
                raise TopologyError(f"{switch} is not a switch, and only switches can be kept off")
        return apply_changes(base, changes).replace(remove_nodes=without)

    def update(self, topology: Topology, strategy: str | None = None, *, dry_run: bool = False) -> Update:
        """Plan for `topology` with every parameter server's share kept, and change over to that plan.

        Returns when nothing of the old version is left. Raises UpdateError, and what planning raises (Infeasible,
        PlanError, JobError): the job runs on as before.
        """
        if not self._lock.acquire(blocking=False):
            raise UpdateError("another change of plan is under way")
        try:
            began = time.monotonic()
            new, before, trees = self._plan(topology, strategy)
            result = Update(new, before, trees)
            same = not trees.added and not trees.removed and abs(new.rate_mbps - self.plan.rate_mbps) <= SAME
            shares = all(abs(self.plan.trees[i].share - new.trees[j].share) <= SAME for i, j in trees.kept)
            if dry_run or (same and shares):
                self.topology = self.topology if dry_run else topology
                return result
            return replace(self._change(result, topology), changed=True, seconds=time.monotonic() - began)
        finally:
            self._lock.release()

    def end(self) -> None:
        """No change from now on; one under way ends first. Call it when the roster is closed."""
        self._lock.acquire()

    # -- with the lock held -----------------------------------------------------------------------------------------

    def _plan(self, topology: Topology, strategy: str | None) -> tuple[Plan, float, Difference]:
        """The better of a new plan and the running one at the rate that it can still have."""
        topology = self._left(topology)
        try:
            before = evaluate(self.plan, topology).rate_mbps
        except PlanError:
            before = 0.0  # it needs something that is not there any more
        new = replan(self.plan, limited(topology, self._limits), strategy=strategy)
        if strategy is None and before > new.rate_mbps * (1 - SAME):
            new = replace(self.plan, rate_mbps=before, version=self.plan.version + 1)
        try:
            self._check(new, topology)
        except DoesNotFit as error:
            raise UpdateError(f"the new plan does not fit: {error}") from None
        return new, before, difference(self.plan, new)

    def _change(self, result: Update, topology: Topology) -> Update:
        old = self._deployment
        paced = replace(result.plan, rate_mbps=result.plan.rate_mbps * self._pace)
        try:
            taken = self._switches.taken()
            new = build_beside(paced, topology, self._limits, old, job_id=self._job_id, taken=taken)
        except DoesNotFit as error:
            raise UpdateError(f"there is no room for the new version beside the running one: {error}") from None
        for name in self._switches.off():
            if name in new.rulesets and new.rulesets[name].labels:
                raise UpdateError(
                    f"the new plan needs switch {name}, which does not answer: plan with --without {name}"
                )
        before = self._switches.rules(self._job_id)
        added = self._install(
            {v: union(rules, [new.rulesets[v]] if v in new.rulesets else []) for v, rules in before.items()}
        )
        epoch = first = 0
        held = 0.0
        try:
            if not self._roster.exchange(new.agents):
                asked = time.monotonic()
                handover = self._roster.prepare(new.agents, PREPARE_SECONDS)
                first, epoch = self._roster.switch_over(handover), handover.epoch
                held = time.monotonic() - asked
        except HandoverError as error:
            self._install(before)
            raise UpdateError(f"the plan stays as it is: {error}") from None
        self.plan, self.topology, self._deployment = result.plan, topology, new
        self._changed()
        if epoch:
            try:
                self._roster.retire(handover)
            except HandoverError as error:
                self._log(f"the job stopped during the change of plan; it begins anew with the new one: {error}")
        try:
            removed = self._install(new.rulesets)
        except UpdateError as error:
            removed = 0
            self._log(f"the new plan runs; entries of the old one are left until the next change: {error}")
            self._switches.keep(self._job_id, new.rulesets)
        return replace(
            result,
            entries_added=added,
            entries_removed=removed,
            epoch=epoch,
            first_operation=first,
            held_seconds=held,
        )

    def _install(self, rulesets: Mapping[str, RuleSet]) -> int:
        try:
            return self._switches.install(self._job_id, rulesets)
        except fabric.FabricError as error:
            raise UpdateError(f"the plan stays as it is: {error}") from None


def apply_changes(topology: Topology, changes: Iterable[str]) -> Topology:
    """Changes like "V1.aggregation_mbps=10" (a node's) and "V1-V2.used_bandwidth_mbps=5" (a link's, both directions).

    Raises TopologyError, naming the change.
    """
    nodes: dict[str, dict[str, float]] = {}
    links: dict[tuple[str, str], dict[str, float]] = {}
    for change in changes:
        where, equals, value = change.partition("=")
        what, dot, attribute = where.rpartition(".")
        try:
            number = float(value)
        except ValueError:
            equals = ""
            number = 0.0
        if not (equals and dot and what and attribute.endswith("_mbps")):
            raise TopologyError(
                f"{change!r} is not a change: give NODE.aggregation_mbps=10, or NODE-NODE.used_bandwidth_mbps=5"
            )
        if what in topology:
            nodes.setdefault(what, {})[attribute] = number
            continue
        ends = [(u, v) for u, v in topology.links if what in (f"{u}-{v}", f"{v}-{u}")]
        if not ends:
            raise TopologyError(f"{change!r}: the network has no node and no link {what!r}")
        for link in ends:
            links.setdefault(link, {})[attribute] = number
    return topology.replace(nodes=nodes, links=links)
