"""What a slot holds before a packet, for p4testgen: it chooses one packet and the tables for it, not what came earlier.

Registers are 0 for it, and so it cannot reach what happens to the second packet of a slot. It is therefore given a copy
of the program in which two tables, at the beginning of Slots and of Values, write the registers:

    copy      slot_before, values_before (actions of p4testgen's choice) -> the program
    switch    up to two packets that leave the same in the registers     -> the same packet, the program as it is

`sources` makes the copy. `as_packets` turns a test that p4testgen has made for the copy (an STF file) into one for the
program itself: what the two tables would write is brought about by packets, which any switch can be sent. A packet of
flow B that does not complete its slot leaves its epoch and sequence, the bitmap B and its values; one that is alone in
its slot closes it; one of epoch 0, sequence 0 and no flow leaves only its values.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from p4src.protocol import DIRECTORY
from softswitch.tests.conformance import stf
from tests.model.packet import Packet

SLOTS, VALUES = "slot_before", "values_before"
NOWHERE = 511
"""The port whose frames v1model drops."""
_TABLE = "    table {0} {{ actions = {{ before; @defaultonly NoAction; }} default_action = NoAction(); }}\n\n"
_IN_SLOTS = """\
    action before(slot_t slot, owner_t owner_before, flows_t bitmap_before, bit<1> closed_before) {
        slot_owner.write(slot, owner_before);
        slot_bitmap.write(slot, bitmap_before);
        slot_closed.write(slot, closed_before);
    }
"""
_IN_VALUES = """\
#define INART_BEFORE_PARAMETER(i) , bit<32> before_##i
#define INART_BEFORE_WRITE(i) sum_##i.write(slot, before_##i);
    action before(slot_t slot INART_EACH_VALUE(INART_BEFORE_PARAMETER)) {
        INART_EACH_VALUE(INART_BEFORE_WRITE)
    }
"""
STATEMENTS = 5
"""Statements that the copy has beyond the program and one for each value: two tables, three registers' writes."""


def sources(folder: Path) -> Path:
    """Copy the program into a folder, with the two tables; returns the path of the copy's main file."""
    for name in ("bmv2", "include"):
        shutil.copytree(DIRECTORY / name, folder / name)
    for name, table, action in (("slots.p4", SLOTS, _IN_SLOTS), ("values.p4", VALUES, _IN_VALUES)):
        path = folder / "bmv2" / name
        text, count = re.subn(
            r"^    apply \{\n",
            lambda found: f"{action}{_TABLE.format(table)}{found[0]}        {table}.apply();\n",  # noqa: B023
            path.read_text(),
            flags=re.MULTILINE,
        )
        if count != 1:
            raise ValueError(f"{name} has {count} apply blocks; before.py puts a table at the beginning of one")
        path.write_text(text)
    return folder / "bmv2" / "inart.p4"


def as_packets(text: str, slots: int, values: int) -> str:
    """Return a test for the program itself from one for the copy; the numbers are those of the program."""
    statements = stf.read_text(text)
    ports = {one.port for one in statements if isinstance(one, stf.Packet)}
    port = min(ports)
    taken = {value for one in statements if isinstance(one, stf.Add) for _, value in one.keys}
    free = (label for label in range(1, 1 << 32) if f"0x{label:08X}" not in taken)
    lines: list[str] = []
    owner = bitmap = closed = 0
    held, at, held_at = [0] * values, slots, slots
    for one in statements:
        if not isinstance(one, stf.SetDefault):
            continue
        given = dict(one.call.arguments)
        if one.table.endswith(SLOTS):
            at, owner = given["slot"], given["owner_before"]
            bitmap, closed = given["bitmap_before"], given["closed_before"]
        elif one.table.endswith(VALUES):
            held_at, held = given["slot"], [given[f"before_{i:02x}"] for i in range(values)]

    def packet(slot: int, flow: int, everyone: int, owner: int, values_: list[int]) -> None:
        label = next(free)
        lines.append(
            f"add label_table ingress_port:{port} label:{label} aggregate(slot_base:{slot}, slot_mask:0, flow:{flow}, "
            f"everyone:{everyone}, next_label:0, partial_label:0, port:{NOWHERE})"
        )
        frame = Packet(label, owner >> 32, owner & (1 << 32) - 1, 0, tuple(values_), job=0).encode()
        lines.append(f"packet {port} {frame.hex()}")

    # A register does not have an element beyond its size: such a write does nothing.
    if held_at < slots:
        packet(held_at, 0, 1, 0, held)
    if at < slots:
        packet(at, bitmap, bitmap if closed else bitmap ^ 1, owner, held if held_at == at else [0] * values)
    kept = [line for line in text.splitlines() if SLOTS not in line and VALUES not in line]
    return "\n".join([*lines, *kept, ""])
