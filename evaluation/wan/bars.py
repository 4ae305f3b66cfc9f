"""Bar charts of measured beside simulated times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Bar = tuple[str, float, float]
"""The name of a system, its measured and its simulated seconds."""


def measured_beside_simulated(axis: Any, bars: Sequence[Bar]) -> None:
    """Draw two bars per system, from the top in this order; the legend says "measured" and "simulated"."""
    names, measured, simulated = zip(*bars, strict=True)
    axis.barh([k - 0.2 for k in range(len(bars))], measured, 0.4, label="measured", color="#1f6f8b")
    axis.barh([k + 0.2 for k in range(len(bars))], simulated, 0.4, label="simulated", color="#c9c9c9")
    axis.set_yticks(range(len(bars)), names)
    axis.invert_yaxis()
