"""What a job is promised where it shares a network with others."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Terms:
    """weight: its rate over this is what is made fair. guarantee_mbps: what a worker may send at least (0: nothing is
    guaranteed). priority: jobs of a higher one come first. Raises ValueError for what is none of that."""

    weight: float = 1.0
    guarantee_mbps: float = 0.0
    priority: int = 0

    def __post_init__(self) -> None:
        if not (self.weight > 0 and math.isfinite(self.weight)):
            raise ValueError(f"a weight is a number above 0, got {self.weight}")
        if not (self.guarantee_mbps >= 0 and math.isfinite(self.guarantee_mbps)):
            raise ValueError(f"a guaranteed rate is a number of Mbit/s, got {self.guarantee_mbps}")

    def __str__(self) -> str:
        words = [
            f"weight {self.weight:g}" if self.weight != 1 else "",
            f"{self.guarantee_mbps:g} Mbit/s guaranteed" if self.guarantee_mbps else "",
            f"priority {self.priority}" if self.priority else "",
        ]
        return ", ".join(filter(None, words))


USUAL = Terms()
