"""The cyclic redundancy checks in C agree with the bit-by-bit definition and the published check values."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import zlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softswitch.compiler.build import RUNTIME

WRAPPER = """
#include "ss_crc.h"
unsigned crc16(const uint8_t *p, unsigned n) { return ss_crc16(p, n); }
unsigned crc32(const uint8_t *p, unsigned n) { return ss_crc32(p, n); }
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
