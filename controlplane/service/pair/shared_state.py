"""State that a leading controller keeps in the store: its jobs, the last epoch, and the secret of keys and labels."""

from __future__ import annotations

import secrets
import zlib
from collections.abc import Callable
from pathlib import Path

from controlplane.service.epochs import SECRET_BYTES, EpochStore
from controlplane.service.pair.leadership import Leadership
from controlplane.service.pair.store import StoreError
from controlplane.service.state import StateFolder

JOBS, EPOCH, SECRET = "jobs", "epoch", "secret"


class SharedState(StateFolder):
    """Keeps jobs in the store that controllers share, and the record and the journals in a folder of this controller.

    Where the store has no jobs yet, those of the folder are used, so that a network's only controller can become the
    first of several.
    """

    def __init__(self, path: Path, leadership: Leadership) -> None:
        super().__init__(path)
        self._leadership = leadership

    def _stored(self) -> str:
        there = self._leadership.store.read(JOBS)
        return zlib.decompress(there.content).decode() if there.revision else super()._stored()

    def _store(self, text: str) -> None:
        self._leadership.commit({JOBS: zlib.compress(text.encode())})


class SharedEpochs(EpochStore):
    """Keeps the last epoch and the secret in the store that controllers share; at first it takes them from the file."""

    def __init__(self, path: Path | None, leadership: Leadership) -> None:
        super().__init__(path)
        self._leadership = leadership
        self._known = b""

    def _secret(self) -> bytes:
        if self._known:
            return self._known
        store = self._leadership.store
        there = store.read(SECRET)
        if not there.revision:
            kept = self.path.with_name(f"{self.path.name}.secret")
            own = kept.read_bytes() if kept.exists() else secrets.token_bytes(SECRET_BYTES)
            self._leadership.commit({SECRET: own}, {SECRET: 0})
            there = store.read(SECRET)
        if len(there.content) != SECRET_BYTES:
            raise StoreError("the store's value for the network's secret is no secret")
        self._known = there.content
        return self._known

    def _advance(self, rule: Callable[[int], int]) -> int:
        while True:
            there = self._leadership.store.read(EPOCH)
            last = int(there.content or b"0") if there.revision else self._of_file()
            epoch = self._within(rule(last))
            if self._leadership.commit({EPOCH: str(epoch).encode()}, {EPOCH: there.revision}):
                return epoch
            # Another job of this controller has begun an epoch meanwhile: `commit` raises if this one does not lead.

    def _of_file(self) -> int:
        text = self.path.read_text().strip() if self.path.exists() else ""
        return int(text) if text.isdigit() else 0
