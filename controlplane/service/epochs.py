"""Epoch numbers: 32 bits, strictly increasing over the life of an installation, also across restarts of the controller;
and the secret of the installation, from which the key of each epoch and the labels on the wire are derived."""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from controlplane.common.whole_file import state_home
from controlplane.targets.secret_labels import SecretLabels

LAST_EPOCH = (1 << 32) - 1
SECRET_BYTES = 32


def default_file() -> Path:
    """Return the file that keeps the last epoch of all jobs of this user, unless another one is given."""
    return state_home() / "epoch"


class EpochStore:
    """Hands out epochs: max(last + 1, seconds since 1970). Its file has the last one.

    The clock alone would be enough as long as it never goes back and epochs are more than a second apart; the file
    alone, as long as it is never lost. Together they need neither. Several controllers may share the file.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or default_file()

    def next(self) -> int:
        """Return a new epoch, which is stored before. Raise OSError where the file cannot be written."""
        return self._advance(lambda last: max(last + 1, int(time.time())))

    def check(self) -> None:
        """Check that the file can be written and holds an epoch; raise OSError otherwise."""
        try:
            self._advance(lambda last: last)
            self._secret()
        except OSError as error:
            if error.errno is None:
                raise
            words = f"the last epoch cannot be kept in {self.path}: {error.strerror}; another place: --epoch-file FILE"
            raise OSError(words) from None

    def adopt(self, epoch: int) -> None:
        """Take note of an epoch that agents already run, so that later ones are larger."""
        self._advance(lambda last: max(last, epoch))

    def key(self, epoch: int) -> str:
        """Return the key of an epoch, with which its agents check all sums: 32 hexadecimal digits, the same after a
        restart of the controller. Raise OSError where the secret can neither be read nor stored."""
        return self._derived("epoch", epoch, 16)

    def labels(self) -> SecretLabels:
        """Return the labels that switches and agents get in the place of the numbers that rules have: the same after a
        restart of the controller. Raise OSError where the secret can neither be read nor stored."""
        return SecretLabels(bytes.fromhex(self._derived("labels", 0, 32)))

    def _derived(self, purpose: str, number: int, size: int) -> str:
        text = f"{purpose} {number}".encode()
        return hashlib.blake2b(text, digest_size=size, key=self._secret()).hexdigest()

    def _secret(self) -> bytes:
        """Return the secret, which is drawn once and kept beside the last epoch, in a file that only this user can
        read."""
        path = self.path.with_name(f"{self.path.name}.secret")
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            secret = file.read()
            if not secret:
                secret = secrets.token_bytes(SECRET_BYTES)
                file.write(secret)
                file.flush()
                os.fsync(file.fileno())
        if len(secret) != SECRET_BYTES:
            raise OSError(f"{path} does not hold a secret of {SECRET_BYTES} bytes: remove it, and a new one is drawn")
        return secret

    def _within(self, epoch: int) -> int:
        """Return the epoch, if it fits into 32 bits; raise OSError otherwise."""
        if epoch > LAST_EPOCH:
            raise OSError(f"{self.path}: epoch {epoch} does not fit in 32 bits: is the clock right?")
        return epoch

    def _advance(self, rule: Callable[[int], int]) -> int:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path, "a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            text = file.read().strip()
            if text and not text.isdigit():
                raise OSError(f"{self.path} does not hold an epoch but {text[:40]!r}: remove it")
            epoch = self._within(rule(int(text or 0)))
            file.truncate(0)
            file.write(f"{epoch}\n")
            file.flush()
            os.fsync(file.fileno())
        return epoch
