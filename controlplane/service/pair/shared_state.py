"""State that a leading controller keeps in the store: its jobs, the last epoch, and the secret of keys and labels."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from controlplane.service.epochs import EPOCH, SECRET, SECRET_BYTES, EpochStore, epoch_of
from controlplane.service.pair.leadership import Leadership
from controlplane.service.pair.store import StoreError, Value
from controlplane.service.state import StateFolder

JOBS = "jobs"
"""Name of the stored jobs; the epoch and the secret have the names of their files."""


class SharedState(StateFolder):
    """Keeps jobs in the store that controllers share, and the record and the journals in a folder of this controller.

    Where the store has no jobs yet, those of the folder are used, so that a network's only controller can become the
    first of several.
    """

    def __init__(self, path: Path, leadership: Leadership) -> None:
        super().__init__(path)
        self._leadership = leadership

    def _stored(self) -> bytes | None:
        there = self._leadership.store.read(JOBS)
        if not there.revision:
            return super()._stored()
        try:
            return zlib.decompress(there.content)
        except zlib.error as error:
            raise ValueError(f"the store's value {JOBS!r} is damaged: {error}") from None

    def _store(self, text: str) -> None:
        self._leadership.commit({JOBS: zlib.compress(text.encode())})


class SharedEpochs(EpochStore):
    """Keeps the last epoch and the secret in the store that controllers share.

    A store without a secret gets that of the folder. Of the epochs in the store and in the folder, the larger one is
    the last one. The folder's epoch follows the store's as far as the folder can be written.
    """

    def __init__(self, folder: Path, leadership: Leadership) -> None:
        super().__init__(folder)
        self._leadership = leadership

    def _stored_secret(self) -> bytes:
        return self._leadership.store.read(SECRET).content or super()._stored_secret()

    def _kept_secret(self) -> bytes:
        store = self._leadership.store
        there = store.read(SECRET)
        if not there.revision:
            self._leadership.commit({SECRET: super()._kept_secret()}, {SECRET: 0})
            there = store.read(SECRET)
        if len(there.content) != SECRET_BYTES:
            raise StoreError("the store's value for the network's secret is no secret")
        return there.content

    def _advance(self, rule: Callable[[int], int]) -> int:
        while True:
            there = self._leadership.store.read(EPOCH)
            epoch = self._within(rule(max(_epoch_in(there), self._of_folder())))
            if self._leadership.commit({EPOCH: str(epoch).encode()}, {EPOCH: there.revision}):
                break
            # Another job of this controller has begun an epoch meanwhile: `commit` raises if this one does not lead.
        with suppress(OSError):
            super()._advance(lambda last: max(last, epoch))
        self.last = max(self.last, epoch)
        return epoch

    def _of_folder(self) -> int:
        path = self.folder / EPOCH
        return epoch_of(path.read_bytes(), path) if path.exists() else 0


def _epoch_in(there: Value) -> int:
    """Return the epoch of the store; 0 if it has none. Raise OSError if it is damaged."""
    return epoch_of(there.content, f"the store's value {EPOCH!r}") if there.revision else 0
