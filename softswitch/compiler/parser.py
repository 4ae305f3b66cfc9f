"""Compiles the parser to one C function with one label per state."""

from __future__ import annotations

from softswitch.bmv2json.model import (
    Field,
    HeaderRef,
    HeaderType,
    Lookahead,
    Op,
    P4Program,
    ParserOp,
    ParseState,
    Primitive,
    StackRef,
    Transition,
    UnionStackRef,
    ValueSet,
)
from softswitch.compiler.actions import ActionGen
from softswitch.compiler.checksums import verify_checksums
from softswitch.compiler.expr import ExprGen
from softswitch.compiler.layout import Layout, Slot
from softswitch.compiler.places import HeaderPlace
from softswitch.compiler.reroll import plain
from softswitch.compiler.trace import name_of
from softswitch.compiler.values import C_TYPES, Value, kind_for_bits
from softswitch.errors import UnsupportedConstruct

SHOWN_FIELDS = 24  # fields of an extracted header that a trace shows
MAX_STEPS = 4096  # states visited per packet if the state graph has a cycle; more is ParserTimeout


def _split(parts: list[tuple[str, int, str]], widths: tuple[int, ...]) -> list[tuple[str, int, str]]:
    """Return the same bits as C values of other widths; at most 64 bits unless the widths are those of the parts."""
    if tuple(width for _, width, _ in parts) == widths:
        return parts
    whole, rest = "(uint64_t)0", sum(widths)
    for c, width, _ in parts:
        rest -= width
        whole += f" | (uint64_t){c} << {rest}"
    result, rest = [], sum(widths)
    for width in widths:
        rest -= width
        mask = (1 << width) - 1
        kind = kind_for_bits(width)
        result.append((f"({C_TYPES[kind]})((({whole}) >> {rest}) & {mask:#x}u)", width, kind))
    return result


def value_set_words(value_set: ValueSet) -> int:
    """Return the 64-bit words of a value set's key, which has each field in whole bytes."""
    return (sum((w + 7) // 8 for w in value_set.widths or (value_set.bits,)) + 7) // 8


class ParserGen:
    def __init__(self, layout: Layout, expr: ExprGen, actions: ActionGen) -> None:
        self.layout = layout
        self.program = layout.program
        self.expr = expr
        self.actions = actions
        self.trace = actions.trace
        self._labels = {name: i for i, name in enumerate(self.program.states)}
        self._aheads = 0  # number of local copies of what lookahead reads

    def function(self) -> str:
        """Return the C function ``static uint32_t parse(state, packet, data, len)``, which returns the consumed bytes'
        number.
        """
        cyclic = _has_cycle(self.program)
        lines = [
            "static uint32_t parse(struct ss_state *restrict s, struct ss_packet *restrict base,",
            "        const uint8_t *restrict data, uint32_t len) {",
            "struct packet *restrict const p = (struct packet *)base;",
            "uint32_t at = 0; const uint8_t *const a = NULL; (void)s; (void)a; (void)data; (void)len;",
            f"p->base.standard.parser_error = {self._error('NoError')}u;",
        ]
        if cyclic:
            lines.append("unsigned steps = 0;")
        if self.program.init_state is not None:
            lines.append(f"goto S{self._labels[self.program.init_state]};")
        for state in self.program.states.values():
            lines += self._state(state, cyclic)
        lines.append("done:;" if self.program.states else "")
        if self.trace is not None:
            error = Value("p->base.standard.parser_error", "u32", 0, (1 << 32) - 1)
            at = Value("at", "u32", 0, (1 << 32) - 1)
            lines.append(self.trace.point("parsed", "", None, [("bytes", at, 32), ("error", error, 32)]))
        lines += verify_checksums(self.layout, self.expr, self.actions.calculations, self.trace)
        return "\n".join([*lines, "return at;", "}"])

    def _error(self, name: str) -> int:
        return self.program.errors.get(name, 0 if name == "NoError" else 1)

    def _fail(self, name: str) -> str:
        return f"{{ p->base.standard.parser_error = {self._error(name)}u; goto done; }}"

    def _state(self, state: ParseState, cyclic: bool) -> list[str]:
        lines = [f"S{self._labels[state.name]}:;"]
        if cyclic:
            lines.append(f"if (++steps > {MAX_STEPS}) {self._fail('ParserTimeout')}")
        if self.trace is not None:
            lines.append(self.trace.point("state", state.name))
        for op in state.ops:
            lines += [plain(line) for line in self._op(op)]
        lines += [plain(line) for line in self._transitions(state)]
        return lines

    # ---------------------------------------------------------------------------------------------------- operations

    def _op(self, op: ParserOp) -> list[str]:
        self.expr.source = None
        if op.op == "extract":
            target = op.args[0]
            if isinstance(target, StackRef):
                return self._extract_next(target)
            if isinstance(target, UnionStackRef):
                return self._extract_next_union(target)
            assert isinstance(target, HeaderRef)
            return [self._extract(self.expr.header(target), target.header)]
        if op.op == "extract_VL":
            target, length = op.args
            size = self.expr.uint64(length)  # type: ignore[arg-type]
            if isinstance(target, StackRef):
                return self._extract_next(target, size)
            if isinstance(target, UnionStackRef):
                return self._extract_next_union(target, size)
            assert isinstance(target, HeaderRef)
            return [self._extract(self.expr.header(target), target.header, size)]
        if op.op == "set":
            lines = [self._set(op)]
            if self.trace is not None:
                value = self.expr.load(self.expr.target(op.args[0]))
                lines.append(self.trace.point("statement", "", None, [(name_of(op.args[0]), value, 0)]))
            return lines
        if op.op == "verify":
            condition, error = op.args
            code = self.expr.convert(self.expr.number(error, 32), "u32")  # type: ignore[arg-type]
            failed = f"{{ p->base.standard.parser_error = {code}; goto done; }}"
            return [f"if (!{self.expr.boolean(condition)}) {failed}"]  # type: ignore[arg-type]
        if op.op == "advance":
            amount = self.expr.uint64(op.args[0])  # type: ignore[arg-type]
            return [
                f"{{ const uint64_t bits = {amount};",
                f"if (bits % 8) {self._fail('ParserInvalidArgument')}",
                f"if (len - at < bits / 8) {self._fail('PacketTooShort')}",
                "at += (uint32_t)(bits / 8); }",
            ]
        primitive = op.args[0]
        assert isinstance(primitive, Primitive)
        if primitive.op in ("assert", "assume"):
            raise UnsupportedConstruct(f"{primitive.op} in a parser", primitive.source)
        return [s.checked for s in self.actions.primitive(primitive)]

    def _extract(self, place: HeaderPlace, name: str, varbit: str | None = None) -> str:
        """Return C that extracts a header; ``varbit`` is C of the number of bits in its varbit field."""
        kind = self.program.header_types[place.type_name]
        size = kind.width // 8
        if kind.varbit is not None:
            if varbit is None:
                raise UnsupportedConstruct(f"extract of {kind.name!r} without a length for its varbit field")
            return self._extract_varbit(place, name, kind, kind.varbit, varbit)
        return (
            f"if (len - at < {size}u) {self._fail('PacketTooShort')} "
            f"memcpy({place.address}, data + at, {size}); {place.valid} = 1; {place.others_invalid} at += {size}; "
            f"{self._extracted(place, name)}"
        )

    def _extracted(self, place: HeaderPlace, name: str) -> str:
        """Return C that reports an extracted header with its first fields."""
        if self.trace is None:
            return ""
        values: list[tuple[str, Value, int]] = []
        for field in self.program.header_types[place.type_name].fields[:SHOWN_FIELDS]:
            if not field.varbit:
                slot = self.layout.in_header(f"{place.address} + {field.offset // 8}", field, name)
                values.append((field.name, self.expr.load(slot), 0))
        return self.trace.point("extract", name, None, values)

    def _extract_varbit(self, place: HeaderPlace, name: str, kind: HeaderType, field: Field, bits: str) -> str:
        """Return C that extracts a header with a varbit field.

        The varbit field has space for its largest size; the fields after it are stored behind that space.
        """
        start, most = field.offset // 8, field.width // 8
        rest = kind.width // 8 - start - most
        return (
            f"{{ const uint64_t bits = {bits}, n = bits / 8; uint8_t *const to = {place.address}; "
            f"if (bits % 8) {self._fail('ParserInvalidArgument')} "
            f"if (n > len || len - at < {start + rest}u + n) {self._fail('PacketTooShort')} "
            f"if (n > {most}) {self._fail('HeaderTooShort')} "
            f"memcpy(to, data + at, {start} + n); memset(to + {start} + n, 0, {most} - n); "
            f"memcpy(to + {start + most}, data + at + {start} + n, {rest}); {place.varbit_length} = (uint16_t)n; "
            f"{place.valid} = 1; {place.others_invalid} at += {start + rest}u + (uint32_t)n; "
            f"{self._extracted(place, name)} }}"
        )

    def _extract_next(self, ref: StackRef, varbit: str | None = None) -> list[str]:
        stack = self.program.stacks[ref.stack]
        base, size, valid = self.layout.stack_base(stack)
        following = f"p->stack_next[{self.layout.stack_index[ref.stack]}]"
        length = ""
        if stack.type.varbit is not None:
            length = f"(&{self.layout.varbit_length(stack.headers[0].name)})[next]"
        place = HeaderPlace(f"p->h + {base} + {size} * next", f"p->valid[{valid} + next]", stack.type.name, length)
        return [
            f"{{ const unsigned next = {following}; if (next >= {len(stack.headers)}) {self._fail('StackOutOfBounds')}",
            self._extract(place, f"{ref.stack}.next", varbit),
            f"{following} = (uint8_t)(next + 1); }}",
        ]

    def _extract_next_union(self, ref: UnionStackRef, varbit: str | None = None) -> list[str]:
        following = f"p->stack_next[{self.layout.stack_index[ref.stack]}]"
        lines = [f"switch ({following}) {{"]
        for i, union in enumerate(self.program.union_stacks[ref.stack]):
            place = self.expr.header(HeaderRef(self.program.unions[union][ref.member]))
            lines.append(f"case {i}: {self._extract(place, f'{ref.stack}.next', varbit)} break;")
        return [*lines, f"default: {self._fail('StackOutOfBounds')} }}", f"{following}++;"]

    def _set(self, op: ParserOp) -> str:
        target, source = op.args
        slot = self.expr.target(target)
        if isinstance(source, Lookahead):
            bounds, value = self._lookahead(source)
            return f"{bounds} {self.expr.store(slot, value)}"
        if _contains_lookahead(source):
            raise UnsupportedConstruct("lookahead inside a larger expression")
        return self.expr.store(slot, self.expr.number(source, slot.width))  # type: ignore[arg-type]

    def _lookahead(self, ahead: Lookahead) -> tuple[str, Value]:
        """Return (C that checks the packet's length, the value)."""
        first, end = ahead.offset // 8, (ahead.offset + ahead.width + 7) // 8
        bounds = f"if (len - at < {end}u) {self._fail('PacketTooShort')}"
        place = f"data + at + {first}"
        if ahead.offset % 8 or ahead.width not in (8, 16, 32, 64):  # Native loads of these widths would read too far.
            self._aheads += 1
            name, size = f"ahead{self._aheads}", end - first
            bounds += f" uint8_t {name}[{size + 16}] = {{0}}; memcpy({name}, {place}, {size});"
            place = name
        slot = Slot("bytes", place, 0, ahead.offset % 8, ahead.width, False, ("packet", 0))
        return bounds, self.expr.load(slot)

    # --------------------------------------------------------------------------------------------------- transitions

    def _transitions(self, state: ParseState) -> list[str]:
        lines: list[str] = ["{"]
        parts: list[tuple[str, int, str]] = []  # (C variable, width, kind)
        for i, (expr, width) in enumerate(state.key):
            if isinstance(expr, Lookahead):
                bounds, value = self._lookahead(expr)
                lines.append(bounds)
            else:
                value = self.expr.number(expr)
            kind = kind_for_bits(width)
            if value.lo < 0:  # The value is compared as the bits of the field.
                value = self.expr.truncate(value, width)
            ctype = {"u32": "uint32_t", "u64": "uint64_t", "u128": "u128", "wide": "ss_wide"}[kind]
            lines.append(f"const {ctype} k{i} = {self.expr.convert(value, kind)};")
            parts.append((f"k{i}", width, kind))
        if self.trace is not None and parts:
            keys = [
                (name_of(expr), Value(c, kind, 0, (1 << width) - 1), width)
                for (expr, _), (c, width, kind) in zip(state.key, parts, strict=True)
            ]
            lines.append(self.trace.point("select", "", None, keys))
        ended = False
        for t in state.transitions:
            goto = "goto done;" if t.next_state is None else f"goto S{self._labels[t.next_state]};"
            if t.value_set is not None:
                lines.append(f"{{ {self._in_value_set(t.value_set, parts)} {goto} }}")
                continue
            if t.value is None:
                lines.append(goto)
                ended = True
                break
            lines.append(f"if ({self._matches(t, parts)}) {goto}")
        if not ended:
            lines.append("goto done;")
        return [*lines, "}"]

    def _in_value_set(self, name: str, parts: list[tuple[str, int, str]]) -> str:
        """Return C that begins a statement which is executed if the key is in a value set."""
        index = list(self.program.value_sets).index(name)
        value_set = self.program.value_sets[name]
        words = value_set_words(value_set)
        parts = _split(parts, value_set.widths)
        lines = [f"uint64_t key[{words}]; uint8_t *const kb = (uint8_t *)key; memset(key, 0, {8 * words});"]
        at = 0
        for c, width, kind in parts:
            size = (width + 7) // 8
            slot = Slot("bytes", f"kb + {at}", 0, -width % 8, width, False, ("key", at))
            lines.append(self.expr.store(slot, Value(c, kind, 0, (1 << width) - 1)))
            at += size
        return " ".join([*lines, f"if (ss_lookup_masked(&s->value_sets[{index}], key, {words}))"])

    def _matches(self, t: Transition, parts: list[tuple[str, int, str]]) -> str:
        """Return C that tests whether every part of the key equals its part of the value under its part of the mask."""
        assert t.value is not None
        conditions: list[str] = []
        shift = 8 * sum((w + 7) // 8 for _, w, _ in parts)
        if t.value < 0 or t.value >> shift:
            return "false"
        for name, width, kind in parts:
            padded = 8 * ((width + 7) // 8)
            shift -= padded
            value = (t.value >> shift) & ((1 << padded) - 1)
            full = (1 << width) - 1
            mask = (1 << padded) - 1 if t.mask is None else (t.mask >> shift) & ((1 << padded) - 1)
            value &= mask
            if value & ~full:
                return "false"
            mask &= full
            if mask == 0:
                continue
            if kind == "wide":
                left = name if mask == full else f"ss_w_and({name}, {self.expr.const(mask, kind)})"
                conditions.append(f"ss_w_cmp({left}, {self.expr.const(value, kind)}) == 0")
            else:
                left = name if mask == full else f"({name} & {self.expr.const(mask, kind)})"
                conditions.append(f"{left} == {self.expr.const(value, kind)}")
        return " && ".join(conditions) if conditions else "true"


def _contains_lookahead(expr: object) -> bool:
    if isinstance(expr, Lookahead):
        return True
    return isinstance(expr, Op) and any(_contains_lookahead(a) for a in expr.args)


def _has_cycle(program: P4Program) -> bool:
    """Return whether a parser state can be reached from itself."""
    edges = {s.name: [t.next_state for t in s.transitions if t.next_state] for s in program.states.values()}
    open_states: set[str] = set()
    done: set[str] = set()
    for root in edges:
        stack: list[tuple[str, int]] = [(root, 0)]
        while stack:
            name, i = stack.pop()
            if i == 0:
                if name in done:
                    continue
                open_states.add(name)
            if i < len(edges[name]):
                stack.append((name, i + 1))
                following = edges[name][i]
                if following in open_states:
                    return True
                if following not in done:
                    stack.append((following, 0))
            else:
                open_states.discard(name)
                done.add(name)
    return False
