"""One switch: its program, state, groups and ports, and the frames that pass.

Names are those of the bmv2 JSON (``MyIngress.ipv4_lpm``), values are Python ints. All methods are thread-safe and
release the GIL while they are in native code; a table write is atomic as packets see it.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from softswitch.compiler.codegen import pack_params
from softswitch.compiler.trace import Point
from softswitch.dataplane import links, native
from softswitch.dataplane.codec import Entry, TableCodec, check_params, const_match
from softswitch.dataplane.externs import Externs
from softswitch.dataplane.ports import MAX_FRAME, MAX_PORTS, PortStats, check_port, interface_index, native_shape
from softswitch.dataplane.profiles import ActionProfile
from softswitch.dataplane.program import Program
from softswitch.dataplane.tables import Tables
from softswitch.errors import InvalidValue, SoftswitchError

log = logging.getLogger(__name__)

CONST_PRIORITY = 1 << 24  # priority of a const entry: this minus its JSON priority, where a lower number wins


class Owner(Protocol):
    """The services that a device needs from its fabric."""

    closed: bool
    staged: set[int]
    """Native devices that are staged."""

    def watch_links(self) -> None:
        """From now on, tell devices when one of their interfaces goes up or down, or is made again."""

    def unlink(self, device_id: int, port: int) -> None:
        """Forget the port's link, if it had one."""


class Device(Tables, Externs):
    """One switch of a fabric: its program, tables, counters, registers, groups and ports.

    Names that do not exist raise ``NoSuchObject``; values that do not fit raise ``InvalidValue``. Callbacks:
    ``packet_in`` gets the frames that the pipeline sent to ``cpu_port``; ``capture`` those sent to ports that have
    neither interface nor link; ``digest`` the number of a digest (as in ``Program.digests``) and a message, for those
    that are enabled. All are called on the fabric's own thread; an exception in them is logged and goes no further.
    """

    def __init__(self, owner: Owner, handle: int, device_id: int, cpu_port: int | None) -> None:
        super().__init__(device_id)
        self._owner = owner
        self._address: int | None = handle
        self._capture: Callable[[int, bytes], None] | None = None
        self._load_lock = threading.RLock()
        self.cpu_port = cpu_port
        self.packet_in: Callable[[bytes], None] | None = None
        self.digest: Callable[[int, bytes], None] | None = None
        self.traced: Callable[[bytes], None] | None = None
        self.idle: Callable[[str, list[Entry]], None] | None = None
        self._attached: dict[int, tuple[str, int] | None] = {}  # interface name and index by port; None for a link

    @property
    def _native(self) -> int:
        """The native device. Raises ``SoftswitchError`` once its fabric is closed, or a staged device discarded."""
        if self._owner.closed:
            raise SoftswitchError(f"device {self.device_id}: its fabric is closed")
        if self._address is None:
            raise SoftswitchError(f"device {self.device_id}: this staged program was discarded")
        return self._address

    # -------------------------------------------------------------------------------------------------------- program

    def load(self, program: Program) -> None:
        """Replace the pipeline. All state starts fresh, also groups and sessions; ports, links and shaping stay."""
        self.commit(self.stage(program))

    def stage(self, program: Program) -> Device:
        """Return a device without ports that has this program, for writes ahead of ``commit``, while this one goes on.

        ``discard`` frees one that is not committed.
        """
        handle = self._lib.ss_device_stage(self._native)
        if not handle:
            raise SoftswitchError("out of memory")
        staged = Device(self._owner, handle, self.device_id, self.cpu_port)
        staged._attached = self._attached
        try:
            staged._start(program)
        except BaseException:
            staged.discard()
            raise
        self._owner.staged.add(handle)
        return staged

    def commit(self, staged: Device) -> None:
        """Take over the program and state of a staged device, between two frames; ports and shaping stay.

        From then on ``staged`` is another name for this device, until its program is replaced.
        """
        with self._load_lock:
            handle = staged._native
            self._owner.staged.discard(handle)
            staged._address = self._address
            self.program, self._codecs = staged.program, staged._codecs
            self.profiles, self._value_sets = staged.profiles, staged._value_sets
            for profile in self.profiles.values():
                profile.handle, profile.is_up = self._own_handle, self.port_is_up
            self._lib.ss_device_adopt(self._native, handle)
            if self.profiles:
                self._owner.watch_links()
            for profile in self.profiles.values():
                profile.refresh()

    def discard(self) -> None:
        """Free a staged device."""
        handle = self._native
        self._owner.staged.discard(handle)
        self._address = None
        self._lib.ss_device_discard(handle)

    def _start(self, program: Program) -> None:
        self._check(self._lib.ss_device_load(self._native, program.address), "load")
        self.program = program
        self.profiles = {name: self._profile(program, name) for name in program.profiles}
        self._value_sets = dict.fromkeys(program.value_sets, ())
        self._codecs = {
            name: TableCodec(program, plan, self.profiles.get(plan.table.profile or ""))
            for name, plan in program.code.tables.items()
        }
        for name, plan in program.code.tables.items():
            for entry in plan.table.entries:
                widths = [k.width for k in plan.table.keys]
                match = tuple(const_match(k, width) for k, width in zip(entry.keys, widths, strict=True))
                needs = program.tables[name].needs_priority
                priority = CONST_PRIORITY - entry.priority if needs else 0
                action = program.p4.actions[entry.action_id].name
                self._insert(self._codecs[name], match, action, entry.params, priority=priority, const=True)

    def unload(self) -> None:
        """Remove pipeline and state, as after power-up: frames are dropped until the next ``load``."""
        with self._load_lock:
            self._check(self._lib.ss_device_load(self._native, None), "unload")
            self.program = None
            self._codecs = {}
            self.profiles = {}
            self._value_sets = {}

    def _own_handle(self) -> int:
        return self._native

    def _profile(self, program: Program, name: str) -> ActionProfile:
        plan, info = program.code.profiles[name], program.profiles[name]

        def pack(action: str, params: Sequence[int]) -> tuple[int, bytes]:
            if action not in plan.numbers:
                raise InvalidValue(f"action {action} is not an action of action profile {name}")
            places, size = program.code.params[plan.action_ids[action]]
            check_params(program.actions[action], params)
            return plan.numbers[action], pack_params(places, size, tuple(params))

        return ActionProfile(info, plan.index, self._own_handle, pack, self.port_is_up)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stop the processing of frames on all devices of the same thread, so that changes are one step to the data
        plane.

        The changes must be made in the system thread that entered.
        """
        self._lib.ss_device_freeze(self._native)
        try:
            yield
        finally:
            self._lib.ss_device_thaw(self._native)

    def register_flip(self, name: str, index: int, bit: int) -> None:
        """Flip one bit (0: the lowest) of an element between two packets, as broken memory does."""
        width = self._register(name).width
        if not 0 <= bit < width:
            raise InvalidValue(f"register {name}: bit {bit} is not in 0..{width - 1}")
        with self.frozen():
            self.register_write(name, index, self.register_read(name, index) ^ 1 << bit)

    # --------------------------------------------------------------------------------------------------- replication

    def multicast_set(self, group: int, replicas: Sequence[tuple[int, int]]) -> None:
        """Insert or replace multicast group ``group`` (1..65535): copies for (egress port, replication id)."""
        if not 0 < group < 1 << 16:
            raise InvalidValue(f"multicast group {group} is not in 1..65535")
        self._group_write(0, group, replicas, 0)

    def multicast_delete(self, group: int) -> None:
        """Remove a group; raises ``NotFound`` if there is none."""
        self._check(self._lib.ss_group_write(self._native, 0, group & 0xFFFF, b"", -1, 0), f"multicast group {group}")

    def clone_set(self, session: int, replicas: Sequence[tuple[int, int]], truncate: int = 0) -> None:
        """Insert or replace clone session ``session`` (0..32767). Clones are cut to ``truncate`` bytes (0: not)."""
        if not 0 <= session < 1 << 15:
            raise InvalidValue(f"clone session {session} is not in 0..32767")
        if not 0 <= truncate < 1 << 32:
            raise InvalidValue(f"cannot truncate to {truncate} bytes")
        self._group_write(1, session, replicas, truncate)

    def clone_delete(self, session: int) -> None:
        """Remove a session; raises ``NotFound`` if there is none."""
        self._check(self._lib.ss_group_write(self._native, 1, session & 0x7FFF, b"", -1, 0), f"clone session {session}")

    def _group_write(self, sessions: int, number: int, replicas: Sequence[tuple[int, int]], truncate: int) -> None:
        for port, rid in replicas:
            if not (0 <= port < MAX_PORTS and 0 <= rid < 1 << 16):
                raise InvalidValue(f"no such replica: port {port}, replication id {rid}")
        data = struct.pack(f"<{2 * len(replicas)}H", *(number for replica in replicas for number in replica))
        result = self._lib.ss_group_write(self._native, sessions, number, data, len(replicas), truncate)
        self._check(result, "clone session" if sessions else "multicast group")

    def trace(self, frames: int, in_port: int | None = None, out_port: int | None = None) -> tuple[Point, ...]:
        """Trace the next ``frames`` frames (0: stop tracing) that come in by a port and leave by a port; returns the
        points.

        Each frame's record is given to ``traced`` when it is done; :mod:`.trace` reads it with the points. Loading
        another program ends the trace.
        """
        generation = self._lib.ss_device_generation(self._native)
        address, points = self._program().traced()
        ports = [-1 if port is None else port for port in (in_port, out_port)]
        result = self._lib.ss_device_trace(self._native, address, generation, frames, *ports)
        if result == -errno.ESTALE:
            raise SoftswitchError(f"device {self.device_id}: the program was replaced meanwhile; try again")
        self._check(result, "trace")
        return points

    @property
    def generation(self) -> int:
        """A number that differs for each program loaded."""
        return self._lib.ss_device_generation(self._native)

    # --------------------------------------------------------------------------------------------------------- frames

    @property
    def capture(self) -> Callable[[int, bytes], None] | None:
        """Callback with (port, frame) for frames sent to ports without interface or link."""
        return self._capture

    @capture.setter
    def capture(self, function: Callable[[int, bytes], None] | None) -> None:
        self._capture = function
        self._lib.ss_device_capture(self._native, function is not None)

    def packet_out(self, frame: bytes) -> None:
        """Process a frame as if it were received on the CPU port."""
        if self.cpu_port is None:
            raise InvalidValue(f"device {self.device_id} has no CPU port")
        self.inject(self.cpu_port, frame)

    def inject(self, port: int, frame: bytes) -> None:
        """Process a frame, soon, as if it were received on ``port``."""
        self._check_frame(port, frame)
        self._check(self._lib.ss_inject(self._native, port, frame, len(frame)), "inject")

    def process(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        """Run one frame to completion, past all queues and links; returns the frames that left, as (port, frame)."""
        self._check_frame(port, frame)
        out = ctypes.c_void_p()
        n = self._check(self._lib.ss_process(self._native, port, frame, len(frame), ctypes.byref(out)), "process")
        try:
            frames: list[tuple[int, bytes]] = []
            at = out.value or 0
            for _ in range(n):
                egress, size = struct.unpack("<II", ctypes.string_at(at, 8))
                frames.append((egress, ctypes.string_at(at + 8, size)))
                at += 8 + size
            return frames
        finally:
            self._lib.ss_free(out)

    def _check_frame(self, port: int, frame: bytes) -> None:
        if not 0 <= port < MAX_PORTS:
            raise InvalidValue(f"port {port} is not in 0..{MAX_PORTS - 1}")
        if len(frame) > MAX_FRAME:
            raise InvalidValue(f"a frame of {len(frame)} bytes: the most is {MAX_FRAME}")

    # ---------------------------------------------------------------------------------------------------------- ports

    def add_port(self, port: int, interface: str, offload: bool = True, **shape: float) -> None:
        """Attach ``port`` (0..510) to a Linux interface; ``shape`` as in :meth:`.fabric.Fabric.shape`.

        ``offload``: datagrams of one UDP flow may leave as one super-frame, which the receiver segments if it needs to.
        A UDP checksum of 0 may then become a correct one. Needs CAP_NET_RAW. Raises ``AlreadyExists`` if the port is in
        use. If the interface is deleted and made again under the same name, the port uses the new one.
        """
        check_port(port)
        wanted = native_shape(shape)
        try:
            self._owner.watch_links()
        except SoftswitchError as error:
            log.warning("port %d: %s: it is lost when its interface is made again", port, error)
        # The index is read before the interface is opened, so that one that is made again meanwhile is noticed.
        index = interface_index(interface)
        result = self._lib.ss_port_add(self._native, port, interface.encode(), offload)
        if result == -errno.ENODEV:
            raise InvalidValue(f"no interface {interface!r} here")
        if result in (-errno.EPERM, -errno.EACCES):
            raise SoftswitchError(f"may not open {interface!r}: run as root or with CAP_NET_RAW")
        self._check(result, f"port {port}")
        self.attach(port, (interface, index))
        if wanted is not None:
            self.apply_shape(port, wanted)

    def apply_shape(self, port: int, shape: native.Shape | None) -> None:
        """Shape what leaves a port; ``None`` ends shaping. :meth:`.fabric.Fabric.shape` describes the settings."""
        pointer = None if shape is None else ctypes.byref(shape)
        self._check(self._lib.ss_port_shape(self._native, port, pointer), f"port {port}")

    def link(self, port: int, peer: Device, peer_port: int) -> None:
        """Make an in-memory link from a port of this device to a port of another, or of its own."""
        result = self._lib.ss_link(self._native, port, peer._native, peer_port)
        self._check(result, f"link {(self.device_id, port)} - {(peer.device_id, peer_port)}")
        self.attach(port, None)
        peer.attach(peer_port, None)

    def record(self, port: int, incoming: int, outgoing: int) -> None:
        """Write frames to two open files, which the device then owns; see :func:`.pcap.record`."""
        check_port(port)
        self._check(self._lib.ss_port_pcap(self._native, port, incoming, outgoing), f"port {port}")

    def remove_port(self, port: int) -> None:
        """Detach a port from its interface or link; raises ``NotFound`` if it has neither."""
        self._check(self._lib.ss_port_remove(self._native, port), f"port {port}")
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
        """Attach the port to the interface that now has its interface's name, if that is another one."""
        now = interface_index(interface)
        if now in (index, -1):
            return
        result = self._lib.ss_port_reopen(self._native, port)
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
        out = (ctypes.c_uint64 * (7 + len(names)))()
        stats: dict[int, PortStats] = {}
        for port in range(MAX_PORTS):
            if self._lib.ss_port_stats(self._native, port, out) == 0:
                drops = {name: n for name, n in zip(names, out[7:], strict=True) if n}
                stats[port] = PortStats(out[0], out[1], out[2], out[3], drops, out[4], out[5], out[6])
        return stats

    def drop_stats(self) -> dict[str, int]:
        """Return frames dropped, by reason; ``ingress`` and ``egress`` are the program's own decisions."""
        names = native.drop_names()
        out = (ctypes.c_uint64 * len(names))()
        self._lib.ss_device_drops(self._native, out)
        return dict(zip(names, out, strict=True))

    def handle_event(self, kind: int, port: int, data: bytes, generation: int) -> None:
        """Call the callback for an event of the runtime."""
        if kind == native.CAPTURE and self._capture is not None:
            self._capture(port, data)
        elif kind == native.PCAP_ENDED:
            log.warning("device %d: recording port %d ended: its file cannot be written", self.device_id, port)
        elif self._owner.closed or generation != self._lib.ss_device_generation(self._native):
            return  # The event comes from a program that was replaced.
        elif kind == native.PACKET_IN and self.packet_in is not None:
            self.packet_in(data)
        elif kind == native.IDLE and self.idle is not None:
            codec = next((c for c in self._codecs.values() if c.plan.index == port), None)
            if codec is not None:
                size = codec.record_bytes
                self.idle(codec.info.name, [codec.decode(data[i : i + size])[0] for i in range(0, len(data), size)])
        elif kind == native.TRACE and self.traced is not None:
            self.traced(data)
        elif kind == native.DIGEST and self.digest is not None:
            self.digest(port, data)
        elif kind == native.LOG and self.program is not None:
            values = [int.from_bytes(data[i : i + 16], "little", signed=True) for i in range(0, len(data), 16)]
            log.info("device %d: %s", self.device_id, _format_log(self.program.code.messages[port], values))


def _format_log(message: str, values: Sequence[int]) -> str:
    """Return the text of ``log_msg``, with each {} replaced by the next value."""
    parts = message.split("{}")
    texts = [str(v) for v in values]
    texts += ["{}"] * (len(parts) - 1 - len(texts))
    return "".join(part + text for part, text in zip(parts, [*texts[: len(parts) - 1], ""], strict=True))
