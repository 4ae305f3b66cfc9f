"""A switch whose labels are secret, with which the rest of the control plane works by plain label numbers."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace

from controlplane.planner.entries import Aggregate, LabelEntry, RuleSet
from controlplane.targets.base import RPC_SECONDS, Change, Counters, InstallError, SwitchTarget, Traffic, UpdateFailure
from controlplane.targets.secret_labels import SecretLabels


class SecretTarget:
    """A `SwitchTarget` that wraps another one and translates label numbers to secret labels (secret_labels.py) and
    back.

    Labels that another controller's key made are read as numbers of unknown jobs.
    """

    def __init__(self, target: SwitchTarget, labels: SecretLabels) -> None:
        self.target = target
        self.name, self.address = target.name, target.address
        self._labels = labels

    @property
    def on_lost(self) -> Callable[[str], None]:
        return self.target.on_lost

    @on_lost.setter
    def on_lost(self, call: Callable[[str], None]) -> None:
        self.target.on_lost = call

    @property
    def polite(self) -> bool:
        return self.target.polite

    @polite.setter
    def polite(self, polite: bool) -> None:
        self.target.polite = polite

    @property
    def alive(self) -> bool:
        return self.target.alive

    @property
    def demoted(self) -> bool:
        return self.target.demoted

    def connect(self, timeout: float) -> None:
        self.target.connect(timeout)

    def runs_program(self, timeout: float = RPC_SECONDS) -> bool:
        return self.target.runs_program(timeout)

    def load_pipeline(self) -> bool:
        return self.target.load_pipeline()

    def read(self) -> RuleSet:
        rules = self.target.read()
        return replace(rules, labels=tuple(_translated(entry, self._labels.number) for entry in rules.labels))

    def apply(self, changes: list[Change]) -> None:
        """Apply the changes. Raise InstallError, whose changes have label numbers, where the switch refuses some."""
        written = [_change(change, self._labels.label) for change in changes]
        try:
            self.target.apply(written)
        except InstallError as error:
            failures = [self._failure(failure) for failure in error.failures]
            raise InstallError(error.switch, failures, len(changes)) from error

    def clear_slots(self, slots: Collection[int]) -> int:
        return self.target.clear_slots(slots)

    def read_verdicts(self, timeout: float = RPC_SECONDS) -> dict[str, int]:
        return self.target.read_verdicts(timeout)

    def read_counters(self, timeout: float = RPC_SECONDS) -> Counters:
        counted = self.target.read_counters(timeout)
        number = self._labels.number
        return Counters(counted.verdicts, {(port, number(label)): by for (port, label), by in counted.labels.items()})

    def read_traffic(self) -> Traffic | None:
        return self.target.read_traffic()

    def read_ports(self, timeout: float) -> dict[int, bool] | None:
        return self.target.read_ports(timeout)

    def close(self) -> None:
        self.target.close()

    def _failure(self, failure: UpdateFailure) -> UpdateFailure:
        if isinstance(failure.change, str):
            return failure
        return replace(failure, change=_change(failure.change, self._labels.number))


def _change(change: Change, by: Callable[[int], int]) -> Change:
    if not isinstance(change.item, LabelEntry):
        return change
    return replace(change, item=_translated(change.item, by))


def _translated(entry: LabelEntry, by: Callable[[int], int]) -> LabelEntry:
    action = entry.action
    if isinstance(action, Aggregate):
        action = replace(action, next_label=by(action.next_label), partial_label=by(action.partial_label))
    return replace(entry, label=by(entry.label), action=action)
