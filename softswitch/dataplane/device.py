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
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

from softswitch.compiler.codegen import pack_params
from softswitch.compiler.trace import Point
from softswitch.dataplane import native
from softswitch.dataplane.codec import Entry, TableCodec, check_params
from softswitch.dataplane.device_ports import Owner, Ports
from softswitch.dataplane.externs import Externs
from softswitch.dataplane.ports import MAX_FRAME, MAX_PORTS
from softswitch.dataplane.profiles import ActionProfile
from softswitch.dataplane.program import Program
from softswitch.dataplane.replication import Replication
from softswitch.dataplane.tables import Tables
from softswitch.errors import InvalidValue, SoftswitchError

log = logging.getLogger(__name__)

CONST_PRIORITY = 1 << 24  # priority of a const entry: this minus its JSON priority, where a lower number wins


class Device(Tables, Externs, Ports, Replication):
    """One switch of a fabric: its program, tables, counters, registers, groups and ports.

    Names that do not exist raise ``NoSuchObject``; values that do not fit raise ``InvalidValue``. The callback
    ``packet_in`` gets the frames that the pipeline sent to ``cpu_port``; ``capture`` gets those sent to ports that have
    neither interface nor link; ``digest`` gets the number of a digest (as in ``Program.digests``) and a message, for
    digests that are enabled. All are called on the fabric's own thread; an exception in them is logged and goes no
    further.
    """

    def __init__(self, owner: Owner, handle: int, device_id: int, cpu_port: int | None) -> None:
        super().__init__(owner, device_id)
        self._address: int | None = handle
        self._capture: Callable[[int, bytes], None] | None = None
        self.load_lock = threading.RLock()  # held while the program is replaced
        self.cpu_port = cpu_port
        self.packet_in: Callable[[bytes], None] | None = None
        self.digest: Callable[[int, bytes], None] | None = None
        self.traced: Callable[[bytes, int], None] | None = None  # gets a frame's record, and its generation
        self.replacing: Callable[[Device, int], None] | None = None  # gets a staged device, and its generation to be
        self.idle: Callable[[str, list[Entry]], None] | None = None

    @property
    def native(self) -> int:
        """The native device.

        This raises ``SoftswitchError`` once its fabric is closed, or a staged device discarded.
        """
        if self._owner.closed:
            raise SoftswitchError(f"device {self.device_id}: its fabric is closed")
        if self._address is None:
            raise SoftswitchError(f"device {self.device_id}: this staged program was discarded")
        return self._address

    # -------------------------------------------------------------------------------------------------------- program

    def load(self, program: Program) -> None:
        """Replace the pipeline. All state starts fresh, also groups and sessions; ports, links and shaping stay."""
        self.commit(self.stage(program))

    def stage(self, program: Program, changeable: Collection[str] = ()) -> Device:
        """Return a device without ports that has this program, for writes ahead of ``commit``, while this device goes
        on.

        ``discard`` frees a staged device that is not committed. The program's own entries in ``changeable`` tables may
        be changed; those of other tables are const.
        """
        handle = self._lib.ss_device_stage(self.native)
        if not handle:
            raise SoftswitchError("out of memory")
        staged = Device(self._owner, handle, self.device_id, self.cpu_port)
        staged._attached = self._attached
        try:
            staged._start(program, changeable)
        except BaseException:
            staged.discard()
            raise
        self._owner.staged.add(handle)
        return staged

    def commit(self, staged: Device) -> None:
        """Take over the program and state of a staged device, between two frames; ports and shaping stay.

        From then on ``staged`` is another name for this device, until its program is replaced.
        """
        with self.load_lock:
            handle = staged.native
            if self.replacing is not None:
                self.replacing(staged, self.generation + 1)
            self._owner.staged.discard(handle)
            staged._address = self._address
            self.program, self._codecs = staged.program, staged._codecs
            self.profiles, self._value_sets = staged.profiles, staged._value_sets
            self._const_tables = staged._const_tables
            for profile in self.profiles.values():
                profile.handle, profile.is_up = self._own_handle, self.port_is_up
            self._lib.ss_device_adopt(self.native, handle)
            if self.profiles:
                self._owner.watch_links()
            for profile in self.profiles.values():
                profile.refresh()

    def discard(self) -> None:
        """Free a staged device."""
        handle = self.native
        self._owner.staged.discard(handle)
        self._address = None
        self._lib.ss_device_discard(handle)

    def _start(self, program: Program, changeable: Collection[str]) -> None:
        self._check(self._lib.ss_device_load(self.native, program.address), "load")
        self.program = program
        self._const_tables = frozenset(
            name for name, info in program.tables.items() if info.const_entries and name not in changeable
        )
        self.profiles = {name: self._profile(program, name) for name in program.profiles}
        self._value_sets = dict.fromkeys(program.value_sets, ())
        self._codecs = {
            name: TableCodec(program, plan, self.profiles.get(plan.table.profile or ""))
            for name, plan in program.code.tables.items()
        }
        for name, plan in program.code.tables.items():
            for entry in plan.table.entries:
                needs = program.tables[name].needs_priority
                priority = CONST_PRIORITY - entry.priority if needs else 0
                action = program.p4.actions[entry.action_id].name
                const = name in self._const_tables
                self._insert(self._codecs[name], entry.keys, action, entry.params, priority=priority, const=const)

    def unload(self) -> None:
        """Remove pipeline and state, as after power-up: frames are dropped until the next ``load``."""
        with self.load_lock:
            self._check(self._lib.ss_device_load(self.native, None), "unload")
            self.program = None
            self._codecs = {}
            self.profiles = {}
            self._value_sets = {}
            self._const_tables = frozenset()

    def _own_handle(self) -> int:
        return self.native

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

        The changes must be made in the system thread that entered the context.
        """
        self._lib.ss_device_freeze(self.native)
        try:
            yield
        finally:
            self._lib.ss_device_thaw(self.native)

    def register_flip(self, name: str, index: int, bit: int) -> None:
        """Flip one bit (0: the lowest) of an element between two packets, as broken memory does."""
        width = self._register(name).width
        if not 0 <= bit < width:
            raise InvalidValue(f"register {name}: bit {bit} is not in 0..{width - 1}")
        with self.frozen():
            self.register_write(name, index, self.register_read(name, index) ^ 1 << bit)

    def trace(self, frames: int, in_port: int | None = None, out_port: int | None = None) -> tuple[Point, ...]:
        """Trace the next ``frames`` frames (0: stop tracing) that come in by a port and leave by a port, and return the
        points.

        Each frame's record is given to ``traced`` when it is done; :mod:`.trace` reads it with the points. The trace of
        a staged device begins when it is committed; loading another program ends it.
        """
        with self.load_lock:
            generation = self.generation
            address, points = self._program().traced()
            ports = [-1 if port is None else port for port in (in_port, out_port)]
            result = self._lib.ss_device_trace(self.native, address, generation, frames, *ports)
        if result == -errno.ESTALE:
            raise SoftswitchError(f"device {self.device_id}: the program was replaced meanwhile; try again")
        self._check(result, "trace")
        return points

    @property
    def generation(self) -> int:
        """A number that differs for each loaded program."""
        return self._lib.ss_device_generation(self.native)

    # --------------------------------------------------------------------------------------------------------- frames

    @property
    def capture(self) -> Callable[[int, bytes], None] | None:
        """The callback with (port, frame) for frames sent to ports without interface or link."""
        return self._capture

    @capture.setter
    def capture(self, function: Callable[[int, bytes], None] | None) -> None:
        self._capture = function
        self._lib.ss_device_capture(self.native, function is not None)

    def packet_out(self, frame: bytes) -> None:
        """Process a frame as if it were received on the CPU port."""
        if self.cpu_port is None:
            raise InvalidValue(f"device {self.device_id} has no CPU port")
        self.inject(self.cpu_port, frame)

    def inject(self, port: int, frame: bytes) -> None:
        """Process a frame, soon after this call, as if it were received on ``port``."""
        self._check_frame(port, frame)
        self._check(self._lib.ss_inject(self.native, port, frame, len(frame)), "inject")

    def process(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        """Run one frame to completion, past all queues and links, and return the frames that left, as (port, frame)."""
        self._check_frame(port, frame)
        out = ctypes.c_void_p()
        n = self._check(self._lib.ss_process(self.native, port, frame, len(frame), ctypes.byref(out)), "process")
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

    def drop_stats(self) -> dict[str, int]:
        """Return the numbers of dropped frames by reason; ``ingress`` and ``egress`` are decisions of the program."""
        names = native.drop_names()
        out = (ctypes.c_uint64 * len(names))()
        self._lib.ss_device_drops(self.native, out)
        return dict(zip(names, out, strict=True))

    def handle_event(self, kind: int, port: int, data: bytes, generation: int) -> None:
        """Call the callback for an event of the runtime."""
        if kind == native.CAPTURE and self._capture is not None:
            self._capture(port, data)
        elif kind == native.PCAP_ENDED:
            log.warning("device %d: recording port %d ended: its file cannot be written", self.device_id, port)
        elif kind == native.TRACE:
            if self.traced is not None:
                self.traced(data, generation)
        elif self._owner.closed or generation != self._lib.ss_device_generation(self.native):
            return  # The event comes from a program that was replaced.
        elif kind == native.PACKET_IN and self.packet_in is not None:
            self.packet_in(data)
        elif kind == native.IDLE and self.idle is not None:
            codec = next((c for c in self._codecs.values() if c.plan.index == port), None)
            if codec is not None:
                size = codec.record_bytes
                self.idle(codec.info.name, [codec.decode(data[i : i + size])[0] for i in range(0, len(data), size)])
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
