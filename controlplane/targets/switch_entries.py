"""The entries of one switch, as far as they are known, and the only way to change them."""

from __future__ import annotations

import threading

from controlplane.common.log_lines import SILENT, Log
from controlplane.planner.entries import RuleSet
from controlplane.targets.base import SwitchTarget, TargetError, difference


class SwitchEntries:
    """A connected target with the entries that it holds. `holds` is its rule set, or None where that is unknown.
    Whoever writes to the target holds `lock` for as long as that takes."""

    def __init__(self, target: SwitchTarget, log: Log = SILENT) -> None:
        self.target = target
        self.holds: RuleSet | None = None
        self.lock = threading.RLock()
        self._log = log
        self._just_read = False

    @property
    def name(self) -> str:
        """The switch's name."""
        return self.target.name

    def read(self) -> bool:
        """Load our program, and read what the switch holds. Return whether it ran another program before. Raise
        TargetError where the switch fails."""
        replaced = self.target.load_pipeline()
        self.holds, self._just_read = self.target.read(), True
        return replaced

    def write(self, rules: RuleSet) -> int:
        """Bring the switch to these rules. Return the number of changes.

        If the switch does not hold what was assumed, or nothing is known, it is read first, and what was written is
        read back. Raise TargetError where it fails; what the switch holds is then unknown.
        """
        if self.holds is not None and not self._just_read:
            known, self.holds = self.holds, None
            changes = difference(known, rules)
            try:
                self.target.apply(changes)
            except TargetError:
                if not self.target.alive:
                    raise
                words = f"switch {self.name} is read again: it refused a change of {len(known.labels)} labels"
                self._log.warning(words)
            else:
                self.holds = rules
                return len(changes)
        if self.holds is None:
            self.read()
        assert self.holds is not None
        known, self.holds, self._just_read = self.holds, None, False
        changes = difference(known, rules)
        self.target.apply(changes)
        self._verify(rules)
        self.holds = rules
        return len(changes)

    def _verify(self, wanted: RuleSet) -> None:
        left = difference(self.target.read(), wanted)
        if left:
            lines = "\n".join(f"  {change}" for change in left[:8])
            raise TargetError(
                f"switch {self.name} does not hold what was written to it (is another controller at work?); "
                f"{len(left)} differences:\n{lines}"
            )
