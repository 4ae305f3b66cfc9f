"""softswitch in the middle of a star: a process of its own, programmed over P4Runtime like any switch."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from controlplane.common import child
from controlplane.planner.entries import RuleSet
from controlplane.targets import fabric
from controlplane.targets.base import SwitchAddress
from controlplane.targets.p4runtime.kind import P4RuntimeKind
from controlplane.targets.p4runtime.target import P4RuntimeTarget
from p4src.artifacts import find
from topologies.load import process_seconds
from topologies.softswitch import launched

DEVICE = 1
START_SECONDS = 60.0


class Switch:
    """A switch whose port i + 1 is interfaces[i] in a network namespace. Fill its tables with install().

    Its process ends with the thread that has made it, also after SIGKILL.
    """

    def __init__(self, namespace: str, interfaces: Sequence[str], values_per_packet: int, threads: int = 1) -> None:
        self.ports = len(interfaces)
        self._folder = tempfile.TemporaryDirectory(prefix="inart-switch-")
        folder = Path(self._folder.name)
        artifact = find("v1model", values_per_packet)
        self.control = folder / "control"
        words = [str(artifact.program), "--p4info", str(artifact.p4info), "--device-id", str(DEVICE)]
        words += ["--seed", "1", "--threads", str(threads)]
        words += ["--control", str(self.control), "--grpc-server-addr", f"unix:{folder}/p4runtime"]
        for port, interface in enumerate(interfaces, 1):
            words += ["-i", f"{port}@{interface}"]
        enter = child.tied(["ip", "netns", "exec", namespace])
        self._process, _ = launched(words, folder / "log", enter=enter)
        try:
            self.target = P4RuntimeTarget(
                SwitchAddress("switch", f"unix:{folder}/p4runtime", DEVICE), P4RuntimeKind(artifact).program
            )
            self.target.connect(START_SECONDS)
        except BaseException:
            self._end()
            raise

    def install(self, rules: RuleSet) -> None:
        """Install exactly these entries, by difference; slots keep their content."""
        fabric.install([self.target], {"switch": rules})

    def cpu_seconds(self) -> float:
        """Return the process's CPU time so far."""
        return process_seconds(self._process.pid)

    def close(self) -> None:
        """End the process; may be called again."""
        self.target.close()
        self._end()

    def _end(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._folder.cleanup()

    def __enter__(self) -> Switch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
