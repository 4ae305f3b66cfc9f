"""A model of sums that nobody but the workers sees: pairwise masks that cancel in the switches' additions.

    python -m evaluation.secure_sums [--workers 8] [--values 1000000] [--partners 6] [--repeat 5] [--json]

docs/notes/secure-sums.md says what it shows and what it leaves out. Prints what masks cost: nanoseconds of CPU a value,
with a mask for every other worker and with `--partners` of them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

Words = npt.NDArray[np.uint32]

KEY_BYTES = 32


def partners(worker: int, members: Sequence[int], number: int) -> list[int]:
    """Return the members with whom a worker shares masks: its neighbours in a ring of all, `number` of them (even), or
    all others if those are fewer. It is mutual."""
    place, count = members.index(worker), len(members)
    if number >= count - 1:
        return [other for other in members if other != worker]
    steps = range(1, number // 2 + 1)
    return sorted({members[(place + step * side) % count] for step in steps for side in (1, -1)})


@dataclass(frozen=True)
class Operation:
    """Operation that a mask belongs to. No two operations with other values may have the same one: what remained of a
    mask that is used twice is the difference of the values. members: the workers of the epoch."""

    epoch: int
    number: int
    members: tuple[int, ...]


class Worker:
    """A worker with a key pair that lasts as long as the process; only the public half leaves it."""

    def __init__(self, number: int, most_partners: int = 1 << 30) -> None:
        self.number = number
        self._private = X25519PrivateKey.generate()
        self._most_partners = most_partners
        self._used: dict[tuple[int, int], bytes] = {}

    @property
    def public(self) -> bytes:
        """Return what the other workers need of it."""
        return self._private.public_key().public_bytes_raw()

    def send(self, operation: Operation, values: npt.NDArray[np.int32], publics: Mapping[int, bytes]) -> Words:
        """Return the values with the masks of the operation.

        Raises ValueError if this operation has had other values: sending them would show the difference.
        """
        same = hashes.Hash(hashes.SHA256())
        same.update(values.tobytes())
        digest = same.finalize()
        if self._used.setdefault((operation.epoch, operation.number), digest) != digest:
            raise ValueError(f"operation {operation.number} of epoch {operation.epoch} has had other values")
        masked = values.astype(np.uint32)
        for other in partners(self.number, operation.members, self._most_partners):
            mask = self._mask(operation, publics[other], len(values))
            masked = masked + mask if self.number < other else masked - mask
        return masked

    def _mask(self, operation: Operation, public: bytes, length: int) -> Words:
        """Return the words that only this worker and the owner of the public key can compute."""
        shared = self._private.exchange(X25519PublicKey.from_public_bytes(public))
        info = f"inart mask {operation.epoch} {operation.number} {operation.members}".encode()
        key = HKDF(hashes.SHA256(), KEY_BYTES, None, info).derive(shared)
        stream = Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor()
        return np.frombuffer(stream.update(bytes(4 * length)), np.uint32)


def added(parts: Iterable[Words]) -> Words:
    """Add as switches and the root do: words of 32 bits that wrap, in any order and grouping."""
    total: Words | None = None
    for part in parts:
        total = part.copy() if total is None else total + part
    assert total is not None, "something is added"
    return total


def seconds(workers: int, values: int, number: int, repeat: int) -> float:
    """Return the median CPU time that one of the workers takes to mask so many values."""
    everyone = [Worker(one, number) for one in range(workers)]
    publics = {one.number: one.public for one in everyone}
    given = np.arange(values, dtype=np.int32)
    taken = []
    for turn in range(repeat):
        began = time.process_time()
        everyone[0].send(Operation(1, turn, tuple(range(workers))), given, publics)
        taken.append(time.process_time() - began)
    return statistics.median(taken)


def main(arguments: list[str] | None = None) -> int:
    """Command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m evaluation.secure_sums",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--workers", type=int, default=8, help="(%(default)s)")
    parser.add_argument("--values", type=int, default=1_000_000, help="of an operation (%(default)s)")
    parser.add_argument("--partners", type=int, default=6, help="with whom each shares masks (%(default)s)")
    parser.add_argument("--repeat", type=int, default=5, help="of which the median counts (%(default)s)")
    parser.add_argument("--json", action="store_true", help="one object on stdout")
    options = parser.parse_args(arguments)
    found = {
        name: 1e9 * seconds(options.workers, options.values, number, options.repeat) / options.values
        for name, number in (("all", options.workers - 1), ("partners", options.partners))
    }
    if options.json:
        print(json.dumps({"workers": options.workers, "partners": options.partners, "ns_per_value": found}))
    else:
        print(f"{found['all']:.2f} ns a value with {options.workers - 1} masks, {found['partners']:.2f} with", end=" ")
        print(min(options.partners, options.workers - 1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
