"""Reads addresses as people write them: HOST:PORT, and [HOST]:PORT for IPv6."""

from __future__ import annotations

import argparse


def parse_address(text: str) -> tuple[str, int]:
    """Return the address in HOST:PORT, or in [HOST]:PORT for IPv6. Raise ValueError for another text."""
    host, _, port = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{text!r} is not HOST:PORT")
    return host, int(port)


def parse_addresses(text: str) -> tuple[tuple[str, int], ...]:
    """Return the addresses in HOST:PORT, or several with commas. Raise ValueError for another text."""
    return tuple(parse_address(each.strip()) for each in text.split(","))


def address(text: str) -> tuple[str, int]:
    """Return the address in HOST:PORT, or in [HOST]:PORT for IPv6, for argparse."""
    try:
        return parse_address(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
