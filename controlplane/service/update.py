"""Changing the plan of a job that runs: the new version's entries beside the old, switch over, drain, old ones out.

Nothing stops meanwhile: a worker holds back operations for as long as the controller needs to hear from all of them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from controlplane.common.agentconfig import AgentConfig, RepairedTree
from controlplane.planner.entries import RuleSet
from controlplane.planner.evaluate import evaluate
from controlplane.planner.gathers import with_speed
from controlplane.planner.job import Job, JobError
from controlplane.planner.plan import Plan, PlanError
from controlplane.planner.plan.limits import DoesNotFit, Limits, held, limited
from controlplane.planner.plan.repair import CannotRepair, Repair, intact, repair, unbroken
from controlplane.planner.plan.replan import Difference, difference, replan
from controlplane.planner.plan.slots import aligned
from controlplane.planner.plan.survive import has_backups, reshared
from controlplane.planner.rules import Deployment, Places, Taken, build
from controlplane.planner.strategies import get_strategy
from controlplane.planner.topology import Topology, TopologyError
from controlplane.service.plan_changes import HandoverError
from controlplane.service.residual import with_room
from controlplane.service.room import build_beside, union
from controlplane.service.roster import Roster
from controlplane.service.switches import Switches
from controlplane.targets import fabric

PREPARE_SECONDS = 15.0
SAME = 1e-6
LEAST_PART = 0.25
"""Lowest fraction of its planned rate to which a rerouted plan is throttled, whatever its new routes carry."""
ROOM = 0.05
"""Of everything, that a job has that must go on where others have taken all, until they make room for it."""
LEAST_MBPS = 1e-6
"""A plan with less is none."""
SERVER_BACK_PART = 0.5
"""A parameter server that is back is used again unless the job had less than this part of its rate with it: without it
the job would stop when it loses the others."""
BACKUPS_CARRY = 0.5
"""Of the plan's rate, what backup trees have to carry: with less, a new plan is made."""


class UpdateError(Exception):
    """The plan was not changed; the message says why, and what runs is what ran before."""


@dataclass(frozen=True)
class Update:
    """What a change of plan did. Rates in Mbit/s per worker; rate_before: of the old plan in the new state.

    changed: False: the plan that runs is right for the new state. entries_added, entries_removed: of all switches.
    epoch, first_operation: where the job changed over; 0 when it was not running. held_seconds: the longest that a
    worker may have held operations back. seconds: until the old version was gone. repeated: operations and bytes that a
    worker started again, because an agent was lost.
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
    repeated: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Version:
    """A plan as it is installed. planned_mbps: its rate before it was led around anything; 0: it was not."""

    plan: Plan
    deployment: Deployment
    planned_mbps: float = 0.0


class Updater:
    """Changes the plan of one deployed job, one change at a time.

    Args:
        plan, topology, deployment: what is installed now.
        limits: of the switches.
        switches: where it is installed, as job `job_id`.
        pace: share of the planned rate at which agents send.
        check: raises DoesNotFit where the switches cannot hold or carry a plan (`Kind.check`).
        left: what other jobs leave of a state of the network.
        job: all of it, where the plan is for a part (default: the plan's).
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
        job: Job | None = None,
    ) -> None:
        self.job = job or plan.job
        self.topology = topology
        self._whole = topology
        self.home = plan  # what the job was given: it goes back there when what failed is back
        self._current = self._planned = Version(plan, deployment)  # _planned: before shares went to backup trees
        self._beside: Version | None = None  # installed, but not switched over to
        self._draining: Version | None = None  # switched over from, but not retired
        self._present: Topology | None = None  # the state of the network that a repair has seen last
        self._spent: dict[str, set[tuple[int, int]]] = {}  # slots that the running epoch has used and left
        self._limits = limits
        self._switches = switches
        self._roster = roster
        self._log = log
        self._job_id = job_id
        self._pace = pace
        self._check = check
        self._left = left
        self._changed = changed
        self._ended = False
        self._lock = threading.Lock()  # one change of plan at a time
        self._placing = switches.placing  # one change of entries at a time; a repair waits for no change of plan

    @property
    def plan(self) -> Plan:
        """What runs now."""
        return self._current.plan

    @property
    def deployment(self) -> Deployment:
        """What is installed of it."""
        return self._current.deployment

    @property
    def versions(self) -> tuple[Version, ...]:
        """What is installed: the plan that runs, and in a change of plan the one before or after it."""
        with self._placing:
            return tuple(v for v in (self._draining, self._current, self._beside) if v is not None)

    @property
    def _deployment(self) -> Deployment:
        return self._current.deployment

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

    def update(
        self,
        topology: Topology,
        strategy: str | None = None,
        *,
        plan: Plan | None = None,
        dry_run: bool = False,
        wait: float = 0.0,
        moved: Callable[[], None] = lambda: None,
        most: float | None = None,
        crowded: bool = False,
    ) -> Update:
        """Plan for `topology` with every parameter server's share kept, and change over to that plan.

        plan: change over to this one instead, whose shares are the running one's. wait: so many seconds for a change
        under way (negative: without limit). moved: called as soon as the job has changed over. most: because of what
        failed or is back: with at most this rate, and as it was planned before (`home`), where that does as well.
        crowded: also where others have taken everything, a little for now.
        Returns when nothing of the old version is left. Raises UpdateError, and what planning raises (Infeasible,
        PlanError, JobError): the job runs on as before.
        """
        if not self._lock.acquire(timeout=wait if wait >= 0 else -1):
            raise UpdateError("another change of plan is under way")
        try:
            if self._ended:
                raise UpdateError("the job has ended")
            began = time.monotonic()
            new, before, trees = self._plan(topology, strategy, plan, most, crowded=crowded)
            result = Update(new, before, trees)
            same = not trees.added and not trees.removed and abs(new.rate_mbps - self.plan.rate_mbps) <= SAME
            same &= new.job == self.plan.job  # a parameter server may be one that adds nothing
            same &= abs(new.gather_speed - self.plan.gather_speed) <= SAME
            shares = all(abs(self.plan.trees[i].share - new.trees[j].share) <= SAME for i, j in trees.kept)
            if dry_run or (same and shares):
                self.topology = self.topology if dry_run else topology
                return result
            done = replace(self._change(result, topology, moved), changed=True, seconds=time.monotonic() - began)
            if most is None:
                self.home = done.plan
            return done
        finally:
            self._lock.release()

    def repair(self, topology: Topology) -> tuple[int, tuple[tuple[int, str, str], ...]]:
        """Lead what runs around what `topology`, the network's present state, lacks: in place, without telling agents,
        also in a change of plan. How many trees, and (tree, switch that added, switch that took over). Where it is the
        plan before a change that cannot be led around, what still runs of it is started again with the new one.

        Raises UpdateError: it cannot be done; nothing is changed then.
        """
        told: dict[str, list[RepairedTree]] = {}
        trees, hopeless = 0, ""
        moved: tuple[tuple[int, str, str], ...] = ()
        problem: UpdateError | None = None
        with self._placing:
            self._present = topology
            if self._ended:
                return 0, ()
            epoch = self._roster.epoch
            try:
                try:
                    trees, moved = self._lead_around(topology, told)
                except UpdateError:
                    hopeless = self._drains_in_vain()
                    if not hopeless:
                        raise
                    trees, moved = self._lead_around(topology, told, drained=True)
            except UpdateError as error:
                problem = error
        if hopeless:
            self._roster.plan.start_again(epoch, hopeless)
        if problem is not None:
            raise problem
        if trees:
            self._roster.plan.repaired(told)
            self._changed()
        return trees, moved

    def _drains_in_vain(self) -> str:
        """Why operations under the plan that is switched over from cannot end, where they can be started again; empty:
        they can end."""
        draining, present = self._draining, self._present
        if draining is None or present is None or not all(c.repeats for c in draining.deployment.agents.values()):
            return ""
        broken = [f"tree {index}" for index, tree in enumerate(draining.plan.trees) if not intact(tree, present)]
        return f"{', '.join(broken)} of the plan before cannot be led around what is gone" if broken else ""

    def _lead_around(
        self, topology: Topology, told: dict[str, list[RepairedTree]], *, drained: bool = False
    ) -> tuple[int, tuple[tuple[int, str, str], ...]]:
        """As `repair`, with _placing held. told: gets what agents have to know. drained: nothing is to go on that runs
        of the plan before a change."""
        before = self._draining, self._current, self._beside
        spent = {switch: set(ranges) for switch, ranges in self._spent.items()}
        trees = 0
        moved: list[tuple[int, str, str]] = []
        gaps: dict[str, list[tuple[int, int]]] = {}
        declared = held(topology).slots
        for switch, taken in self._switches.taken().items():
            used = Taken(slots=tuple(sorted((*taken.slots, *self._spent.get(switch, ())))))
            gaps[switch] = used.gaps(self._limits.slots, declared.get(switch))
        try:
            after = []
            for version in before:
                left = drained and version is before[0]
                if version is None or left or unbroken(version.plan, topology):
                    after.append(version)
                    continue
                repaired, found = self._repaired(version, topology, gaps)
                after.append(repaired)
                trees += len(found.trees)
                moved += found.moved
                for node, config in repaired.deployment.agents.items():
                    told.setdefault(node, []).extend(self._as_told(config, repaired.plan, found))
            if trees:
                self._draining, current, self._beside = after
                self._current = self._planned = current or self._current
                self._install()
        except (CannotRepair, DoesNotFit, UpdateError) as error:
            told.clear()
            self._draining, current, self._beside = before
            self._current = self._planned = current or self._current
            self._spent = spent
            raise UpdateError(f"cannot be led around what is gone: {error}") from None
        return trees, tuple(moved)

    def _as_told(self, config: AgentConfig, plan: Plan, found: Repair) -> list[RepairedTree]:
        """What an agent has to know of a plan that was led around something: all rates, and where what is under way may
        be lost."""
        labels = {tree.tree: tree.up_label for tree in config.worker_trees}
        labels |= {tree.tree: tree.return_label for tree in config.root_trees}
        rates = {tree: plan.tree_rate_mbps(tree) * self._pace for tree in labels}
        return [
            RepairedTree(label, rates[tree], tree in found.up, tree in found.down) for tree, label in labels.items()
        ]

    def reshare(self, topology: Topology) -> float | None:
        """Of a plan with backup trees (plan/survive.py): give what broken trees carry to those that are intact in
        `topology`, the network's present state, and back when all are. Only agents learn it, by a new epoch with the
        same labels and slots, in which they start again what is under way: no switch is written. The rate that the job
        has then.

        None: the plan has no backup trees, too little would be left, or the agents cannot change over now.
        """
        if not has_backups(self._planned.plan) or not self._lock.acquire(blocking=False):
            return None
        try:
            planned = self._planned
            if self._ended or len(self.versions) > 1:
                return None
            state = self._left(topology)
            alive = [intact(tree, state) for tree in planned.plan.trees]
            plan: Plan | None = planned.plan if all(alive) else reshared(planned.plan, state, alive)
            if plan is None or plan.rate_mbps < BACKUPS_CARRY * planned.plan.rate_mbps:
                return None
            if [tree.share for tree in plan.trees] == [tree.share for tree in self.plan.trees]:
                return plan.rate_mbps  # as it runs
            agents = {node: self._with_rates(config, plan) for node, config in planned.deployment.agents.items()}
            if not self._hand_over(agents):
                return None
            with self._placing:
                version = plan.with_version(self.plan.version + 1)
                self._current = Version(version, replace(planned.deployment, agents=agents))
            self._changed()
            return plan.rate_mbps
        finally:
            self._lock.release()

    def _hand_over(self, agents: Mapping[str, AgentConfig]) -> bool:
        """To other shares of the trees that are there."""
        if self._roster.plan.exchange(agents):
            return True
        try:
            epoch = self._roster.plan.prepare(agents, PREPARE_SECONDS, again=True)
            self._roster.plan.switch_over(epoch)
        except HandoverError as error:
            self._log(f"the shares stay as they are: {error}")
            return False
        try:
            self._roster.plan.retire(epoch, PREPARE_SECONDS)
        except HandoverError as error:
            self._log(f"the job stopped while its shares changed; it begins anew with the new ones: {error}")
        return True

    def _with_rates(self, config: AgentConfig, plan: Plan) -> AgentConfig:
        """The same labels and slots, with the shares and rates of this plan, which has the same trees."""
        trees = tuple(
            replace(
                tree,
                share=plan.trees[tree.tree].share,
                rate_mbps=plan.tree_rate_mbps(tree.tree) * self._pace,
            )
            for tree in config.worker_trees
        )
        roots = tuple(
            replace(tree, rate_mbps=plan.tree_rate_mbps(tree.tree) * self._pace) for tree in config.root_trees
        )
        return replace(config, worker_trees=trees, root_trees=roots)

    def _repaired(
        self, version: Version, topology: Topology, gaps: dict[str, list[tuple[int, int]]]
    ) -> tuple[Version, Repair]:
        old = version.deployment
        sizes, slots = old.sizes, dict(old.slots)

        def take(switch: str, tree: int) -> bool:
            place = aligned(gaps.get(switch, []), sizes[tree])
            if place is not None:
                slots[switch, tree] = place
            return place is not None

        found = repair(version.plan, topology, take)
        for index, point, _ in found.moved:
            first = slots.pop((point, index))
            self._spent.setdefault(point, set()).add((first, first + sizes[index]))
        groups = {v: {group.ports: group.group for group in rules.groups} for v, rules in old.rulesets.items()}
        made = build(
            found.plan,
            topology,
            self._limits,
            job_id=self._job_id,
            epoch=0,
            first_label=old.first_label,
            taken=self._beside_its_own(old),
            places=Places(sizes, slots, groups),
            gathers=any(tree.others_labels for agent in old.agents.values() for tree in agent.root_trees),
        )
        planned = version.planned_mbps or version.plan.rate_mbps
        slowed = self._slowed(replace(found.plan, rate_mbps=planned), topology)
        return Version(slowed, replace(made, agents=old.agents), planned), found

    def _beside_its_own(self, old: Deployment) -> dict[str, Taken]:
        """What is taken on every switch, without the labels of a deployment that is to be replaced."""
        own = {switch: len(rules.labels) for switch, rules in old.rulesets.items()}
        taken = self._switches.taken()
        return {switch: replace(by, labels=max(0, by.labels - own.get(switch, 0))) for switch, by in taken.items()}

    def _slowed(self, plan: Plan, topology: Topology) -> Plan:
        """At the rate that its trees can have over these ways: where they do not carry more, it only costs packets."""
        try:
            carried = evaluate(plan, self._left(topology)).rate_mbps
        except (PlanError, JobError):
            return plan
        return replace(plan, rate_mbps=min(plan.rate_mbps, max(carried, LEAST_PART * plan.rate_mbps)))

    def end(self) -> None:
        """No change from now on; one under way ends first. Call it when the roster is closed."""
        self._ended = True
        with self._lock, self._placing:
            pass

    # -- with the lock held -----------------------------------------------------------------------------------------

    def _plan(
        self, topology: Topology, strategy: str | None, given: Plan | None, most: float | None, *, crowded: bool
    ) -> tuple[Plan, float, Difference]:
        """The better of a new plan and the running one at the rate that it can still have. most: as of `update`."""
        if given is not None:
            new = given.with_version(self.plan.version + 1)
            self._fits(new, limited(topology, self._limits))
            return new, self.plan.rate_mbps, difference(self.plan, new)
        topology = with_room(self._left(topology), ROOM) if crowded else self._left(topology)
        held = limited(topology, self._limits)
        job = self.job.among(topology)
        try:
            before = evaluate(self.plan, held).rate_mbps
        except (PlanError, JobError):
            before = 0.0  # it needs something that is not there any more
        if job == self.plan.job:
            new = replan(self.plan, held, strategy=strategy)
        else:
            planner = get_strategy(strategy or self.plan.strategy)
            new = planner(held, job, seed=self.plan.seed or 0)
            new = new.with_version(self.plan.version + 1)
        back = set(job.parameter_servers).difference(self.plan.job.parameter_servers)
        worse = before * (SERVER_BACK_PART if back else 1.0) > new.rate_mbps * (1 - SAME)
        if strategy is None and job.workers == self.plan.job.workers and worse:
            new = replace(self.plan, rate_mbps=before, version=self.plan.version + 1)
        if most is not None:
            new = self._at_home(replace(new, rate_mbps=min(new.rate_mbps, most)), held, most)
        new = with_speed(new, topology)
        if not new.rate_mbps > LEAST_MBPS:
            raise UpdateError(f"nothing is left for it: {evaluate(new, topology).bottleneck.name} is full")
        self._fits(new, topology)
        return new, before, difference(self.plan, new)

    def _at_home(self, new: Plan, held: Topology, most: float) -> Plan:
        """What the job was given, where it does as well as a new plan."""
        if self.home.job != new.job:
            return new
        try:
            rate = min(evaluate(self.home, held).rate_mbps, most)
        except (PlanError, JobError):
            return new
        if rate < new.rate_mbps * (1 - SAME):
            return new
        return replace(self.home, rate_mbps=rate, version=self.plan.version + 1)

    def _fits(self, plan: Plan, topology: Topology) -> None:
        try:
            self._check(plan, topology)
        except DoesNotFit as error:
            raise UpdateError(f"the new plan does not fit: {error}") from None

    def _change(self, result: Update, topology: Topology, moved: Callable[[], None]) -> Update:
        paced = replace(result.plan, rate_mbps=result.plan.rate_mbps * self._pace)
        with self._placing:
            try:
                taken = self._switches.taken()
                old = self._current.deployment
                new = build_beside(paced, topology, self._limits, old, job_id=self._job_id, taken=taken)
            except DoesNotFit as error:
                raise UpdateError(f"there is no room for the new version beside the running one: {error}") from None
            for name in self._switches.off():
                if name in new.rulesets and new.rulesets[name].labels:
                    raise UpdateError(
                        f"the new plan needs switch {name}, which does not answer: plan with --without {name}"
                    )
            self._beside = Version(result.plan, new)
            try:
                added = self._install()
            except UpdateError:
                self._beside = None
                raise
        epoch = first = 0
        held, repeated = 0.0, (0, 0)
        # What could not be led around never ends what is under way: that is done again.
        present = self._present or topology
        broken = not unbroken(self.plan, topology) or not unbroken(self.plan, present)
        try:
            back = [n for n, c in new.agents.items() if c.role == "worker" and n not in old.agents]
            if back:
                self._roster.plan.restart(new.agents, f"the job begins anew, with {', '.join(back)}")
            elif not self._roster.plan.exchange(new.agents):
                asked = time.monotonic()
                prepared = self._roster.plan.prepare(new.agents, PREPARE_SECONDS, again=broken)
                first, epoch = self._roster.plan.switch_over(prepared), prepared
                held = time.monotonic() - asked
        except HandoverError as error:
            with self._placing:
                self._beside = None
                self._install()
            raise UpdateError(f"the plan stays as it is: {error}") from None
        with self._placing:
            assert self._beside is not None
            self._draining, self._current, self._beside = self._current, self._beside, None
            self._planned = self._current
            self.topology = topology
            hopeless = self._drains_in_vain()
        self._changed()
        moved()
        if epoch and hopeless:  # it failed while agents made ready
            self._roster.plan.start_again(epoch, hopeless)
        if epoch:
            try:
                repeated = self._roster.plan.retire(epoch, PREPARE_SECONDS)
            except HandoverError as error:
                self._log(f"the job stopped during the change of plan; it begins anew with the new one: {error}")
        removed = 0
        with self._placing:
            self._draining, self._spent = None, {}
            try:
                removed = self._install()
            except UpdateError as error:
                self._log(f"the new plan runs; entries of the old one are left until the next change: {error}")
                self._switches.keep(self._job_id, self._rulesets())
        return replace(
            result,
            entries_added=added,
            entries_removed=removed,
            epoch=epoch,
            first_operation=first,
            held_seconds=held,
            repeated=repeated,
        )

    # -- with _placing held -----------------------------------------------------------------------------------------

    def _rulesets(self) -> dict[str, RuleSet]:
        """What all versions that are there have on the switches."""
        found: dict[str, RuleSet] = {}
        for version in self.versions:
            for switch, rules in version.deployment.rulesets.items():
                found[switch] = union(found[switch], [rules]) if switch in found else rules
        return found

    def _install(self) -> int:
        try:
            return self._switches.install(self._job_id, self._rulesets())
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
