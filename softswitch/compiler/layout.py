"""The packet state of a program: the place of every field.

Header instances are kept as the raw bytes that came off the wire. Metadata fields are kept as native integers, all
fields of one C type in one array, so that a run of statements over consecutive fields becomes a loop over an array
(see :mod:`softswitch.compiler.reroll`). Numbers that may differ from one statement to the next within such a run are
written «n».
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from softswitch.bmv2json.model import Field, FieldRef, Header, P4Program, Stack, Table
from softswitch.errors import BadProgram, UnsupportedConstruct

# The fields of standard_metadata that the switch itself reads or writes: bmv2's name -> (C member, bits of the member).
STANDARD = {
    "standard_metadata.ingress_port": ("ingress_port", 16),
    "standard_metadata.egress_spec": ("egress_spec", 16),
    "standard_metadata.egress_port": ("egress_port", 16),
    "standard_metadata.instance_type": ("instance_type", 32),
    "standard_metadata.packet_length": ("packet_length", 32),
    "standard_metadata.checksum_error": ("checksum_error", 8),
    "standard_metadata.parser_error": ("parser_error", 32),
    "queueing_metadata.enq_timestamp": ("enq_timestamp", 32),
    "queueing_metadata.enq_qdepth": ("enq_qdepth", 32),
    "queueing_metadata.deq_timedelta": ("deq_timedelta", 32),
    "queueing_metadata.deq_qdepth": ("deq_qdepth", 32),
    "queueing_metadata.qid": ("qid", 32),
    "intrinsic_metadata.ingress_global_timestamp": ("ingress_global_timestamp", 64),
    "intrinsic_metadata.egress_global_timestamp": ("egress_global_timestamp", 64),
    "intrinsic_metadata.mcast_grp": ("mcast_grp", 16),
    "intrinsic_metadata.egress_rid": ("egress_rid", 16),
    "intrinsic_metadata.priority": ("priority", 8),
}
REQUIRED = ("ingress_port", "egress_spec", "egress_port", "instance_type", "packet_length")


@functools.cache
def storage_bits(width: int) -> int:
    """Return the bits of the smallest C integer that holds ``width`` bits; 0 if there is none."""
    return next((bits for bits in (8, 16, 32, 64, 128) if width <= bits), 0)


@dataclass(frozen=True)
class Slot:
    """The place of a value.

    A slot of kind ``native`` is the C lvalue ``place`` of ``bits`` bits. One of kind ``bytes`` is in network order at
    the C address ``place``, starting ``bit`` bits into the first byte. ``key`` identifies the memory for dependence
    checks.
    """

    kind: str
    place: str
    bits: int
    bit: int
    width: int
    signed: bool
    key: tuple[str, int]


class Layout:
    """The layout of one program's packet state."""

    def __init__(self, program: P4Program) -> None:
        self.program = program
        self.counts = {8: 0, 16: 0, 32: 0, 64: 0, 128: 0}
        self.wide_bytes = 0
        self.header_bytes = 0
        self.valid_count = 0
        self._slots: dict[tuple[str, str], Slot] = {}
        self._header_at: dict[str, int] = {}
        self._valid_at: dict[str, int] = {}
        self._varbit_place: dict[str, str] = {}
        self._varbit_at: dict[str, str] = {}
        self.varbit_headers = self.varbit_metadata = 0
        self._union_of = {name: members for members in program.unions.values() for name in members}
        self.stack_index = {name: i for i, name in enumerate((*program.stacks, *program.union_stacks))}
        self._place_standard()
        for header in program.headers.values():
            if header.metadata:
                self._place_metadata(header)
        in_stacks = {h.name for s in program.stacks.values() for h in s.headers}
        for stack in program.stacks.values():
            for header in stack.headers:
                self._place_header(header)
        for header in program.headers.values():
            if not header.metadata and header.name not in in_stacks:
                self.header_bytes = (self.header_bytes + 7) & ~7
                self._place_header(header)

    def _place_standard(self) -> None:
        if "standard_metadata" not in self.program.headers:
            raise UnsupportedConstruct("a program without standard_metadata (not v1model)")
        found: dict[str, FieldRef] = {}
        for target in STANDARD:
            header, member = target.split(".")
            instance = self.program.headers.get(header)
            if instance is not None and instance.type.find(member) is not None:
                found[target] = FieldRef(header, member)
        for target, ref in self.program.aliases.items():
            if target in STANDARD:
                found[target] = ref
        for target, ref in found.items():
            name, bits = STANDARD[target]
            decl = self.program.field_of(ref)
            if (name, decl.width) == ("enq_timestamp", 48):  # P4-14's
                name, bits = "enq_timestamp_48", 64
            if decl.width > bits or decl.signed:
                raise UnsupportedConstruct(f"{target} of {decl.width} bits")
            self._slots[(ref.header, ref.field)] = Slot(
                "native", f"p->base.standard.{name}", bits, 0, decl.width, False, (name, 0)
            )
        present = {STANDARD[t][0] for t in found}
        for name in REQUIRED:
            if name not in present:
                raise UnsupportedConstruct(f"a program without standard_metadata.{name} (not v1model)")

    def _place_metadata(self, header: Header) -> None:
        for f in header.type.fields:
            if (header.name, f.name) in self._slots:
                continue
            bits = storage_bits(f.width)
            if f.varbit:
                self._varbit_place[header.name] = f"p->mw + {self.wide_bytes}"
                self._varbit_at[header.name] = f"p->varbit_metadata[{self.varbit_metadata}]"
                self.varbit_metadata += 1
                self.wide_bytes += f.width // 8
                continue
            if bits:
                index = self.counts[bits]
                self.counts[bits] += 1
                slot = Slot("native", f"p->m{bits}[«{index}»]", bits, 0, f.width, f.signed, (f"m{bits}", index))
            else:
                at, pad = self.wide_bytes, -f.width % 8
                self.wide_bytes += (f.width + 7) // 8
                slot = Slot("bytes", f"p->mw + «{at}»", 0, pad, f.width, f.signed, ("mw", at))
            self._slots[(header.name, f.name)] = slot

    def _place_header(self, header: Header) -> None:
        self._header_at[header.name] = self.header_bytes
        self._valid_at[header.name] = self.valid_count
        varbit = header.type.varbit
        if varbit is not None:
            self._varbit_place[header.name] = f"p->h + {self.header_bytes + varbit.offset // 8}"
            self._varbit_at[header.name] = f"p->varbit[{self.varbit_headers}]"
            self.varbit_headers += 1
        self.header_bytes += header.type.width // 8
        self.valid_count += 1

    # ------------------------------------------------------------------------------------------------------ look-ups

    def slot(self, ref: FieldRef) -> Slot:
        """Return the place of a field or of a header's validity bit."""
        decl = self.program.field_of(ref)
        if ref.field == "$valid$":
            return Slot("native", self.valid(ref.header), 8, 0, 1, False, ("valid", self._valid_at.get(ref.header, -1)))
        if decl.varbit:
            raise UnsupportedConstruct(f"{ref.header}.{ref.field}: this use of a varbit field")
        found = self._slots.get((ref.header, ref.field))
        if found is not None:
            return found
        return self.in_header(f"p->h + «{self._header_at[ref.header] + decl.offset // 8}»", decl, ref.header)

    def in_header(self, place: str, decl: Field, key: str) -> Slot:
        """Return the slot of field ``decl`` whose first byte is at the C address ``place``."""
        if decl.varbit:
            raise UnsupportedConstruct(f"{decl.name}: this use of a varbit field")
        return Slot("bytes", place, 0, decl.offset % 8, decl.width, decl.signed, (f"header {key}", decl.offset))

    def valid(self, header: str) -> str:
        """Return the C lvalue of a header's validity."""
        if header not in self._valid_at:
            raise BadProgram(f"{header!r} is metadata: it has no validity")
        return f"p->valid[«{self._valid_at[header]}»]"

    def varbit(self, ref: FieldRef) -> tuple[str, str, int]:
        """Return a varbit field's C address, the C lvalue of its length in bytes, and its largest size in bytes."""
        decl = self.program.field_of(ref)
        return self._varbit_place[ref.header], self._varbit_at[ref.header], decl.width // 8

    def varbit_length(self, header: str) -> str:
        """Return the C lvalue of the length in bytes of a header's varbit field; "" if the header has none."""
        return self._varbit_at.get(header, "")

    def others_invalid(self, header: str) -> str:
        """Return C that makes the other headers of a header's union invalid; "" if it is in no union."""
        others = (name for name in self._union_of.get(header, ()) if name != header)
        return " ".join(f"{self.valid(name)} = 0;" for name in others)

    def header_at(self, header: str) -> int:
        """Return the byte offset of a header instance."""
        if header not in self._header_at:
            raise BadProgram(f"{header!r} is metadata, not a header")
        return self._header_at[header]

    def is_metadata(self, header: str) -> bool:
        return self.program.headers[header].metadata

    def stack_base(self, stack: Stack) -> tuple[int, int, int]:
        """Return (byte offset of element 0, bytes per element, validity index of element 0)."""
        first = stack.headers[0].name
        return self._header_at[first], stack.type.width // 8, self._valid_at[first]

    def declaration(self) -> str:
        """Return the C struct of the packet state."""
        arrays = [f"    {c_type(bits)} m{bits}[{max(n, 1)}];" for bits, n in reversed(self.counts.items())]
        return "\n".join(
            [
                "struct packet {",
                "    struct ss_packet base;",
                *arrays,
                f"    uint8_t mw[{self.wide_bytes + 16}];",
                f"    uint16_t varbit_metadata[{max(self.varbit_metadata, 1)}];",
                f"    uint8_t stack_next[{max(len(self.stack_index), 1)}];",
                f"    uint16_t varbit[{max(self.varbit_headers, 1)}];",
                f"    uint8_t valid[{max(self.valid_count, 1)}];",
                f"    uint8_t h[{self.header_bytes + 16}] __attribute__((aligned(64)));",
                "};",
            ]
        )


def c_type(bits: int) -> str:
    return "u128" if bits == 128 else f"uint{bits}_t"


def table_actions(table: Table) -> list[int]:
    """Return action ids in the order of their numbers in entries (for a table with an action profile, see
    `profile_actions` in control.py).
    """
    return [i for i in dict.fromkeys((*table.actions, table.default_action)) if i >= 0]
