"""What the switches are given to do: a program, its table entries, and the frames that arrive on port 1."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ARTIFACTS = ROOT / "p4src" / "artifacts"
CONTRIBUTORS = 2
SLOTS = 2048


@dataclass(frozen=True)
class Row:
    """A table entry; matches are ("exact", value) or ("lpm", value, prefix length)."""

    table: str
    match: tuple[tuple[str, int] | tuple[str, int, int], ...]
    action: str
    params: tuple[int, ...]


@dataclass(frozen=True)
class Workload:
    """``frames(generation)`` is a ring of frames; one of ``per_output`` of them leaves, on port 2.

    ``offset`` is where a 32-bit number is increased each time the ring has been sent, -1 for nowhere.
    """

    name: str
    program: Path
    p4info: Path
    rows: tuple[Row, ...]
    frames: Callable[[int], list[bytes]]
    per_output: int
    offset: int


def aggregation(values: int) -> Workload:
    """Sums of ``values`` 32-bit numbers over two contributors: every second frame completes a slot and leaves."""
    directory = ARTIFACTS / f"v1model-{values}"
    expected = (1 << CONTRIBUTORS) - 1
    rows = tuple(
        Row("label_table", (("exact", 1), ("exact", w + 1)), "aggregate", (0, SLOTS - 1, 1 << w, expected, 99, 2))
        for w in range(CONTRIBUTORS)
    )

    def frame(worker: int, epoch: int, sequence: int) -> bytes:
        ethernet = bytes.fromhex("03496e417274020000000001") + b"\x88\xb5"
        header = struct.pack(">BBHIIIQ", 1, 0, 7, worker + 1, epoch, sequence, 0)
        return ethernet + header + struct.pack(f">{values}I", *range(values))

    def frames(generation: int) -> list[bytes]:
        return [frame(w, 1 + (generation << 20), s) for s in range(64) for w in range(CONTRIBUTORS)]

    return Workload(f"aggregation, {values} values", directory / "inart.json", directory / "inart.p4info.txtpb", rows,
                    frames, CONTRIBUTORS, 22)  # fmt: skip


def forwarding(size: int) -> Workload:
    """IPv4 forwarding by the same program: longest prefix, TTL, header checksum checked and updated."""
    directory = ARTIFACTS / "v1model-4"
    rows = (
        Row("ipv4_table", (("lpm", 0x0A000200, 24),), "route", (0x020000000002, 2)),
        *(Row("ipv4_table", (("lpm", 0x0B000000 | i << 8, 24),), "route", (i, 3)) for i in range(100)),
    )

    def frame(i: int) -> bytes:
        head = struct.pack(">BBHHHBBHII", 0x45, 0, size - 14, i, 0, 64, 17, 0, 0x0A000101, 0x0A000201)
        total = sum(struct.unpack(">10H", head))
        total = (total & 0xFFFF) + (total >> 16)
        head = head[:10] + struct.pack(">H", (total + (total >> 16) & 0xFFFF) ^ 0xFFFF) + head[12:]
        return bytes.fromhex("0200000000fe0200000000010800") + head + bytes(size - 34)

    return Workload(f"IPv4 forwarding, {size}-byte frames", directory / "inart.json",
                    directory / "inart.p4info.txtpb", rows, lambda _: [frame(i) for i in range(64)], 1, -1)  # fmt: skip


WORKLOADS: dict[str, Callable[[], Workload]] = {
    "aggregation-256": lambda: aggregation(256),
    "aggregation-64": lambda: aggregation(64),
    "forwarding-64": lambda: forwarding(64),
    "forwarding-1400": lambda: forwarding(1400),
}
