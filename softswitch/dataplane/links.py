"""Watches whether Linux interfaces are up, and reports changes and interfaces that are made again (rtnetlink)."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass

from softswitch.errors import SoftswitchError

SIOCGIFFLAGS = 0x8913
IFF_UP, IFF_RUNNING = 0x1, 0x40
RTMGRP_LINK = 1
RTM_NEWLINK, RTM_DELLINK = 16, 17
HEADER = struct.Struct("=IHHII")  # struct nlmsghdr: length, type, flags, sequence number, port id
IFINFO = struct.Struct("=BxHiII")  # struct ifinfomsg: family, type, index, flags, change
ATTRIBUTE = struct.Struct("=HH")  # struct rtattr: length, type
IFLA_IFNAME = 3


@dataclass(frozen=True)
class Change:
    """A change of one interface that the kernel reports: its index, its name, and whether it exists (again)."""

    index: int
    name: str
    there: bool


def is_up(interface: str, index: int) -> bool:
    """Return whether the interface of this name still has this index, is up and has a carrier."""
    request = struct.pack("16sH14x", interface.encode(), 0)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            if socket.if_nametoindex(interface) != index:
                return False
            _, flags = struct.unpack("16sH14x", fcntl.ioctl(probe, SIOCGIFFLAGS, request))
        except OSError:
            return False  # it is gone
    return flags & IFF_UP != 0 and flags & IFF_RUNNING != 0


class LinkMonitor:
    """A monitor that calls ``changed`` with each change of an interface that the kernel reports, from its own thread.

    It calls ``changed(None)`` if reports were lost, so that any interface may have changed.
    """

    def __init__(self, changed: Callable[[Change | None], None]) -> None:
        self._changed = changed
        try:
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
            self._socket.bind((0, RTMGRP_LINK))
        except OSError as error:
            raise SoftswitchError(f"cannot watch interfaces: {error.strerror}") from error
        self._end = os.eventfd(0, os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="softswitch-links", daemon=True)
        self._thread.start()

    def close(self) -> None:
        os.eventfd_write(self._end, 1)
        if threading.current_thread() is not self._thread:
            self._thread.join()
        self._socket.close()
        os.close(self._end)

    def _run(self) -> None:
        while True:
            ready, _, _ = select.select([self._socket.fileno(), self._end], [], [])
            if self._end in ready:
                return
            try:
                data = self._socket.recv(1 << 16)
            except OSError as error:
                if error.errno == errno.ENOBUFS:
                    self._changed(None)
                continue
            for change in changes(data):
                self._changed(change)


def changes(data: bytes) -> list[Change]:
    """Return the changes of interfaces in rtnetlink messages."""
    found: list[Change] = []
    at = 0
    while at + HEADER.size <= len(data):
        length, kind, *_ = HEADER.unpack_from(data, at)
        if length < HEADER.size or at + length > len(data):
            break
        if kind in (RTM_NEWLINK, RTM_DELLINK) and length >= HEADER.size + IFINFO.size:
            index = IFINFO.unpack_from(data, at + HEADER.size)[2]
            name = _name(data[at + HEADER.size + IFINFO.size : at + length])
            found.append(Change(index, name, kind == RTM_NEWLINK))
        at += (length + 3) & ~3
    return found


def _name(attributes: bytes) -> str:
    """Return the interface's name from the attributes of a message about it; "" if it has none."""
    at = 0
    while at + ATTRIBUTE.size <= len(attributes):
        length, kind = ATTRIBUTE.unpack_from(attributes, at)
        if length < ATTRIBUTE.size:
            break
        if kind == IFLA_IFNAME:
            return attributes[at + ATTRIBUTE.size : at + length].rstrip(b"\0").decode(errors="replace")
        at += (length + 3) & ~3
    return ""
