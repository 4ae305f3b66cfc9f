"""Text of numbers for people: four significant digits, and no powers of ten for large numbers."""

from __future__ import annotations


def short(value: float, digits: int = 4) -> str:
    """Return a number with its significant digits, and all digits before the decimal point: 0.1235, 2.5, 104858."""
    return f"{value:.{digits}g}" if abs(value) < 10**digits - 0.5 else f"{value:.0f}"
