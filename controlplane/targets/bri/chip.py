"""The differences between the chips (Tofino 1, Tofino 2, and Tofino 2 with the folded program) that matter to the
control plane."""

from __future__ import annotations

from dataclasses import dataclass, replace

PORTS_PER_PIPE = 128
"""Number of ports of a pipe: a device port's number is 128 times its pipe plus the port in the pipe."""


@dataclass(frozen=True)
class Chip:
    """A chip with the program that is compiled for it.

    Attributes:
        target: the compiler's name of the chip.
        rounds: whether a sum recirculates once before it leaves, for the second half of its values.
        folded: whether every contribution recirculates, too, because a pass holds half of a packet's values.
        round_parts: the parts of a packet's bytes that recirculate for each contribution, and in addition for each sum.
        recirculation: ports of every pipe without a connector, which send packets back into the pipe by themselves.
        lanes: channels of a connector, of which a port uses one or several.
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
        """Return whether a device port is one of the recirculation ports."""
        return device % PORTS_PER_PIPE in self.recirculation


# Port speeds as bf_pm accepts them for front-panel ports (open-p4studio, 1f97778f).
TOFINO_1 = Chip("tna", "Tofino 1", True, (), ("10G", "25G", "40G", "50G", "100G"), 4, (0.0, 1.0))
# Ports 0 to 7 of a pipe are inside the chip. Pipe 0 has the CPU at 0 and 2 to 5, so 6 and 7 are free in all pipes
# (bf_pm_recirc_devports_get in open-p4studio's bf-drivers, 1f97778f: 100 Gbit/s each).
TOFINO_2 = Chip("t2na", "Tofino 2", False, (6, 7), ("10G", "25G", "40G", "50G", "100G", "200G", "400G"), 8, (0.0, 0.0))
# A packet of 128 values takes 602 bytes on a link. Of those, 352 recirculate for a contribution, and again for a sum.
TOFINO_2_FOLDED = replace(TOFINO_2, rounds=True, round_parts=(0.6, 0.6), folded=True)
RECIRCULATION_MBPS = 100_000
"""Capacity of one recirculation port."""
CHIPS = {chip.target: chip for chip in (TOFINO_1, TOFINO_2)}
