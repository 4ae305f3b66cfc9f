"""The cyclic redundancy checks in C agree with the bit-by-bit definition and the published check values."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softswitch import Crc, Device, Fabric, InvalidValue, NoSuchObject, Program
from softswitch.compiler.build import RUNTIME

WRAPPER = """
#include "ss_crc.h"
unsigned crc16(const uint8_t *p, unsigned n) { return ss_crc16(p, n); }
unsigned crc32(const uint8_t *p, unsigned n) { return ss_crc32(p, n); }
unsigned custom(unsigned width, unsigned polynomial, unsigned initial, unsigned final_xor, unsigned reflect,
                const uint8_t *p, unsigned n) {
    static struct ss_crc c;
    ss_crc_make(&c, width, polynomial, initial, final_xor, reflect & 1, reflect & 2);
    return ss_crc_custom(&c, p, n);
}
unsigned ccitt(const uint8_t *p, unsigned n) { return ss_crc_ccitt(p, n); }
"""

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler (cc)")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    directory: Path = tmp_path_factory.mktemp("crc")
    (directory / "c.c").write_text(WRAPPER)
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-I", str(RUNTIME)]
    subprocess.run(["cc", *flags, "-o", directory / "c.so", directory / "c.c"], check=True, timeout=60)
    made = ctypes.CDLL(str(directory / "c.so"))
    for name in ("crc16", "crc32", "ccitt"):
        getattr(made, name).argtypes = (ctypes.c_char_p, ctypes.c_uint)
        getattr(made, name).restype = ctypes.c_uint
    made.custom.argtypes = (*[ctypes.c_uint] * 5, ctypes.c_char_p, ctypes.c_uint)
    made.custom.restype = ctypes.c_uint
    return made


def reflected(data: bytes, polynomial: int, crc: int) -> int:
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (polynomial if crc & 1 else 0)
    return crc


def highest_first(data: bytes, polynomial: int, crc: int) -> int:
    for byte in data:
        crc ^= byte << 8
        for _ in range(8):
            crc = (crc << 1 ^ (polynomial if crc & 0x8000 else 0)) & 0xFFFF
    return crc


def reverse(value: int, bits: int) -> int:
    return int(f"{value:0{bits}b}"[::-1], 2)


def bitwise(width: int, crc: Crc, data: bytes) -> int:
    """The check as its parameters define it: a long division, a bit at a time."""
    remainder, highest = crc.initial, 1 << (width - 1)
    for byte in data:
        byte = reverse(byte, 8) if crc.reflect_data else byte
        for bit in range(7, -1, -1):
            out = bool(remainder & highest) ^ bool(byte >> bit & 1)
            remainder = (remainder << 1) & ((1 << width) - 1) ^ (crc.polynomial if out else 0)
    return (reverse(remainder, width) if crc.reflect_remainder else remainder) ^ crc.final_xor


def custom(library: ctypes.CDLL, width: int, crc: Crc, data: bytes) -> int:
    reflect = int(crc.reflect_data) + 2 * int(crc.reflect_remainder)
    numbers = (crc.polynomial, crc.initial, crc.final_xor)
    return int(library.custom(width, *numbers, reflect, data, len(data)))


@st.composite
def checks(draw: st.DrawFn) -> tuple[int, Crc]:
    width = draw(st.sampled_from([16, 32]))
    numbers = [draw(st.integers(0, (1 << width) - 1)) for _ in range(3)]
    return width, Crc(*numbers, reflect_data=draw(st.booleans()), reflect_remainder=draw(st.booleans()))


@settings(max_examples=300)
@given(checks(), st.binary(max_size=70))
def test_any_parameters_give_what_they_define(library, check, data):
    width, crc = check
    assert custom(library, width, crc, data) == bitwise(width, crc, data)


@pytest.mark.parametrize(
    ("width", "crc", "value"),
    [
        (16, Crc(0x8005, reflect_data=True, reflect_remainder=True), 0xBB3D),  # ARC
        (16, Crc(0x1021, 0xFFFF), 0x29B1),  # IBM-3740
        (16, Crc(0x1021, 0xFFFF, 0xFFFF, True, True), 0x906E),  # IBM-SDLC
        (32, Crc(0x04C11DB7, 0xFFFFFFFF, 0xFFFFFFFF, True, True), 0xCBF43926),  # ISO-HDLC
        (32, Crc(0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, True, True), 0xE3069283),  # ISCSI
        (32, Crc(0x04C11DB7, 0xFFFFFFFF, 0xFFFFFFFF), 0xFC891918),  # BZIP2
    ],
)
def test_published_values_of_custom_checks(library, width, crc, value):
    assert custom(library, width, crc, b"123456789") == value == bitwise(width, crc, b"123456789")


def hashed(device: Device, data: bytes) -> int:
    """What a program's crc16_custom says of these bytes and three bits more."""
    frame = bytes([8, 0]) + bytes(6) + bytes([len(data)]) + data + b"\7"
    ((port, out),) = device.process(1, frame)
    assert port == 1
    return int.from_bytes(out[2:6], "big")


def test_a_programs_check_has_the_parameters_that_it_is_given():
    program = Program.load((Path(__file__).parents[1] / "conformance" / "programs" / "hashes.json").read_text())
    data = b"12345678"
    ours = Crc(0xA097, 0x1234, 0x4321, reflect_remainder=True)
    usual = Crc(0x8005, reflect_data=True, reflect_remainder=True)
    with Fabric() as fabric:
        device, other = (fabric.add_device(number) for number in (1, 2))
        for each in (device, other):
            each.load(program)
        assert hashed(device, data) == bitwise(16, usual, data + b"\x20")
        device.set_crc("calc_6", ours)
        assert hashed(device, data) == bitwise(16, ours, data + b"\x20")
        assert hashed(other, data) == bitwise(16, usual, data + b"\x20"), "each device has its own"
        with pytest.raises(NoSuchObject, match="calc_5, calc_6"):
            device.set_crc("calc", ours)
        with pytest.raises(InvalidValue, match="16 bits"):
            device.set_crc("calc_6", Crc(0x18005))
        device.load(program)
        assert hashed(device, data) == bitwise(16, usual, data + b"\x20"), "a program starts with the usual ones"


def test_published_check_values(library):
    """The checks have the values of the catalogue of CRC algorithms for "123456789".

    They are CRC-16/ARC, CRC-32/ISO-HDLC and CRC-16/IBM-3740.
    """
    text = b"123456789"
    found = [getattr(library, name)(text, len(text)) for name in ("crc16", "crc32", "ccitt")]
    assert found == [0xBB3D, 0xCBF43926, 0x29B1]


@given(st.binary(max_size=70))
def test_any_length_equals_the_definition(library, data):
    assert library.crc16(data, len(data)) == reflected(data, 0xA001, 0)
    assert library.crc32(data, len(data)) == zlib.crc32(data)
    assert library.ccitt(data, len(data)) == highest_first(data, 0x1021, 0xFFFF)
