"""Measures frames through one device without ports, on one thread: parser, table and deparser (``lookups.c``)."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from pathlib import Path

from evaluation.softswitch.bench import compiled
from softswitch import Device
from softswitch.dataplane import native

SOURCE = Path(__file__).with_name("lookups.c")


@functools.cache
def library() -> ctypes.CDLL:
    """Return ``lookups.c``, compiled."""
    loaded = ctypes.CDLL(str(compiled(SOURCE, "-shared", "-fPIC")))
    loaded.run.restype = ctypes.c_uint64
    return loaded


def frames_per_second(device: Device, frames: Sequence[bytes], seconds: float) -> tuple[float, int]:
    """Return (frames of one length that the device processes per CPU second, how many of them it did not answer)."""
    process = ctypes.cast(native.library().ss_process, ctypes.c_void_p)
    answered = ctypes.c_uint64()
    done = library().run(
        process, ctypes.c_void_p(device.native), b"".join(frames), len(frames), len(frames[0]),
        ctypes.c_uint64(int(seconds * 1e9)), ctypes.byref(answered),
    )  # fmt: skip
    return done / seconds, done - answered.value
