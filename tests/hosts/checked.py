"""Makes packets as workers and roots of a rig do, with the check word that their words need."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from p4src.protocol import data_values, exponents_per_packet
from tests.model.checkword import Check


class Checked:
    """Makes check words for a job of this many workers.

    key: the epoch's (rigs without a controller have a key of zeros).
    """

    def __init__(self, workers: int, values: int, key: bytes = bytes(16)) -> None:
        self.check = Check(key, workers, values)
        self.data = data_values(values)

    def sent(self, data: Sequence[int], workers: Iterable[int], tree: int, sequence: int, kind: int = 0) -> list[int]:
        """Return a packet's words when these workers' contributions add up to `data`."""
        assert len(data) == self.data
        return [*data, signed(self.check.word(data, list(workers), tree, kind, sequence))]

    def exponents(self, exponents: Sequence[int], tree: int, sequence: int) -> list[int]:
        """Return a packet's words of a MAXIMUM chunk."""
        count = exponents_per_packet(self.data + 1)
        padded = [*exponents, *[0] * (count - len(exponents))]
        words = [self.check.exponent_word(tree, sequence, j, e) for j, e in enumerate([*padded, *padded])]
        return [*words, *[0] * (self.data + 1 - len(words))]

    def result(self, words: Sequence[int], tree: int, sequence: int, complete: int, kind: int = 0) -> list[int]:
        """Return the root's answer, given the sum of the contributions."""
        last = self.check.result(words[:-1], tree, kind, sequence, complete=complete)
        return [*words[:-1], signed(last)]


def signed(word: int) -> int:
    """Return 32 bits as a signed integer."""
    return (word + (1 << 31)) % (1 << 32) - (1 << 31)


def unsigned(words: Iterable[int]) -> tuple[int, ...]:
    """Return the words as 32 bits each."""
    return tuple(word % (1 << 32) for word in words)
