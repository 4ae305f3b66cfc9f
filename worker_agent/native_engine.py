"""Loads the agents' C engines (their common headers are in native/), compared with what Python takes them for."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path

from controlplane.native_build import BuildError, check_sizes, load
from worker_agent.errors import AgentError

NATIVE = Path(__file__).resolve().parent / "native"


def load_engine(source: Path, sizes: str, structures: Sequence[type[ctypes.Structure]]) -> ctypes.CDLL:
    """The engine of one C file. sizes: its table of the sizes of `structures`, which it shares with Python. Raises
    AgentError: it cannot be compiled, or a structure differs."""
    try:
        library = load(source, include=[NATIVE])
        check_sizes(library, sizes, structures)
    except BuildError as error:
        raise AgentError(str(error)) from error
    return library
