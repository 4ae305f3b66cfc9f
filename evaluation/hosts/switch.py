"""softswitch in the middle of a star: a process of its own, programmed over P4Runtime like any switch."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from controlplane.planner.entries import RuleSet
from controlplane.targets import fabric
from controlplane.targets.p4runtime.kind import P4RuntimeKind
from controlplane.targets.p4runtime.target import P4RuntimeTarget
from p4src.artifacts import find
from topologies.softswitch import ask, launched

DEVICE = 1
START_SECONDS = 60.0


@dataclass(frozen=True)
class Faults:
    """The faults that every port injects into what it sends: probabilities, the delay of all packets, and how much
    longer a reordered one is held back, both in seconds.

    Attributes:
        corrupt: probability that a bit flips, in bytes corrupt_from up to corrupt_until of the frame (0 for its
            end), without any kernel noticing.
    """

    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    delay_seconds: float = 0.0
    hold_seconds: float = 0.0
    corrupt: float = 0.0
    corrupt_from: int = 0
    corrupt_until: int = 0


class Switch:
    """A switch whose port i + 1 is interfaces[i] in a network namespace. Fill its tables with install() or renew()."""

    def __init__(
        self, namespace: str, interfaces: Sequence[str], values_per_packet: int, seed: int = 1, threads: int = 1
    ) -> None:
        self.ports = len(interfaces)
        self._folder = tempfile.TemporaryDirectory(prefix="inart-switch-")
        folder = Path(self._folder.name)
        artifact = find("v1model", values_per_packet)
        self._control = folder / "control"
        words = [str(artifact.program), "--p4info", str(artifact.p4info), "--device-id", str(DEVICE)]
        words += ["--seed", str(seed), "--threads", str(threads)]
        words += ["--control", str(self._control), "--grpc-server-addr", f"unix:{folder}/p4runtime"]
        for port, interface in enumerate(interfaces, 1):
            words += ["-i", f"{port}@{interface}"]
        self._process, _ = launched(words, folder / "log", enter=["ip", "netns", "exec", namespace])
        try:
            self._target = P4RuntimeTarget(
                "switch", f"unix:{folder}/p4runtime", DEVICE, P4RuntimeKind(artifact).program
            )
            self._target.connect(START_SECONDS)
        except BaseException:
            self._end()
            raise

    def install(self, rules: RuleSet) -> None:
        """Install exactly these entries, by difference; slots keep their content."""
        fabric.install([self._target], {"switch": rules})

    def renew(self, rules: RuleSet, values_per_packet: int) -> None:
        """Reset the switch to these entries without faults, as after a start: empty slots, counters at 0."""
        self._target.program = P4RuntimeKind(find("v1model", values_per_packet)).program
        self._target.session.set_pipeline(self._target.program.pipeline_config())
        self.faults(Faults())
        self.install(rules)

    def faults(self, faults: Faults, ports: Iterable[int] | None = None) -> None:
        """Inject faults into the packets that leave by these ports (None for all), one after the other, from now on."""
        shape = {
            "loss": faults.loss,
            "duplicate": faults.duplicate,
            "reorder": faults.reorder,
            "delay_ms": faults.delay_seconds * 1e3,
            "reorder_ms": faults.hold_seconds * 1e3,
            "corrupt": faults.corrupt,
            "corrupt_from": faults.corrupt_from,
            "corrupt_until": faults.corrupt_until,
            "corrupt_udp": 1,
            "corrupt_hidden": 1,
        }
        for port in range(1, self.ports + 1) if ports is None else ports:
            # all settings, since those that are not given stay as they are
            ask(self._control, "shape", device=DEVICE, port=port, shape=shape)

    def forget(self) -> None:
        """Clear all slots, as after a start, by loading the program and its entries again."""
        rules = self._target.read()
        self._target.session.set_pipeline(self._target.program.pipeline_config())
        self.install(rules)

    def verdicts(self) -> dict[str, int]:
        """Return the number of packets by verdict."""
        return self._target.read_verdicts()

    def cpu_seconds(self) -> float:
        """Return the process's CPU time so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """End the process; may be called again."""
        self._target.close()
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
