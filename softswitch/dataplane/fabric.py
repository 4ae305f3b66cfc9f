"""A fabric: all devices of this process, their threads, and the links between them."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from types import TracebackType

from softswitch.dataplane import links, native
from softswitch.dataplane.device import Device
from softswitch.dataplane.ports import check_port, native_shape
from softswitch.errors import AlreadyExists, InvalidValue, NoSuchObject, SoftswitchError

log = logging.getLogger(__name__)


class Fabric:
    """All devices of this process, their threads and the links between them.

    ``threads`` data-plane threads share the devices among them, and the ports of a device if there are more threads
    than devices; even then a packet is one atomic step to all others of its device. ``seed`` makes injected faults and
    ``random()`` repeatable. A fabric is also a context manager; :meth:`close` frees everything.
    """

    def __init__(self, threads: int = 1, seed: int = 0) -> None:
        if threads < 1:
            raise InvalidValue(f"{threads} threads")
        self._lib = native.library()
        handle = self._lib.ss_fabric_new(threads, seed & (1 << 64) - 1)
        if not handle:
            raise SoftswitchError("cannot make a fabric: out of memory or file descriptors")
        self._handle: int | None = handle
        self.closed = False
        self.devices: dict[int, Device] = {}
        self.staged: set[int] = set()
        self._links: dict[tuple[int, int], tuple[int, int]] = {}  # (device, port) -> the other end
        self._monitor: links.LinkMonitor | None = None
        self._events = threading.Thread(target=self._dispatch, args=(handle,), name="softswitch-events", daemon=True)
        self._events.start()

    def __enter__(self) -> Fabric:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def add_device(self, device_id: int, cpu_port: int | None = None, priority_queues: int = 1) -> Device:
        """Add a switch without a program.

        Its shaped ports have ``priority_queues`` queues each, of which the line serves the highest first; packets of
        priority ``priority_queues`` and above are dropped.
        """
        if self.closed:
            raise SoftswitchError("the fabric is closed")
        if device_id in self.devices:
            raise AlreadyExists(f"device {device_id} is already there")
        if not 0 <= device_id < 1 << 48:
            raise InvalidValue(f"device id {device_id} is not in 0..2^48-1")
        if cpu_port is not None:
            check_port(cpu_port)
        if not 1 <= priority_queues <= native.CLASSES:
            raise InvalidValue(f"{priority_queues} priority queues: there may be 1 to {native.CLASSES}")
        handle = self._lib.ss_device_new(self._handle, device_id, -1 if cpu_port is None else cpu_port)
        if not handle:
            raise SoftswitchError("out of memory")
        self._lib.ss_device_priorities(handle, priority_queues)
        device = Device(self, handle, device_id, cpu_port)
        self.devices[device_id] = device
        return device

    def _device(self, device_id: int) -> Device:
        device = self.devices.get(device_id)
        if device is None:
            raise NoSuchObject(f"no device {device_id}")
        return device

    def connect(self, a: tuple[int, int], b: tuple[int, int], **shape: float) -> None:
        """Make an in-memory link between (device, port) and (device, port); ``shape`` applies to both directions."""
        (first, port_a), (second, port_b) = (self._device(a[0]), a[1]), (self._device(b[0]), b[1])
        check_port(port_a)
        check_port(port_b)
        wanted = native_shape(shape)
        first.link(port_a, second, port_b)
        self._links[a], self._links[b] = b, a
        if wanted is not None:
            first.apply_shape(port_a, wanted)
            second.apply_shape(port_b, wanted)

    def unlink(self, device_id: int, port: int) -> None:
        """Forget the port's link, if it had one, at both ends."""
        peer = self._links.pop((device_id, port), None)
        if peer is not None:
            self._links.pop(peer, None)
            self.devices[peer[0]].detach(peer[1])

    def shape(self, device_id: int, port: int, **shape: float) -> None:
        """Shape the frames that leave ``port`` from now on; without arguments, stop shaping them.

        Args:
            rate_mbps: the line's rate in Mbit/s of frame bytes.
            burst_bytes: how far ahead of the line's schedule a frame may leave (0: back to back at the rate).
            queue_bytes (default 256 KiB), queue_packets: limit of the queue for the line; further frames are dropped.
            ecn_packets: an IPv4 packet that may be marked (ECT) and finds so many waiting in its queue is marked (CE);
                0: none.
            class0_mbps to class7_mbps: the rate of the frames of that priority, where the device has several priority
                queues (each with those limits).
            dscp_classes: 1: the port has eight queues, and an IPv4 packet that the program gives no priority has that
                of its DSCP (its three highest bits, RFC 2474's class selector).
            ahead_bytes: frames of at most this size without TCP data overtake all frames that wait.
            delay_ms, jitter_ms: propagation delay, plus or minus a jitter that is drawn uniformly; frames stay in
                order.
            loss, duplicate, reorder: probabilities; a reordered frame is held back by reorder_ms (default 1) more, and
                later frames overtake it.
            corrupt: probability that a random bit of a random byte of the frame flips.
            corrupt_every: flip a bit in each so-many-th frame (0: none).
            corrupt_from, corrupt_until: the range of bytes to flip in (until 0: the frame's end); frames that end
                before it are left alone.
            corrupt_udp: 1: only UDP over IPv4 is corrupted.
            corrupt_hidden: 1: the UDP checksum of a corrupted frame becomes 0 (none), so that no receiver's kernel
                notices.
        """
        check_port(port)
        self._device(device_id).apply_shape(port, native_shape(shape))

    def start(self) -> None:
        """Start the data-plane threads."""
        if self.closed:
            raise SoftswitchError("the fabric is closed")
        result = self._lib.ss_fabric_start(self._handle)
        if result:
            raise SoftswitchError(f"cannot start a thread: {os.strerror(-result)}")

    def stop(self) -> None:
        """Stop the data-plane threads; :meth:`start` continues where they stopped."""
        if self._handle:
            self._lib.ss_fabric_stop(self._handle)

    def close(self) -> None:
        """Stop and free everything; the devices must not be used any more."""
        if self._handle is None:
            return
        self.closed = True
        self.stop()
        handle, self._handle = self._handle, None
        if self._monitor is not None:
            self._monitor.close()
        self._lib.ss_events_close(handle)
        if threading.current_thread() is not self._events:
            self._events.join()
        for staged in self.staged:
            self._lib.ss_device_discard(staged)
        self.staged.clear()
        self._lib.ss_fabric_free(handle)
        self.devices.clear()

    def watch_links(self) -> None:
        """Tell devices, from now on, when one of their interfaces goes up or down, or is made again."""
        if self._monitor is None:
            self._monitor = links.LinkMonitor(self._link_changed)

    def _link_changed(self, change: links.Change | None) -> None:
        for device in list(self.devices.values()):
            device.link_changed(change)

    def _dispatch(self, handle: int) -> None:
        while True:
            address = self._lib.ss_event_wait(handle)
            if not address:
                return
            event = native.Event.from_address(address)
            data = ctypes.string_at(address + native.Event.device.offset + 8, event.len)
            kind, port, device_id, generation = event.type, event.port, event.device, event.generation
            self._lib.ss_free(address)
            device = self.devices.get(device_id)
            if device is None:
                continue
            try:
                device.handle_event(kind, port, data, generation)
            except Exception:
                log.exception("a callback of device %d failed", device_id)
