"""The journal of a batch: functions that undo its steps."""

from __future__ import annotations

from collections.abc import Callable

Undo = Callable[[], None]


class Journal:
    """Collects functions that undo each step of a batch; a journal that is not ``active`` collects nothing."""

    def __init__(self, active: bool) -> None:
        self.active = active
        self._steps: list[Undo] = []

    def add(self, step: Undo) -> None:
        if self.active:
            self._steps.append(step)

    def roll_back(self) -> None:
        """Undo all steps, the last one first."""
        while self._steps:
            self._steps.pop()()
