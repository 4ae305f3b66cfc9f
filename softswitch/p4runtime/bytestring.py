"""Integers as P4Runtime byte strings (P4Runtime specification, "Bytestrings").

Any big-endian string whose value fits the width is accepted; the server sends the shortest one.
"""

from __future__ import annotations

from softswitch.p4runtime.status import invalid, out_of_range


def decode(data: bytes, width: int, what: str) -> int:
    """Return the unsigned integer in ``data``. Raise OUT_OF_RANGE if it needs more than ``width`` bits."""
    if not data:
        raise invalid(f"{what}: the byte string is empty; zero is one zero byte")
    number = int.from_bytes(data, "big")
    if number >> width:
        raise out_of_range(f"{what}: {number:#x} does not fit in {width} bits")
    return number


def encode(number: int) -> bytes:
    """Return the shortest big-endian string of a non-negative integer; zero is one zero byte."""
    return number.to_bytes((number.bit_length() + 7) // 8 or 1, "big")


def decode_signed(data: bytes, width: int, what: str) -> int:
    """Return the two's complement integer in ``data``, as the unsigned number with the same ``width`` low bits."""
    if not data:
        raise invalid(f"{what}: the byte string is empty; zero is one zero byte")
    number = int.from_bytes(data, "big", signed=True)
    if not -(1 << (width - 1)) <= number < 1 << (width - 1):
        raise out_of_range(f"{what}: {number} does not fit in {width} bits, signed")
    return number & ((1 << width) - 1)


def encode_signed(number: int, width: int) -> bytes:
    """Return the shortest two's complement string of the signed integer whose ``width`` low bits are ``number``."""
    if number >> (width - 1):
        number -= 1 << width
    bits = (number if number >= 0 else ~number).bit_length() + 1
    return number.to_bytes((bits + 7) // 8, "big", signed=True)
