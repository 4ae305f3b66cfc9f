"""The switch in the middle of a star, with what tests do to it: faults, and entries that are installed anew."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from controlplane.planner.entries import RuleSet
from controlplane.targets.p4runtime.kind import P4RuntimeKind
from evaluation.hosts import switch
from evaluation.hosts.switch import DEVICE
from p4src.artifacts import find
from topologies.softswitch import ask


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


class Switch(switch.Switch):
    """A switch whose packets can be lost and corrupted, and whose entries can be installed anew."""

    def renew(self, rules: RuleSet, values_per_packet: int) -> None:
        """Reset the switch to these entries without faults, as after a start: empty slots, counters at 0."""
        self.target.program = P4RuntimeKind(find("v1model", values_per_packet)).program
        self.target.session.set_pipeline(self.target.program.pipeline_config())
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
            ask(self.control, "shape", device=DEVICE, port=port, shape=shape)

    def forget(self) -> None:
        """Clear all slots, as after a start, by loading the program and its entries again."""
        rules = self.target.read()
        self.target.session.set_pipeline(self.target.program.pipeline_config())
        self.install(rules)

    def verdicts(self) -> dict[str, int]:
        """Return the number of packets by verdict."""
        return self.target.read_verdicts()
