"""Finds the IPv4 addresses of this machine (of this network namespace) and the interfaces that hold them."""

from __future__ import annotations

import array
import fcntl
import re
import socket
import struct

from controlplane.common.agentconfig import AgentConfig, interfaces_in, link_key
from worker_agent.errors import AgentError

_SIOCGIFCONF = 0x8912
_IFREQ_BYTES = 40
_NAME_BYTES = 16
_SIOCGIFFLAGS = 0x8913
_IFF_UP, _IFF_RUNNING = 1, 0x40
LOOPBACK = "lo"


def addresses() -> dict[str, str]:
    """Return a mapping from address to interface for all interfaces that are up, including the loopback."""
    return dict(own_addresses())


def own_addresses() -> list[tuple[str, str]]:
    """Return every (address, interface) of interfaces that are up."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        room = 64
        while True:
            buffer = array.array("B", bytes(room * _IFREQ_BYTES))
            request = struct.pack("iL", len(buffer), buffer.buffer_info()[0])
            used = struct.unpack("iL", fcntl.ioctl(probe.fileno(), _SIOCGIFCONF, request))[0]
            if used < len(buffer):  # A full buffer may have left some interfaces out.
                break
            room *= 2
    found = []
    for start in range(0, used, _IFREQ_BYTES):
        entry = bytes(buffer[start : start + _IFREQ_BYTES])
        # A label such as eth0:1 names an address, not an interface.
        name = entry[:16].split(b"\0", 1)[0].decode().partition(":")[0]
        found.append((socket.inet_ntoa(entry[20:24]), name))
    return found


def check_interface(name: str) -> str:
    """Return in words what keeps packets from passing an interface, or "" when nothing is found.

    Raise AgentError, which lists the existing interfaces, when there is none with this name.
    """
    there = sorted(one for _, one in socket.if_nameindex())  # /sys may show another namespace's interfaces.
    if name not in there:
        raise AgentError(f"there is no interface {name!r} here (there are: {', '.join(there) or 'none'})")
    if not _flags(name) & _IFF_UP:
        return f"the interface {name} is down (ip link set {name} up)"
    if name not in (held for _, held in own_addresses()):
        return f"the interface {name} has no IPv4 address"
    return ""


def check_interfaces(names: str) -> str:
    """Return what `check_interface` finds for each of several interfaces ("eth0,eth1"), or "" for nothing."""
    return "; ".join(filter(None, map(check_interface, interfaces_in(names))))


def interfaces_of(config: AgentConfig, given: str | None) -> str:
    """Return the interfaces of an agent's links, separated by commas, in the order of its node's ports.

    Raise AgentError, which says what to give, where no interface has the node's address, or the node has more links
    than there are interfaces.

    Args:
        config: the agent's configuration.
        given: the interfaces that the user gave; None: all that have the node's address, in the order of their names.
    """
    names = interfaces_in(given) if given is not None else holding(config.address)
    if not names:
        there = ", ".join(f"{held} on {name}" for held, name in addresses().items()) or "none"
        raise AgentError(
            f"no interface here has the node's address {config.address} (there are: {there}); give --interface"
        )
    if len(names) >= len(config.links):
        return ",".join(names)
    raise AgentError(
        f"{config.node} has {len(config.links)} links to the data network, to {', '.join(config.links)}: give their "
        f"interfaces in this order, --interface NAME,NAME; there is only {', '.join(names)}"
    )


def links_up(names: str) -> dict[str, float]:
    """Return, for a report to the controller, whether each of several interfaces has a cable that carries.

    Return nothing for a single interface: a node that has lost its only link cannot report that.
    """
    several = interfaces_in(names)
    return {link_key(link): float(_runs(name)) for link, name in enumerate(several)} if len(several) > 1 else {}


def _runs(name: str) -> bool:
    try:
        return _flags(name) & (_IFF_UP | _IFF_RUNNING) == _IFF_UP | _IFF_RUNNING
    except OSError:  # the interface has gone
        return False


def _flags(name: str) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack(f"{_IFREQ_BYTES}s", name.encode())
        (flags,) = struct.unpack_from("H", fcntl.ioctl(probe.fileno(), _SIOCGIFFLAGS, request), _NAME_BYTES)
    return int(flags)


def holding(address: str) -> list[str]:
    """Return the interfaces that hold an address, in the order of their names; the loopback where no other one does."""
    names = {name for held, name in own_addresses() if held == address}
    return sorted(names - {LOOPBACK} or names, key=_natural)


def _natural(name: str) -> list[tuple[int, str]]:
    """Return a key by which eth10 comes after eth9."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
