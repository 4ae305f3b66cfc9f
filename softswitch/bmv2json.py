"""Reads the bmv2 JSON that p4c-bm2-ss emits into a checked, typed form.

Only what the rest of softswitch implements gets through. Anything else raises :class:`UnsupportedConstruct`, which
names the construct and the P4 source line; nothing is skipped silently. JSON that is not well-formed, or that refers
to things that do not exist, raises :class:`BadProgram`. The format is described by the behavioral-model project
(docs/JSON_format.md, version 2).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from softswitch.errors import BadProgram, UnsupportedConstruct

# ---------------------------------------------------------------------------------------------------------- the model


@dataclass(frozen=True)
class Field:
    """A field of a header type: width in bits and whether it is a two's complement number."""

    name: str
    width: int
    signed: bool
    offset: int  # bit offset in the header
    varbit: bool = False  # width is then the most that it can have


@dataclass(frozen=True)
class HeaderType:
    """``width`` is the most bits that it can have. At most one field is a varbit."""

    name: str
    fields: tuple[Field, ...]

    @property
    def width(self) -> int:
        return sum(f.width for f in self.fields)

    @property
    def varbit(self) -> Field | None:
        return next((f for f in self.fields if f.varbit), None)

    def find(self, name: str) -> Field | None:
        return next((f for f in self.fields if f.name == name), None)


@dataclass(frozen=True)
class Header:
    """A header or metadata instance."""

    name: str
    id: int
    type: HeaderType
    metadata: bool


@dataclass(frozen=True)
class Stack:
    """A header stack: its element instances in order."""

    name: str
    type: HeaderType
    headers: tuple[Header, ...]


@dataclass(frozen=True)
class Const:
    value: int


@dataclass(frozen=True)
class BoolConst:
    value: bool


@dataclass(frozen=True)
class FieldRef:
    header: str
    field: str  # "$valid$" is the header's validity bit


@dataclass(frozen=True)
class HeaderRef:
    header: str


@dataclass(frozen=True)
class StackRef:
    stack: str


@dataclass(frozen=True)
class UnionRef:
    """A header union; at most one of its headers is valid."""

    union: str


@dataclass(frozen=True)
class UnionStackName:
    """A whole stack of header unions."""

    stack: str


@dataclass(frozen=True)
class UnionStackRef:
    """One of the headers of the next union of a union stack."""

    stack: str
    member: int


@dataclass(frozen=True)
class StackField:
    """A field of the last extracted element of a stack."""

    stack: str
    field: str


@dataclass(frozen=True)
class Param:
    """An action parameter by position."""

    index: int


@dataclass(frozen=True)
class Lookahead:
    offset: int
    width: int


@dataclass(frozen=True)
class Op:
    """An operator. ``args`` are (left, right), (right,) for unary ones and (cond, left, right) for ``?``."""

    op: str
    args: tuple[Expr, ...]


Expr = (
    Const | BoolConst | FieldRef | HeaderRef | StackRef | UnionRef | UnionStackName | UnionStackRef | StackField | Param
    | Lookahead | Op
)


@dataclass(frozen=True)
class Named:
    """A reference to a register array, counter array or calculation, or a literal string."""

    kind: str
    name: str


@dataclass(frozen=True)
class Vector:
    items: tuple[Expr, ...]


Argument = Expr | Named | Vector


@dataclass(frozen=True)
class Primitive:
    op: str
    args: tuple[Argument, ...]
    source: str | None
    text: str | None = None  # the P4 source


@dataclass(frozen=True)
class Action:
    name: str
    id: int
    params: tuple[tuple[str, int], ...]
    primitives: tuple[Primitive, ...]


@dataclass(frozen=True)
class Transition:
    value: int | None  # None: default, or a value set
    mask: int | None
    next_state: str | None
    value_set: str | None = None


@dataclass(frozen=True)
class ParserOp:
    """``extract`` (args: header or stack), ``extract_VL`` (also the bits of its varbit field),
    ``set``, ``verify``, ``advance`` or ``primitive`` (args: one Primitive)."""

    op: str
    args: tuple[Argument | Primitive, ...]


@dataclass(frozen=True)
class ParseState:
    name: str
    ops: tuple[ParserOp, ...]
    key: tuple[tuple[Expr, int], ...]  # (expression, width in bits)
    transitions: tuple[Transition, ...]


@dataclass(frozen=True)
class Key:
    """A table key: P4 name, match kind, the field, its width, and the static mask if any."""

    name: str
    match_kind: str
    target: FieldRef
    width: int
    mask: int | None


@dataclass(frozen=True)
class KeyValue:
    """What a const entry wants of one key: value and mask, prefix length or upper end."""

    kind: str
    value: int
    mask: int = 0
    prefix_len: int = 0
    high: int = 0


@dataclass(frozen=True)
class ConstEntry:
    keys: tuple[KeyValue, ...]
    action_id: int
    params: tuple[int, ...]
    priority: int  # as in the JSON: a lower number wins


@dataclass(frozen=True)
class Table:
    name: str
    match_type: str
    keys: tuple[Key, ...]
    actions: tuple[int, ...]
    size: int
    with_counters: bool
    meter: str | None  # its direct meter
    with_timeout: bool
    profile: str | None  # its action profile or selector; then it has no default action (default_action is -1)
    next_by_action: Mapping[int, str | None]
    next_default: str | None
    next_hit: str | None
    next_miss: str | None
    has_hit_miss: bool
    default_action: int
    default_params: tuple[int, ...]
    default_const: bool
    entries: tuple[ConstEntry, ...]
    const_entries: bool
    source: str | None


@dataclass(frozen=True)
class Conditional:
    name: str
    expr: Expr
    true_next: str | None
    false_next: str | None
    source: str | None = None
    text: str | None = None


@dataclass(frozen=True)
class Pipeline:
    name: str
    init: str | None
    tables: Mapping[str, Table]
    conditionals: Mapping[str, Conditional]


@dataclass(frozen=True)
class CalcInput:
    """One input of a calculation: a field, a whole header, a constant of some width, or the payload."""

    kind: str
    ref: FieldRef | HeaderRef | None = None
    value: int = 0
    width: int = 0


@dataclass(frozen=True)
class Calculation:
    name: str
    algo: str
    inputs: tuple[CalcInput, ...]


@dataclass(frozen=True)
class Checksum:
    name: str
    target: FieldRef
    calculation: str
    update: bool
    verify: bool
    condition: Expr | None
    source: str | None = None


@dataclass(frozen=True)
class Register:
    name: str
    size: int
    width: int


@dataclass(frozen=True)
class Counter:
    name: str
    size: int
    table: str | None


@dataclass(frozen=True)
class Meter:
    """An array of meters, or a table's direct meter (``table`` and ``target``, which gets its colour, are set)."""

    name: str
    size: int
    in_bytes: bool
    table: str | None
    target: FieldRef | None


@dataclass(frozen=True)
class ActionProfile:
    """``selector`` names the calculation over the selector's key fields; ``None``: there are no groups."""

    name: str
    size: int
    selector: str | None


@dataclass(frozen=True)
class ValueSet:
    """A parser value set. ``widths`` are those of the fields that are matched with it; empty if none are."""

    name: str
    size: int
    bits: int
    widths: tuple[int, ...] = ()


@dataclass(frozen=True)
class Digest:
    """Fields (or constants) that one kind of message to the control plane has, each with its width in bits."""

    name: str
    id: int
    elements: tuple[tuple[FieldRef | Const, int], ...]
    source: str | None


@dataclass
class P4Program:
    """Everything that the compiler needs to know about a program."""

    name: str
    header_types: dict[str, HeaderType] = field(default_factory=dict)
    headers: dict[str, Header] = field(default_factory=dict)
    stacks: dict[str, Stack] = field(default_factory=dict)
    unions: dict[str, tuple[str, ...]] = field(default_factory=dict)  # names of their headers
    union_stacks: dict[str, tuple[str, ...]] = field(default_factory=dict)  # names of their unions
    errors: dict[str, int] = field(default_factory=dict)
    states: dict[str, ParseState] = field(default_factory=dict)
    init_state: str | None = None
    deparser: tuple[str, ...] = ()
    registers: dict[str, Register] = field(default_factory=dict)
    counters: dict[str, Counter] = field(default_factory=dict)
    calculations: dict[str, Calculation] = field(default_factory=dict)
    checksums: tuple[Checksum, ...] = ()
    field_lists: dict[int, tuple[FieldRef, ...]] = field(default_factory=dict)
    digests: dict[int, Digest] = field(default_factory=dict)  # by learn list id
    meters: dict[str, Meter] = field(default_factory=dict)
    profiles: dict[str, ActionProfile] = field(default_factory=dict)
    value_sets: dict[str, ValueSet] = field(default_factory=dict)
    actions: dict[int, Action] = field(default_factory=dict)
    ingress: Pipeline = field(default_factory=lambda: Pipeline("ingress", None, {}, {}))
    egress: Pipeline = field(default_factory=lambda: Pipeline("egress", None, {}, {}))
    aliases: dict[str, FieldRef] = field(default_factory=dict)

    def field_of(self, ref: FieldRef) -> Field:
        """The declaration behind a reference; ``BadProgram`` if there is none."""
        header = self.headers.get(ref.header)
        if header is None:
            raise BadProgram(f"reference to header {ref.header!r}, which the program does not declare")
        if ref.field == "$valid$":
            return Field("$valid$", 1, False, 0)
        found = header.type.find(ref.field)
        if found is None:
            raise BadProgram(f"header {ref.header!r} has no field {ref.field!r}")
        return found


# -------------------------------------------------------------------------------------------------------- the reader

MAX_WIDTH = 1 << 16  # bits in a field, register or constant; far above any real program, keeps hostile JSON cheap

_EXTERN_LISTS = {
    "extern_instances": "extern instance",
}
_TOP_LEVEL = {
    "program", "__meta__", "header_types", "headers", "header_stacks", "header_union_types", "header_unions",
    "header_union_stacks", "field_lists", "errors",
    "enums", "parsers", "deparsers", "counter_arrays", "register_arrays", "calculations", "actions", "pipelines",
    "checksums", "force_arith", "field_aliases", "learn_lists", "parse_vsets", "meter_arrays",
    *_EXTERN_LISTS,
}  # fmt: skip
_BINARY = {
    "+", "-", "*", "/", "%", "<<", ">>", "==", "!=", ">", ">=", "<", "<=", "and", "or", "&", "|", "^",
    "two_comp_mod", "usat_cast", "sat_cast", "dereference_header_stack",
}  # fmt: skip
_UNARY = {"not", "~", "valid", "valid_union", "d2b", "b2d", "last_stack_index", "size_stack", "+", "-"}
_ALGORITHMS = {"csum16", "crc16", "crc16_custom", "crc32", "crc32_custom", "crcCCITT", "identity", "xor16"}
_MATCH_KINDS = {"exact", "lpm", "ternary", "range", "valid"}


def source_of(obj: Any) -> str | None:
    """``file.p4:line`` of a JSON object's ``source_info``, when the compiler left one."""
    info = obj.get("source_info") if isinstance(obj, dict) else None
    if not isinstance(info, dict) or "filename" not in info:
        return None
    return f"{info['filename']}:{info.get('line', '?')}"


def text_of(obj: Any) -> str | None:
    """The P4 text of a JSON object, when the compiler left it."""
    info = obj.get("source_info") if isinstance(obj, dict) else None
    text = info.get("source_fragment") if isinstance(info, dict) else None
    return " ".join(text.split()) if isinstance(text, str) else None


def read_program(text: bytes | str) -> P4Program:
    """Parse bmv2 JSON. Raises ``BadProgram`` or ``UnsupportedConstruct``."""
    try:
        root = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadProgram(f"not JSON: {error}") from None
    if not isinstance(root, dict):
        raise BadProgram("the top level is not a JSON object; expected the output of p4c-bm2-ss")
    try:
        return _Reader(root).read()
    except (KeyError, TypeError, IndexError, AttributeError, ValueError, RecursionError) as error:
        raise BadProgram(f"malformed bmv2 JSON: {type(error).__name__}: {error}") from error


class _Reader:
    def __init__(self, root: dict[str, Any]) -> None:
        self.root = root
        self.program = P4Program(name=str(root.get("program", "")))
        self.union_members: dict[str, list[str]] = {}  # of each union stack: the names of a union's headers

    def read(self) -> P4Program:
        self._check_top_level()
        self._header_types()
        self._headers()
        self._arrays()
        p = self.program
        p.errors = {str(name): int(code) for name, code in self.root.get("errors", [])}
        for name, (header, member) in self.root.get("field_aliases", []):
            p.aliases[name] = FieldRef(header, member)
        for item in self.root.get("field_lists", []):
            p.field_lists[int(item["id"])] = tuple(self._field_list_element(e) for e in item["elements"])
        for item in self.root.get("calculations", []):
            p.calculations[item["name"]] = self._calculation(item)
        for item in self.root.get("learn_lists", []):
            p.digests[int(item["id"])] = self._digest(item)
        for item in self.root["actions"]:
            action = self._action(item)
            p.actions[action.id] = action
        self._parser()
        self._deparser()
        self._pipelines()
        p.checksums = tuple(self._checksum(item) for item in self.root.get("checksums", []))
        return p

    # ------------------------------------------------------------------------------------------------- declarations

    def _check_top_level(self) -> None:
        for name in self.root:
            if name not in _TOP_LEVEL:
                raise UnsupportedConstruct(f"top-level JSON member {name!r}")
        for name, construct in _EXTERN_LISTS.items():
            items = self.root.get(name) or []
            if items:
                raise UnsupportedConstruct(f"{construct} {items[0].get('name', '')!r}", source_of(items[0]))
        version = (self.root.get("__meta__") or {}).get("version", [2, 0])
        if version[0] != 2:
            raise UnsupportedConstruct(f"bmv2 JSON version {version[0]}.{version[1]} (only 2.x)")

    def _header_types(self) -> None:
        for item in self.root["header_types"]:
            fields: list[Field] = []
            offset = 0
            for spec in item["fields"]:
                name, width = spec[0], spec[1]
                varbit = width == "*"
                if varbit:
                    width = self._varbit_width(item, name, offset)
                _check_width(width, f"field {item['name']}.{name}")
                signed = bool(spec[2]) if len(spec) > 2 else False
                fields.append(Field(name, width, signed, offset, varbit))
                offset += width
            self.program.header_types[item["name"]] = HeaderType(item["name"], tuple(fields))

    @staticmethod
    def _varbit_width(item: dict[str, Any], name: str, offset: int) -> int:
        """The most bits that a header type's varbit field can have."""
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
            header = Header(item["name"], int(item["id"]), kind, bool(item["metadata"]))
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
            self.union_members[item["name"]] = members[item["union_type"]]

    def _arrays(self) -> None:
        for item in self.root.get("register_arrays", []):
            _check_width(item["bitwidth"], f"register {item['name']}")
            size = _count(item["size"], f"register {item['name']}")
            self.program.registers[item["name"]] = Register(item["name"], size, item["bitwidth"])
        for item in self.root.get("counter_arrays", []):
            if item.get("is_direct"):
                self.program.counters[item["name"]] = Counter(item["name"], 0, item["binding"])
            else:
                size = _count(item["size"], f"counter {item['name']}")
                self.program.counters[item["name"]] = Counter(item["name"], size, None)
        for item in self.root.get("meter_arrays", []):
            self.program.meters[item["name"]] = self._meter(item)
        for item in self.root.get("parse_vsets", []):
            size = _count(item["max_size"], f"value set {item['name']}")
            bits = item["compressed_bitwidth"]
            _check_width(bits, f"value set {item['name']}")
            self.program.value_sets[item["name"]] = ValueSet(item["name"], size, bits)

    def _meter(self, item: dict[str, Any]) -> Meter:
        name, source = item["name"], source_of(item)
        if item["rate_count"] != 2 or item["type"] not in ("packets", "bytes"):
            raise UnsupportedConstruct(f"meter {name!r} of {item['rate_count']} rates in {item['type']}", source)
        in_bytes = item["type"] == "bytes"
        if not item.get("is_direct"):
            return Meter(name, _count(item["size"], f"meter {name}"), in_bytes, None, None)
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
            element = self.expr(part, source)
            if isinstance(element, Op) and element.op == "d2b":  # a boolean
                (element,) = element.args
            if isinstance(element, FieldRef) and not self.program.field_of(element).varbit:
                elements.append((element, self.program.field_of(element).width))
            elif isinstance(element, Const):
                elements.append((element, 4 * len(part["value"].removeprefix("-").removeprefix("0x"))))
            else:
                raise UnsupportedConstruct(f"digest of {part['type']!r}", source)
        return Digest(item["name"], int(item["id"]), tuple(elements), source)

    def _calculation(self, item: dict[str, Any]) -> Calculation:
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
                inputs.append(CalcInput("header", HeaderRef(self._header(part["value"]).name)))
            elif kind == "hexstr":
                inputs.append(CalcInput("const", value=_hex(part["value"]), width=int(part["bitwidth"])))
            elif kind == "payload":
                inputs.append(CalcInput("payload"))
            elif kind == "expression":  # bmv2 does not load this either
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
            None if condition is None else self.expr(condition, source),
            source,
        )

    # -------------------------------------------------------------------------------------------------- expressions

    def _header(self, name: str) -> Header:
        header = self.program.headers.get(name)
        if header is None:
            raise BadProgram(f"reference to header {name!r}, which the program does not declare")
        return header

    def _stack(self, name: str) -> Stack:
        stack = self.program.stacks.get(name)
        if stack is None:
            raise BadProgram(f"reference to header stack {name!r}, which the program does not declare")
        return stack

    def expr(self, item: Any, source: str | None, params: int = 0) -> Expr:
        kind, value = item["type"], item["value"]
        if kind == "expression":
            if isinstance(value, dict) and "type" in value:  # p4c wraps some expressions once more
                return self.expr(value, source, params)
            return self._op(value, source, params)
        if kind == "field":
            ref = FieldRef(value[0], value[1])
            self.program.field_of(ref)
            return ref
        if kind == "hexstr":
            return Const(_hex(value))
        if kind == "bool":
            return BoolConst(bool(value))
        if kind in ("local", "runtime_data"):
            if not 0 <= int(value) < params:
                raise BadProgram(f"{source}: action parameter {value} does not exist")
            return Param(int(value))
        if kind == "header" and value in self.program.unions:  # so p4c calls an element of a union stack
            return UnionRef(value)
        if kind == "header":
            return HeaderRef(self._header(value).name)
        if kind == "header_stack":
            return StackRef(self._stack(value).name)
        if kind == "header_union":
            if value not in self.program.unions:
                raise BadProgram(f"reference to header union {value!r}, which the program does not declare")
            return UnionRef(value)
        if kind == "header_union_stack":
            if value not in self.program.union_stacks:
                raise BadProgram(f"reference to header union stack {value!r}, which the program does not declare")
            return UnionStackName(value)
        if kind == "stack_field":
            stack = self._stack(value[0])
            if stack.type.find(value[1]) is None:
                raise BadProgram(f"header stack {value[0]!r} has no field {value[1]!r}")
            return StackField(stack.name, value[1])
        if kind == "lookahead":
            _check_width(value[1], "lookahead")
            return Lookahead(int(value[0]), int(value[1]))
        raise UnsupportedConstruct(f"expression of type {kind!r}", source)

    def _op(self, value: dict[str, Any], source: str | None, params: int) -> Expr:
        op = value["op"]
        if op == "?":
            parts = (value["cond"], value["left"], value["right"])
            return Op("?", tuple(self.expr(p, source, params) for p in parts))
        if op == "access_field":
            target = self.expr(value["left"], source, params)
            return Op("access_field", (target, Const(int(value["right"]))))
        left, right = value.get("left"), value["right"]
        if left is None:
            if op not in _UNARY:
                raise UnsupportedConstruct(f"unary operator {op!r}", source)
            operand = self.expr(right, source, params)
            if op in ("+", "-"):
                return Op(op, (Const(0), operand))
            return Op(op, (operand,))
        if op not in _BINARY:
            raise UnsupportedConstruct(f"operator {op!r}", source)
        return Op(op, (self.expr(left, source, params), self.expr(right, source, params)))

    # ------------------------------------------------------------------------------------------------------ actions

    def _action(self, item: dict[str, Any]) -> Action:
        params = tuple((p["name"], int(p["bitwidth"])) for p in item["runtime_data"])
        for name, width in params:
            _check_width(width, f"parameter {name} of action {item['name']}")
        primitives = tuple(self._primitive(p, len(params)) for p in item["primitives"])
        return Action(item["name"], int(item["id"]), params, primitives)

    def _primitive(self, item: dict[str, Any], params: int) -> Primitive:
        source = source_of(item)
        arguments = tuple(self._argument(a, source, params) for a in item["parameters"])
        return Primitive(item["op"], arguments, source, text_of(item))

    def _argument(self, item: dict[str, Any], source: str | None, params: int) -> Argument:
        kind, value = item["type"], item["value"]
        if kind == "register_array":
            if value not in self.program.registers:
                raise BadProgram(f"{source}: unknown register array {value!r}")
            return Named(kind, value)
        if kind == "counter_array":
            if value not in self.program.counters:
                raise BadProgram(f"{source}: unknown counter array {value!r}")
            return Named(kind, value)
        if kind == "meter_array":
            if value not in self.program.meters:
                raise BadProgram(f"{source}: unknown meter array {value!r}")
            return Named(kind, value)
        if kind == "calculation":
            if value not in self.program.calculations:
                raise BadProgram(f"{source}: unknown calculation {value!r}")
            return Named(kind, value)
        if kind == "string":
            return Named(kind, value)
        if kind == "parameters_vector":
            items = value if isinstance(value, list) else []
            return Vector(tuple(self.expr(v, source, params) for v in items))
        return self.expr(item, source, params)

    # ------------------------------------------------------------------------------------------------------- parser

    def _parser(self) -> None:
        parsers = self.root["parsers"]
        if len(parsers) != 1:
            raise UnsupportedConstruct(f"{len(parsers)} parsers (v1model has one)")
        for item in parsers[0]["parse_states"]:
            state = self._state(item)
            self.program.states[state.name] = state
        self.program.init_state = parsers[0]["init_state"]
        for state in self.program.states.values():
            for t in state.transitions:
                if t.next_state is not None and t.next_state not in self.program.states:
                    raise BadProgram(f"parser state {state.name!r} goes to unknown state {t.next_state!r}")
        if self.program.init_state is not None and self.program.init_state not in self.program.states:
            raise BadProgram(f"unknown start state {self.program.init_state!r}")

    def _state(self, item: dict[str, Any]) -> ParseState:
        ops = tuple(self._parser_op(op) for op in item["parser_ops"])
        key: list[tuple[Expr, int]] = []
        for part in item["transition_key"]:
            expr = self.expr(part, source_of(item))
            if isinstance(expr, FieldRef):
                key.append((expr, self.program.field_of(expr).width))
            elif isinstance(expr, StackField):
                member = self.program.stacks[expr.stack].type.find(expr.field)
                assert member is not None
                key.append((expr, member.width))
            elif isinstance(expr, Lookahead):
                key.append((expr, expr.width))
            else:
                raise UnsupportedConstruct(f"select over {part['type']!r} in parser state {item['name']!r}")
        transitions: list[Transition] = []
        for t in item["transitions"]:
            kind = t.get("type", "default" if t.get("value") in ("default", None) else "hexstr")
            if kind == "default":
                transitions.append(Transition(None, None, t["next_state"]))
            elif kind == "hexstr":
                mask = None if t.get("mask") is None else _hex(t["mask"])
                transitions.append(Transition(_hex(t["value"]), mask, t["next_state"]))
            elif kind == "parse_vset" and t.get("mask") is None:
                self._use_value_set(t["value"], tuple(width for _, width in key), source_of(item))
                transitions.append(Transition(None, None, t["next_state"], t["value"]))
            else:
                raise UnsupportedConstruct(f"parser transition of type {kind!r} in state {item['name']!r}")
        return ParseState(item["name"], ops, tuple(key), tuple(transitions))

    def _use_value_set(self, name: str, widths: tuple[int, ...], source: str | None) -> None:
        found = self.program.value_sets.get(name)
        if found is None:
            raise BadProgram(f"{source}: unknown value set {name!r}")
        if sum(widths) != found.bits or found.widths not in ((), widths):
            raise BadProgram(f"{source}: value set {name!r} used for fields of {widths} bits")
        self.program.value_sets[name] = ValueSet(name, found.size, found.bits, widths)

    def _parser_op(self, item: dict[str, Any]) -> ParserOp:
        op, parameters, source = item["op"], item["parameters"], source_of(item)
        if op == "extract":
            return ParserOp(op, (self._extracted(parameters[0], source),))
        if op == "extract_VL":
            return ParserOp(op, (self._extracted(parameters[0], source), self.expr(parameters[1], source)))
        if op == "set":
            return ParserOp(op, (self.expr(parameters[0], source), self.expr(parameters[1], source)))
        if op == "verify":
            return ParserOp(op, (self.expr(parameters[0], source), self.expr(parameters[1], source)))
        if op == "advance":
            return ParserOp(op, (self.expr(parameters[0], source),))
        if op == "shift":
            return ParserOp("advance", (Const(8 * int(parameters[0])),))
        if op == "primitive":
            return ParserOp(op, (self._primitive(parameters[0], 0),))
        raise UnsupportedConstruct(f"parser operation {op!r}", source)

    def _extracted(self, item: dict[str, Any], source: str | None) -> HeaderRef | StackRef | UnionStackRef:
        kind, value = item["type"], item["value"]
        if kind == "regular":
            return HeaderRef(self._header(value).name)
        if kind == "stack":
            return StackRef(self._stack(value).name)
        if kind == "union_stack":
            stack, member = value
            if member not in self.union_members.get(stack, ()):
                raise BadProgram(f"{source}: header union stack {stack!r} has no header {member!r}")
            return UnionStackRef(stack, self.union_members[stack].index(member))
        raise UnsupportedConstruct(f"extract into {kind!r}", source)

    def _deparser(self) -> None:
        deparsers = self.root["deparsers"]
        if len(deparsers) != 1:
            raise UnsupportedConstruct(f"{len(deparsers)} deparsers (v1model has one)")
        if deparsers[0].get("primitives"):
            raise UnsupportedConstruct("statements other than emit in the deparser", source_of(deparsers[0]))
        self.program.deparser = tuple(self._header(name).name for name in deparsers[0]["order"])

    # ---------------------------------------------------------------------------------------------------- pipelines

    def _pipelines(self) -> None:
        found = {item["name"]: self._pipeline(item) for item in self.root["pipelines"]}
        for name in found:
            if name not in ("ingress", "egress"):
                raise UnsupportedConstruct(f"pipeline {name!r} (not a v1model program)")
        if set(found) != {"ingress", "egress"}:
            raise BadProgram("the program lacks an ingress or an egress pipeline")
        self.program.ingress, self.program.egress = found["ingress"], found["egress"]
        for counter in self.program.counters.values():
            if counter.table is not None and self._find_table(counter.table) is None:
                raise BadProgram(f"direct counter {counter.name!r} is bound to unknown table {counter.table!r}")
        for meter in self.program.meters.values():
            if meter.table is not None and getattr(self._find_table(meter.table), "meter", None) != meter.name:
                raise BadProgram(f"direct meter {meter.name!r} is not that of table {meter.table!r}")

    def _find_table(self, name: str) -> Table | None:
        return self.program.ingress.tables.get(name) or self.program.egress.tables.get(name)

    def _pipeline(self, item: dict[str, Any]) -> Pipeline:
        for profile in item.get("action_profiles", []):
            self._profile(profile)
        if item.get("action_calls"):
            raise UnsupportedConstruct("action call outside a table", source_of(item["action_calls"][0]))
        tables = {t["name"]: self._table(t) for t in item["tables"]}
        conditionals: dict[str, Conditional] = {}
        for c in item["conditionals"]:
            expr = self.expr(c["expression"], source_of(c))
            next_nodes = (c["true_next"], c["false_next"])
            conditionals[c["name"]] = Conditional(c["name"], expr, *next_nodes, source_of(c), text_of(c))
        nodes = {None, *tables, *conditionals}
        nexts: list[Iterable[str | None]] = [[item["init_table"]]]
        nexts += [[*t.next_by_action.values(), t.next_hit, t.next_miss] for t in tables.values()]
        nexts += [[c.true_next, c.false_next] for c in conditionals.values()]
        for name in (n for group in nexts for n in group):
            if name not in nodes:
                raise BadProgram(f"pipeline {item['name']!r} refers to unknown node {name!r}")
        return Pipeline(item["name"], item["init_table"], tables, conditionals)

    def _profile(self, item: dict[str, Any]) -> None:
        name, selector = item["name"], item.get("selector")
        if name in self.program.profiles:
            raise BadProgram(f"two action profiles of the name {name!r}")
        calculation = None
        if selector is not None:
            calculation = f"selector of {name}"
            self.program.calculations[calculation] = self._calculation(
                {"name": calculation, "source_info": item.get("source_info"), **selector}
            )
        self.program.profiles[name] = ActionProfile(name, _count(item["max_size"], f"profile {name}"), calculation)

    def _table(self, item: dict[str, Any]) -> Table:
        name, source = item["name"], source_of(item)
        profile, meter = None, item.get("direct_meters") or None
        if item["type"] != "simple":
            profile = item["action_profile"]
            if profile not in self.program.profiles:
                raise BadProgram(f"table {name!r} has the unknown action profile {profile!r}")
            if item["type"] not in ("indirect", "indirect_ws"):
                raise UnsupportedConstruct(f"table {name!r} of type {item['type']!r}", source)
            if item.get("default_entry") or item.get("entries"):
                raise UnsupportedConstruct(f"table {name!r} with an action profile and entries of its own", source)
        if meter is not None and getattr(self.program.meters.get(meter), "table", None) != name:
            raise BadProgram(f"table {name!r} has the direct meter {meter!r}, which is not for it")
        keys: list[Key] = []
        for k in item["key"]:
            if k["match_type"] not in _MATCH_KINDS:
                raise UnsupportedConstruct(f"match kind {k['match_type']!r} in table {name!r}", source)
            if k["match_type"] == "valid":
                target = FieldRef(k["target"] if isinstance(k["target"], str) else k["target"][0], "$valid$")
                kind = "exact"
            else:
                target, kind = FieldRef(*k["target"]), k["match_type"]
            width = self.program.field_of(target).width
            mask = None if k.get("mask") is None else _hex(k["mask"])
            keys.append(Key(k.get("name") or ".".join((target.header, target.field)), kind, target, width, mask))
        kinds = {k.match_kind for k in keys}
        if sum(k.match_kind == "lpm" for k in keys) > 1 and not kinds & {"ternary", "range"}:
            raise UnsupportedConstruct(f"table {name!r} with several lpm keys", source)
        action_ids = tuple(int(i) for i in item["action_ids"])
        for i in action_ids:
            if i not in self.program.actions:
                raise BadProgram(f"table {name!r} uses unknown action id {i}")
        by_name = dict(zip(item["actions"], action_ids, strict=True))
        nexts = item["next_tables"]
        has_hit_miss = "__HIT__" in nexts or "__MISS__" in nexts
        next_by_action = {} if has_hit_miss else {by_name[a]: nexts[a] for a in nexts}
        base = item.get("base_default_next")
        default = item.get("default_entry") or {}
        default_id = -1
        if profile is None:
            if not default:
                raise UnsupportedConstruct(f"table {name!r} without a default entry", source)
            default_id = int(default["action_id"])
            if default_id not in self.program.actions:
                raise BadProgram(f"table {name!r} uses unknown action id {default_id}")
        entries = tuple(self._const_entry(e, keys, source) for e in item.get("entries", []))
        return Table(
            name=name,
            match_type=item["match_type"],
            keys=tuple(keys),
            actions=action_ids,
            size=_count(item["max_size"], f"table {name}"),
            with_counters=bool(item.get("with_counters")),
            meter=meter,
            with_timeout=bool(item.get("support_timeout")),
            profile=profile,
            next_by_action={i: next_by_action.get(i, base) for i in {*action_ids, default_id} - {-1}},
            next_default=base,
            next_hit=nexts.get("__HIT__", base) if has_hit_miss else None,
            next_miss=nexts.get("__MISS__", base) if has_hit_miss else None,
            has_hit_miss=has_hit_miss,
            default_action=default_id,
            default_params=() if profile else self._action_data(default_id, default.get("action_data") or []),
            default_const=bool(profile or default.get("action_const") or default.get("action_entry_const")),
            entries=entries,
            const_entries="entries" in item,
            source=source,
        )

    def _action_data(self, action_id: int, data: list[str]) -> tuple[int, ...]:
        action = self.program.actions.get(action_id)
        if action is None or len(action.params) != len(data):
            raise BadProgram(f"wrong action data for action id {action_id}")
        return tuple(_hex(d) & ((1 << w) - 1) for d, (_, w) in zip(data, action.params, strict=True))

    def _const_entry(self, item: dict[str, Any], keys: list[Key], source: str | None) -> ConstEntry:
        values: list[KeyValue] = []
        for key, m in zip(keys, item["match_key"], strict=True):
            kind = m["match_type"]
            if kind in ("exact", "valid"):
                raw = m["key"]
                values.append(KeyValue("exact", int(raw) if isinstance(raw, bool) else _hex(raw)))
            elif kind == "lpm":
                values.append(KeyValue("lpm", _hex(m["key"]), prefix_len=int(m["prefix_length"])))
            elif kind == "ternary":
                values.append(KeyValue("ternary", _hex(m["key"]), mask=_hex(m["mask"])))
            elif kind == "range":
                values.append(KeyValue("range", _hex(m["start"]), high=_hex(m["end"])))
            else:
                raise UnsupportedConstruct(f"const entry with match kind {kind!r} for key {key.name}", source)
        entry = item["action_entry"]
        action_id = int(entry["action_id"])
        return ConstEntry(
            tuple(values), action_id, self._action_data(action_id, entry["action_data"]), int(item.get("priority", 0))
        )


def _hex(text: str) -> int:
    if len(text) > MAX_WIDTH // 4:
        raise BadProgram("a constant of more than 65536 bits")
    negative = text.startswith("-")
    value = int(text[1:] if negative else text, 16)
    return -value if negative else value


def _check_width(width: Any, what: str) -> None:
    if not isinstance(width, int) or isinstance(width, bool) or not 0 < width <= MAX_WIDTH:
        raise BadProgram(f"{what} has an impossible width: {width!r}")


def _count(value: Any, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 32:
        raise BadProgram(f"{what} has an impossible size: {value!r}")
    return value
