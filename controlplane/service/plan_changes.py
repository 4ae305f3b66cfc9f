"""Changes the plan under a job's agents, for callers that wait for the outcome. core/migration.py decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from controlplane.common.agentconfig import AgentConfig, ReroutedTree
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.service.core import actions
from controlplane.service.core import events as ev
from controlplane.service.core.state import MEMBER, RESERVE
from controlplane.service.effects import Effects
from controlplane.targets.secret_labels import SecretLabels


class CannotMigrate(Exception):
    """The job cannot change its plan now; the message says why."""


class PlanChanges:
    """Changes the plan of one job. Thread-safe. `labels` are those that agents are told."""

    def __init__(self, effects: Effects, labels: SecretLabels | None) -> None:
        self._effects, self._labels = effects, labels
        self._lock, self._news = effects.lock, effects.news

    def exchange(self, configs: Mapping[str, AgentConfig]) -> bool:
        """Set the configurations for the next epoch. Return False, and do nothing, while an epoch runs: a running job's
        plan is changed by `prepare` and `switch_over`.

        Agents of nodes that the plan does not need stand by. A new epoch begins when all others have joined.
        """
        with self._lock:
            self._effects.settle()
            if self._effects.state.running:
                return False
            self._effects.take(ev.PlanReplaced(self._effects.places(configs)), configs)
            return True

    def restart(self, configs: Mapping[str, AgentConfig], reason: str) -> None:
        """Set other configurations, also for other nodes; what runs is stopped with the reason, and the job begins
        anew."""
        self._effects.take(ev.PlanRestarted(self._effects.places(configs), reason), configs)

    def prepare(self, configs: Mapping[str, AgentConfig], timeout: float, *, again: bool = False) -> int:
        """Make all agents ready for `configs`, and return the epoch of the migration.

        Workers hold new operations back until `switch_over`, or until the migration is withdrawn. With `again`, and
        where an agent was lost that is not in `configs`, they also stop the operations under way, and start them again
        afterwards. Raise CannotMigrate where an agent cannot, or does not say that it is ready within `timeout`
        seconds; the migration is withdrawn then.
        """
        with self._lock:
            self._effects.settle()
            if self._effects.state.migration is None:
                self._effects.offered = dict(configs)
            for action in self._effects.take(ev.MigrationOrdered(self._effects.places(configs), again)):
                if isinstance(action, actions.RefuseMigration):
                    raise CannotMigrate(action.reason)
            migration = self._effects.state.migration
            if migration is None:  # it has failed while the epoch's number was being stored
                raise CannotMigrate(self._effects.failures.popitem()[1])
            self._wait_prepared(migration.epoch, timeout)
            return migration.epoch

    def _wait_prepared(self, epoch: int, timeout: float) -> None:
        """Wait until all agents are ready; raise CannotMigrate where they are not within `timeout` seconds."""
        self._news.wait_for(lambda: self._failed(epoch) or not self._unprepared(epoch), timeout)
        if self._unprepared(epoch):
            self._effects.take(ev.MigrationLate(epoch, timeout))
        self._check(epoch)

    def switch_over(self, epoch: int) -> int:
        """Have all agents switch to the new plan at one operation, and return its number in the old epoch. Raise
        CannotMigrate where the migration has failed."""
        with self._lock:
            self._effects.settle()
            self._check(epoch)
            self._effects.take(ev.SwitchOrdered(epoch))
            migration = self._effects.state.migration
            assert migration is not None
            return migration.first_operation

    def retire(self, epoch: int, timeout: float) -> tuple[int, int]:
        """Wait, without limit, until all workers have the results of the old plan's operations, and drop the old
        configurations. Return the most that a worker has started again: operations, bytes.

        Where old operations cannot end, all agents switch once more (`start_again`), for which they have `timeout`
        seconds. Raise CannotMigrate where the job was stopped meanwhile; the old configurations are dropped then, too.
        """

        def over() -> bool:
            if self._effects.storing:
                return False
            migration = self._effects.state.migration
            if self._failed(epoch) or migration is None or migration.epoch != epoch:
                return True
            return not migration.undrained()

        with self._lock:
            while True:
                self._news.wait_for(over)
                self._check(epoch)
                migration = self._effects.state.migration
                if migration is None or migration.instead_of != epoch:
                    self._effects.take(ev.RetireOrdered(epoch))
                    return migration.repeated if migration is not None else (0, 0)
                epoch = migration.epoch
                self._wait_prepared(epoch, timeout)
                self._effects.take(ev.SwitchOrdered(epoch))

    def start_again(self, epoch: int, reason: str) -> None:
        """Start operations of the plan before this epoch again with the running plan, since they cannot end, for this
        reason. Do nothing where all have ended, or another migration is under way. Do not wait for it."""
        self._effects.post(ev.DrainBroken(epoch, reason))

    def rerouted(self, trees: Mapping[str, Sequence[ReroutedTree]]) -> None:
        """Tell each of these nodes which of its trees were rerouted."""
        with self._lock:
            for node, one in self._effects.state.having(MEMBER | RESERVE).items():
                event = pb.Event()
                for tree in trees.get(node, ()):
                    if self._labels is not None:
                        tree = replace(tree, label=self._labels.label(tree.label))
                    event.rerouted.trees.add(**asdict(tree))
                if event.rerouted.trees and one.connection in self._effects.members:
                    self._effects.members[one.connection].events.put(event)

    def _failed(self, epoch: int) -> bool:
        return epoch in self._effects.failures

    def _check(self, epoch: int) -> None:
        """Check that the migration to this epoch has not failed; raise CannotMigrate otherwise, once."""
        if self._failed(epoch):
            raise CannotMigrate(self._effects.failures.pop(epoch))

    def _unprepared(self, epoch: int) -> bool:
        migration = self._effects.state.migration
        return migration is not None and migration.epoch == epoch and bool(migration.unprepared())
