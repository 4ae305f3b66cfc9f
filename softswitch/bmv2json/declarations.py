"""Reads a program's declarations: headers, arrays of state, field lists, calculations, digests and checksums."""

from __future__ import annotations

from typing import Any

from softswitch.bmv2json.expressions import Expressions
from softswitch.bmv2json.model import (
    CalcInput,
    Calculation,
    Checksum,
    Const,
    Counter,
    Digest,
    Field,
    FieldRef,
    Header,
    HeaderRef,
    HeaderType,
    Meter,
    Op,
    Register,
    Stack,
    ValueSet,
)
from softswitch.bmv2json.scalars import check_width, checked_count, hex_number, source_of
from softswitch.errors import BadProgram, UnsupportedConstruct

_ALGORITHMS = {"csum16", "crc16", "crc16_custom", "crc32", "crc32_custom", "crcCCITT", "identity", "xor16"}


class Declarations:
    """A reader of one program's declarations."""

    def __init__(self, root: dict[str, Any], expressions: Expressions) -> None:
        self.root = root
        self.expressions = expressions
        self.program = expressions.program

    def read(self) -> None:
        """Read all declarations except the checksums, which may refer to any of them."""
        self._header_types()
        self._headers()
        self._arrays()
        p = self.program
        p.errors = {str(name): int(code) for name, code in self.root.get("errors", [])}
        for name, (header, member) in self.root.get("field_aliases", []):
            p.aliases[name] = FieldRef(header, member)
        for item in self.root.get("field_lists", []):
            # A constant in a field list has no effect: fields are kept, and a constant cannot change.
            fields = (e for e in item["elements"] if e["type"] != "hexstr")
            p.field_lists[int(item["id"])] = tuple(self._field_list_element(e) for e in fields)
        for item in self.root.get("calculations", []):
            p.calculations[item["name"]] = self.calculation(item)
        for item in self.root.get("learn_lists", []):
            p.digests[int(item["id"])] = self._digest(item)

    def read_checksums(self) -> None:
        """Read the checksums that are verified or updated."""
        self.program.checksums = tuple(self._checksum(item) for item in self.root.get("checksums", []))

    def _header_types(self) -> None:
        for item in self.root["header_types"]:
            fields: list[Field] = []
            offset = 0
            for spec in item["fields"]:
                name, width = spec[0], spec[1]
                varbit = width == "*"
                if varbit:
                    width = self._varbit_width(item, name, offset)
                check_width(width, f"field {item['name']}.{name}")
                signed = bool(spec[2]) if len(spec) > 2 else False
                fields.append(Field(name, width, signed, offset, varbit))
                offset += width
            self.program.header_types[item["name"]] = HeaderType(item["name"], tuple(fields))

    @staticmethod
    def _varbit_width(item: dict[str, Any], name: str, offset: int) -> int:
        """Return the largest size in bits of a header type's varbit field."""
        what = f"varbit field {item['name']}.{name}"
        widths = [spec[1] for spec in item["fields"]]
        if widths.count("*") > 1 or "length_exp" in item or "max_length" not in item:
            raise UnsupportedConstruct(f"{what}, not as p4c declares it", source_of(item))
        if offset % 8:
            raise UnsupportedConstruct(f"{what} that does not start on a byte", source_of(item))
        return 8 * int(item["max_length"]) - sum(w for w in widths if w != "*")

    def _headers(self) -> None:
        by_id: dict[int, Header] = {}
        for item in self.root["headers"]:
            kind = self.program.header_types.get(item["header_type"])
            if kind is None:
                raise BadProgram(f"header {item['name']!r} is of unknown type {item['header_type']!r}")
            header = Header(item["name"], int(item["id"]), kind, bool(item.get("metadata", False)))
            if not header.metadata and kind.width % 8:
                raise UnsupportedConstruct(f"header {header.name!r} of {kind.width} bits (not whole bytes)")
            self.program.headers[header.name] = header
            by_id[header.id] = header
        for item in self.root.get("header_stacks", []):
            elements = tuple(by_id[i] for i in item["header_ids"])
            if not elements:
                raise BadProgram(f"header stack {item['name']!r} is empty")
            self.program.stacks[item["name"]] = Stack(item["name"], elements[0].type, elements)
        for item in self.root.get("header_unions", []):
            self.program.unions[item["name"]] = tuple(by_id[i].name for i in item["header_ids"])
        union_names = {int(item["id"]): item["name"] for item in self.root.get("header_unions", [])}
        members = {
            item["name"]: [member for member, _ in item["headers"]] for item in self.root.get("header_union_types", [])
        }
        for item in self.root.get("header_union_stacks", []):
            self.program.union_stacks[item["name"]] = tuple(union_names[i] for i in item["header_union_ids"])
            self.expressions.union_members[item["name"]] = members[item["union_type"]]

    def _arrays(self) -> None:
        for item in self.root.get("register_arrays", []):
            check_width(item["bitwidth"], f"register {item['name']}")
            size = checked_count(item["size"], f"register {item['name']}")
            self.program.registers[item["name"]] = Register(item["name"], size, item["bitwidth"])
        for item in self.root.get("counter_arrays", []):
            if item.get("is_direct"):
                self.program.counters[item["name"]] = Counter(item["name"], 0, item["binding"])
            else:
                size = checked_count(item["size"], f"counter {item['name']}")
                self.program.counters[item["name"]] = Counter(item["name"], size, None)
        for item in self.root.get("meter_arrays", []):
            self.program.meters[item["name"]] = self._meter(item)
        for item in self.root.get("parse_vsets", []):
            size = checked_count(item.get("max_size", 0), f"value set {item['name']}")
            bits = item["compressed_bitwidth"]
            check_width(bits, f"value set {item['name']}")
            self.program.value_sets[item["name"]] = ValueSet(item["name"], size, bits)

    def _meter(self, item: dict[str, Any]) -> Meter:
        name, source = item["name"], source_of(item)
        if item["rate_count"] != 2 or item["type"] not in ("packets", "bytes"):
            raise UnsupportedConstruct(f"meter {name!r} of {item['rate_count']} rates in {item['type']}", source)
        in_bytes = item["type"] == "bytes"
        if not item.get("is_direct"):
            return Meter(name, checked_count(item["size"], f"meter {name}"), in_bytes, None, None)
        target = FieldRef(*item["result_target"])
        self.program.field_of(target)
        return Meter(name, 0, in_bytes, item["binding"], target)

    def _field_list_element(self, item: dict[str, Any]) -> FieldRef:
        if item["type"] != "field":
            raise UnsupportedConstruct(f"field list element of type {item['type']!r}")
        ref = FieldRef(*item["value"])
        self.program.field_of(ref)
        return ref

    def _digest(self, item: dict[str, Any]) -> Digest:
        source = source_of(item)
        elements: list[tuple[FieldRef | Const, int]] = []
        for part in item["elements"]:
            element = self.expressions.expr(part, source)
            if isinstance(element, Op) and element.op == "d2b":  # d2b makes a boolean of a number.
                (element,) = element.args
            if isinstance(element, FieldRef) and not self.program.field_of(element).varbit:
                elements.append((element, self.program.field_of(element).width))
            elif isinstance(element, Const):
                elements.append((element, 4 * len(part["value"].removeprefix("-").removeprefix("0x"))))
            else:
                raise UnsupportedConstruct(f"digest of {part['type']!r}", source)
        return Digest(item["name"], int(item["id"]), tuple(elements), source)

    def calculation(self, item: dict[str, Any]) -> Calculation:
        """Return a hash or checksum calculation."""
        source = source_of(item)
        if item["algo"] not in _ALGORITHMS:
            raise UnsupportedConstruct(f"hash algorithm {item['algo']!r}", source)
        inputs: list[CalcInput] = []
        for part in item["input"]:
            kind = part["type"]
            if kind == "field":
                ref = FieldRef(*part["value"])
                inputs.append(CalcInput("field", ref, width=self.program.field_of(ref).width))
            elif kind == "header":
                inputs.append(CalcInput("header", HeaderRef(self.expressions.header(part["value"]).name)))
            elif kind == "hexstr":
                inputs.append(CalcInput("const", value=hex_number(part["value"]), width=int(part["bitwidth"])))
            elif kind == "payload":
                inputs.append(CalcInput("payload"))
            elif kind == "expression":  # bmv2 does not load this either.
                raise UnsupportedConstruct("hash or checksum over a bool (cast it to bit<1>)", source)
            else:
                raise UnsupportedConstruct(f"calculation over {kind!r}", source)
        return Calculation(item["name"], item["algo"], tuple(inputs))

    def _checksum(self, item: dict[str, Any]) -> Checksum:
        source = source_of(item)
        if item["type"] != "generic":
            raise UnsupportedConstruct(f"checksum of type {item['type']!r}", source)
        target = FieldRef(*item["target"])
        self.program.field_of(target)
        if item["calculation"] not in self.program.calculations:
            raise BadProgram(f"checksum {item['name']!r} uses unknown calculation {item['calculation']!r}")
        condition = item.get("if_cond")
        return Checksum(
            item["name"],
            target,
            item["calculation"],
            bool(item.get("update", True)),
            bool(item.get("verify", True)),
            None if condition is None else self.expressions.expr(condition, source),
            source,
        )
