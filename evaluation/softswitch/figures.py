"""One measured figure."""

from __future__ import annotations

import os
from dataclasses import dataclass, field


def _load() -> float:
    return round(os.getloadavg()[0], 1)


@dataclass(frozen=True)
class Row:
    """One figure.

    Attributes:
        switch: softswitch or bmv2.
        entries: number of entries, in sections that vary it.
        load: load of the machine (over one minute) when the figure was measured.
    """

    section: str
    what: str
    switch: str
    value: float
    unit: str
    note: str = ""
    entries: int = 0
    load: float = field(default_factory=_load)
