"""The C engine's numbers agree with the numpy reference, and the reference with its stated bound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.hosts import conversions
from worker_agent import fixedpoint
from worker_agent.fixedpoint import BIAS, NONFINITE

Floats = NDArray[np.float32]

# Draw any bit pattern, and often special values: zeros, subnormals, the largest, infinities, NaN.
CORNERS = [0x00000000, 0x80000000, 0x00000001, 0x807FFFFF, 0x00800000, 0x3F800000, 0xBF7FFFFF, 0x7F7FFFFF, 0xFF7FFFFF]
NONFINITES = [0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC12345]
bits = st.one_of(st.integers(0, 2**32 - 1), st.sampled_from(CORNERS), st.sampled_from(NONFINITES))
finite_bits = st.one_of(st.integers(0, 0x7F7FFFFF), st.integers(0x80000000, 0xFF7FFFFF), st.sampled_from(CORNERS))
workers_of = st.integers(1, 64)


def floats(words: list[int]) -> Floats:
    return np.array(words, np.uint32).view(np.float32)


def same_bits(left: Floats, right: Floats) -> bool:
    """Return whether two arrays are equal, where -0 differs from 0 and any NaN equals any other."""
    nan = np.isnan(left)
    return bool((nan == np.isnan(right)).all() and (left[~nan].view(np.uint32) == right[~nan].view(np.uint32)).all())


@settings(max_examples=300, deadline=None)
@given(st.lists(bits, min_size=1, max_size=70))
def test_exponent_is_the_references(words: list[int]) -> None:
    chunk = floats(words)
    assert conversions.exponent(chunk) == fixedpoint.exponent(chunk)


@settings(max_examples=300, deadline=None)
@given(st.lists(finite_bits, min_size=1, max_size=70))
def test_exponent_is_the_smallest_that_bounds_the_values(words: list[int]) -> None:
    chunk = floats(words).astype(np.float64)
    biased = fixedpoint.exponent(floats(words))
    if biased == 0:
        assert not chunk.any()
    else:
        assert np.abs(chunk).max() < np.ldexp(1.0, biased - BIAS)
        assert np.abs(chunk).max() >= np.ldexp(1.0, biased - BIAS - 1)


@settings(max_examples=300, deadline=None)
@given(st.lists(finite_bits, min_size=1, max_size=70), st.integers(0, 30), workers_of)
def test_quantised_values_are_the_references(words: list[int], more: int, workers: int) -> None:
    """This holds also when a peer needs a larger exponent than this worker."""
    chunk = floats(words)
    own = fixedpoint.exponent(chunk)
    agreed = min(own + more, BIAS + 128) if own else more and BIAS + more
    assert (conversions.quantise(chunk, agreed, workers) == fixedpoint.quantise(chunk, agreed, workers)).all()


@settings(max_examples=200, deadline=None)
@given(st.lists(bits, min_size=1, max_size=70), st.one_of(st.just(0), st.integers(BIAS - 148, BIAS + 128)))
def test_quantised_codes_are_the_references(words: list[int], rest: int) -> None:
    chunk = floats(words)
    codes = conversions.quantise(chunk, NONFINITE + rest, 8)
    assert (codes == fixedpoint.quantise(chunk, NONFINITE + rest, 8)).all()


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.integers(-(2**30), 2**30), min_size=1, max_size=70),
    st.integers(BIAS - 148, BIAS + 128),
    workers_of,
    st.booleans(),
)
def test_dequantised_values_are_the_references(sums: list[int], biased: int, workers: int, mean: bool) -> None:
    integers = np.array(sums, np.int32)
    with np.errstate(over="ignore"):
        expected = fixedpoint.dequantise(integers, biased, workers, mean)
    assert same_bits(conversions.dequantise(integers, biased, workers, mean), expected)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 64).flatmap(
        lambda workers: st.lists(st.lists(finite_bits, min_size=5, max_size=5), min_size=workers, max_size=workers)
    ),
    st.booleans(),
)
def test_sums_stay_in_32_bits_and_within_the_bound(words: list[list[int]], mean: bool) -> None:
    chunks = [floats(row) for row in words]
    workers = len(chunks)
    biased = max(conversions.exponent(chunk) for chunk in chunks)
    total = np.sum([conversions.quantise(chunk, biased, workers).astype(np.int64) for chunk in chunks], axis=0)
    assert np.abs(total).max() < 2**31
    result = conversions.dequantise(total.astype(np.int32), biased, workers, mean).astype(np.float64)
    exact = np.sum([chunk.astype(np.float64) for chunk in chunks], axis=0) / (workers if mean else 1)
    bound = fixedpoint.error_bound(chunks, mean)
    if np.isfinite(bound):
        assert (np.abs(result - exact) <= bound).all()


@settings(max_examples=200, deadline=None)
@given(
    st.integers(2, 64).flatmap(
        lambda workers: st.lists(st.lists(bits, min_size=5, max_size=5), min_size=workers, max_size=workers)
    )
)
def test_nonfinite_values_equal_ieee_addition(words: list[list[int]]) -> None:
    chunks = [floats([*row, NONFINITES[2]]) for row in words]  # Every chunk has a NaN.
    assert all(conversions.exponent(chunk) >= NONFINITE for chunk in chunks)
    biased = NONFINITE + max(conversions.exponent(chunk) % NONFINITE for chunk in chunks)
    total = np.sum([conversions.quantise(chunk, biased, len(chunks)) for chunk in chunks], axis=0).astype(np.int32)
    result = conversions.dequantise(total, biased, len(chunks))
    assert same_bits(result, fixedpoint.dequantise(total, biased, len(chunks)))
    with np.errstate(invalid="ignore", over="ignore"):
        exact = np.sum([chunk.astype(np.float64) for chunk in chunks], axis=0)
    touched = np.any([~np.isfinite(chunk) for chunk in chunks], axis=0)
    assert same_bits(result[touched], exact[touched].astype(np.float32))
    bound = fixedpoint.error_bound(chunks)
    if np.isfinite(bound):
        assert (np.abs(result[~touched] - exact[~touched]) <= bound).all()


def test_the_mean_is_finite_if_only_the_sum_is_not() -> None:
    for workers in (2, 3, 4, 64, 1023):
        chunk = np.array([3e38, -3.3e38, 1e30, 0], np.float32)
        biased = conversions.exponent(chunk)
        sums = (conversions.quantise(chunk, biased, workers).astype(np.int64) * workers).astype(np.int32)
        found = conversions.dequantise(sums, biased, workers, mean=True)
        bound = fixedpoint.error_bound([chunk] * workers, mean=True)
        assert same_bits(found, fixedpoint.dequantise(sums, biased, workers, mean=True))
        assert np.isfinite(bound) and (np.abs(found - chunk.astype(np.float64)) <= bound).all()
        assert not np.isfinite(conversions.dequantise(sums, biased, workers)[:2]).any(), "the sum itself is too large"
        mixed = np.append(chunk, np.float32(np.nan))
        biased = conversions.exponent(mixed)
        sums = (conversions.quantise(mixed, biased, workers).astype(np.int64) * workers).astype(np.int32)
        found = conversions.dequantise(sums, biased, workers, mean=True)
        assert same_bits(found, fixedpoint.dequantise(sums, biased, workers, mean=True))
        bound = fixedpoint.error_bound([mixed] * workers, mean=True)
        assert np.isnan(found[-1]) and (np.abs(found[:-1] - chunk.astype(np.float64)) <= bound).all()


def half_bits() -> NDArray[np.uint16]:
    return np.arange(2**16, dtype=np.uint32).astype(np.uint16)


def test_every_float16_is_read_and_written_as_numpy_does() -> None:
    """Through the engine a single worker's float16 loses nothing (11 bits of 30)."""
    halves = half_bits()
    values = halves.view(np.float16)
    finite = values[np.isfinite(values)]
    for chunk in finite.reshape(-1, 64):  # These are neighbours in value: every one keeps all its bits.
        chunk = np.ascontiguousarray(chunk)
        biased = conversions.exponent(chunk, "float16")
        assert biased == fixedpoint.exponent(chunk.astype(np.float32))
        back = conversions.dequantise(conversions.quantise(chunk, biased, 1, "float16"), biased, 1, dtype="float16")
        assert (back == chunk).all()


@settings(max_examples=300, deadline=None)
@given(st.lists(st.integers(-(2**30), 2**30), min_size=1, max_size=70), st.integers(BIAS - 60, BIAS + 20))
def test_results_are_rounded_to_float16_and_bfloat16_to_nearest_even(sums: list[int], biased: int) -> None:
    torch = pytest.importorskip("torch")
    integers = np.array(sums, np.int32)
    wide = fixedpoint.dequantise(integers, biased, 4)
    with np.errstate(over="ignore"):
        expected = wide.astype(np.float16)
    assert (
        conversions.dequantise(integers, biased, 4, dtype="float16").view(np.uint16) == expected.view(np.uint16)
    ).all()
    brain = torch.from_numpy(wide).to(torch.bfloat16).view(torch.uint16).numpy()
    assert (conversions.dequantise(integers, biased, 4, dtype="bfloat16") == brain).all()


def test_float16_results_beyond_its_range_are_infinite() -> None:
    sums = np.array([2**29, -(2**29), 2**28], np.int32)  # With W = 2 and F = 29 the values are 2^16, -2^16, 2^15.
    result = conversions.dequantise(sums, BIAS + 16, 2, dtype="float16")
    assert result.tolist() == [np.inf, -np.inf, 32768.0]


def test_nan_survives_the_narrow_formats() -> None:
    chunk, rest = np.array([np.nan, np.inf, -np.inf], np.float32), np.zeros(3, np.float32)
    code = np.sum([fixedpoint.quantise(each, NONFINITE, 4) for each in (chunk, rest, rest, rest)], 0, np.int32)
    half = conversions.dequantise(code, NONFINITE, 4, dtype="float16")
    assert np.isnan(half[0]) and half[1:].tolist() == [np.inf, -np.inf]
    brain = conversions.dequantise(code, NONFINITE, 4, dtype="bfloat16")
    assert brain.tolist() == [0x7FC0, 0x7F80, 0xFF80]
