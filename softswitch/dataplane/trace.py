"""Traces of packets: converts the data plane's records to text, and keeps a running trace of a device."""

from __future__ import annotations

import queue
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from softswitch.compiler.codegen import unpack_params
from softswitch.compiler.trace import Point
from softswitch.dataplane import native
from softswitch.dataplane.device import Device
from softswitch.dataplane.program import Program
from softswitch.errors import AlreadyExists

MAX_PACKETS = 1_000_000
_UNLIMITED = (1 << 32) - 1
_KEPT = 4  # generations of a device whose records can be read
_INSTANCES = {
    0: "", 1: " (clone from ingress)", 2: " (clone from egress)", 4: " (recirculated)", 5: " (replica)",
    6: " (resubmitted)",
}  # fmt: skip
_DROPS = {"ingress": "by the program, at the end of ingress", "egress": "by the program, at the end of egress"}
_SWITCH = 0x80000000  # SS_TRACE_RECEIVED in runtime.h; the others follow
_INDENT = {"state": 1, "table": 1, "if": 1, "verify": 1, "checksum": 1, "extract": 2, "select": 2, "action": 2,
           "statement": 3}  # fmt: skip


@dataclass(frozen=True)
class Step:
    """One step of a packet's way. ``source`` is the P4 line, if the compiler wrote it."""

    kind: str
    text: str
    source: str | None = None
    values: dict[str, int] = field(default_factory=dict)


def steps(data: bytes, program: Program, points: tuple[Point, ...]) -> Iterator[Step]:
    """Yield the steps of one packet, from the data that ``Device.traced`` gets."""
    at = 0
    while at + 8 <= len(data):
        number, size = struct.unpack_from("<II", data, at)
        record = data[at + 8 : at + 8 + size]
        at += 8 + size
        if number >= _SWITCH:
            yield _switch_step(number - _SWITCH, struct.unpack(f"<{size // 4}I", record))
        else:
            yield _program_step(points[number], record, program)


def lines(packet: list[Step]) -> list[str]:
    """Return the steps of a packet as text."""
    shown: list[str] = []
    hidden = False
    for step in packet:
        if step.kind == "table":  # p4c puts statements outside of tables into tables of their own, which are not shown.
            hidden = step.text.startswith("tbl_") and len(step.values) == 1
        if hidden and step.kind in ("table", "action"):
            continue
        indent = _INDENT.get(step.kind, 0 if step.kind == "received" else 1)
        source = f"  [{step.source}]" if step.source else ""
        shown.append("  " * indent + _text(step) + source)
    return shown


def _program_step(point: Point, record: bytes, program: Program) -> Step:
    values: dict[str, int] = {}
    if point.kind == "action":
        for info, value in zip(point.fields, unpack_params(point.params, record), strict=True):
            values[info.name] = value
    else:
        at = 0
        for info in point.fields:
            size = (info.width + 7) // 8
            value = int.from_bytes(record[at : at + size], "big")
            if info.signed and value >> (info.width - 1):
                value -= 1 << info.width
            name = info.name if info.name not in values else f"{info.name} ({len(values)})"
            values[name] = value
            at += size
    text = point.text
    if point.kind == "parsed":
        names = {code: name for name, code in program.p4.errors.items()}
        text = names.get(values["error"], str(values["error"]))
    return Step(point.kind, text, point.source, values)


def _switch_step(kind: int, numbers: tuple[int, ...]) -> Step:
    a, b, c = (*numbers, 0, 0, 0)[:3]
    names = native.drop_names()
    found: tuple[tuple[str, str, dict[str, int]], ...] = (
        ("received", f"{b} bytes came in on port {a}", {"port": a, "bytes": b}),
        ("dropped", f"dropped: {_DROPS.get(names[a], names[a]) if a < len(names) else a}", {}),
        ("clone", f"clone session {a}: {b} {'copy' if b == 1 else 'copies'}", {"session": a, "copies": b}),
        ("multicast", f"multicast group {a}: {b} {'copy' if b == 1 else 'copies'}", {"group": a, "copies": b}),
        (
            "egress",
            f"egress to port {a}" + (f", replication id {b}" if b else "") + _INSTANCES.get(c, ""),
            {"port": a, "rid": b, "instance_type": c},
        ),
        ("resubmit", "resubmitted", {}),
        ("recirculate", f"recirculated with {a} bytes", {"bytes": a}),
        ("again", f"ingress again{_INSTANCES.get(a, '')}", {"instance_type": a}),
        ("deparsed", f"{a} bytes of headers, {b} of payload", {"headers": a, "payload": b, "bytes": c}),
        ("sent", f"{b} bytes leave by port {a}", {"port": a, "bytes": b}),
        ("too_long", "the rest is left out: more than 1 MiB of trace for one packet", {}),
    )
    name, text, values = found[kind] if kind < len(found) else ("unknown", f"step {kind}", {})
    return Step(name, text, None, values)


def _text(step: Step) -> str:
    values = step.values
    if step.kind == "state":
        return f"parser state {step.text}"
    if step.kind == "extract":
        return f"extract {step.text}" + _listed(values, ": ")
    if step.kind == "select":
        return "select" + _listed(values, " ")
    if step.kind == "parsed":
        verdict = "parser accepts" if step.text == "NoError" else f"parser error {step.text}"
        return f"{verdict} after {values['bytes']} bytes"
    if step.kind == "if":
        return f"if {step.text}: {'true' if any(values.values()) else 'false'}"
    if step.kind == "verify":
        same = "right" if values["packet"] == values["computed"] else f"wrong, computed {_number(values['computed'])}"
        return f"checksum {step.text} {_number(values['packet'])} is {same}"
    if step.kind == "checksum":
        return "checksum" + _listed(values, " ")
    if step.kind == "table":
        keys = {name: value for name, value in values.items() if name != "hit"}
        if not keys:
            return f"table {step.text}: no key"
        return f"table {step.text}: {'hit' if values['hit'] else 'miss'}" + _listed(keys, ", ")
    if step.kind == "action":
        return f"action {step.text}" + _listed(values, " ")
    if step.kind == "statement":
        return step.text + _listed(values, "  -> " if step.text else "")
    if step.kind == "deparse":
        return "deparser: " + (", ".join(name for name, valid in values.items() if valid) or "no headers")
    return step.text


def _listed(values: dict[str, int], before: str) -> str:
    texts = [_number(v) if name.startswith("value") else f"{name} {_number(v)}" for name, v in values.items()]
    return before + ", ".join(texts) if texts else ""


def _number(value: int) -> str:
    return str(value) if -1 << 16 < value < 1 << 16 else hex(value)


class Trace:
    """A running trace of the next ``packets`` packets of a device (``None``: until it is closed).

    It continues when the device gets another program, without a gap: the traced variant of that program is built before
    the device changes to it. It raises ``AlreadyExists`` if another trace of the device is running.
    """

    def __init__(
        self, device: Device, packets: int | None = None, in_port: int | None = None, out_port: int | None = None
    ) -> None:
        self._device = device
        self._left = packets
        self._ports = (in_port, out_port)
        self._queue: queue.SimpleQueue[list[Step]] = queue.SimpleQueue()
        self._generation: int | None = None
        # The last programs, by the generation of the device: records of one may arrive after the next one is loaded.
        self._known: dict[int, tuple[Program, tuple[Point, ...]]] = {}
        if device.traced is not None:
            raise AlreadyExists(f"device {device.device_id} is being traced already")
        device.traced = self._receive
        device.replacing = self._follow

    def __enter__(self) -> Trace:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def done(self) -> bool:
        """Whether all requested packets have been returned."""
        return self._left == 0

    def next(self, seconds: float) -> list[Step] | None:
        """Return the next packet; ``None`` if none comes within ``seconds``."""
        if self.done:
            return None
        self.start()
        try:
            packet = self._queue.get(timeout=seconds)
        except queue.Empty:
            return None
        if self._left is not None:
            self._left -= 1
        return packet

    def close(self) -> None:
        """End the trace; packets that come afterwards run at full speed."""
        with self._device.load_lock:
            self._device.traced = self._device.replacing = None
            if self._generation == self._device.generation and self._device.program is not None:
                self._device.trace(0)

    def start(self) -> None:
        """Trace the running program, if that is not done already; :meth:`next` does it too.

        This compiles the traced variant of the program.
        """
        with self._device.load_lock:
            if self._device.program is not None and self._generation != self._device.generation:
                self._follow(self._device, self._device.generation)

    def _follow(self, device: Device, generation: int) -> None:
        """Trace a device, or the staged device that is about to replace its program, as this generation."""
        frames = _UNLIMITED if self._left is None else self._left - self._queue.qsize()
        if frames <= 0 or device.program is None:
            return
        self._generation = generation
        self._known[generation] = (device.program, device.program.traced()[1])
        for old in [known for known in self._known if known < generation - _KEPT]:
            del self._known[old]
        device.trace(frames, *self._ports)

    def _receive(self, data: bytes, generation: int) -> None:
        """Convert a packet's records; the fabric's own thread calls this."""
        known = self._known.get(generation)
        if known is not None:
            self._queue.put(list(steps(data, *known)))


def as_json(packet: list[Step]) -> list[dict[str, Any]]:
    """Return the steps of a packet as JSON values."""
    return [{"kind": step.kind, "text": _text(step), "source": step.source, "values": step.values} for step in packet]
