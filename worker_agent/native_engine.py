"""Loads the agents' C engines (native/ has their common part), and checks that their structures are Python's."""

from __future__ import annotations

import ctypes
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from controlplane.common.agentconfig import AgentConfig
from controlplane.common.native_build import ENGINES, BuildError, Sources, check_sizes, load
from worker_agent.checkword import KEY_BYTES
from worker_agent.errors import AgentError

NATIVE = Path(__file__).resolve().parent / "native"


def load_engine(
    sources: Sources, sizes: str, structures: Sequence[type[ctypes.Structure]], options: Sequence[str] = ENGINES
) -> ctypes.CDLL:
    """Compile and load the engine of these C files. Raise AgentError where it cannot be compiled, or a structure
    differs.

    Args:
        sources: the C files.
        sizes: name of the engine's table of the sizes of `structures`.
        structures: the structures that it shares with Python.
        options: options of the compiler.
    """
    try:
        library = load(sources, include=[NATIVE], options=options)
        check_sizes(library, sizes, structures)
    except BuildError as error:
        raise AgentError(str(error)) from error
    return library


def key_bytes(config: AgentConfig) -> bytes:
    """Return the key of the configuration's epoch. Raise ValueError where it is no key."""
    try:
        key = bytes.fromhex(config.key) if config.key else bytes(KEY_BYTES)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        raise ValueError(f"the configuration of {config.node} has a key that is not {2 * KEY_BYTES} hexadecimal digits")
    return key


def native_key(config: AgentConfig) -> ctypes.Array[ctypes.c_uint8]:
    """Return the key of the configuration's epoch as the C engines take it. Raise ValueError where it is no key."""
    return (ctypes.c_uint8 * KEY_BYTES).from_buffer_copy(key_bytes(config))


def native_sources(config: AgentConfig) -> ctypes.Array[ctypes.c_uint32]:
    """Return the addresses that packets may come from, as the C engines take them. Raise ValueError for others than
    IPv4.
    """
    addresses = [int(ipaddress.IPv4Address(address)) for address in config.sources]
    return (ctypes.c_uint32 * len(addresses))(*addresses)
