"""Compiles actions: each becomes `static void act_<id>(struct ss_state *s, struct packet *p, const uint8_t *a)`."""

from __future__ import annotations

from softswitch.bmv2json.model import (
    Action,
    Const,
    FieldRef,
    Op,
    Param,
    Primitive,
    StackField,
)
from softswitch.compiler.calculations import CalculationGen
from softswitch.compiler.expr import ExprGen
from softswitch.compiler.header_primitives import HeaderPrimitives
from softswitch.compiler.layout import Layout, storage_bits
from softswitch.compiler.operands import Handler, Operands
from softswitch.compiler.registers import RegisterPlace
from softswitch.compiler.reroll import Statement, emit
from softswitch.compiler.sharing import sharing
from softswitch.compiler.state_primitives import StatePrimitives
from softswitch.compiler.switch_primitives import SwitchPrimitives
from softswitch.compiler.trace import TraceGen, name_of
from softswitch.compiler.values import Value
from softswitch.errors import BadProgram, SoftswitchError, UnsupportedConstruct

INLINE_LIMIT = 24  # primitives; larger actions become functions of their own
# Code after these primitives may not be reached, so they are reported before they run.
_REPORTED_BEFORE = ("_jump_if_zero", "exit", "assert", "assume")


def param_layout(action: Action) -> tuple[list[tuple[int, int]], int]:
    """Return the place of each parameter in an entry: ([(byte offset, width in bits)], total bytes)."""
    places: list[tuple[int, int]] = []
    at = 0
    for _, width in action.params:
        bits = storage_bits(width)
        size = bits // 8 if bits else (width + 7) // 8
        if bits:
            at = (at + size - 1) // size * size
        places.append((at, width))
        at += size
    return places, at + (16 if any(storage_bits(w) == 0 for _, w in action.params) else 0)


class ActionGen(Operands):
    """A generator of the action functions."""

    def __init__(
        self,
        layout: Layout,
        expr: ExprGen,
        registers: dict[str, RegisterPlace],
        calculations: CalculationGen,
        trace: TraceGen | None = None,
    ) -> None:
        super().__init__(layout, expr)
        self.trace = trace
        self.sharing = sharing(self.program, layout)
        self.calculations = calculations
        self.switch = SwitchPrimitives(layout, expr, calculations)
        self._handlers: dict[str, Handler] = {
            "assign": self._assign,
            "modify_field": self._assign,
            "add_to_field": lambda p: self._arithmetic(p, "+"),
            "subtract_from_field": lambda p: self._arithmetic(p, "-"),
            "add": lambda p: self._arithmetic(p, "+"),
            "subtract": lambda p: self._arithmetic(p, "-"),
            "bit_and": lambda p: self._arithmetic(p, "&"),
            "bit_or": lambda p: self._arithmetic(p, "|"),
            "bit_xor": lambda p: self._arithmetic(p, "^"),
            "shift_left": lambda p: self._arithmetic(p, "<<"),
            "shift_right": lambda p: self._arithmetic(p, ">>"),
            "no_op": lambda _: [],
            **HeaderPrimitives(layout, expr).handlers(),
            **StatePrimitives(layout, expr, registers).handlers(),
            **self.switch.handlers(),
        }

    # ------------------------------------------------------------------------------------------------------- actions

    def function(self, action: Action) -> str:
        """Return the C function of an action."""
        self.expr.params = tuple(param_layout(action)[0])
        statements = self._body(action)
        self.expr.params = ()
        attribute = "static inline" if len(action.primitives) <= INLINE_LIMIT else "static __attribute__((noinline))"
        unused = "(void)s; (void)p; (void)a;"
        return "\n".join(
            [
                f"{attribute} void act_{action.id}(struct ss_state *restrict s, struct packet *restrict p,",
                f"        const uint8_t *restrict a) {{ /* {_comment(action.name)} */",
                unused,
                *emit(statements),
                "}",
            ]
        )

    def _body(self, action: Action) -> list[Statement]:
        primitives = action.primitives
        targets: dict[int, int] = {}
        for p in primitives:
            if p.op in ("_jump", "_jump_if_zero"):
                target = self._jump_target(p, len(primitives))
                targets[target] = targets.get(target, 0) + 1
        hold = None if self.sharing is None else self.sharing.holds.get(action.id)
        if hold is None:
            return self._range(primitives, 0, len(primitives), targets)
        # No jump comes before the lock is taken, so both parts are ranges of their own.
        first = [statement for p in primitives[: hold.at] for statement in self.primitive(p)]
        self.expr.reset()
        lock = Statement(f"ss_hold(s, &p->base, {self._uint64(hold.index)});", barrier=True)
        return [*first, lock, *self._range(primitives, hold.at, len(primitives), targets)]

    def _range(
        self, primitives: tuple[Primitive, ...], start: int, end: int, targets: dict[int, int]
    ) -> list[Statement]:
        """Return the statements of primitives [start, end), with a label at the end if something jumps there."""
        statements: list[Statement] = []
        index = start
        while index < end:
            if targets.get(index):
                statements.append(Statement(f"L{index}:;", barrier=True))
            branch = self._branch(primitives, index, end, targets)
            if branch is not None:
                statement, index = branch
                statements.append(statement)
            else:
                statements += self.primitive(primitives[index])
                index += 1
        if end == len(primitives) and targets.get(end):
            statements.append(Statement(f"L{end}:;", barrier=True))
        return statements

    def _branch(
        self, primitives: tuple[Primitive, ...], index: int, end: int, targets: dict[int, int]
    ) -> tuple[Statement, int] | None:
        """Return an `if` without `else` around straight-line statements as one statement; None for any other
        primitives.
        """
        primitive = primitives[index]
        if primitive.op != "_jump_if_zero" or self.trace is not None:
            return None
        target = self._jump_target(primitive, len(primitives))
        if not index < target <= end or targets[target] != 1:
            return None
        inner = primitives[index + 1 : target]
        if any(p.op in ("_jump", "_jump_if_zero") for p in inner):
            return None
        if any(targets.get(i) for i in range(index + 1, target)):
            return None
        self.expr.source = primitive.source
        condition = f"if ({self.expr.convert(self._number(primitive.args[0], 64), 'u64')} != 0) {{"
        body = [s for p in inner for s in self.primitive(p)]
        targets[target] = 0
        return (
            Statement(
                " ".join([condition, *(s.checked for s in body), "}"]),
                " ".join([condition, *(s.fast or s.checked for s in body), "}"]),
                tuple(row for s in body for row in s.rows),
                frozenset().union(*(s.index_reads for s in body)),
                frozenset().union(*(s.writes for s in body)),
                barrier=any(s.barrier for s in body),
            ),
            target,
        )

    def _jump_target(self, primitive: Primitive, count: int) -> int:
        target = primitive.args[-1]
        if not isinstance(target, Const) or not 0 <= target.value <= count:
            raise BadProgram(f"{primitive.source}: jump to a place that does not exist")
        return target.value

    def primitive(self, primitive: Primitive) -> list[Statement]:
        """Return the C statements of one primitive call."""
        if self.trace is None or primitive.op == "_jump":
            return self._primitive(primitive)
        report = Statement(self._report(self.trace, primitive), barrier=True)
        if primitive.op in _REPORTED_BEFORE:
            return [report, *self._primitive(primitive)]
        return [*self._primitive(primitive), report]

    def _report(self, trace: TraceGen, primitive: Primitive) -> str:
        """Return C that reports a primitive call with the field that it set, or else with its arguments."""
        self.expr.source = primitive.source
        values: list[tuple[str, Value, int]] = []
        args = [a for a in primitive.args if isinstance(a, FieldRef | StackField | Param | Op)]
        first = primitive.args[0] if primitive.args else None
        sets = isinstance(first, FieldRef | StackField) or (isinstance(first, Op) and first.op == "access_field")
        if sets or primitive.op.startswith("_jump"):
            args = args[:1]
        for arg in args:
            try:
                value = self.expr.number(arg)
            except SoftswitchError:
                continue  # Booleans, headers and varbit fields are not shown.
            values.append((name_of(arg), value, 0))
        kind = "if" if primitive.op.startswith("_jump") else "statement"
        return trace.point(kind, primitive.text or primitive.op, primitive.source, values)

    def _primitive(self, primitive: Primitive) -> list[Statement]:
        self.expr.source = primitive.source
        self.expr.reset()
        if primitive.op == "_jump":
            target = primitive.args[0]
            assert isinstance(target, Const)
            return [Statement(f"goto L{target.value};", barrier=True)]
        if primitive.op == "_jump_if_zero":
            target = primitive.args[1]
            assert isinstance(target, Const)
            value = self.expr.convert(self._number(primitive.args[0], 64), "u64")
            return [Statement(f"if ({value} == 0) goto L{target.value};", barrier=True)]
        handler = self._handlers.get(primitive.op)
        if handler is None:
            raise UnsupportedConstruct(f"primitive {primitive.op!r}", primitive.source)
        try:
            return handler(primitive)
        except (IndexError, ValueError, AssertionError):
            raise BadProgram(f"{primitive.source}: wrong arguments for primitive {primitive.op!r}") from None

    def _assign(self, primitive: Primitive) -> list[Statement]:
        target, source = primitive.args
        return [self.assignment(self.expr.target(target), source)]

    def _arithmetic(self, primitive: Primitive, op: str) -> list[Statement]:
        args = primitive.args
        left, right = (args[0], args[1]) if len(args) == 2 else (args[1], args[2])
        return [self.assignment(self.expr.target(args[0]), Op(op, (left, right)))]  # type: ignore[arg-type]


def _comment(text: str) -> str:
    return "".join(c if c.isalnum() or c in "._" else "?" for c in text)
