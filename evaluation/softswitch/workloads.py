"""Workloads of the switches: a program, its table entries, and the frames that arrive on port 1."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from evaluation.softswitch.programs import TABLES
from p4src.protocol import PROTOCOL
from softswitch import Match
from worker_agent.wire import packet

ROOT = Path(__file__).resolve().parents[2]
ARTIFACTS = ROOT / "p4src" / "artifacts"
CONTRIBUTORS = 2
SLOTS = 2048


@dataclass(frozen=True)
class Row:
    """A table entry."""

    table: str
    match: tuple[Match, ...]
    action: str
    params: tuple[int, ...]
    priority: int = 0


@dataclass(frozen=True)
class Workload:
    """A workload of a switch.

    Attributes:
        frames: called as frames(generation); returns a ring of frames.
        per_output: one of so many frames leaves, on port 2.
        offset: place of a 32-bit number that is increased each time the ring has been sent; -1 for none.
        superframe: number of packets of one UDP flow that are given to the switch as one kernel frame.
    """

    name: str
    program: Path
    p4info: Path
    rows: tuple[Row, ...]
    frames: Callable[[int], list[bytes]]
    per_output: int
    offset: int
    superframe: int = 1


def aggregation(values: int, superframe: int = 1) -> Workload:
    """Return sums of ``values`` 32-bit numbers over two flows: every second frame completes a slot and leaves.
    ``superframe`` is the number of packets that each sender's kernel passes at a time.
    """
    directory = ARTIFACTS / f"v1model-{values}"
    everyone = (1 << CONTRIBUTORS) - 1
    rows = tuple(
        Row(
            "label_table",
            (Match("exact", 1), Match("exact", w + 1)),
            "aggregate",
            (0, SLOTS - 1, 1 << w, everyone, 99, 99, 2),
        )
        for w in range(CONTRIBUTORS)
    )

    def frame(worker: int, epoch: int, sequence: int) -> bytes:
        address = f"10.0.0.{worker + 1}"
        return bytes(packet(range(values), address=address, job=7, label=worker + 1, epoch=epoch, sequence=sequence))

    def frames(generation: int) -> list[bytes]:
        epoch, most = 1 + (generation << 20), 64 if superframe == 1 else 4 * superframe
        groups = [range(first, first + superframe) for first in range(0, most, superframe)]
        return [frame(w, epoch, s) for group in groups for w in range(CONTRIBUTORS) for s in group]

    name = f"aggregation, {values} values" + (f", {superframe} packets a frame" if superframe > 1 else "")
    return Workload(name, directory / "inart.json", directory / "inart.p4info.txtpb", rows,
                    frames, CONTRIBUTORS, PROTOCOL.field("epoch").offset, superframe)  # fmt: skip


def forwarding(size: int, superframe: int = 1) -> Workload:
    """Return IPv4 forwarding by the same program: longest prefix, TTL, header checksum checked and updated.
    ``superframe`` is the number of datagrams of one flow that the sender's kernel passes at a time.
    """
    directory = ARTIFACTS / "v1model-4"
    rows = (
        Row("ipv4_table", (Match("lpm", 0x0A000200, prefix_len=24),), "route", (0x020000000002, 2)),
        *(Row("ipv4_table", (Match("lpm", 0x0B000000 | i << 8, prefix_len=24),), "route", (i, 3)) for i in range(100)),
    )

    def frame(i: int) -> bytes:
        head = struct.pack(">BBHHHBBHII", 0x45, 0, size - 14, i, 0, 64, 17, 0, 0x0A000101, 0x0A000201)
        total = sum(struct.unpack(">10H", head))
        total = (total & 0xFFFF) + (total >> 16)
        head = head[:10] + struct.pack(">H", (total + (total >> 16) & 0xFFFF) ^ 0xFFFF) + head[12:]
        udp = struct.pack(">HHHH", 4000, 4000, size - 34, 0) if superframe > 1 else bytes(8)
        return bytes.fromhex("0200000000fe0200000000010800") + head + udp + bytes(size - 42)

    name = f"IPv4 forwarding, {size}-byte frames" + (f", {superframe} packets a frame" if superframe > 1 else "")
    return Workload(name, directory / "inart.json", directory / "inart.p4info.txtpb", rows,
                    lambda _: [frame(i) for i in range(4 * superframe if superframe > 1 else 64)], 1, -1,
                    superframe)  # fmt: skip


def lookup_frame(kind: int, key: tuple[int, int, int, int, int]) -> bytes:
    """Return a frame that looks (protocol, source, target, source port, target port) up in the table of that number."""
    protocol, source, target, *ports = key
    addresses = bytes.fromhex("020000000001020000000002") + b"\x88\xb6"
    return addresses + struct.pack(">BBIIHH", kind, protocol, source, target, *ports) + bytes(32)


def table(kind: str, entries: int, masks: int = 200, seed: int = 1) -> Workload:
    """Return frames of which each hits one of ``entries`` entries, drawn at random; all leave on port 2.

    The kind "exact" matches source and destination address. "lpm" matches prefixes of 8 to 32 bits, with lengths as in
    a routing table (most are 24). "ternary" has access rules on five fields, with ``masks`` different combinations of
    masks.
    """
    draw = random.Random(seed)
    rows: list[Row] = []
    keys: list[tuple[int, int, int, int, int]] = []
    seen: set[tuple[Match, ...]] = set()
    lengths = [24] * 12 + [22, 22, 23, 23, 20, 21, 19, 18, 16, 16, 17, 32, 28, 12, 8]
    combinations = [
        (draw.choice((0, 0xFF)), prefix(draw.randint(0, 32)), prefix(draw.randint(8, 32)),
         draw.choice((0, 0, 0xFFFF, 0xFC00)), draw.choice((0xFFFF, 0xFFFF, 0xFFF0, 0)))
        for _ in range(masks)
    ]  # fmt: skip
    while len(rows) < entries:
        key = (draw.choice((6, 17)), *(draw.getrandbits(32) for _ in range(2)), *(draw.getrandbits(16) for _ in "sd"))
        priority = 0
        match: tuple[Match, ...]
        if kind == "exact":
            match = (Match("exact", key[1]), Match("exact", key[2]))
        elif kind == "lpm":
            length = draw.choice(lengths)
            match = (Match("lpm", key[2] & prefix(length), prefix_len=length),)
        else:
            combination = draw.choice(combinations)
            match = tuple(Match("ternary", v & m, mask=m) for v, m in zip(key, combination, strict=True))
            priority = draw.randrange(1, 1 << 20)
        if match in seen:
            continue
        seen.add(match)
        keys.append(key)  # type: ignore[arg-type]
        rows.append(Row(f"I.{kind}_table", match, "I.to", (2,), priority))
    number = ("exact", "lpm", "ternary").index(kind)
    chosen = draw.sample(keys, min(4096, len(keys)))
    name = {"exact": "exact", "lpm": "LPM", "ternary": "ternary"}[kind]
    what = f"{entries:,} {name} entries" + (f", {masks:,} masks" if kind == "ternary" else "")
    return Workload(what, TABLES, TABLES.with_suffix(".p4info.txtpb"), tuple(rows),
                    lambda _: [lookup_frame(number, k) for k in chosen], 1, -1)  # fmt: skip


def prefix(length: int) -> int:
    """Return the mask of a 32-bit prefix."""
    return 0xFFFFFFFF ^ (0xFFFFFFFF >> length)


TABLE_WORKLOADS: dict[str, Callable[[], Workload]] = {
    "exact-64": lambda: table("exact", 64),
    "exact-65536": lambda: table("exact", 65536),
    "lpm-100000": lambda: table("lpm", 100000),
    "ternary-4096": lambda: table("ternary", 4096),
    "ternary-4096-masks": lambda: table("ternary", 4096, masks=4096),
}

WORKLOADS: dict[str, Callable[[], Workload]] = {
    "aggregation-256": lambda: aggregation(256),
    "aggregation-64": lambda: aggregation(64),
    "aggregation-256-superframes": lambda: aggregation(256, 60),
    "aggregation-64-superframes": lambda: aggregation(64, 128),
    "forwarding-64": lambda: forwarding(64),
    "forwarding-1400": lambda: forwarding(1400),
    "forwarding-1400-superframes": lambda: forwarding(1400, 45),
}
