"""Epoch numbers: 32 bits, strictly increasing over the life of an installation, also across controller restarts."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

LAST_EPOCH = (1 << 32) - 1


def default_file() -> Path:
    """Where the last epoch is kept unless told otherwise: per user, for all jobs."""
    state = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    return Path(state) / "inart" / "epoch"


class EpochStore:
    """Hands out epochs: max(last + 1, seconds since 1970). The file has the last one.

    The clock alone would do as long as it never goes back and epochs are more than a second apart; the file alone as
    long as it is never lost. Both together need neither. Several controllers may share the file.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or default_file()

    def next(self) -> int:
        """A new epoch, stored before it is handed out. Raises OSError when the file cannot be written."""
        return self._advance(lambda last: max(last + 1, int(time.time())))

    def check(self) -> None:
        """Raises OSError when the file could not be written, or holds something else."""
        try:
            self._advance(lambda last: last)
        except OSError as error:
            if error.errno is None:
                raise
            words = f"the last epoch cannot be kept in {self.path}: {error.strerror}; another place: --epoch-file FILE"
            raise OSError(words) from None

    def adopt(self, epoch: int) -> None:
        """An epoch that agents already run: later ones are larger."""
        self._advance(lambda last: max(last, epoch))

    def _advance(self, rule) -> int:  # type: ignore[no-untyped-def]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            text = file.read().strip()
            if text and not text.isdigit():
                raise OSError(f"{self.path} does not hold an epoch but {text[:40]!r}: remove it")
            epoch = rule(int(text or 0))
            if epoch > LAST_EPOCH:
                raise OSError(f"{self.path}: epoch {epoch} does not fit in 32 bits: is the clock right?")
            file.truncate(0)
            file.write(f"{epoch}\n")
            file.flush()
            os.fsync(file.fileno())
        return epoch
