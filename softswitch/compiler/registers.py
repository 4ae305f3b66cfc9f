"""Places register elements in memory.

Register arrays of one length and one element type form a group, and element i of all arrays of a group lie side by
side: the values of 256 arrays for one slot are one contiguous KiB, and a packet that accesses that slot in all of them
touches a few cache lines, not 256.
"""

from __future__ import annotations

from dataclasses import dataclass

from softswitch.bmv2json.model import P4Program, Register
from softswitch.compiler.layout import c_type, storage_bits

CACHE_LINE = 64
MAX_BYTES = 1 << 34  # of all registers of a program


@dataclass(frozen=True)
class RegisterPlace:
    """The place of a register array: element ``i`` is at ``i * row_bytes + offset`` in block ``group``.

    It has ``element_bytes`` bytes. Up to 128 bits it is a native integer, beyond that network-order bytes,
    right-aligned.
    """

    name: str
    size: int
    width: int
    group: int
    offset: int
    element_bytes: int
    row_bytes: int

    @property
    def c_type(self) -> str:
        """The C integer type of an element, or "" if it is an array of bytes."""
        bits = storage_bits(self.width)
        return c_type(bits) if bits else ""


def place_registers(program: P4Program) -> tuple[dict[str, RegisterPlace], list[int]]:
    """Return the place of each register array by name, and the bytes of each group."""
    groups: dict[tuple[int, int], list[Register]] = {}
    for register in program.registers.values():
        groups.setdefault((register.size, _element_bytes(register.width)), []).append(register)
    places: dict[str, RegisterPlace] = {}
    sizes: list[int] = []
    for index, ((size, element), members) in enumerate(groups.items()):
        row = element * len(members)
        if row >= CACHE_LINE and row % CACHE_LINE:
            row += CACHE_LINE - row % CACHE_LINE
        for i, register in enumerate(members):
            places[register.name] = RegisterPlace(register.name, size, register.width, index, i * element, element, row)
        sizes.append(row * size)
    return places, sizes


def _element_bytes(width: int) -> int:
    bits = storage_bits(width)
    return bits // 8 if bits else (width + 7) // 8
