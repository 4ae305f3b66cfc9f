"""Byte strings: the specification's own examples, and every width up to 128 bits."""

from __future__ import annotations

import pytest
from google.rpc import code_pb2
from hypothesis import given
from hypothesis import strategies as st

from softswitch.p4runtime import bytestring
from softswitch.p4runtime.status import P4RuntimeError

WIDTHS = st.integers(1, 128)


@pytest.mark.parametrize(
    ("width", "data", "value", "canonical"),
    [
        (8, b"\x63", 99, True),
        (16, b"\x00\x63", 99, False),
        (16, b"\x63", 99, True),
        (16, b"\x30\x64", 12388, True),
        (16, b"\x00\x30\x64", 12388, False),
        (12, b"\x00\x63", 99, False),
        (12, b"\x63", 99, True),
        (12, b"\x00\x00\x63", 99, False),
    ],
)
def test_examples_of_valid_unsigned_strings(width: int, data: bytes, value: int, canonical: bool) -> None:
    assert bytestring.decode(data, width, "x") == value
    assert (bytestring.encode(value) == data) == canonical


@pytest.mark.parametrize(
    ("width", "data", "value", "canonical"),
    [
        (8, b"\x63", 99, True),
        (8, b"\x9d", -99, True),
        (8, b"\xff\x9d", -99, False),
        (12, b"\xfd\x1d", -739, True),
        (16, b"\x00\x00", 0, False),
        (16, b"\x00", 0, True),
    ],
)
def test_examples_of_valid_signed_strings(width: int, data: bytes, value: int, canonical: bool) -> None:
    bits = value & (1 << width) - 1
    assert bytestring.decode_signed(data, width, "x") == bits
    assert (bytestring.encode_signed(bits, width) == data) == canonical


@pytest.mark.parametrize(
    ("width", "data"),
    [
        (8, b"\x01\x63"),
        (16, b"\x01\x00\x63"),
        (12, b"\x10\x63"),
        (12, b"\x01\x00\x63"),
        (12, b"\x00\x40\x63"),
    ],
)
def test_examples_of_unsigned_strings_out_of_range(width: int, data: bytes) -> None:
    with pytest.raises(P4RuntimeError) as caught:
        bytestring.decode(data, width, "the field")
    assert caught.value.code == code_pb2.OUT_OF_RANGE
    assert "the field" in caught.value.message


@pytest.mark.parametrize(("width", "data"), [(8, b"\x00\x9d"), (12, b"\x8d\x1d")])
def test_examples_of_signed_strings_out_of_range(width: int, data: bytes) -> None:
    with pytest.raises(P4RuntimeError) as caught:
        bytestring.decode_signed(data, width, "x")
    assert caught.value.code == code_pb2.OUT_OF_RANGE


@pytest.mark.parametrize("decode", [bytestring.decode, bytestring.decode_signed])
def test_empty_string_is_no_value(decode: object) -> None:
    with pytest.raises(P4RuntimeError) as caught:
        decode(b"", 8, "x")  # type: ignore[operator]
    assert caught.value.code == code_pb2.INVALID_ARGUMENT


@given(width=WIDTHS, number=st.integers(0, (1 << 128) - 1), zeros=st.integers(0, 20))
def test_unsigned_round_trip_is_the_shortest_string(width: int, number: int, zeros: int) -> None:
    number &= (1 << width) - 1
    data = bytestring.encode(number)
    assert bytestring.decode(bytes(zeros) + data, width, "x") == number
    assert len(data) == 1 or data[0] != 0


@given(width=WIDTHS, number=st.integers(0, (1 << 128) - 1), extra=st.integers(0, 20))
def test_signed_round_trip_is_the_shortest_string(width: int, number: int, extra: int) -> None:
    number &= (1 << width) - 1
    data = bytestring.encode_signed(number, width)
    extension = b"\xff" if data[0] & 0x80 else b"\x00"
    assert bytestring.decode_signed(extension * extra + data, width, "x") == number
    signed = int.from_bytes(data, "big", signed=True)
    assert len(data) == 1 or not -(1 << 8 * len(data) - 9) <= signed < 1 << 8 * len(data) - 9


@given(width=WIDTHS, data=st.binary(min_size=1, max_size=20))
def test_a_string_is_accepted_exactly_when_its_value_fits(width: int, data: bytes) -> None:
    number = int.from_bytes(data, "big")
    try:
        assert bytestring.decode(data, width, "x") == number
        assert number < 1 << width
    except P4RuntimeError as error:
        assert error.code == code_pb2.OUT_OF_RANGE
        assert number >= 1 << width
