"""Generates C for the places that expressions denote: headers, elements of stacks, and their fields."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from softswitch.bmv2json.model import Const, Expr, FieldRef, HeaderRef, Op, StackField, StackRef, UnionStackName
from softswitch.compiler.layout import Layout, Slot
from softswitch.compiler.values import Value, ValueGen
from softswitch.errors import BadProgram


@dataclass(frozen=True)
class HeaderPlace:
    """A header that an expression denotes.

    Attributes:
        address: C address of its bytes.
        valid: C lvalue of its validity.
        varbit_length: C lvalue of its varbit field's length in bytes, or "".
        others_invalid: C that makes the other headers of its union invalid.
    """

    address: str
    valid: str
    type_name: str
    varbit_length: str = ""
    others_invalid: str = ""


class PlaceGen(ValueGen):
    """A generator of C for places in a packet's headers and metadata."""

    def __init__(self, layout: Layout) -> None:
        super().__init__()
        self.layout = layout
        self.program = layout.program

    @abstractmethod
    def uint64(self, expr: Expr) -> str:
        """Return C of type uint64_t for an expression used as an index or amount."""

    def header(self, expr: Expr) -> HeaderPlace:
        """Return the place of the header instance that an expression denotes."""
        if isinstance(expr, HeaderRef):
            instance = self.program.headers[expr.header]
            address = f"p->h + «{self.layout.header_at(expr.header)}»"
            self.reads.add((f"header {expr.header}", -1))
            length, others = self.layout.varbit_length(expr.header), self.layout.others_invalid(expr.header)
            return HeaderPlace(address, self.layout.valid(expr.header), instance.type.name, length, others)
        if isinstance(expr, Op) and expr.op == "dereference_header_stack" and isinstance(expr.args[0], StackRef):
            return self._element(expr.args[0].stack, self.uint64(expr.args[1]))
        raise BadProgram(f"{self.source}: a header is expected")

    def _element(self, stack_name: str, index: str) -> HeaderPlace:
        """Return an element by run-time index.

        An index out of range means the last element (bmv2 leaves it undefined).
        """
        stack = self.program.stacks[stack_name]
        base, size, valid = self.layout.stack_base(stack)
        bounded = f"ss_bound({index}, {len(stack.headers)})"
        self.reads.add((f"stack {stack_name}", -1))
        length = ""
        if stack.type.varbit is not None:
            length = f"(&{self.layout.varbit_length(stack.headers[0].name)})[{bounded}]"
        address = f"p->h + {base} + {size} * {bounded}"
        return HeaderPlace(address, f"p->valid[{valid} + {bounded}]", stack.type.name, length)

    def size(self, place: HeaderPlace) -> str:
        """Return C for the bytes that a header has in a packet."""
        kind = self.program.header_types[place.type_name]
        if kind.varbit is None:
            return str(kind.width // 8)
        return f"({(kind.width - kind.varbit.width) // 8}u + {place.varbit_length})"

    def stack_size(self, op: str, expr: Expr) -> Value:
        """Return a stack's length, or the index of its last extracted element."""
        if isinstance(expr, StackRef):
            size = len(self.program.stacks[expr.stack].headers)
        elif isinstance(expr, UnionStackName):
            size = len(self.program.union_stacks[expr.stack])
        else:
            raise BadProgram(f"{self.source}: {op} of something that is not a header stack")
        following = f"(uint32_t)p->stack_next[{self.layout.stack_index[expr.stack]}]"
        if op == "size_stack":
            return Value(f"{size}u", "u32", size, size)
        return Value(f"((int64_t){following} - 1)", "i64", -1, size - 1)

    def last_field(self, expr: StackField) -> Slot:
        """Return a field of a stack's last extracted element, or of element 0 where the stack is empty (bmv2 leaves it
        undefined).
        """
        stack = self.program.stacks[expr.stack]
        last = f"(p->stack_next[{self.layout.stack_index[expr.stack]}] ? " + (
            f"p->stack_next[{self.layout.stack_index[expr.stack]}] - 1 : 0)"
        )
        return self._field_of(self._element(expr.stack, last), stack.type.name, expr.field)

    def dynamic_field(self, expr: Op) -> Slot:
        """Return the slot that ``access_field`` denotes."""
        place = self.header(expr.args[0])
        index = expr.args[1]
        fields = self.program.header_types[place.type_name].fields
        assert isinstance(index, Const)
        if index.value == len(fields):  # The hidden validity field comes after the declared ones.
            return Slot("native", place.valid, 8, 0, 1, False, ("valid", -1))
        if not 0 <= index.value < len(fields):
            raise BadProgram(f"{self.source}: header type {place.type_name} has no field {index.value}")
        return self._field_of(place, place.type_name, fields[index.value].name)

    def _field_of(self, place: HeaderPlace, type_name: str, name: str) -> Slot:
        decl = self.program.header_types[type_name].find(name)
        if decl is None:
            raise BadProgram(f"{self.source}: header type {type_name} has no field {name!r}")
        return self.layout.in_header(f"{place.address} + {decl.offset // 8}", decl, f"dynamic {type_name}")

    def target(self, expr: object) -> Slot:
        """Return the slot that an assignment's left side denotes."""
        if isinstance(expr, FieldRef):
            return self.layout.slot(expr)
        if isinstance(expr, StackField):
            return self.last_field(expr)
        if isinstance(expr, Op) and expr.op == "access_field":
            return self.dynamic_field(expr)
        raise self.unsupported("assignment to something other than a field")
