"""The parameters of a program's custom cyclic redundancy checks, as bmv2's set_crc16_parameters has them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Crc:
    """The parameters of a check of W bits (W: 16 or 32), in the terms of the catalogues of such checks.

    Attributes:
        polynomial: the polynomial without its highest bit, x^W; the lowest bit is x^0.
        initial: the remainder before the first byte.
        final_xor: the number that is combined with the remainder by exclusive or.
        reflect_data: whether each byte is taken lowest bit first.
        reflect_remainder: whether the remainder's bits are reversed before ``final_xor``.
    """

    polynomial: int
    initial: int = 0
    final_xor: int = 0
    reflect_data: bool = False
    reflect_remainder: bool = False
