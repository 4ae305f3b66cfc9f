"""Reads the parser and the deparser."""

from __future__ import annotations

from typing import Any

from softswitch.bmv2json.expressions import Expressions
from softswitch.bmv2json.model import (
    Const,
    Expr,
    FieldRef,
    HeaderRef,
    Lookahead,
    ParserOp,
    ParseState,
    StackField,
    StackRef,
    Transition,
    UnionStackRef,
    ValueSet,
)
from softswitch.bmv2json.scalars import hex_number, source_of
from softswitch.errors import BadProgram, UnsupportedConstruct


class Parser:
    """A reader of one program's parser and deparser."""

    def __init__(self, root: dict[str, Any], expressions: Expressions) -> None:
        self.root = root
        self.expressions = expressions
        self.program = expressions.program

    def read(self) -> None:
        parsers = self.root.get("parsers", [])
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
            expr = self.expressions.expr(part, source_of(item))
            if isinstance(expr, FieldRef):
                key.append((expr, self.program.field_of(expr).width))
            elif isinstance(expr, StackField):
                member = self.program.stacks[expr.stack].type.find(expr.field)
                assert member is not None
                key.append((expr, member.width))
            elif isinstance(expr, Lookahead):
                key.append((expr, expr.width))
            elif part["type"] == "union_stack_field":
                key.append((expr, self._union_field_width(*part["value"])))
            else:
                raise UnsupportedConstruct(f"select over {part['type']!r} in parser state {item['name']!r}")
        transitions: list[Transition] = []
        for t in item["transitions"]:
            kind = t.get("type", "default" if t.get("value") in ("default", None) else "hexstr")
            if kind == "default":
                transitions.append(Transition(None, None, t["next_state"]))
            elif kind == "hexstr":
                mask = None if t.get("mask") is None else hex_number(t["mask"])
                transitions.append(Transition(hex_number(t["value"]), mask, t["next_state"]))
            elif kind == "parse_vset" and t.get("mask") is None:
                self._use_value_set(t["value"], tuple(width for _, width in key), source_of(item))
                transitions.append(Transition(None, None, t["next_state"], t["value"]))
            else:
                raise UnsupportedConstruct(f"parser transition of type {kind!r} in state {item['name']!r}")
        return ParseState(item["name"], ops, tuple(key), tuple(transitions))

    def _union_field_width(self, stack: str, member: str, field: str) -> int:
        union = self.program.union_stacks[stack][0]
        header = self.program.unions[union][self.expressions.union_member(stack, member)]
        return self.program.field_of(FieldRef(header, field)).width

    def _use_value_set(self, name: str, widths: tuple[int, ...], source: str | None) -> None:
        found = self.program.value_sets.get(name)
        if found is None:
            raise BadProgram(f"{source}: unknown value set {name!r}")
        if sum(widths) != found.bits:
            raise BadProgram(f"value set {name!r} of {found.bits} bits is used for fields of {sum(widths)} bits")
        if found.widths not in ((), widths) and found.bits > 64:
            raise UnsupportedConstruct(
                f"value set {name!r}, wider than 64 bits, for fields of different widths", source
            )
        self.program.value_sets[name] = ValueSet(name, found.size, found.bits, found.widths or widths)

    def _parser_op(self, item: dict[str, Any]) -> ParserOp:
        op, parameters, source = item["op"], item["parameters"], source_of(item)
        if op == "extract":
            return ParserOp(op, (self._extracted(parameters[0], source),))
        expr = self.expressions.expr
        if op == "extract_VL":
            return ParserOp(op, (self._extracted(parameters[0], source), expr(parameters[1], source)))
        if op in ("set", "verify"):
            return ParserOp(op, (expr(parameters[0], source), expr(parameters[1], source)))
        if op == "advance":
            return ParserOp(op, (expr(parameters[0], source),))
        if op == "shift":
            return ParserOp("advance", (Const(8 * int(parameters[0])),))
        if op == "primitive":
            return ParserOp(op, (self.expressions.primitive(parameters[0], 0),))
        raise UnsupportedConstruct(f"parser operation {op!r}", source)

    def _extracted(self, item: dict[str, Any], source: str | None) -> HeaderRef | StackRef | UnionStackRef:
        kind, value = item["type"], item["value"]
        if kind == "regular":
            return HeaderRef(self.expressions.header(value).name)
        if kind == "stack":
            return StackRef(self.expressions.stack(value).name)
        if kind == "union_stack":
            stack, member = value
            return UnionStackRef(stack, self.expressions.union_member(stack, member))
        raise UnsupportedConstruct(f"extract into {kind!r}", source)

    def read_deparser(self) -> None:
        deparsers = self.root.get("deparsers", [])
        if len(deparsers) != 1:
            raise UnsupportedConstruct(f"{len(deparsers)} deparsers (v1model has one)")
        for item in deparsers[0].get("primitives") or []:
            if item["op"] != "log_msg":
                raise UnsupportedConstruct(f"{item['op']} in the deparser (only emit and log_msg)", source_of(item))
            self.program.deparser_logs += (self.expressions.primitive(item, 0),)
        self.program.deparser = tuple(self.expressions.header(name).name for name in deparsers[0]["order"])
