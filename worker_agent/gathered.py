"""Small operations in one round: which operations they are, and how they are divided (native/gathered.h has the rest).

Each worker writes its values into words of its own in a chunk, and zeros into the others'; so the network's sum is the
values of all workers side by side. Each worker merges them by itself in the order of the workers: all get the same
bits, and the same again from the same inputs. No exponents have to be agreed first. Whether an operation is small
depends only on its size, the number of workers and the words of a packet, so all workers decide alike. docs/protocol.md
describes this in "Small operations".
"""

from __future__ import annotations

from worker_agent.collectives import Collective, Kind
from worker_agent.operands import item_bytes

MOST_PACKETS = 3
"""The most packets of data of a small operation. With the packet that describes the operation, this is what a worker
may send before it has had an answer on a tree. For larger operations, exchanging exponents first costs less than
sending W times the bytes.
"""
WORD_BYTES = 4


def gathered_words(how: Collective, dtype: str, elements: int, workers: int, data: int) -> int:
    """Return how many words each worker has in a chunk of `data` words for an operation on this many elements; 0 where
    the operation is not small.
    """
    if how.bits is not None or not elements:
        return 0
    words = data // columns(how, workers)
    words -= words % 2 if words > 1 else 0  # The words hold whole elements of 8 bytes.
    item = item_bytes(dtype)
    if WORD_BYTES * words < item:
        return 0
    nbytes = elements * item // (workers if how.kind is Kind.GATHER and how.in_parts else 1)
    return words if nbytes <= MOST_PACKETS * WORD_BYTES * words else 0


def columns(how: Collective, workers: int) -> int:
    """Return the number of contributors: all workers, or the source of a broadcast."""
    return workers if how.source < 0 else 1
