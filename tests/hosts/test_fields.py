"""Several values in a word: the C engine agrees with the numpy reference, and the reference with its stated bound."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.hosts import numbers
from tests.hosts import conversions
from tests.hosts.test_fixedpoint import NONFINITES, bits, finite_bits, floats, same_bits
from tests.model.checkword import Check
from worker_agent import fixedpoint
from worker_agent.collectives import MEAN, NAMES, SCATTER_MEAN, Collective, Kind, broadcast, collective
from worker_agent.fields import FIELDS, Fields, bits_of, error_bound, field_bits, is_stochastic
from worker_agent.fixedpoint import BIAS, NONFINITE

WORDS = 5
SMALL = [bits for bits in FIELDS if bits < 32]


@st.composite
def formats(draw: st.DrawFn) -> Fields:
    width = draw(st.sampled_from(SMALL))
    most = 1023 if width == 16 else 1 << (width - 2)
    workers = draw(st.one_of(st.integers(1, min(most, 9)), st.integers(1, most)))
    worker = draw(st.integers(0, workers - 1))
    return Fields(width, workers, WORDS, draw(st.booleans()), draw(st.integers(0, 2**59)), worker)


@settings(max_examples=120, deadline=None)
@given(formats(), st.data())
def test_an_exponent_is_the_least_with_room_for_every_value(fields: Fields, data: st.DataObject) -> None:
    chunk = floats(data.draw(st.lists(bits, min_size=1, max_size=fields.values)))
    biased = fields.exponent(chunk)
    assert conversions.fields_exponent(fields, chunk) == biased
    finite = np.abs(chunk[np.isfinite(chunk)].astype(np.float64)).max(initial=0.0)
    assert (biased >= NONFINITE) == (not np.isfinite(chunk).all()) and (biased % NONFINITE != 0) == (finite > 0)
    if finite:
        step = np.ldexp(1.0, biased % NONFINITE - BIAS - field_bits(fields.bits, fields.workers))
        assert fields.most * step / 2 < finite <= fields.most * step


@settings(max_examples=120, deadline=None)
@given(formats(), st.data(), st.integers(0, 40), st.integers(0, 2**31 - 100))
def test_words_and_residuals_equal_the_references(
    fields: Fields, data: st.DataObject, more: int, position: int
) -> None:
    """This holds also when a peer needs a larger exponent than this worker."""
    chunk = floats(data.draw(st.lists(finite_bits, min_size=1, max_size=fields.values)))
    own = fields.exponent(chunk)
    agreed = min(own + more, BIAS + 129) if own else more and BIAS + more
    words, residual = numbers.quantise_fields(fields, chunk, agreed, position)
    assert (words == fields.quantise(chunk, agreed, position)).all()
    assert same_bits(residual, fields.residual(chunk, agreed, position))


@settings(max_examples=120, deadline=None)
@given(formats(), st.data(), st.one_of(st.just(0), st.integers(BIAS - 148, BIAS + 128)), st.booleans())
def test_words_and_values_of_chunks_with_nan_equal_the_references(
    fields: Fields, data: st.DataObject, rest: int, mean: bool
) -> None:
    chunk = floats(data.draw(st.lists(bits, min_size=1, max_size=fields.values)))
    words, _ = numbers.quantise_fields(fields, chunk, NONFINITE + rest)
    assert (words == fields.quantise(chunk, NONFINITE + rest)).all()
    sums = (words.astype(np.int64) * fields.workers).astype(np.int32)
    expected = fields.dequantise(sums, chunk.size, NONFINITE + rest, mean)
    assert same_bits(numbers.dequantise_fields(fields, sums, chunk.size, NONFINITE + rest, mean=mean), expected)


@settings(max_examples=150, deadline=None)
@given(formats(), st.data(), st.integers(BIAS - 148, BIAS + 129), st.booleans())
def test_values_are_the_references(fields: Fields, data: st.DataObject, biased: int, mean: bool) -> None:
    most = fields.most * fields.workers
    values = data.draw(st.lists(st.integers(-most, most), min_size=1, max_size=fields.values))
    words = np.zeros(WORDS, np.int64)
    for place, value in enumerate(values):
        words[place % WORDS] += value << (place // WORDS * fields.bits)
    sums = words.astype(np.int32)
    assert (sums == words).all(), "no sum wraps"
    expected = fields.dequantise(sums, len(values), biased, mean)
    assert same_bits(numbers.dequantise_fields(fields, sums, len(values), biased, mean=mean), expected)
    if not mean and abs(biased - BIAS) < 100:
        step = np.ldexp(1.0, biased - BIAS - field_bits(fields.bits, fields.workers))
        assert (expected == np.array(values) * step).all(), "each field's sum is read from the word"


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from([4, 63, 127, 255]),
    st.integers(1, 100),
    st.integers(BIAS - 130, BIAS + 128),
    st.integers(0, 2**32),
    st.booleans(),
)
def test_the_short_way_of_bfloat16_gives_the_same_bits(
    words: int, workers: int, biased: int, seed: int, mean: bool
) -> None:
    random = np.random.default_rng(seed)
    fields = Fields(16, workers, words)
    magnitudes = random.integers(0, (min(max(biased - BIAS + 127, 1), 255)) << 7, 2 * words)
    chunk = (magnitudes | random.integers(0, 2, 2 * words) << 15).astype(np.uint16)
    sums = random.integers(-(2**31), 2**31, words).astype(np.int32)
    found = conversions.pairs(fields, chunk, biased, sums, mean=mean)
    if found is None:
        assert not -96 <= field_bits(16, workers) - (biased - BIAS) <= 126, "all but the extremes go this way"
        return
    exponent, sent, back = found
    assert exponent == conversions.fields_exponent(fields, chunk, "bfloat16")
    assert (sent == numbers.quantise_fields(fields, chunk, biased, dtype="bfloat16")[0]).all()
    expected = numbers.dequantise_fields(fields, sums, 2 * words, biased, mean=mean, dtype="bfloat16")
    assert back.tobytes() == expected.tobytes()


def test_the_short_way_of_bfloat16_finds_nan_and_infinities() -> None:
    for bits_of_one in (0x7F80, 0xFF80, 0x7FC1):
        chunk = np.full(2 * 63, 0x3F80, np.uint16)
        chunk[77] = bits_of_one
        found = conversions.pairs(Fields(16, 4, 63), chunk, BIAS + 1, np.zeros(63, np.int32))
        assert found is not None and found[0] == NONFINITE + BIAS + 1


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(SMALL), st.integers(1, 16), st.data(), st.booleans(), st.booleans())
def test_sums_never_wrap_are_checked_and_are_within_the_bound(
    width: int, workers: int, data: st.DataObject, mean: bool, stochastic: bool
) -> None:
    """The values are the largest and the smallest that there are. The sum that the switches compute is the sum of
    integers that the check word covers, and the result is the sum of the values within the stated error.
    """
    size = WORDS * FIELDS[width] - 1
    row = st.lists(finite_bits, min_size=size, max_size=size)
    chunks = [floats(data.draw(row)) for _ in range(workers)]
    formats_ = [Fields(width, workers, WORDS, stochastic, 7, worker) for worker in range(workers)]
    biased = max(formats_[0].exponent(chunk) for chunk in chunks)
    words = [
        fields.quantise(chunk, biased, 30).astype(np.int64) for fields, chunk in zip(formats_, chunks, strict=True)
    ]
    total = np.sum(words, axis=0)
    assert np.abs(total).max() < 2**31
    check = Check(bytes(range(16)), workers, WORDS + 1)
    proofs = sum(check.word(row.tolist(), [worker], 3, 0, 9) for worker, row in enumerate(words))
    assert check.right([*total.tolist(), proofs], list(range(workers)), 3, 0, 9)
    result = formats_[0].dequantise(total.astype(np.int32), size, biased, mean).astype(np.float64)
    exact = np.sum([chunk.astype(np.float64) for chunk in chunks], axis=0) / (workers if mean else 1)
    bound = error_bound(chunks, width, mean, stochastic)
    if np.isfinite(bound):
        assert (np.abs(result - exact) <= bound).all()


@settings(max_examples=150, deadline=None)
@given(st.integers(2, 31), st.data())
def test_nan_and_infinities_equal_ieee_addition(workers: int, data: st.DataObject) -> None:
    row = st.lists(bits, min_size=9, max_size=9)
    chunks = [floats([*data.draw(row), NONFINITES[2]]) for _ in range(workers)]
    biased = NONFINITE + max(fixedpoint.exponent(chunk) % NONFINITE for chunk in chunks)
    fields = Fields(16, workers, WORDS)
    total = np.sum([fields.quantise(chunk, biased).astype(np.int64) for chunk in chunks], axis=0)
    assert np.abs(total).max() < 2**31
    result = fields.dequantise(total.astype(np.int32), 10, biased)
    with np.errstate(invalid="ignore", over="ignore"):
        exact = np.sum([chunk.astype(np.float64) for chunk in chunks], axis=0)
    touched = np.any([~np.isfinite(chunk) for chunk in chunks], axis=0)
    assert same_bits(result[touched], exact[touched].astype(np.float32))
    step = np.ldexp(1.0, biased - NONFINITE - BIAS - fixedpoint.mixed_bits(workers, 16)) if biased > NONFINITE else 0.0
    if step < 1e30:
        assert (np.abs(result[~touched] - exact[~touched]) <= workers / 2 * step * (1 + 1e-6) + 1e-44).all()


@pytest.mark.parametrize(("width", "workers"), [(16, 32), (16, 1023), (10, 8), (8, 8)])
def test_where_a_field_cannot_count_nans_the_whole_group_is_nan(width: int, workers: int) -> None:
    """The result is never a number that looks right."""
    fields = Fields(width, workers, WORDS)
    biased = NONFINITE + BIAS + 1
    words, _ = numbers.quantise_fields(fields, np.array([1, np.nan, 2], np.float32), biased)
    assert not words.any()
    assert np.isnan(numbers.dequantise_fields(fields, words, 3, biased)).all()


@pytest.mark.parametrize("workers", [1, 3, 4, 8, 100])
def test_every_bfloat16_near_its_chunks_largest_comes_back_as_it_was(workers: int) -> None:
    """A value alone among zeros keeps at least the 8 bits that a bfloat16 has."""
    halves = np.arange(2**16, dtype=np.uint32).astype(np.uint16)
    values = (halves.astype(np.uint32) << 16).view(np.float32)
    fields = Fields(bits_of("bfloat16", None, workers), workers, 64)
    for first in range(0, 2**16, 128):
        chunk = halves[first : first + 128]  # These are neighbours in value.
        if not np.isfinite(values[first : first + 128]).all() or not values[first] or first % 0x8000 < 0x80:
            continue  # NaN, infinities, zero and subnormals are skipped.
        biased = fields.exponent(values[first : first + 128])
        words, _ = numbers.quantise_fields(fields, chunk, biased, dtype="bfloat16")
        assert (numbers.dequantise_fields(fields, words, 128, biased, dtype="bfloat16") == chunk).all()


def test_rounding_by_chance_is_right_on_average_and_differs_among_workers_and_places() -> None:
    x = np.full(20_000, 0.3, np.float32)
    words = Fields(8, 4, x.size // 4, stochastic=True)
    step = 2.0 ** -field_bits(8, 4)
    found = [
        Fields(8, 4, words.words, stochastic=True, seed=seed, worker=worker).integers(x, BIAS)
        for seed, worker in ((1, 0), (1, 1), (2, 0))
    ]
    for one in found:
        assert set(np.unique(one)) == {int(0.3 // step), int(0.3 // step) + 1}
        assert abs(one.mean() * step - 0.3) < 4 * step * 0.5 / np.sqrt(x.size) + step / 256
    agree = [(found[0] == other).mean() for other in found[1:]]
    up = found[0].mean() - int(0.3 // step)
    assert all(abs(same - (up**2 + (1 - up) ** 2)) < 0.03 for same in agree), "as if they were drawn apart"
    exact = np.arange(-16, 17, dtype=np.float32) / 32
    assert (Fields(8, 4, 9, stochastic=True).integers(exact, BIAS) == exact * 32).all(), "what fits is not rounded"


@pytest.mark.parametrize(("width", "workers"), [(8, 2), (8, 16), (8, 64), (8, 5), (10, 64), (16, 8)])
def test_the_mean_error_is_zero_up_to_the_largest_value(width: int, workers: int) -> None:
    """Values just below a power of two are in the top step, which a power of two of workers has no room for."""
    words, seeds = 63, 60
    size = FIELDS[width] * words
    x = np.linspace(-1, 1, size, dtype=np.float32) * np.float32(0.999)
    got = np.zeros(size)
    for seed in range(seeds):
        each = [Fields(width, workers, words, True, seed, worker) for worker in range(workers)]
        biased = each[0].exponent(x)
        total = np.sum([one.quantise(x, biased).astype(np.int64) for one in each], axis=0).astype(np.int32)
        got += each[0].dequantise(total, size, biased, mean=True)
    step = np.ldexp(1.0, biased - BIAS - field_bits(width, workers))
    draws = seeds * workers
    assert (np.abs(got / seeds - x) <= step * (1 / 512 + 5 * 0.5 / np.sqrt(draws))).all()
    shrinkage = 1 - (got / seeds * x).sum() / (x.astype(np.float64) ** 2).sum()
    assert abs(shrinkage) < 5 * step / np.sqrt(draws * size) + step / 512


@pytest.mark.parametrize("width", SMALL)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_mean_is_finite_if_only_the_sum_is_not(width: int, dtype: str) -> None:
    workers = 4
    fields = Fields(width, workers, 63)
    large = np.resize(np.array([3e38, -3e38, 1.5e38], np.float32), fields.values)
    chunk = large if dtype == "float32" else (large.view(np.uint32) >> 16).astype(np.uint16)
    biased = conversions.fields_exponent(fields, chunk, dtype)
    words, _ = numbers.quantise_fields(fields, chunk, biased, dtype=dtype)
    sums = words * workers
    found = numbers.dequantise_fields(fields, sums, fields.values, biased, mean=True, dtype=dtype)
    if dtype == "bfloat16":
        found = (found.astype(np.uint32) << 16).view(np.float32)
    else:
        assert same_bits(found, fields.dequantise(sums, fields.values, biased, mean=True))
    exact, bound = large.astype(np.float64), error_bound([large] * workers, width, mean=True)
    assert np.isfinite(bound) and (np.abs(found - exact) <= bound + 2.0**120).all()


def test_in_how_many_bits_values_travel() -> None:
    assert [bits_of("float32", None, workers) for workers in (1, 1023)] == [32, 32]
    assert [bits_of("bfloat16", None, workers) for workers in (2, 128, 129)] == [16, 16, 32]
    assert [bits_of("float16", None, workers) for workers in (2, 16, 17)] == [16, 16, 32]
    assert bits_of("bfloat16", 32, 4) == 32 and bits_of("float32", 8, 4) == 8
    with pytest.raises(ValueError, match="bits must be one of 32, 16, 10, 8 for 4 workers, not 7"):
        bits_of("float32", 7, 4)
    with pytest.raises(ValueError, match="one of 32, 16, 10 for 200 workers, not 8"):
        bits_of("float32", 8, 200)
    assert is_stochastic("float32", 16) and not is_stochastic("bfloat16", 16) and is_stochastic("bfloat16", 8)
    assert not is_stochastic("float32", 8, feedback=True), "what is rounded off is sent later"


def test_an_operation_says_in_how_many_bits_its_values_travel() -> None:
    assert MEAN.encoded(None) == MEAN
    op = SCATTER_MEAN.encoded(8, 12)
    assert collective("scatter mean bits=8 seed=12") == op == Collective(Kind.REDUCE_SCATTER, True, bits=8, seed=12)
    assert op.plain == SCATTER_MEAN
    for wrong in ("gather bits=8", "mean bits=", "sum bits=8 seed=-1", "sum bits=8 seed=1 x"):
        with pytest.raises(ValueError, match="op must be one of"):
            collective(wrong)


ENCODED = (MEAN.encoded(8, 7, feedback=True), SCATTER_MEAN.encoded(16))


@pytest.mark.parametrize("op", [*NAMES, broadcast(3), *ENCODED], ids=str)
def test_an_operations_name_reads_as_the_operation(op: Collective) -> None:
    """The name of the bits travels over sockets."""
    assert collective(str(op)) == op
