"""Compiles expressions: bmv2's infinite-precision integers, computed in the narrowest C type that cannot go wrong.

Every value carries the interval that it lies in, so that the C type of each operation is wide enough for its exact
result. Where only the low bits of a result matter (it is masked or stored in a field), the operations below it that
respect congruence (+ - * & | ^ ~ <<) are done modulo a power of two instead.
"""

from __future__ import annotations

from softswitch.bmv2json.model import (
    BoolConst,
    Const,
    Expr,
    FieldRef,
    HeaderRef,
    Lookahead,
    Op,
    Param,
    StackField,
    StackRef,
    UnionRef,
)
from softswitch.compiler.layout import Layout, Slot, c_type, storage_bits
from softswitch.compiler.places import HeaderPlace, PlaceGen
from softswitch.compiler.values import C_TYPES, MAX_INTERMEDIATE, Value, fit, kind_for_bits
from softswitch.errors import BadProgram

_COMPARE = {"==", "!=", "<", "<=", ">", ">="}
_LOGICAL = ("and", "or", "not", "d2b", "valid", "valid_union")


class ExprGen(PlaceGen):
    """A generator of C for the expressions of one program."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout)
        self.params: tuple[tuple[int, int], ...] = ()  # (byte offset, width) of the present action's parameters

    # ---------------------------------------------------------------------------------------------------- expressions

    def number(self, expr: Expr, demand: int | None = None) -> Value:
        """Return C for an integer expression; with ``demand``, only its low ``demand`` bits need to be right."""
        value = self._number(expr, demand)
        if value.kind == "bool":
            raise BadProgram(f"{self.source}: a boolean where a number is expected")
        return value

    def uint64(self, expr: Expr) -> str:
        """Return C of type uint64_t for an expression used as an index or amount."""
        return self.convert(self.number(expr, 64), "u64")

    def _number(self, expr: Expr, demand: int | None) -> Value:
        if isinstance(expr, BoolConst):
            return Value(self.boolean(expr), "bool")
        if isinstance(expr, Const):
            return self._exact(self.const(expr.value, fit(expr.value, expr.value)), expr.value, expr.value)
        if isinstance(expr, FieldRef):
            return self.load(self.layout.slot(expr), demand)
        if isinstance(expr, Param):
            return self._param(expr.index)
        if isinstance(expr, StackField):
            return self.load(self.last_field(expr), demand)
        if isinstance(expr, Op):
            return self._op(expr, demand)
        if isinstance(expr, Lookahead):
            raise self.unsupported("lookahead outside an assignment or select")
        raise BadProgram(f"{self.source}: {type(expr).__name__} where a number is expected")

    def _param(self, index: int) -> Value:
        offset, width = self.params[index]
        bits = storage_bits(width)
        if bits:
            kind = "u32" if bits <= 32 else kind_for_bits(bits)
            c = f"({C_TYPES[kind]})*(const {c_type(bits)} *)(a + «{offset}»)"
            return Value(c, kind, 0, (1 << width) - 1)
        return self._load_bytes(Slot("bytes", f"a + «{offset}»", 0, -width % 8, width, False, ("a", offset)), None)

    def _op(self, expr: Op, demand: int | None) -> Value:
        op = expr.op
        if op in ("&", "+", "-", "*", "|", "^"):
            return self._ring(op, expr.args[0], expr.args[1], demand)
        if op == "~":
            return self._not(expr.args[0], demand)
        if op == "<<":
            return self._shift_left(expr.args[0], expr.args[1], demand)
        if op == ">>":
            return self._shift_right(expr.args[0], expr.args[1], demand)
        if op in ("/", "%"):
            return self._divide(op, expr.args[0], expr.args[1])
        if op in ("two_comp_mod", "usat_cast", "sat_cast"):
            return self._cast(op, expr.args[0], expr.args[1], demand)
        if op == "?":
            return self._ternary(expr, demand)
        if op == "b2d":
            return Value(f"(uint32_t){self.boolean(expr.args[0])}", "u32", 0, 1)
        if op == "access_field":
            return self.load(self.dynamic_field(expr), demand)
        if op in ("last_stack_index", "size_stack"):
            return self.stack_size(op, expr.args[0])
        return Value(self.boolean(expr), "bool")

    def _ring(self, op: str, left: Expr, right: Expr, demand: int | None) -> Value:
        if op == "&":
            for mask, other in ((left, right), (right, left)):
                if isinstance(mask, Const) and mask.value >= 0:
                    return self._mask(other, mask.value, demand)
        a, b = self.number(left, demand), self.number(right, demand)
        bounds = self._interval(op, a, b) if a.exact and b.exact else None
        if bounds is not None:
            lo, hi = bounds
            if demand is None or (lo >= 0 and hi < 1 << demand):
                kind = fit(min(lo, a.lo, b.lo), max(hi, a.hi, b.hi))
                return self._exact(self._infix(op, self.convert(a, kind), self.convert(b, kind), kind), lo, hi, kind)
        assert demand is not None  # Without a demand both operands are exact.
        kind = kind_for_bits(demand)
        if kind == "wide":
            self._note_wide(1 << demand)
        c = self._infix(op, self.convert(a, kind), self.convert(b, kind), kind)
        return Value(c, kind, 0, (1 << demand) - 1, exact=False)

    def _mask(self, other: Expr, mask: int, demand: int | None) -> Value:
        if demand is not None:
            mask &= (1 << demand) - 1
        bits = mask.bit_length()
        if bits == 0:
            return Value("0u", "u32", 0, 0)
        value = self.number(other, bits)
        if value.exact and value.lo >= 0 and value.hi <= mask and mask & (mask + 1) == 0:
            return value
        kind = kind_for_bits(bits)
        c = self._infix("&", self.convert(value, kind), self.const(mask, kind), kind)
        return self._exact(c, 0, mask, kind)

    def _not(self, operand: Expr, demand: int | None) -> Value:
        value = self.number(operand, demand)
        if demand is None:
            lo, hi = -value.hi - 1, -value.lo - 1
            kind = fit(min(lo, value.lo), max(hi, value.hi))
            c = self.convert(value, kind)
            return self._exact(f"ss_w_not({c})" if kind == "wide" else f"(~{c})", lo, hi, kind)
        kind = kind_for_bits(demand)
        c = self.convert(value, kind)
        return Value(f"ss_w_not({c})" if kind == "wide" else f"(~{c})", kind, 0, (1 << demand) - 1, exact=False)

    def _amount(self, expr: Expr) -> Value:
        amount = self.number(expr)
        if amount.lo < 0:
            raise self.unsupported("a shift by a signed amount")
        return amount

    def _shift_left(self, left: Expr, right: Expr, demand: int | None) -> Value:
        amount = self._amount(right)
        if demand is not None:
            if amount.lo >= demand:
                return Value("0u", "u32", 0, 0)
            value = self.number(left, demand - amount.lo)
            kind = kind_for_bits(demand)
            if value.exact and value.lo >= 0 and amount.hi < demand and value.hi << amount.hi < 1 << demand:
                c = self._shl(self.convert(value, kind), amount, kind)
                return self._exact(c, value.lo << amount.lo, value.hi << amount.hi, kind)
            if kind == "wide":
                self._note_wide(1 << demand)
            return Value(self._shl(self.convert(value, kind), amount, kind), kind, 0, (1 << demand) - 1, exact=False)
        value = self.number(left)
        if amount.hi > MAX_INTERMEDIATE:
            raise self.unsupported("a left shift by an unbounded amount whose result is not truncated")
        lo, hi = min(value.lo << amount.hi, value.lo), max(value.hi << amount.hi, value.hi)
        kind = fit(lo, hi)
        return self._exact(self._shl(self.convert(value, kind), amount, kind), lo, hi, kind)

    def _shift_right(self, left: Expr, right: Expr, demand: int | None) -> Value:
        amount = self._amount(right)
        if demand is not None and amount.lo == amount.hi and isinstance(left, FieldRef):
            sliced = self._slice(left, amount.lo, demand)
            if sliced is not None:
                return sliced
        if demand is not None and amount.lo == amount.hi and amount.lo + demand <= MAX_INTERMEDIATE:
            value = self.number(left, demand + amount.lo)
            if not value.exact:
                kind = value.kind
                c = self._shr(value.c, amount, kind)
                return Value(c, kind, 0, (1 << demand) - 1, exact=False)
        else:
            value = self.number(left)
        lo = value.lo >> min(amount.hi if value.lo >= 0 else amount.lo, MAX_INTERMEDIATE)
        hi = value.hi >> min(amount.lo if value.hi >= 0 else amount.hi, MAX_INTERMEDIATE)
        return self._exact(self._shr(value.c, amount, value.kind), lo, hi, value.kind)

    def _slice(self, ref: FieldRef, shift: int, bits: int) -> Value | None:
        """Return bits [shift, shift + bits) of a field wider than 64 bits, without loading the rest of it."""
        slot = self.layout.slot(ref)
        if slot.kind != "bytes" or slot.signed or slot.width <= 64 or bits > 64 or shift >= slot.width:
            return None
        width = min(bits, slot.width - shift)
        start = slot.bit + slot.width - shift - width
        part = Slot("bytes", f"{slot.place} + {start // 8}", 0, start % 8, width, False, slot.key)
        return self.load(part)

    def _divide(self, op: str, left: Expr, right: Expr) -> Value:
        a, b = self.number(left), self.number(right)
        if a.lo < 0 or b.lo < 0:
            raise self.unsupported(f"signed {'division' if op == '/' else 'modulo'}")
        kind = fit(0, max(a.hi, b.hi))
        if kind == "wide":
            raise self.unsupported("division of numbers wider than 128 bits")
        hi = a.hi if op == "/" else min(a.hi, max(b.hi - 1, 0))
        name = "div" if op == "/" else "mod"
        return self._exact(f"ss_{name}_{kind}({self.convert(a, kind)}, {self.convert(b, kind)})", 0, hi, kind)

    def _cast(self, op: str, operand: Expr, width_expr: Expr, demand: int | None) -> Value:
        if not isinstance(width_expr, Const) or not 0 < width_expr.value <= MAX_INTERMEDIATE:
            raise BadProgram(f"{self.source}: {op} needs a constant width")
        width = width_expr.value
        if op == "two_comp_mod":
            if demand is not None and demand <= width:
                return self.number(operand, demand)
            return self.sign_extend(self.number(operand, width), width)
        value = self.number(operand)
        low, high = (0, (1 << width) - 1) if op == "usat_cast" else (-(1 << width - 1), (1 << width - 1) - 1)
        if low <= value.lo and value.hi <= high:
            return value
        kind = fit(min(value.lo, low), max(value.hi, high))
        name = "ss_w_clamp" if kind == "wide" else f"ss_clamp_{kind}"
        c = f"{name}({self.convert(value, kind)}, {self.const(low, kind)}, {self.const(high, kind)})"
        return self._exact(c, max(low, min(value.lo, high)), min(high, max(value.hi, low)), kind)

    def _ternary(self, expr: Op, demand: int | None) -> Value:
        condition = self.boolean(expr.args[0])
        a, b = self._number(expr.args[1], demand), self._number(expr.args[2], demand)
        if a.kind == "bool" or b.kind == "bool":
            if a.kind != b.kind:
                raise BadProgram(f"{self.source}: the branches of ?: are a boolean and a number")
            return Value(f"({condition} ? {a.c} : {b.c})", "bool")
        exact = a.exact and b.exact
        lo, hi = min(a.lo, b.lo), max(a.hi, b.hi)
        if exact:
            kind = fit(lo, hi)
        else:
            assert demand is not None
            kind, lo, hi = kind_for_bits(demand), 0, (1 << demand) - 1
        if kind == "wide":
            self._note_wide(lo, hi)
        return Value(f"({condition} ? {self.convert(a, kind)} : {self.convert(b, kind)})", kind, lo, hi, exact)

    # -------------------------------------------------------------------------------------------------------- booleans

    def boolean(self, expr: Expr) -> str:
        """Return C of type bool for a boolean expression."""
        if isinstance(expr, BoolConst):
            return "true" if expr.value else "false"
        if not isinstance(expr, Op):
            raise BadProgram(f"{self.source}: {type(expr).__name__} where a boolean is expected")
        op, args = expr.op, expr.args
        if op in ("and", "or"):
            return f"({self.boolean(args[0])} {'&&' if op == 'and' else '||'} {self.boolean(args[1])})"
        if op == "not":
            return f"(!{self.boolean(args[0])})"
        if op == "d2b":
            value = self.number(args[0])
            return f"({self._compare(value, '!=', Value('0u', 'u32', 0, 0))})"
        if op == "valid_union" and isinstance(args[0], UnionRef):
            return "(" + " || ".join(self.layout.valid(h) for h in self.program.unions[args[0].union]) + ")"
        if op == "valid":
            return f"({self.header(args[0]).valid} != 0)"
        if op == "?":
            value = self._ternary(expr, None)
            if value.kind == "bool":
                return value.c
        if op in _COMPARE:
            return self._comparison(op, args[0], args[1])
        raise BadProgram(f"{self.source}: {op!r} where a boolean is expected")

    def _is_boolean(self, expr: Expr) -> bool:
        if isinstance(expr, Op) and expr.op == "?":
            return self._is_boolean(expr.args[1])
        return isinstance(expr, BoolConst) or (isinstance(expr, Op) and (expr.op in _COMPARE or expr.op in _LOGICAL))

    def _is_header(self, expr: Expr) -> bool:
        return isinstance(expr, HeaderRef) or (isinstance(expr, Op) and expr.op == "dereference_header_stack")

    def _comparison(self, op: str, left: Expr, right: Expr) -> str:
        if self._is_header(left) or isinstance(left, StackRef):
            if op not in ("==", "!="):
                raise BadProgram(f"{self.source}: headers are compared with {op!r}")
            if isinstance(left, StackRef):
                raise self.unsupported("comparison of header stacks")
            same = self._same_header(self.header(left), self.header(right))
            return same if op == "==" else f"(!{same})"
        if isinstance(left, FieldRef) and isinstance(right, FieldRef) and self._is_varbit(left):
            if op not in ("==", "!=") or not self._is_varbit(right):
                raise BadProgram(f"{self.source}: a varbit field is compared with {op!r}, or with another type")
            return f"({'' if op == '==' else '!'}{self._same_varbit(left, right)})"
        if self._is_boolean(left):
            return f"({self.boolean(left)} {op} {self.boolean(right)})"
        return f"({self._compare(self.number(left), op, self.number(right))})"

    def _same_header(self, a: HeaderPlace, b: HeaderPlace) -> str:
        if a.type_name != b.type_name:
            return "false"
        size = self.program.header_types[a.type_name].width // 8
        same = f"{a.valid} && {b.valid} && memcmp({a.address}, {b.address}, {size}) == 0"
        if a.varbit_length:  # The unused space of a varbit field is always 0.
            same += f" && {a.varbit_length} == {b.varbit_length}"
        return f"({same})"

    def _is_varbit(self, expr: Expr) -> bool:
        return isinstance(expr, FieldRef) and self.program.field_of(expr).varbit

    def _same_varbit(self, a: FieldRef, b: FieldRef) -> str:
        (left, left_length, left_max), (right, right_length, right_max) = self.layout.varbit(a), self.layout.varbit(b)
        size = min(left_max, right_max)
        return f"({left_length} == {right_length} && memcmp({left}, {right}, {size}) == 0)"
