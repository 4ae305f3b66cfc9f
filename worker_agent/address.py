"""Finds the IPv4 addresses of this machine (of this network namespace) and the interfaces that hold them."""

from __future__ import annotations

import array
import fcntl
import socket
import struct

from worker_agent.errors import AgentError

_SIOCGIFCONF = 0x8912
_IFREQ_BYTES = 40
_NAME_BYTES = 16
_SIOCGIFFLAGS = 0x8913
_IFF_UP = 1


def addresses() -> dict[str, str]:
    """Return address -> interface for all interfaces that are up, including the loopback."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        room = 64
        while True:
            buffer = array.array("B", bytes(room * _IFREQ_BYTES))
            request = struct.pack("iL", len(buffer), buffer.buffer_info()[0])
            used = struct.unpack("iL", fcntl.ioctl(probe.fileno(), _SIOCGIFCONF, request))[0]
            if used < len(buffer):  # A full buffer may have left some interfaces out.
                break
            room *= 2
    found = {}
    for start in range(0, used, _IFREQ_BYTES):
        entry = bytes(buffer[start : start + _IFREQ_BYTES])
        # A label such as eth0:1 names an address, not an interface.
        name = entry[:16].split(b"\0", 1)[0].decode().partition(":")[0]
        found[socket.inet_ntoa(entry[20:24])] = name
    return found


def check_interface(name: str) -> str:
    """Return in words what keeps packets from passing an interface, or "" when nothing is found.

    Raises AgentError that lists the existing interfaces when there is none with this name.
    """
    there = sorted(one for _, one in socket.if_nameindex())  # /sys may show another namespace's interfaces.
    if name not in there:
        raise AgentError(f"there is no interface {name!r} here (there are: {', '.join(there) or 'none'})")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        request = struct.pack(f"{_IFREQ_BYTES}s", name.encode())
        (flags,) = struct.unpack_from("h", fcntl.ioctl(probe.fileno(), _SIOCGIFFLAGS, request), _NAME_BYTES)
    if not flags & _IFF_UP:
        return f"the interface {name} is down (ip link set {name} up)"
    if name not in addresses().values():
        return f"the interface {name} has no IPv4 address"
    return ""


def interface_of(address: str) -> str:
    """Return the interface that holds an address. Raises AgentError that lists the existing addresses."""
    found = addresses()
    if address not in found:
        there = ", ".join(f"{held} on {name}" for held, name in found.items()) or "none"
        raise AgentError(f"no interface here has the node's address {address} (there are: {there}); give --interface")
    return found[address]
