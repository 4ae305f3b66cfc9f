"""Epoch numbers: 32 bits, strictly increasing over the life of a network, also across restarts of its controller; and
the secret of the network, from which the key of each epoch and the labels on the wire are derived."""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from controlplane.common.whole_file import replace_file
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
        """Return the stored secret; b"" if none was stored. Raise OSError if it is damaged."""
        path = self.folder / SECRET
        return _secret_of(path.read_bytes(), path) if path.exists() else b""

    def _secret(self) -> bytes:
        if not self._known:
            self._known = self._kept_secret()
        return self._known

    def _kept_secret(self) -> bytes:
        """Return the secret, which is drawn once and kept in a file that only this user can read. The file has its name
        only when it is complete, so that an empty one is damaged."""
        path = self.folder / SECRET
        if not path.exists():
            drawn = path.with_name(f"{SECRET}.{secrets.token_hex(8)}")
            replace_file(drawn, secrets.token_bytes(SECRET_BYTES))
            with suppress(FileExistsError):  # another process was faster
                os.link(drawn, path)
            drawn.unlink()
        return _secret_of(path.read_bytes(), path)

    def _within(self, epoch: int) -> int:
        """Return the epoch, if it fits into 32 bits; raise OSError otherwise."""
        if epoch > LAST_EPOCH:
            raise OSError(f"{self.folder}: epoch {epoch} does not fit in 32 bits: is the clock right?")
        return epoch

    def _advance(self, rule: Callable[[int], int]) -> int:
        path = self.folder / EPOCH
        path.parent.mkdir(parents=True, exist_ok=True)
        new = not path.exists()
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            text = file.read()
            epoch = self._within(rule(0 if new and not text else epoch_of(text, path)))
            # Epochs grow, so the new number covers the old one: the file is never empty, also after a power failure.
            file.seek(0)
            file.write(b"%d\n" % epoch)
            file.truncate()
            os.fsync(file.fileno())
        self.last = max(self.last, epoch)
        return epoch


def epoch_of(text: bytes, where: object) -> int:
    """Return the epoch that was stored in this place; raise OSError if it is damaged."""
    if not text.strip().isdigit():
        raise OSError(f"{where} does not hold an epoch but {text[:40]!r}: remove it")
    return int(text)


def _secret_of(content: bytes, where: object) -> bytes:
    """Return the secret that was stored in this place; raise OSError if it is damaged."""
    if len(content) != SECRET_BYTES:
        raise OSError(f"{where} does not hold a secret of {SECRET_BYTES} bytes: remove it, and a new one is drawn")
    return content
