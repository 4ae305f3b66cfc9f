"""Files that are replaced, so that they have either the old content or the new, never a part, also when the machine
stops meanwhile; and values that are made again when files were replaced."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

Made = TypeVar("Made")


def replace_file(path: Path, content: bytes, mode: int = 0o600, *, synced: bool = True) -> None:
    """Replace a file's content; make its folder where there is none. Raise OSError where that fails; the file has its
    old content then.

    `mode` is that of the new file, from its first moment on. With `synced`, the content is on the disk before it has
    the file's name; without, it may be lost when the machine stops.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.new")
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            if synced:
                file.flush()
                os.fsync(file.fileno())
        new.replace(path)
    except BaseException:  # A full disk is not to hold the part that it had room for.
        with contextlib.suppress(OSError):
            new.unlink()
        raise


def state_home() -> Path:
    """Return the folder in which programs of this user keep their state."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "inart"


class Fresh(Generic[Made]):
    """A value that `make` makes of files, and makes again when the files have changed. Thread-safe.

    As long as the present files cannot be used (half of a new pair, for instance), the previous value stays, and
    `refused` gets the error, once for each change. The first `make` may raise.
    """

    def __init__(self, files: Sequence[Path], make: Callable[[], Made], refused: Callable[[Exception], object]) -> None:
        self._files, self._make, self._refuse = files, make, refused
        self._lock = threading.Lock()
        self._stamps = self._look()
        self._made = make()
        self._refused: object = None

    def _look(self) -> object:
        """Return a value that changes when a file is replaced or written."""
        found = [os.stat(file) for file in self._files]
        return tuple((one.st_dev, one.st_ino, one.st_mtime_ns, one.st_size) for one in found)

    def now(self) -> Made:
        self.renewed()
        return self._made

    def renewed(self) -> Made | None:
        """Return the value if the files have changed since the last call, and otherwise None."""
        with self._lock:
            stamps: object = None
            try:
                stamps = self._look()
                if stamps == self._stamps:
                    return None
                self._made, self._stamps = self._make(), stamps
            except (ValueError, OSError) as error:
                if (stamps or type(error)) != self._refused:
                    self._refused = stamps or type(error)
                    self._refuse(error)
                return None
            return self._made
