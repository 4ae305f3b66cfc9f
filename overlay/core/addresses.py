"""Parse addresses: HOST:PORT, or [HOST]:PORT for IPv6."""

from __future__ import annotations

import argparse


def parse_address(text: str) -> tuple[str, int]:
    """Return the address in HOST:PORT, or in [HOST]:PORT for IPv6. Raise ValueError for another text."""
    host, _, port = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not host or "," in host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is not HOST:PORT")
    return host, int(port)


def written(at: tuple[str, int]) -> str:
    """Return the text of an address, HOST:PORT or [HOST]:PORT, which `parse_address` reads."""
    host, port = at
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def address(text: str) -> tuple[str, int]:
    """Return the address in HOST:PORT, or in [HOST]:PORT for IPv6, for argparse."""
    try:
        return parse_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
