"""A file that records which ports of a switch we configured, since BRI does not record who configured a port."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from controlplane.common.whole_file import replace_file, state_home
from controlplane.targets.base import TargetError

_lock = threading.Lock()


def default_file() -> Path:
    """Return the default path of the file."""
    return state_home() / "tofino-ports.json"


class Ledger:
    """Front-panel names of the ports on one switch that we made, or only use, in a file for all switches.

    A port that was configured already with the settings that we want is only used: it stays when we remove our entries.
    """

    def __init__(self, address: str, device_id: int, file: Path | None = None) -> None:
        self.file = file or default_file()
        self.switch = f"{address}/{device_id}"

    def made(self) -> set[str]:
        return self._names("made")

    def used(self) -> set[str]:
        return self._names("used")

    def note(self, name: str, *, made: bool) -> None:
        with _lock:
            content = self._read()
            content.setdefault(self.switch, {})[name] = "made" if made else "used"
            self._write(content)

    def forget(self, name: str) -> None:
        with _lock:
            content = self._read()
            if content.get(self.switch, {}).pop(name, None) is not None:
                self._write({switch: ports for switch, ports in content.items() if ports})

    def _names(self, kind: str) -> set[str]:
        with _lock:
            return {name for name, of in self._read().get(self.switch, {}).items() if of == kind}

    def _write(self, content: dict[str, dict[str, str]]) -> None:
        try:
            replace_file(self.file, (json.dumps(content, indent=1) + "\n").encode(), 0o644)
        except OSError as error:
            raise TargetError(f"cannot note in {self.file} which ports are ours: {error.strerror}") from None

    def _read(self) -> dict[str, dict[str, str]]:
        try:
            content = json.loads(self.file.read_text())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise TargetError(f"cannot read {self.file}, which says which ports are ours: {error}; repair it") from None
        if not isinstance(content, dict) or not all(isinstance(ports, dict) for ports in content.values()):
            raise TargetError(f"{self.file} does not say which ports are ours; repair or remove it")
        return content
