"""The check word: the C engines compute the same as the reference, and any change is refused."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from p4src.protocol import Flag, HostFlag, exponents_per_packet
from tests.hosts.native_check import NativeCheck
from tests.model.checkword import MARK, Check
from worker_agent.fixedpoint import BIAS

KEY = bytes(range(1, 17))
SIZES = (4, 64, 256)
kinds = st.sampled_from([0, int(HostFlag.SCATTER), int(HostFlag.SINGLE)])
sequences = st.integers(0, 2**32 - 1)


@st.composite
def sums(draw: st.DrawFn) -> tuple[Check, NativeCheck, list[list[int]], int, int, int]:
    """Return a job, the words that each worker sends for a chunk (check word included), and the chunk."""
    workers, values = draw(st.sampled_from([1, 2, 3, 8, 65])), draw(st.sampled_from(SIZES))
    tree, kind, sequence = draw(st.integers(0, 300)), draw(kinds), draw(sequences)
    check = Check(KEY, workers, values)
    drawn = np.random.default_rng(draw(st.integers(0, 10**6)))
    most = 2**30 // workers
    sent = []
    for worker in range(workers):
        data = [int(v) for v in drawn.integers(-most, most, values - 1)]
        sent.append([*data, check.word(data, [worker], tree, kind, sequence)])
    return check, NativeCheck(KEY, workers, values), sent, tree, kind, sequence


def total(sent: list[list[int]]) -> list[int]:
    """Return the sum as switches compute it: in 32 bits, with wrap-around."""
    added = [sum(column) for column in zip(*sent, strict=True)]
    return [(word + 2**31) % 2**32 - 2**31 for word in added]


def right(made: tuple[Any, ...], words: list[int], **where: int) -> bool:
    """Return the verdicts of both on a sum of all workers' words."""
    check, native, sent, tree, kind, sequence = made
    place = {"tree": tree, "kind": kind, "sequence": sequence, **where}
    everyone = list(range(len(sent)))
    said = check.right(words, everyone, place["tree"], place["kind"], place["sequence"])
    assert native.right(words, everyone, place["tree"], place["kind"], place["sequence"]) == said
    return said


@settings(max_examples=60, deadline=None)
@given(sums())
def test_the_engine_and_the_reference_make_the_same_words_and_the_sum_is_right(made: tuple[Any, ...]) -> None:
    check, native, sent, tree, kind, sequence = made
    assert native.prime == check.prime and check.prime * len(sent) <= 2**32
    for worker, words in enumerate(sent):
        assert native.word(words[:-1], [worker], tree, kind, sequence) == words[-1]
    assert right(made, total(sent))


@settings(max_examples=200, deadline=None)
@given(sums(), st.data())
def test_a_flipped_bit_of_any_word_is_detected(made: tuple[Any, ...], data: st.DataObject) -> None:
    words = total(made[2])
    position, bit = data.draw(st.integers(0, len(words) - 1)), data.draw(st.integers(0, 31))
    words[position] = (words[position] ^ (1 << bit)) if bit < 31 else words[position] ^ -(2**31)
    assert not right(made, words)


@settings(max_examples=100, deadline=None)
@given(sums(), st.data())
def test_a_worker_twice_missing_or_in_place_of_another_is_seen(made: tuple[Any, ...], data: st.DataObject) -> None:
    sent = made[2]
    one, other = data.draw(st.integers(0, len(sent) - 1)), data.draw(st.integers(0, len(sent) - 1))
    assert not right(made, total([*sent, sent[one]])), "twice"
    if len(sent) > 1:
        assert not right(made, total(sent[:one] + sent[one + 1 :])), "missing"
    assume(one != other)
    assert not right(made, total([words for i, words in enumerate(sent) if i != one] + [sent[other]])), "in place of it"


@settings(max_examples=100, deadline=None)
@given(sums(), st.integers(1, 1000))
def test_a_chunk_in_another_place_is_seen(made: tuple[Any, ...], far: int) -> None:
    words = total(made[2])
    assert not right(made, words, sequence=(made[5] + far) % 2**32)
    assert not right(made, words, tree=made[3] + far)
    assert not right(made, words, kind=made[4] ^ int(HostFlag.SCATTER))


@settings(max_examples=100, deadline=None)
@given(sums(), st.integers(0, 2**32 - 1), st.integers(0, 31))
def test_a_results_word_covers_how_many_chunks_are_complete(made: tuple[Any, ...], complete: int, bit: int) -> None:
    check, native, sent, tree, kind, sequence = made
    data = total(sent)[:-1]
    for either in (kind, int(Flag.MAXIMUM)):
        word = check.result(data, tree, either, sequence, complete=complete)
        assert native.result(data, tree, either, sequence, complete=complete) == word
        assert check.result(data, tree, either, sequence, complete=complete ^ 1 << bit) != word


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(SIZES), st.integers(0, 300), sequences, st.data())
def test_exponent_words_are_checked_too(values: int, tree: int, sequence: int, data: st.DataObject) -> None:
    check, native = Check(KEY, 3, values), NativeCheck(KEY, 3, values)
    count = exponents_per_packet(values)
    exponents = data.draw(st.lists(st.integers(0, 5250), min_size=count, max_size=count)) * 2
    words = [check.exponent_word(tree, sequence, j, e) for j, e in enumerate(exponents)]
    assert words == [native.exponent_word(tree, sequence, j, e) for j, e in enumerate(exponents)]
    words += [0] * (values - len(words))
    first = data.draw(st.integers(0, 2))
    own = [0 if j % count < first else word for j, word in enumerate(words[: 2 * count])]
    assert native.sealed(exponents[:count], first, tree, sequence) == own
    assert check.maximum_right(words, tree, sequence) and native.maximum_right(words, tree, sequence)
    position, bit = data.draw(st.integers(0, 2 * count - 1)), data.draw(st.integers(0, 31))
    flipped = list(words)
    flipped[position] = (flipped[position] ^ 1 << bit) - (2**32 if bit == 31 else 0)
    assert check.maximum_right(flipped, tree, sequence) == native.maximum_right(flipped, tree, sequence)
    lost = list(words)
    lower = exponents[position] - 1
    lost[position] = check.exponent_word(tree, sequence, position, lower) if lower >= 0 else 1
    assert not check.maximum_right(lost, tree, sequence) and not native.maximum_right(lost, tree, sequence), (
        "a switch lost one of the two words, and another worker's lower exponent took its place"
    )
    wrong = sum(check.exponent_of(tree, sequence, position, words[position] ^ 1 << one) >= 0 for one in range(31))
    assert wrong == 0, "31 flips of one word, each undetected once in 2^18"


@pytest.mark.parametrize(("first", "second"), [(-7, -9), (-7, None), (None, -9), (None, None)])
def test_sizes_without_a_code_are_taken_where_the_operation_is_described(first: int | None, second: int | None) -> None:
    """Either of the first two words may be one: a switch that forgets a size leaves whatever else there is."""
    check, native = Check(KEY, 3, 16), NativeCheck(KEY, 3, 16)
    exponents = [1, 2, MARK, *[0] * (exponents_per_packet(16) - 3)] * 2
    words = [*(check.exponent_word(0, 0, j, e) for j, e in enumerate(exponents)), 0, 0]
    for position, size in enumerate((first, second)):
        words[position] = words[position] if size is None else size
    assert check.maximum_right(words, 0, 0) and native.maximum_right(words, 0, 0)
    words[2] = check.exponent_word(0, 0, 2, 5)
    words[2 + exponents_per_packet(16)] = check.exponent_word(0, 0, 2 + exponents_per_packet(16), 5)
    right = first is None and second is None
    assert check.maximum_right(words, 0, 0) == native.maximum_right(words, 0, 0) == right


def test_another_key_is_another_check() -> None:
    data = list(range(63))
    one, other = Check(KEY, 4, 64), Check(bytes(16), 4, 64)
    assert one.prime != other.prime
    words = [*data, one.word(data, [2], 1, 0, 5)]
    assert one.right(words, [2], 1, 0, 5) and not other.right(words, [2], 1, 0, 5)
    assert int(Flag.MAXIMUM) not in (int(HostFlag.SCATTER), int(HostFlag.SINGLE))


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([1, 2, 8, 65, 1023]),
    st.sampled_from([4, 16, 64, 96, 256, 1024]),
    st.integers(BIAS - 40, BIAS + 40),
    st.booleans(),
    st.integers(0, 10**6),
)
def test_one_pass_for_numbers_and_check_word_equals_two_passes(
    workers: int, values: int, biased: int, mean: bool, seed: int
) -> None:
    """This holds also for values larger than the agreed exponent, as when somebody wrote to the array meanwhile."""
    drawn = np.random.default_rng(seed)
    scale = 2.0 ** (biased - BIAS + drawn.choice([0, 0, 3]))
    x = (drawn.uniform(-1, 1, values) * scale).astype(np.float32)
    assert NativeCheck(KEY, workers, values).one_pass(x, biased, float(workers) if mean else 1.0)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([1, 2, 1023]),
    st.sampled_from([4, 16, 20, 44, 64, 96, 256, 512, 520, 2048]),
    st.sampled_from([0, 4, 32]),
    st.integers(0, 10**6),
)
def test_one_pass_that_streams_and_checks_equals_two_passes(workers: int, values: int, offset: int, seed: int) -> None:
    """This holds also for the largest sums that words can make."""
    drawn = np.random.default_rng(seed)
    extremes = drawn.choice([-(1 << 31), (1 << 31) - 1, -1, 0x7FFF, -0x8000], values)
    words = np.where(drawn.random(values) < drawn.random(), extremes, drawn.integers(-(1 << 31), 1 << 31, values))
    check, native = Check(KEY, workers, values), NativeCheck(KEY, workers, values)
    assert native.streamed(words, offset)
    data = [int(word) for word in words[:-1]]
    assert native.word(data, [0], 1, 0, 5) == check.word(data, [0], 1, 0, 5)


@given(st.sampled_from([1, 2, 5, 64, 1023]), st.integers(0, 2**32))
@settings(max_examples=30, deadline=None)
def test_coefficients_that_vectors_can_multiply_are_many(workers: int, seed: int) -> None:
    """Two of a job's coefficients are hardly ever the same, whatever the key."""
    check = Check(np.random.default_rng(seed).bytes(16), workers, 256)
    assert len(check.coefficients) == 255
    assert all(number % check.prime for number in check.coefficients)
    assert len({number % check.prime for number in check.coefficients}) > 250


headers = st.fixed_dictionaries({
    "flags": st.just(int(Flag.RESULT | HostFlag.ASK)), "attempt": st.integers(0, 255), "count": st.integers(0, 1024),
    "tree": st.integers(0, 300), "sequence": sequences, "complete": sequences,
})  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([1, 4, 65]), headers, st.integers(0, 10**6))
def test_the_check_word_of_a_question_covers_its_header(workers: int, header: dict[str, int], seed: int) -> None:
    """Both compute the same word, and a different one for any other header."""
    check, native = Check(KEY, workers, 64), NativeCheck(KEY, workers, 64)
    words = [int(word) for word in np.random.default_rng(seed).integers(-(2**31), 2**31, 63)]
    word = check.question(words, **header)
    assert word == native.question(words, **header)
    assert word != check.question([*words[:-1], words[-1] ^ 1], **header)
    for name, value in header.items():
        assert word != check.question(words, **{**header, name: value ^ 1})


def test_a_reader_of_packets_learns_neither_prime_nor_coefficients() -> None:
    """Words of known data show a reader only masks. These are uniform numbers of 32 bits, so they have no largest value
    that would be near the prime. They are no products of a worker's number and a chunk's number: modulo the prime, no
    minor of the matrix of workers and chunks is 0. The same holds for results.
    """
    workers, chunks, values = 4, 256, 64
    native = NativeCheck(KEY, workers, values)
    zeros = [0] * (values - 1)
    masks = [[native.word(zeros, [w], 3, 0, chunk) for chunk in range(chunks)] for w in range(workers)]
    results = [native.result(zeros, 3, 0, chunk, complete=0) for chunk in range(chunks)]
    for row in [*masks, results]:
        assert len(set(row)) == chunks
        assert all(len({word >> shift & 3 for word in row}) == 4 for shift in range(0, 32, 2))
        assert max(row) > 2**32 - 2**26 > native.prime
    for w in range(workers - 1):
        minors = [masks[w][q] * masks[w + 1][q + 1] - masks[w][q + 1] * masks[w + 1][q] for q in range(chunks - 1)]
        assert all(minor % native.prime for minor in minors)


def test_a_reader_of_codes_learns_nothing_of_other_exponents() -> None:
    """The codes of neighbouring exponents have differences that do not repeat: a linear code's would."""
    native = NativeCheck(KEY, 3, 64)
    for position in (0, 5, exponents_per_packet(64) + 5):
        codes = [native.exponent_word(3, 9, position, e) & (1 << 18) - 1 for e in range(64)]
        assert len({(b - a) % 2**18 for a, b in itertools.pairwise(codes)}) > 60


@pytest.mark.parametrize("workers", [1, 63, 64, 65, 128, 1000])
def test_masks_of_any_set_of_workers_are_the_sum_of_theirs(workers: int) -> None:
    check, native = Check(KEY, workers, 4), NativeCheck(KEY, workers, 4)
    drawn = np.random.default_rng(workers)
    sets = [list(range(workers)), [0], [workers - 1], list(range(0, workers, 2)), list(range(workers // 2))]
    sets += [sorted(drawn.choice(workers, size, replace=False).tolist()) for size in drawn.integers(1, workers + 1, 5)]
    for chosen in sets:
        alone = sum(native.word([0, 0, 0], [w], 7, 0, 11) for w in chosen) % 2**32
        assert native.word([0, 0, 0], chosen, 7, 0, 11) == check.word([0, 0, 0], chosen, 7, 0, 11) == alone
