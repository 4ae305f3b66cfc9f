"""Changing the plan under a job's agents, for whoever waits for the outcome. core/handover.py decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, replace

from controlplane.common.agentconfig import AgentConfig, RepairedTree
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.service.core import actions
from controlplane.service.core import events as ev
from controlplane.service.core.state import MEMBER, RESERVE
from controlplane.service.effects import Effects
from controlplane.targets.secret_labels import SecretLabels


class HandoverError(Exception):
    """The job cannot change its plan now; the message says why."""


class PlanChanges:
    """Changes the plan of one job. Thread-safe. labels: as agents are told them."""

    def __init__(self, effects: Effects, labels: SecretLabels | None) -> None:
        self._effects, self._labels = effects, labels
        self._lock, self._news = effects.lock, effects.news

    def exchange(self, configs: Mapping[str, AgentConfig]) -> bool:
        """Configurations for the next epoch. False, and nothing happens, while one runs: that takes a handover.

        Nodes that are not in the job any more wait, or are told; when all that are have joined, a new epoch begins."""
        with self._lock:
            if self._effects.state.running:
                return False
            self._effects.configs = dict(configs)
            self._effects.take(ev.PlanReplaced(self._effects.places(configs)))
            return True

    def restart(self, configs: Mapping[str, AgentConfig], reason: str) -> None:
        """Other configurations, also for other nodes; what runs is stopped with the reason."""
        with self._lock:
            self._effects.configs = dict(configs)
            self._effects.take(ev.PlanRestarted(self._effects.places(configs), reason))

    def prepare(self, configs: Mapping[str, AgentConfig], timeout: float, *, again: bool = False) -> int:
        """Make all agents ready for `configs`; workers hold their operations back until `switch_over`, or until it is
        withdrawn. With `again`, and where one is gone that is not in `configs`, they stop what is under way, and start
        it again then. The epoch of the change.

        Raises:
            HandoverError: one cannot, or does not say so within `timeout` seconds. It is withdrawn then.
        """
        with self._lock:
            if self._effects.state.handover is None:
                self._effects.offered = dict(configs)
            for action in self._effects.take(ev.ChangeOrdered(self._effects.places(configs), again)):
                if isinstance(action, actions.RefuseChange):
                    raise HandoverError(action.reason)
            handover = self._effects.state.handover
            assert handover is not None
            self._wait_prepared(handover.epoch, timeout)
            return handover.epoch

    def _wait_prepared(self, epoch: int, timeout: float) -> None:
        """Raises HandoverError when not all agents are ready within `timeout` seconds."""
        self._news.wait_for(lambda: self._failed(epoch) or not self._unprepared(epoch), timeout)
        if self._unprepared(epoch):
            self._effects.take(ev.ChangeLate(epoch, timeout))
        self._check(epoch)

    def switch_over(self, epoch: int) -> int:
        """Have all agents change over at one operation, and return its number in the old epoch. Raises
        HandoverError."""
        with self._lock:
            self._check(epoch)
            self._effects.take(ev.SwitchOrdered(epoch))
            handover = self._effects.state.handover
            assert handover is not None
            return handover.first_operation

    def retire(self, epoch: int, timeout: float) -> tuple[int, int]:
        """Wait, without limit, until all workers have the results of what ran before; then the old configurations are
        dropped. The most that a worker has started again: operations, bytes. Where what ran before cannot end, all
        change over once more (`start_again`), for which they have `timeout` seconds. Raises HandoverError when the job
        was stopped meanwhile (they are dropped with it)."""

        def over() -> bool:
            handover = self._effects.state.handover
            if self._failed(epoch) or handover is None or handover.epoch != epoch:
                return True
            return not handover.undrained()

        with self._lock:
            while True:
                self._news.wait_for(over)
                self._check(epoch)
                handover = self._effects.state.handover
                if handover is None or handover.instead_of != epoch:
                    self._effects.take(ev.RetireOrdered(epoch))
                    return handover.repeated if handover is not None else (0, 0)
                epoch = handover.epoch
                self._wait_prepared(epoch, timeout)
                self._effects.take(ev.SwitchOrdered(epoch))

    def start_again(self, epoch: int, reason: str) -> None:
        """Start again, with the plan that runs, what still runs of the plan before this epoch and cannot end, for this
        reason. Nothing happens where all of it has ended, or another change of plan is under way."""
        with suppress(OSError):  # an epoch that cannot be stored: the core has said so, and tries again
            self._effects.take(ev.DrainBroken(epoch, reason))

    def repaired(self, trees: Mapping[str, Sequence[RepairedTree]]) -> None:
        """Trees of what runs were led another way: tell each of these nodes."""
        with self._lock:
            for node, one in self._effects.state.having(MEMBER | RESERVE).items():
                event = pb.Event()
                for tree in trees.get(node, ()):
                    if self._labels is not None:
                        tree = replace(tree, label=self._labels.label(tree.label))
                    event.repaired.trees.add(**asdict(tree))
                if event.repaired.trees and one.connection in self._effects.members:
                    self._effects.members[one.connection].events.put(event)

    def _failed(self, epoch: int) -> bool:
        return epoch in self._effects.failures

    def _check(self, epoch: int) -> None:
        """Raises HandoverError when the change to this epoch has failed; whoever asked knows it then."""
        if self._failed(epoch):
            raise HandoverError(self._effects.failures.pop(epoch))

    def _unprepared(self, epoch: int) -> bool:
        handover = self._effects.state.handover
        return handover is not None and handover.epoch == epoch and bool(handover.unprepared())
