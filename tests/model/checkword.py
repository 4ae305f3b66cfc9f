"""The check word of packets in numpy, as the reference for worker_agent/native/check.h, which describes how it works.
docs/protocol.md, "Every sum is checked", says what it detects and with what probability.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from p4src.protocol import Flag, HostFlag, exponents_per_packet

KEY_BYTES = 16
PRIME_MOST = (1 << 31) - 1
DIGIT = 13
"""The bits of a coefficient's digits: a coefficient has two digits, and so has 2^16 times it
(worker_agent/native/check_vectors.h).
"""
DIGIT_MOST = 4095
CODE_BITS = 18
MARK = 6144
"""The lowest value of a MAXIMUM chunk that is not an exponent but describes an operation."""
KINDS = Flag.MAXIMUM | HostFlag.SCATTER | HostFlag.SINGLE
"""The flags that are the same in all packets of a chunk, and are checked with it."""
_CONSTANTS = (0x61707865, 0x3120646E, 0x79622D36, 0x6B206574)
_COEFFICIENTS, _PRIME, _EXPONENTS, _QUESTIONS, _QUESTION_PLACES, _CHUNKS = range(1, 7)
_QUARTERS = (
    (0, 4, 8, 12),
    (1, 5, 9, 13),
    (2, 6, 10, 14),
    (3, 7, 11, 15),
    (0, 5, 10, 15),
    (1, 6, 11, 12),
    (2, 7, 8, 13),
    (3, 4, 9, 14),
)

Words = NDArray[np.int32]


def _rotated(x: int, by: int) -> int:
    return (x << by | x >> (32 - by)) & 0xFFFFFFFF


@lru_cache(maxsize=4096)
def block(key: bytes, counter: int, purpose: int, tree: int = 0, kind: int = 0) -> tuple[int, ...]:
    """Return 16 numbers of 32 bits: one block of ChaCha with 8 rounds and a 128-bit key (RFC 8439 has the block of 20
    rounds).
    """
    words = [int.from_bytes(key[at : at + 4], "little") for at in range(0, KEY_BYTES, 4)]
    start = [*_CONSTANTS, *words, *words, counter, purpose, tree, kind]
    x = list(start)
    for _ in range(4):
        for a, b, c, d in _QUARTERS:
            for left, right, by in ((a, b, 16), (c, d, 12), (a, b, 8), (c, d, 7)):
                x[left] = (x[left] + x[right]) & 0xFFFFFFFF
                turned = d if left == a else b
                x[turned] = _rotated(x[turned] ^ x[left], by)
    return [(a + b) & 0xFFFFFFFF for a, b in zip(x, start, strict=True)]


def _drawn(key: bytes, purpose: int, first: int, count: int) -> NDArray[np.uint32]:
    """Return the numbers of `count` blocks of ChaCha from block `first` on."""
    words = np.frombuffer(key, "<u4").tolist()
    start = np.array([*_CONSTANTS, *words, *words, 0, purpose, 0, 0], np.uint32)[:, np.newaxis].repeat(count, axis=1)
    start[12] = np.arange(first, first + count)
    x = start.copy()
    for _ in range(4):
        for a, b, c, d in _QUARTERS:
            for left, right, turned, by in ((a, b, d, 16), (c, d, b, 12), (a, b, d, 8), (c, d, b, 7)):
                x[left] += x[right]
                mixed = x[turned] ^ x[left]
                x[turned] = mixed << np.uint32(by) | mixed >> np.uint32(32 - by)
    return np.ascontiguousarray((x + start).T).ravel()


def _has_digits(numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
    low = (numbers + (1 << DIGIT - 1)) % (1 << DIGIT) - (1 << DIGIT - 1)
    high = (numbers - low) >> DIGIT
    return (np.abs(low) <= DIGIT_MOST) & (np.abs(high) <= DIGIT_MOST)


def _is_prime(n: int) -> bool:
    if n < 4 or n % 2 == 0:
        return n in (2, 3)
    return bool(np.all(n % np.arange(3, int(n**0.5) + 2, 2) != 0)) if n > 9 else n in (5, 7)


class Check:
    """The values that follow from an epoch's key, and the check words that are computed with them.

    Args:
        key: the epoch's key, of KEY_BYTES.
        workers: number of workers.
        values: number of a packet's words, including the check word.
    """

    def __init__(self, key: bytes, workers: int, values: int) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(key)}")
        self.key, self.workers, self.values = key, workers, values
        random = block(key, 0, _PRIME)
        most = min((1 << 32) // workers, PRIME_MOST)
        prime = most // 2 + random[0] % (most - most // 2)
        while not _is_prime(prime):
            prime -= 1
        self.prime = prime
        self.coefficients = self._draw_coefficients(values - 1)

    def _draw_coefficients(self, count: int) -> list[int]:
        """Draw coefficients: signed numbers of 26 bits that are not 0 modulo the prime; they have two digits, and so
        have their products with 2^16.
        """
        found: list[int] = []
        blocks, lowest = 1024, 1 << 2 * DIGIT - 1
        for first in range(0, 1 << 20, blocks):
            x = (_drawn(self.key, _COEFFICIENTS, first, blocks) >> (32 - 2 * DIGIT)).astype(np.int64) - lowest
            y = x % self.prime * (1 << 16) % self.prime
            y -= np.where(y > self.prime // 2, self.prime, 0)
            found += x[(y != 0) & _has_digits(x) & _has_digits(y)].tolist()
            if len(found) >= count:
                break
        return found[:count]

    def number(self, stream: int, tree: int, kind: int, sequence: int) -> int:
        """Return the number of one chunk in a stream.

        `kind` holds the flags of KINDS that the chunk's packets have.
        """
        return _numbers(self.key, sequence // 16, stream, tree, int(kind))[sequence % 16]

    def mask(self, workers: Sequence[int], tree: int, kind: int, sequence: int) -> int:
        """Return the sum of the workers' masks for one chunk."""
        streams = [self.number(w, tree, kind, sequence) - self.number(w + 1, tree, kind, sequence) for w in workers]
        return sum(streams) % (1 << 32)

    def hashed(self, data: Words | Sequence[int]) -> int:
        """Return the sum of the data words times their coefficients, modulo the prime."""
        return sum(c * int(v) for c, v in zip(self.coefficients, data, strict=True)) % self.prime

    def word(self, data: Words | Sequence[int], workers: Sequence[int], tree: int, kind: int, sequence: int) -> int:
        """Return the check word of a packet whose data words (all words but the last) are the sum of these workers'
        contributions.
        """
        return (self.hashed(data) + self.mask(workers, tree, kind, sequence)) % (1 << 32)

    def right(self, words: Sequence[int], workers: Sequence[int], tree: int, kind: int, sequence: int) -> bool:
        """Return whether a packet's words, the last of which is the sum of check words, are the sum of these workers'
        contributions.
        """
        unmasked = (words[-1] - self.mask(workers, tree, kind, sequence)) % (1 << 32)
        return unmasked % self.prime == self.hashed(words[:-1])

    def result(self, data: Words | Sequence[int], tree: int, kind: int, sequence: int, *, complete: int) -> int:
        """Return the check word of a result; the words of a MAXIMUM chunk prove themselves and are not in it."""
        factor = 1 + (self.number(self.workers + 2, tree, kind, sequence) >> 33 - self.prime.bit_length())
        hashed = 0 if kind & Flag.MAXIMUM else self.hashed(data)
        covered = (hashed + factor * complete) % self.prime
        return (covered + self.number(self.workers + 1, tree, kind, sequence)) % (1 << 32)

    def question(
        self,
        words: Words | Sequence[int],
        *,
        flags: int,
        attempt: int,
        count: int,
        tree: int,
        sequence: int,
        complete: int,
    ) -> int:
        """Return the check word of the root's question about `count` chunks from `sequence` on."""
        kind = flags | attempt << 8 | count << 16
        mixed = block(self.key, self.hashed(words), _QUESTIONS, tree, kind)[0]
        return block(self.key, sequence, _QUESTION_PLACES, mixed, complete)[0]

    def code(self, tree: int, sequence: int, position: int, exponent: int) -> int:
        """Return the code that proves an exponent at its place in a MAXIMUM chunk."""
        again, index = divmod(position, exponents_per_packet(self.values))
        counter = index << 31 - CODE_BITS | exponent
        return block(self.key, counter, _EXPONENTS, tree, sequence)[again] >> 32 - CODE_BITS

    def exponent_word(self, tree: int, sequence: int, position: int, exponent: int) -> int:
        """Return an exponent (13 bits) with its code, as packets carry it."""
        return exponent << CODE_BITS | self.code(tree, sequence, position, exponent)

    def exponent_of(self, tree: int, sequence: int, position: int, word: int) -> int:
        """Return the exponent of a word, or -1 when the word's code does not match."""
        exponent = word >> CODE_BITS
        return exponent if word >= 0 and word == self.exponent_word(tree, sequence, position, exponent) else -1

    def maximum_right(self, words: Sequence[int], tree: int, sequence: int) -> bool:
        """Return whether all words of a MAXIMUM chunk have matching codes, and each exponent is the same in both of its
        words.

        The first two words of an operation are sizes that only error messages use: they are negative and have no code.
        """
        count = exponents_per_packet(len(words))
        mark = self.exponent_of(tree, sequence, 2, words[2]) if count > 2 else -1
        for position in range(count):
            if position < 2 and mark >= MARK and words[position] < 0:
                continue
            exponent = self.exponent_of(tree, sequence, position, words[position])
            again = position + count
            if exponent < 0 or self.exponent_of(tree, sequence, again, words[again]) != exponent:
                return False
        return True


@lru_cache(maxsize=4096)
def _numbers(key: bytes, counter: int, stream: int, tree: int, kind: int) -> tuple[int, ...]:
    return tuple(block(key, counter, _CHUNKS | stream << 8, tree, kind))
