"""Terms of a job: the promises that it gets where it shares a network with others."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

LONGEST_NAME = 64
"""Most letters of a tenant's name."""


@dataclass(frozen=True)
class Terms:
    """Terms of a job. Raises ValueError where one cannot be.

    Attributes:
        weight: Rates in proportion to the jobs' weights count as fair.
        guarantee_mbps: The least rate at which a worker may send, in Mbit/s; 0 guarantees nothing.
        priority: Jobs of a higher priority come first.
        tenant: Name of the tenant that the job belongs to, for whose quota it counts; "" for none.
    """

    weight: float = 1.0
    guarantee_mbps: float = 0.0
    priority: int = 0
    tenant: str = ""

    def __post_init__(self) -> None:
        if not (self.weight > 0 and math.isfinite(self.weight)):
            raise ValueError(f"a weight is a number above 0, got {self.weight}")
        if not (self.guarantee_mbps >= 0 and math.isfinite(self.guarantee_mbps)):
            raise ValueError(f"a guaranteed rate is a number of Mbit/s, got {self.guarantee_mbps}")
        if len(self.tenant) > LONGEST_NAME or not self.tenant.isprintable() or len(self.tenant.split()) > 1:
            raise ValueError(f"a tenant's name is a word of at most {LONGEST_NAME} letters, got {self.tenant!r}")

    @property
    def usual(self) -> bool:
        """Whether the job is promised nothing that other jobs are not promised, too."""
        return replace(self, tenant="") == USUAL

    def __str__(self) -> str:
        words = [
            f"tenant {self.tenant}" if self.tenant else "",
            f"weight {self.weight:g}" if self.weight != 1 else "",
            f"{self.guarantee_mbps:g} Mbit/s guaranteed" if self.guarantee_mbps else "",
            f"priority {self.priority}" if self.priority else "",
        ]
        return ", ".join(filter(None, words))


USUAL = Terms()
