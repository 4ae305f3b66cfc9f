"""Epoch numbers: 32 bits, strictly increasing over the life of a network, also across restarts of its controller; and
the secret of the network, from which the key of each epoch and the labels on the wire are derived."""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from controlplane.targets.secret_labels import SecretLabels

LAST_EPOCH = (1 << 32) - 1
SECRET_BYTES = 32
EPOCH, SECRET = "epoch", "secret"
"""Names of the files in the state folder."""


class EpochStore:
    """Hands out epochs: max(last + 1, seconds since 1970). The last one and the secret are files of the state folder.

    The clock alone would be enough as long as it never goes back and epochs are more than a second apart; the file
    alone, as long as it is neither lost nor replaced by an old copy. Together they need neither. Several processes may
    share the folder.

    Attributes:
        last: last epoch that this process has seen; 0 before `check` and the first epoch.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.last = 0
        self._known = b""

    def next(self) -> int:
        """Return a new epoch, which is stored before. Raise OSError where the file cannot be written."""
        return self._advance(lambda last: max(last + 1, int(time.time())))

    def check(self, at_least: int = 0) -> None:
        """Check that the epoch and the secret can be kept, and let later epochs be larger than `at_least`, too. Raise
        OSError if they cannot be kept."""
        try:
            self.adopt(at_least)
            self._secret()
        except OSError as error:
            if error.errno is None:
                raise
            words = f"the last epoch cannot be kept in {self.folder}: {error.strerror}; another place: --state DIR"
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

    def fingerprint(self) -> str:
        """Return 16 hexadecimal digits that tell this secret from others and do not reveal it. Raise OSError where the
        secret can neither be read nor stored."""
        return self._derived("fingerprint", 0, 8)

    def has_secret(self) -> bool:
        """Return whether there is a secret already. Raise OSError where that cannot be found out."""
        return bool(self._known or self._stored_secret())

    def _derived(self, purpose: str, number: int, size: int) -> str:
        text = f"{purpose} {number}".encode()
        return hashlib.blake2b(text, digest_size=size, key=self._secret()).hexdigest()

    def _stored_secret(self) -> bytes:
        """Return the stored secret; b"" where there is none."""
        path = self.folder / SECRET
        return path.read_bytes() if path.exists() else b""

    def _secret(self) -> bytes:
        if not self._known:
            self._known = self._kept_secret()
        return self._known

    def _kept_secret(self) -> bytes:
        """Return the secret, which is drawn once and kept in a file that only this user can read."""
        path = self.folder / SECRET
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
            raise OSError(f"{self.folder}: epoch {epoch} does not fit in 32 bits: is the clock right?")
        return epoch

    def _advance(self, rule: Callable[[int], int]) -> int:
        path = self.folder / EPOCH
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            text = file.read().strip()
            if text and not text.isdigit():
                raise OSError(f"{path} does not hold an epoch but {text[:40]!r}: remove it")
            epoch = self._within(rule(int(text or 0)))
            file.truncate(0)
            file.write(f"{epoch}\n")
            file.flush()
            os.fsync(file.fileno())
        self.last = max(self.last, epoch)
        return epoch
