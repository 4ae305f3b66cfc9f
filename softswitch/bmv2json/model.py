"""A v1model program as the rest of softswitch sees it: the content of the bmv2 JSON, checked and typed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from softswitch.errors import BadProgram


@dataclass(frozen=True)
class Field:
    """A field of a header type: width in bits and whether it is a two's complement number."""

    name: str
    width: int
    signed: bool
    offset: int  # bit offset in the header
    varbit: bool = False  # `width` is then the largest size.


@dataclass(frozen=True)
class HeaderType:
    """A header type. ``width`` is its largest size in bits. At most one field is a varbit."""

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
    """An operator. Its ``args`` are (left, right), or (right,) for unary ones, or (cond, left, right) for ``?``."""

    op: str
    args: tuple[Expr, ...]


Expr = (
    Const
    | BoolConst
    | FieldRef
    | HeaderRef
    | StackRef
    | UnionRef
    | UnionStackName
    | UnionStackRef
    | StackField
    | Param
    | Lookahead
    | Op
)


@dataclass(frozen=True)
class Named:
    """A reference by name to a register array, counter array or calculation, or a literal string."""

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
    params: tuple[tuple[str, int], ...]  # (name, width in bits)
    primitives: tuple[Primitive, ...] = ()


@dataclass(frozen=True)
class Transition:
    value: int | None  # None: default, or a value set
    mask: int | None
    next_state: str | None
    value_set: str | None = None


@dataclass(frozen=True)
class ParserOp:
    """An operation of a parser state.

    It is ``extract`` (args: header or stack), ``extract_VL`` (also the bits of its varbit field), ``set``, ``verify``,
    ``advance`` or ``primitive`` (args: one Primitive).
    """

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


class Match(NamedTuple):
    """The condition of an entry on one key field.

    Every value matches for lpm with ``prefix_len`` 0, ternary and optional with ``mask`` 0, and range from 0 to the
    field's highest value. An optional match of a value has all bits of the mask set.
    """

    kind: str
    value: int = 0
    mask: int = 0
    prefix_len: int = 0
    high: int = 0


@dataclass(frozen=True)
class ConstEntry:
    keys: tuple[Match, ...]
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
    """An array of counters, or the direct counter of ``table``."""

    name: str
    size: int
    table: str | None = None


@dataclass(frozen=True)
class Meter:
    """An array of meters, or a table's direct meter.

    A direct meter has ``table`` and ``target``, the field that gets its colour.
    """

    name: str
    size: int
    in_bytes: bool
    table: str | None
    target: FieldRef | None


@dataclass(frozen=True)
class ActionProfile:
    """An action profile.

    ``selector`` names the calculation over the selector's key fields; it is ``None`` for a profile without groups.
    A ``size`` of 0 means that the JSON does not give it.
    """

    name: str
    size: int
    selector: str | None


@dataclass(frozen=True)
class ValueSet:
    """A parser value set. Its ``widths`` are those of the fields that are matched with it, and empty if none are.

    A ``size`` of 0 means that the JSON does not give it.
    """

    name: str
    size: int
    bits: int
    widths: tuple[int, ...] = ()


@dataclass(frozen=True)
class Digest:
    """One kind of message to the control plane: the fields or constants in it, each with its width in bits."""

    name: str
    id: int
    elements: tuple[tuple[FieldRef | Const, int], ...]
    source: str | None

    @property
    def widths(self) -> tuple[int, ...]:
        return tuple(width for _, width in self.elements)

    def values(self, message: bytes) -> tuple[int, ...]:
        """Return the fields of a message, as unsigned numbers; it has each in whole bytes, network order."""
        found: list[int] = []
        at = 0
        for width in self.widths:
            size = (width + 7) // 8
            found.append(int.from_bytes(message[at : at + size], "big"))
            at += size
        return tuple(found)


@dataclass
class P4Program:
    """A program with all facts that the compiler needs."""

    name: str
    origin: str = ""  # what a refusal says of another compiler that wrote the JSON
    header_types: dict[str, HeaderType] = field(default_factory=dict)
    headers: dict[str, Header] = field(default_factory=dict)
    stacks: dict[str, Stack] = field(default_factory=dict)
    unions: dict[str, tuple[str, ...]] = field(default_factory=dict)  # names of their headers
    union_stacks: dict[str, tuple[str, ...]] = field(default_factory=dict)  # names of their unions
    errors: dict[str, int] = field(default_factory=dict)
    states: dict[str, ParseState] = field(default_factory=dict)
    init_state: str | None = None
    deparser: tuple[str, ...] = ()
    deparser_logs: tuple[Primitive, ...] = ()  # the statements of the deparser other than emit
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
        """Return the declaration behind a reference. Raise ``BadProgram`` if there is none."""
        header = self.headers.get(ref.header)
        if header is None:
            raise BadProgram(f"reference to header {ref.header!r}, which the program does not declare")
        if ref.field == "$valid$":
            return Field("$valid$", 1, False, 0)
        found = header.type.find(ref.field)
        if found is None:
            raise BadProgram(f"header {ref.header!r} has no field {ref.field!r}")
        return found
