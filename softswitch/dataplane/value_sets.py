"""Parser value sets: converts their members to the data plane's form, which has values under masks only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

from softswitch.errors import CapacityExceeded

MAX_VALUES = 1 << 16  # largest number of values under masks that one member may need


def prefixes(low: int, high: int, width: int) -> Iterator[tuple[int, int]]:
    """Yield the fewest (value, mask) pairs that together are exactly the range low..high."""
    full = (1 << width) - 1
    while low <= high:
        size = low & -low or 1 << width
        while size > high - low + 1:
            size >>= 1
        yield low, full ^ (size - 1)
        low += size


def expand(fields: Sequence[Sequence[tuple[int, int]]], widths: Sequence[int], words: int) -> Iterator[bytes]:
    """Yield keys and masks in the runtime's form: each field in whole bytes, in network order.

    ``fields`` has, for each field, the alternatives for its value and mask.
    """
    count = 1
    for alternatives in fields:
        count *= len(alternatives)
        if count > MAX_VALUES:
            raise CapacityExceeded(f"ranges that are more than {MAX_VALUES} values under masks when put together")
    for chosen in product(*fields):
        parts = [
            b"".join(pair[i].to_bytes((width + 7) // 8, "big") for pair, width in zip(chosen, widths, strict=True))
            for i in (0, 1)
        ]
        yield b"".join(part.ljust(8 * words, b"\0") for part in parts)
