"""Listens at all addresses of a machine, both IPv4 and IPv6, where an operator writes the host "::"."""

from __future__ import annotations

import ipaddress
import socket

ALL = "::"
"""Host that stands for all addresses of a machine, of both kinds."""


def listener(port: int) -> socket.socket:
    """Return a socket that listens at this port of all IPv4 and IPv6 addresses (port 0: any free one).

    Python's servers refuse IPv4 at "::" (asyncio), or accept it or not as the kernel is set (net.ipv6.bindv6only).
    Raise OSError where the port is not free, or this machine has no IPv6.
    """
    return socket.create_server((ALL, port), family=socket.AF_INET6, dualstack_ipv6=True)


def plain(host: str) -> str:
    """Return the address of a peer; an IPv4 address as a dual-stack socket shows it (::ffff:10.0.0.1) becomes IPv4:
    a machine without IPv6 could not connect to it otherwise.
    """
    try:
        mapped = ipaddress.IPv6Address(host.partition("%")[0]).ipv4_mapped
    except ValueError:
        return host
    return host if mapped is None else str(mapped)
