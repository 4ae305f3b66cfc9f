"""A device's ports: interfaces and links, shaping, recording, counters."""

from __future__ import annotations

import ctypes
import errno
import logging
from typing import Protocol

from softswitch.dataplane import links, native
from softswitch.dataplane.ports import MAX_PORTS, PortStats, check_port, interface_index, native_shape
from softswitch.dataplane.state import State
from softswitch.errors import InvalidValue, SoftswitchError

log = logging.getLogger(__name__)


class Owner(Protocol):
    """The services that a device needs from its fabric."""

    closed: bool
    staged: set[int]
    """The native devices that are staged."""

    def watch_links(self) -> None:
        """Tell devices, from now on, when one of their interfaces goes up or down, or is made again."""

    def unlink(self, device_id: int, port: int) -> None:
        """Forget the port's link, if it had one."""


class Ports(State):
    """The ports of a :class:`softswitch.dataplane.device.Device`."""

    def __init__(self, owner: Owner, device_id: int) -> None:
        super().__init__(device_id)
        self._owner = owner
        self._attached: dict[int, tuple[str, int] | None] = {}  # interface name and index by port; None for a link

    def add_port(self, port: int, interface: str, offload: bool = True, **shape: float) -> None:
        """Attach ``port`` (0..510) to a Linux interface; ``shape`` as in :meth:`.fabric.Fabric.shape`.

        With ``offload``, datagrams of one UDP flow may leave as one super-frame, which the receiver segments if it
        needs to. A UDP checksum of 0 may then become a correct one. This needs CAP_NET_RAW. If the interface is deleted
        and made again under the same name, the port uses the new one. Raise ``AlreadyExists`` if the port is in use.
        """
        check_port(port)
        wanted = native_shape(shape)
        try:
            self._owner.watch_links()
        except SoftswitchError as error:
            log.warning("port %d: %s: it is lost when its interface is made again", port, error)
        # The index is read before the interface is opened, so that one that is made again meanwhile is noticed.
        index = interface_index(interface)
        result = self._lib.ss_port_add(self.native, port, interface.encode(), offload)
        if result == -errno.ENODEV:
            raise InvalidValue(f"no interface {interface!r} here")
        if result in (-errno.EPERM, -errno.EACCES):
            raise SoftswitchError(f"may not open {interface!r}: run as root or with CAP_NET_RAW")
        self._check(result, f"port {port}")
        self.attach(port, (interface, index))
        if wanted is not None:
            self.apply_shape(port, wanted)

    def apply_shape(self, port: int, shape: native.Shape | None) -> None:
        """Shape the frames that leave a port; ``None`` ends shaping. :meth:`.fabric.Fabric.shape` describes the
        settings.
        """
        pointer = None if shape is None else ctypes.byref(shape)
        self._check(self._lib.ss_port_shape(self.native, port, pointer), f"port {port}")

    def link(self, port: int, peer: Ports, peer_port: int) -> None:
        """Make an in-memory link from a port of this device to a port of another, or of its own."""
        result = self._lib.ss_link(self.native, port, peer.native, peer_port)
        self._check(result, f"link {(self.device_id, port)} - {(peer.device_id, peer_port)}")
        self.attach(port, None)
        peer.attach(peer_port, None)

    def record(self, port: int, incoming: int, outgoing: int) -> None:
        """Write frames to two open files, which the device then owns; see :func:`.pcap.record`."""
        check_port(port)
        self._check(self._lib.ss_port_pcap(self.native, port, incoming, outgoing), f"port {port}")

    def remove_port(self, port: int) -> None:
        """Detach a port from its interface or link. Raise ``NotFound`` if it has neither."""
        self._check(self._lib.ss_port_remove(self.native, port), f"port {port}")
        self.detach(port)
        self._owner.unlink(self.device_id, port)

    def port_is_up(self, port: int) -> bool:
        """Return whether a port has a link, or an interface that is up and has a carrier."""
        if port not in self._attached:
            return False
        interface = self._attached[port]
        return interface is None or links.is_up(*interface)

    def attach(self, port: int, interface: tuple[str, int] | None) -> None:
        """Record that a port now has an interface (name, index), or a link."""
        self._attached[port] = interface
        self._port_changed(port)

    def detach(self, port: int) -> None:
        """Record that a port now has neither interface nor link."""
        self._attached.pop(port, None)
        self._port_changed(port)

    def link_changed(self, change: links.Change | None) -> None:
        """Handle that an interface (``None``: any) went up or down, or was made again."""
        for port, interface in list(self._attached.items()):
            if interface is None:
                continue
            if change is not None and change.name != interface[0] and change.index != interface[1]:
                continue
            try:
                self._follow(port, *interface)
                self._port_changed(port)
            except SoftswitchError as error:  # The fabric is being closed, or the interface is gone again.
                log.debug("port %d of device %d: %s", port, self.device_id, error)

    def _follow(self, port: int, interface: str, index: int) -> None:
        """Attach the port to the interface that has now its interface's name, if that is another one."""
        now = interface_index(interface)
        if now in (index, -1):
            return
        result = self._lib.ss_port_reopen(self.native, port)
        if result == -errno.ENODEV:
            return  # It vanished right away; there will be an event for the next one.
        self._check(result, f"port {port}")
        log.info("port %d of device %d: %s was made again, and is its interface again", port, self.device_id, interface)
        self._attached[port] = (interface, now)

    def _port_changed(self, port: int) -> None:
        for profile in list(self.profiles.values()):
            profile.port_changed(port)

    def port_stats(self) -> dict[int, PortStats]:
        """Return the counters of every port that was ever used."""
        names = native.drop_names()
        out = (ctypes.c_uint64 * (10 + len(names)))()
        stats: dict[int, PortStats] = {}
        for port in range(MAX_PORTS):
            if self._lib.ss_port_stats(self.native, port, out) == 0:
                drops = {name: n for name, n in zip(names, out[10:], strict=True) if n}
                stats[port] = PortStats(out[0], out[1], out[2], out[3], drops, *out[4:10])
        return stats
