"""Copies of other projects' sources on this machine, for tests that run what these projects wrote."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest


def copy_in(variable: str, what: str, missing: Callable[[Path], str]) -> Path:
    """Return the folder that an environment variable names.

    Skips the test, with the reason, where the variable names none, or where `missing` says why its content cannot be
    used.
    """
    folder = os.environ.get(variable)
    if folder is None:
        pytest.skip(f"{variable} names no copy of {what}")
    if why := missing(Path(folder)):
        pytest.skip(why)
    return Path(folder)
