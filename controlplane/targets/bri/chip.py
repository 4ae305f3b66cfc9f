"""The chips that the program is compiled for, as far as the control plane sees a difference."""

from __future__ import annotations

from dataclasses import dataclass, replace

PORTS_PER_PIPE = 128
"""Device ports are numbered 128 * pipe + port in the pipe."""


@dataclass(frozen=True)
class Chip:
    """One chip.

    ``target``: of the program. ``rounds``: a sum goes round once before it leaves, for the second half of its values.
    ``folded``: every contribution goes round, too: a pass holds half of a packet's values.
    ``round_parts``: of a packet, what goes round for each contribution, and for each sum beside that.
    ``recirculation``: ports of every pipe that nothing can be plugged into, and whose packets come back by themselves.
    ``speeds``: of its ports. ``lanes``: of a connector, each a channel; a port is one or several.
    """

    target: str
    name: str
    rounds: bool
    recirculation: tuple[int, ...]
    speeds: tuple[str, ...]
    lanes: int
    round_parts: tuple[float, float]
    folded: bool = False

    def recirculates(self, device: int) -> bool:
        """Whether a device port is one of those that bring packets back."""
        return device % PORTS_PER_PIPE in self.recirculation


# Speeds as bf_pm accepts them for front-panel ports (open-p4studio, 1f97778f).
TOFINO_1 = Chip("tna", "Tofino 1", True, (), ("10G", "25G", "40G", "50G", "100G"), 4, (0.0, 1.0))
# Of 602 bytes of a link that 128 values take, 352 go round for a contribution, and 480 three times for a sum, the first
# time as its last contribution.
TOFINO_1_FOLDED = replace(TOFINO_1, round_parts=(0.6, 1.8), folded=True)
# Ports 0 to 7 of a pipe are inside the chip; pipe 0 has the CPU at 0 and 2 to 5, so 6 and 7 are free in all of them
# (bf_pm_recirc_devports_get in open-p4studio's bf-drivers, 1f97778f: 100 Gbit/s each).
TOFINO_2 = Chip("t2na", "Tofino 2", False, (6, 7), ("10G", "25G", "40G", "50G", "100G", "200G", "400G"), 8, (0.0, 0.0))
TOFINO_2_FOLDED = replace(TOFINO_2, rounds=True, round_parts=(0.6, 0.6), folded=True)
RECIRCULATION_MBPS = 100_000
"""What one of these ports carries."""
CHIPS = {chip.target: chip for chip in (TOFINO_1, TOFINO_2)}
