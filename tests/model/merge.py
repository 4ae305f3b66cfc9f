"""Merging of values and of contributor sets: the rule that switches and roots share."""

from __future__ import annotations

from collections.abc import Callable

Values = tuple[int, ...]
WORD = 0xFFFFFFFF


def signed(word: int) -> int:
    """Return a 32-bit word as two's complement."""
    return word - (1 << 32) if word >> 31 else word


def add(left: Values, right: Values) -> Values:
    """Return the sum modulo 2^32, value by value."""
    return tuple((a + b) & WORD for a, b in zip(left, right, strict=True))


def maximum(left: Values, right: Values) -> Values:
    """Return the signed maximum, value by value."""
    return tuple(max(a, b, key=signed) for a, b in zip(left, right, strict=True))


def merger(is_maximum: bool) -> Callable[[Values, Values], Values]:
    """Return the function that a packet's MAXIMUM flag asks for."""
    return maximum if is_maximum else add


def subset(bits: int, of: int) -> bool:
    """Return whether every contributor in ``bits`` is in ``of``."""
    return bits & ~of == 0
