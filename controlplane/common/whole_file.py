"""Replaces files so that they have either the old content or the new, never a part, also when the machine stops
meanwhile."""

from __future__ import annotations

import os
from pathlib import Path


def replace_file(path: Path, content: bytes, mode: int = 0o600, *, synced: bool = True) -> None:
    """Replace a file's content. Raise OSError where that fails; the file has its old content then.

    `mode` is that of the new file, from its first moment on. With `synced`, the content is on the disk before it has
    the file's name; without, it may be lost when the machine stops.
    """
    new = path.with_name(f"{path.name}.new")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode), "wb") as file:
        file.write(content)
        if synced:
            file.flush()
            os.fsync(file.fileno())
    new.replace(path)
