"""Text of numbers for people."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.common.numbers import short


@pytest.mark.parametrize(
    ("value", "text"), [(0.123456, "0.1235"), (2.5, "2.5"), (9999.7, "10000"), (104_857.6, "104858")]
)
def test_a_large_number_has_no_power_of_ten(value: float, text: str) -> None:
    assert short(value) == text


@given(st.floats(1e-3, 1e12))
def test_four_digits_of_a_number_remain(value: float) -> None:
    assert "e" not in short(value)
    assert float(short(value)) == pytest.approx(value, rel=6e-4)
