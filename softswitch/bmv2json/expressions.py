"""Reads expressions and the statements of actions."""

from __future__ import annotations

from typing import Any

from softswitch.bmv2json.model import (
    Action,
    Argument,
    BoolConst,
    Const,
    Expr,
    FieldRef,
    Header,
    HeaderRef,
    Lookahead,
    Named,
    Op,
    P4Program,
    Param,
    Primitive,
    Stack,
    StackField,
    StackRef,
    UnionRef,
    UnionStackName,
    Vector,
)
from softswitch.bmv2json.scalars import check_width, hex_number, source_of, text_of
from softswitch.errors import BadProgram, UnsupportedConstruct

_BINARY = {
    "+", "-", "*", "/", "%", "<<", ">>", "==", "!=", ">", ">=", "<", "<=", "and", "or", "&", "|", "^",
    "two_comp_mod", "usat_cast", "sat_cast", "dereference_header_stack",
}  # fmt: skip
_UNARY = {"not", "~", "valid", "valid_union", "d2b", "b2d", "last_stack_index", "size_stack", "+", "-"}


class Expressions:
    """A reader of one program's expressions, which may refer to its declarations.

    ``union_members`` has, for each stack of unions, the names of the headers in one of its unions.
    """

    def __init__(self, program: P4Program) -> None:
        self.program = program
        self.union_members: dict[str, list[str]] = {}

    def header(self, name: str) -> Header:
        """Return a declared header. Raise BadProgram if there is none of this name."""
        header = self.program.headers.get(name)
        if header is None:
            raise BadProgram(f"reference to header {name!r}, which the program does not declare")
        return header

    def stack(self, name: str) -> Stack:
        """Return a declared header stack. Raise BadProgram if there is none of this name."""
        stack = self.program.stacks.get(name)
        if stack is None:
            raise BadProgram(f"reference to header stack {name!r}, which the program does not declare")
        return stack

    def expr(self, item: Any, source: str | None, params: int = 0) -> Expr:
        """Return an expression; ``params`` is the number of parameters of the action that contains it."""
        kind, value = item["type"], item["value"]
        if kind == "expression":
            if isinstance(value, dict) and "type" in value:  # p4c wraps some expressions twice.
                return self.expr(value, source, params)
            return self._op(value, source, params)
        if kind == "field":
            ref = FieldRef(value[0], value[1])
            self.program.field_of(ref)
            return ref
        if kind == "hexstr":
            return Const(hex_number(value))
        if kind == "bool":
            return BoolConst(bool(value))
        if kind in ("local", "runtime_data"):
            if not 0 <= int(value) < params:
                raise BadProgram(f"{source}: action parameter {value} does not exist")
            return Param(int(value))
        if kind == "header" and value in self.program.unions:  # p4c refers to an element of a union stack so.
            return UnionRef(value)
        if kind == "header":
            return HeaderRef(self.header(value).name)
        if kind == "header_stack":
            return StackRef(self.stack(value).name)
        if kind == "header_union":
            if value not in self.program.unions:
                raise BadProgram(f"reference to header union {value!r}, which the program does not declare")
            return UnionRef(value)
        if kind == "header_union_stack":
            if value not in self.program.union_stacks:
                raise BadProgram(f"reference to header union stack {value!r}, which the program does not declare")
            return UnionStackName(value)
        if kind == "stack_field":
            stack = self.stack(value[0])
            if stack.type.find(value[1]) is None:
                if value[1] == "last":  # the whole header
                    at = StackRef(stack.name)
                    return Op("dereference_header_stack", (at, Op("last_stack_index", (at,))))
                raise BadProgram(f"header stack {value[0]!r} has no field {value[1]!r}")
            return StackField(stack.name, value[1])
        if kind == "union_stack_field":
            return self._union_stack_field(*value)
        if kind == "lookahead":
            check_width(value[1], "lookahead")
            return Lookahead(int(value[0]), int(value[1]))
        raise UnsupportedConstruct(f"expression of type {kind!r}", source)

    def union_member(self, stack: str, member: str) -> int:
        """Return the place of a header in the unions of a stack. Raise BadProgram if there is none of this name."""
        if member not in self.union_members.get(stack, ()):
            raise BadProgram(f"header union stack {stack!r} has no header {member!r}")
        return self.union_members[stack].index(member)

    def _union_stack_field(self, stack: str, member: str, field: str) -> Expr:
        """Return a field in the last union of a stack, as a choice among the fields of all its unions."""
        place = self.union_member(stack, member)
        fields = [FieldRef(self.program.unions[union][place], field) for union in self.program.union_stacks[stack]]
        last = Op("last_stack_index", (UnionStackName(stack),))
        chosen: Expr = fields[0]
        for index, ref in enumerate(fields):
            self.program.field_of(ref)
            if index:
                chosen = Op("?", (Op("==", (last, Const(index))), ref, chosen))
        return chosen

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

    def action(self, item: dict[str, Any]) -> Action:
        """Return an action with its statements."""
        params = tuple((p["name"], int(p["bitwidth"])) for p in item["runtime_data"])
        for name, width in params:
            check_width(width, f"parameter {name} of action {item['name']}")
        primitives = tuple(self.primitive(p, len(params)) for p in item["primitives"])
        return Action(item["name"], int(item["id"]), params, primitives)

    def primitive(self, item: dict[str, Any], params: int) -> Primitive:
        """Return one statement of an action with ``params`` parameters."""
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
