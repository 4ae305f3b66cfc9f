"""Compiles actions: each becomes `static void act_<id>(struct ss_state *s, struct packet *p, const uint8_t *a)`."""

from __future__ import annotations

from collections.abc import Callable

from softswitch.bmv2json.model import (
    Action,
    Argument,
    Const,
    FieldRef,
    HeaderRef,
    Named,
    Op,
    Param,
    Primitive,
    StackField,
    StackRef,
    UnionRef,
    UnionStackName,
    Vector,
)
from softswitch.compiler.calculations import CalculationGen
from softswitch.compiler.expr import ExprGen
from softswitch.compiler.layout import Layout, Slot, storage_bits
from softswitch.compiler.registers import RegisterPlace
from softswitch.compiler.reroll import RowAccess, Statement, emit
from softswitch.compiler.trace import SLACK, TraceGen, name_of
from softswitch.compiler.values import Value
from softswitch.errors import BadProgram, SoftswitchError, UnsupportedConstruct

INLINE_LIMIT = 24  # primitives; larger actions become functions of their own
SS_CLONE_REQUESTED = 0x8000
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


class ActionGen:
    """A generator of the action functions."""

    def __init__(
        self,
        layout: Layout,
        expr: ExprGen,
        registers: dict[str, RegisterPlace],
        calculations: CalculationGen,
        trace: TraceGen | None = None,
    ) -> None:
        self.layout = layout
        self.trace = trace
        self.program = layout.program
        self.expr = expr
        self.registers = registers
        self.calculations = calculations
        self.counter_index = {name: i for i, name in enumerate(self.program.counters)}
        self.digest_index = {number: i for i, number in enumerate(self.program.digests)}
        self.messages: list[str] = []  # formats of log_msg, by number
        self._row_names: dict[tuple[int, str], str] = {}
        self._handlers: dict[str, Callable[[Primitive], list[Statement]]] = {
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
            "assign_VL": self._assign_varbit,
            "assign_header": self._assign_header,
            "copy_header": self._assign_header,
            "assign_header_stack": self._assign_stack,
            "assign_union": self._assign_union,
            "add_header": self._add_header,
            "remove_header": self._remove_header,
            "push": lambda p: self._shift_stack(p, "push"),
            "pop": lambda p: self._shift_stack(p, "pop"),
            "drop": self._drop,
            "mark_to_drop": self._drop,
            "register_read": self._register_read,
            "register_write": self._register_write,
            "count": self._count,
            "execute_meter": self._execute_meter,
            "modify_field_with_hash_based_offset": self._hash,
            "modify_field_rng_uniform": self._random,
            "clone_ingress_pkt_to_egress": self._clone,
            "clone_egress_pkt_to_egress": self._clone,
            "resubmit": lambda p: self._field_list_flag(p, "resubmit_fields"),
            "recirculate": lambda p: self._field_list_flag(p, "recirculate_fields"),
            "generate_digest": self._digest,
            "truncate": self._truncate,
            "log_msg": self._log,
            "assert": self._assert,
            "assume": self._assert,
            "exit": lambda _: [Statement("p->base.target.exited = 1;")],
            "no_op": lambda _: [],
        }

    # ------------------------------------------------------------------------------------------------------- actions

    def function(self, action: Action) -> str:
        """Return the C function of an action."""
        self.expr.params = tuple(param_layout(action)[0])
        statements = self._body(action.primitives)
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

    def _body(self, primitives: tuple[Primitive, ...]) -> list[Statement]:
        targets: dict[int, int] = {}
        for p in primitives:
            if p.op in ("_jump", "_jump_if_zero"):
                target = self._jump_target(p, len(primitives))
                targets[target] = targets.get(target, 0) + 1
        return self._range(primitives, 0, len(primitives), targets)

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
        if end == len(primitives) and start == 0 and targets.get(end):
            statements.append(Statement(f"L{end}:;", barrier=True))
        return statements

    def _branch(
        self, primitives: tuple[Primitive, ...], index: int, end: int, targets: dict[int, int]
    ) -> tuple[Statement, int] | None:
        """Return an `if` without `else` around straight-line statements as one statement; None if it is anything
        else.
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

    def _number(self, argument: Argument | object, demand: int | None = None) -> Value:
        if isinstance(argument, Named | Vector):
            raise BadProgram(f"{self.expr.source}: a number is expected")
        return self.expr.number(argument, demand)  # type: ignore[arg-type]

    def _uint64(self, argument: Argument) -> str:
        return self.expr.convert(self._number(argument, 64), "u64")

    # --------------------------------------------------------------------------------------------------- assignments

    def _assign(self, primitive: Primitive) -> list[Statement]:
        target, source = primitive.args
        return [self.assignment(self.expr.target(target), source)]

    def assignment(self, slot: Slot, source: Argument) -> Statement:
        """``slot = source``."""
        return Statement(self.expr.store(slot, self._number(source, slot.width)), writes=frozenset({slot.key}))

    def _arithmetic(self, primitive: Primitive, op: str) -> list[Statement]:
        args = primitive.args
        left, right = (args[0], args[1]) if len(args) == 2 else (args[1], args[2])
        return [self.assignment(self.expr.target(args[0]), Op(op, (left, right)))]  # type: ignore[arg-type]

    def _assign_header(self, primitive: Primitive) -> list[Statement]:
        if all(isinstance(a, HeaderRef) and self.layout.is_metadata(a.header) for a in primitive.args):
            return self._assign_struct(primitive)
        to, source = (self.expr.header(arg) for arg in primitive.args)  # type: ignore[arg-type]
        if to.type_name != source.type_name:
            raise BadProgram(f"{primitive.source}: assignment between headers of different types")
        size = self.program.header_types[to.type_name].width // 8
        copy = f"memmove({to.address}, {source.address}, {size});"
        if to.varbit_length:
            copy += f" {to.varbit_length} = {source.varbit_length};"
        text = f"if ({source.valid}) {{ {copy} {to.others_invalid} }} {to.valid} = {source.valid};"
        return [Statement(text, barrier=True)]

    def _assign_struct(self, primitive: Primitive) -> list[Statement]:
        """Assign a struct; one that is separate in the JSON is metadata, which is always valid."""
        to, source = primitive.args
        assert isinstance(to, HeaderRef) and isinstance(source, HeaderRef)
        kind = self.program.headers[to.header].type
        if kind != self.program.headers[source.header].type:
            raise BadProgram(f"{primitive.source}: assignment between structs of different types")
        statements: list[Statement] = []
        for decl in kind.fields:
            left, right = FieldRef(to.header, decl.name), FieldRef(source.header, decl.name)
            if decl.varbit:
                statements += self._assign_varbit(Primitive("assign_VL", (left, right), primitive.source))
            else:
                statements.append(self.assignment(self.expr.target(left), right))
        return statements

    def _assign_varbit(self, primitive: Primitive) -> list[Statement]:
        left, right = primitive.args
        assert isinstance(left, FieldRef) and isinstance(right, FieldRef)
        to, to_length, size = self.layout.varbit(left)
        source, length, source_size = self.layout.varbit(right)
        if size != source_size:
            raise BadProgram(f"{primitive.source}: assignment between varbit fields of different types")
        return [Statement(f"memmove({to}, {source}, {size}); {to_length} = {length};", barrier=True)]

    def _assign_union(self, primitive: Primitive) -> list[Statement]:
        """Assign a union: two unions of one type have their headers in the same order, at most one of them valid."""
        to, source = primitive.args
        assert isinstance(to, UnionRef) and isinstance(source, UnionRef)
        return [Statement(self._copy_union(to.union, source.union), barrier=True)]

    def _copy_union(self, to: str, source: str) -> str:
        members = zip(self.program.unions[to], self.program.unions[source], strict=True)
        pairs = [(self.expr.header(HeaderRef(a)), self.expr.header(HeaderRef(b))) for a, b in members]
        text = ""
        for a, b in pairs:
            size = self.program.header_types[b.type_name].width // 8
            text += f"if ({b.valid}) memmove({a.address}, {b.address}, {size}); {a.valid} = {b.valid}; "
            if a.varbit_length:
                text += f"{a.varbit_length} = {b.varbit_length}; "
        return text

    def _assign_stack(self, primitive: Primitive) -> list[Statement]:
        to, source = primitive.args
        assert isinstance(to, StackRef) and isinstance(source, StackRef)
        a, b = self.program.stacks[to.stack], self.program.stacks[source.stack]
        if a.type != b.type or len(a.headers) != len(b.headers):
            raise BadProgram(f"{primitive.source}: assignment between header stacks of different types")
        statements: list[Statement] = []
        for x, y in zip(a.headers, b.headers, strict=True):
            refs = (HeaderRef(x.name), HeaderRef(y.name))
            statements += self._assign_header(Primitive("assign_header", refs, primitive.source))
        i, j = self.layout.stack_index[to.stack], self.layout.stack_index[source.stack]
        return [*statements, Statement(f"p->stack_next[{i}] = p->stack_next[{j}];", barrier=True)]

    # ---------------------------------------------------------------------------------------------- headers and stacks

    def _add_header(self, primitive: Primitive) -> list[Statement]:
        place = self.expr.header(primitive.args[0])  # type: ignore[arg-type]
        size = self.program.header_types[place.type_name].width // 8
        empty = f"{place.varbit_length} = 0; " if place.varbit_length else ""
        text = (
            f"if (!{place.valid}) {{ memset({place.address}, 0, {size}); {empty}{place.valid} = 1; "
            f"{place.others_invalid} p->base.target.length += {self.expr.size(place)}; }}"
        )
        return [Statement(text, barrier=True)]

    def _remove_header(self, primitive: Primitive) -> list[Statement]:
        place = self.expr.header(primitive.args[0])  # type: ignore[arg-type]
        text = f"if ({place.valid}) {{ {place.valid} = 0; p->base.target.length -= {self.expr.size(place)}; }}"
        return [Statement(text, barrier=True)]

    def _shift_stack(self, primitive: Primitive, direction: str) -> list[Statement]:
        ref, count = primitive.args
        assert isinstance(count, Const)
        if isinstance(ref, UnionStackName):
            return [self._shift_union_stack(ref.stack, direction, count.value)]
        assert isinstance(ref, StackRef)
        stack = self.program.stacks[ref.stack]
        base, size, valid = self.layout.stack_base(stack)
        depth = len(stack.headers)
        n = min(count.value, depth)
        text = (
            f"ss_stack_{direction}(p->h + {base}, p->valid + {valid}, "
            f"&p->stack_next[{self.layout.stack_index[ref.stack]}], {size}, {depth}, {n});"
        )
        if stack.type.varbit is not None:
            first = self.layout.varbit_length(stack.headers[0].name)
            to, source = (n, 0) if direction == "push" else (0, n)
            text += f" memmove(&{first} + {to}, &{first} + {source}, {2 * (depth - n)});"
        return [Statement(text, barrier=True)]

    def _shift_union_stack(self, stack: str, direction: str, count: int) -> Statement:
        """Shift a stack of unions element by element, since the headers of a union differ in size."""
        unions = self.program.union_stacks[stack]
        depth = len(unions)
        n = min(count, depth)
        text = ""
        for i in reversed(range(n, depth)) if direction == "push" else range(depth - n):
            source = unions[i - n if direction == "push" else i + n]
            text += self._copy_union(unions[i], source)
        for union in unions[:n] if direction == "push" else unions[depth - n :]:
            for name in self.program.unions[union]:
                text += f"{self.layout.valid(name)} = 0; "
        following = f"p->stack_next[{self.layout.stack_index[stack]}]"
        if direction == "push":
            text += f"{following} = (uint8_t)({following} + {n} < {depth} ? {following} + {n} : {depth});"
        else:
            text += f"{following} = (uint8_t)({following} > {n} ? {following} - {n} : 0);"
        return Statement(text, barrier=True)

    def _drop(self, primitive: Primitive) -> list[Statement]:
        del primitive
        return [Statement("p->base.standard.egress_spec = SS_DROP_PORT; p->base.standard.mcast_grp = 0;", barrier=True)]

    # ------------------------------------------------------------------------------------------ registers and counters

    def _row(self, place: RegisterPlace, index: str) -> RowAccess:
        name = self._row_names.setdefault((place.group, index), f"row{len(self._row_names)}")
        row_type = place.c_type or "uint8_t"
        declaration = (
            f"{row_type} *restrict const {name} = "
            f"({row_type} *)(s->registers[{place.group}] + {name}_ix * {place.row_bytes}u);"
        )
        return RowAccess(name, index, place.size, declaration)

    def _element(self, place: RegisterPlace, row: RowAccess) -> tuple[Slot, Slot]:
        """Return the element as two slots: with the index written out, and through the row pointer."""
        if place.c_type:
            bits = place.element_bytes * 8
            base = f"(({place.c_type} *)(s->registers[{place.group}] + ix * {place.row_bytes}u))"
            position = place.offset // place.element_bytes
            key = ("register", place.group)
            return (
                Slot("native", f"{base}[«{position}»]", bits, 0, place.width, False, key),
                Slot("native", f"{row.name}[«{position}»]", bits, 0, place.width, False, key),
            )
        pad, key = -place.width % 8, ("register", place.group)
        base = f"s->registers[{place.group}] + ix * {place.row_bytes}u + «{place.offset}»"
        return (
            Slot("bytes", base, 0, pad, place.width, False, key),
            Slot("bytes", f"{row.name} + «{place.offset}»", 0, pad, place.width, False, key),
        )

    def _register_place(self, argument: Argument) -> RegisterPlace:
        assert isinstance(argument, Named) and argument.kind == "register_array"
        return self.registers[argument.name]

    def _register_read(self, primitive: Primitive) -> list[Statement]:
        target, register, index = primitive.args
        place = self._register_place(register)
        row = self._row(place, self._uint64(index))
        index_reads = frozenset(self.expr.reads)
        slot = self.expr.target(target)
        slow, quick = self._element(place, row)
        checked = self.expr.store(slot, self.expr.load(slow, slot.width))
        fast = self.expr.store(slot, self.expr.load(quick, slot.width))
        return [self._guarded(row, checked, fast, index_reads, slot.key)]

    def _register_write(self, primitive: Primitive) -> list[Statement]:
        register, index, source = primitive.args
        place = self._register_place(register)
        row = self._row(place, self._uint64(index))
        index_reads = frozenset(self.expr.reads)
        slow, quick = self._element(place, row)
        value = self._number(source, place.width)
        return [
            self._guarded(
                row, self.expr.store(slow, value), self.expr.store(quick, value), index_reads, ("register", place.group)
            )
        ]

    @staticmethod
    def _guarded(
        row: RowAccess, checked: str, fast: str, reads: frozenset[tuple[str, int]], writes: tuple[str, int]
    ) -> Statement:
        text = f"{{ const uint64_t ix = {row.index}; if (ix < {row.rows}u) {checked} }}"
        return Statement(text, fast, (row,), reads, frozenset({writes}))

    def _count(self, primitive: Primitive) -> list[Statement]:
        counter, index = primitive.args
        assert isinstance(counter, Named) and counter.kind == "counter_array"
        decl = self.program.counters[counter.name]
        if decl.table is not None:
            raise UnsupportedConstruct(f"count() with an index on direct counter {counter.name!r}", primitive.source)
        text = (
            f"{{ const uint64_t ix = {self._uint64(index)}; if (ix < {decl.size}u) {{ "
            f"struct ss_counter *c = &s->counters[{self.counter_index[counter.name]}][ix]; "
            "c->packets++; c->bytes += p->base.target.ingress_length; } }"
        )
        return [Statement(text, barrier=True)]

    def _execute_meter(self, primitive: Primitive) -> list[Statement]:
        """Execute a meter; an index beyond the array leaves the result unchanged, as in bmv2."""
        meter, index, result = primitive.args
        assert isinstance(meter, Named) and meter.kind == "meter_array"
        decl = self.program.meters[meter.name]
        if decl.table is not None:
            raise UnsupportedConstruct(f"execute_meter on direct meter {meter.name!r}", primitive.source)
        number = list(self.program.meters).index(meter.name)
        store = self.expr.store(self.expr.target(result), Value("colour", "u32", 0, 2))
        length = "p->base.target.ingress_length"
        text = (
            f"{{ const uint64_t ix = {self._uint64(index)}; if (ix < {decl.size}u) {{ const uint32_t colour = "
            f"ss_meter_execute(&s->meters[{number}][ix], s->now_us, {length if decl.in_bytes else 1}, {length}); "
            f"{store} }} }}"
        )
        return [Statement(text, barrier=True)]

    # -------------------------------------------------------------------------------------------------------- hashes

    def _hash(self, primitive: Primitive) -> list[Statement]:
        target, base, calculation, size = primitive.args
        assert isinstance(calculation, Named) and calculation.kind == "calculation"
        if any(i.kind == "payload" for i in self.program.calculations[calculation.name].inputs):
            raise UnsupportedConstruct("hash over the payload", primitive.source)
        slot = self.expr.target(target)
        value = Value("v", "u64", 0, (1 << 64) - 1)
        text = (
            f"{{ uint64_t n = {self._uint64(size)}; "
            f"const uint64_t v = {self.calculations.call(calculation.name)} % (n ? n : 1)"
            f" + {self._uint64(base)}; {self.expr.store(slot, value)} }}"
        )
        return [Statement(text, barrier=True)]

    # ---------------------------------------------------------------------------------------------- the switch's work

    def _random(self, primitive: Primitive) -> list[Statement]:
        target, low, high = primitive.args
        slot = self.expr.target(target)
        store = self.expr.store(slot, Value("v", "u64", 0, (1 << 64) - 1))
        text = (
            f"{{ const uint64_t lo = {self._uint64(low)}, hi = {self._uint64(high)}; if (lo <= hi) {{ "
            "uint64_t v = s->services->random(s->device), n = hi - lo + 1; v = (n ? v % n : v) + lo; "
            f"{store} }} }}"
        )
        return [Statement(text, barrier=True)]

    def _clone(self, primitive: Primitive) -> list[Statement]:
        session, fields = primitive.args
        text = (
            f"p->base.target.clone_session = (uint16_t)({self._uint64(session)} | {SS_CLONE_REQUESTED}u); "
            f"p->base.target.clone_fields = (uint16_t){self._uint64(fields)};"
        )
        return [Statement(text, barrier=True)]

    def _field_list_flag(self, primitive: Primitive, member: str) -> list[Statement]:
        return [Statement(f"p->base.target.{member} = (uint16_t){self._uint64(primitive.args[0])};", barrier=True)]

    def _digest(self, primitive: Primitive) -> list[Statement]:
        """Send a digest with the values of this moment, as v1model says (bmv2 sends those at the end of ingress)."""
        _, number = primitive.args
        assert isinstance(number, Const)
        if number.value == 0:  # p4c compiles an empty digest to number 0.
            return []
        digest = self.program.digests.get(number.value)
        if digest is None:
            raise BadProgram(f"{primitive.source}: digest {number.value} does not exist")
        values = [(self._number(element), width) for element, width in digest.elements]
        fill, size = self.pack(values)
        index = self.digest_index[number.value]
        text = f"{{ uint8_t d[{size + SLACK}]; {fill} s->services->digest(s->device, {index}, d, {size}); }}"
        return [Statement(text, barrier=True)]

    def pack(self, values: list[tuple[Value, int]]) -> tuple[str, int]:
        """Return C that packs values into ``d``, each in whole bytes, and the number of bytes.

        values: (value, width in bits).
        """
        fill, at = "memset(d, 0, sizeof d);", 0
        for value, width in values:
            slot = Slot("bytes", f"d + {at}", 0, -width % 8, width, False, ("d", at))
            fill += " " + self.expr.store(slot, value)
            at += (width + 7) // 8
        return fill, at

    def _truncate(self, primitive: Primitive) -> list[Statement]:
        text = (
            f"{{ const uint64_t n = {self._uint64(primitive.args[0])}; "
            "if (n < p->base.target.truncate_to) p->base.target.truncate_to = (uint32_t)n; }"
        )
        return [Statement(text, barrier=True)]

    def _assert(self, primitive: Primitive) -> list[Statement]:
        """Compile ``assert`` and ``assume``: a packet that violates the condition is logged and dropped (bmv2
        aborts).
        """
        (condition,) = primitive.args
        self.messages.append(f"{primitive.op} does not hold at {primitive.source or 'an unknown line'}: packet dropped")
        text = (
            f"if ({self._uint64(condition)} == 0) {{ "
            f"s->services->log(s->device, {len(self.messages) - 1}, NULL, 0); "
            "p->base.standard.egress_spec = SS_DROP_PORT; p->base.standard.mcast_grp = 0; "
            "p->base.target.exited = 1; return; }"
        )
        return [Statement(text, barrier=True)]

    def _log(self, primitive: Primitive) -> list[Statement]:
        message, vector = primitive.args
        assert isinstance(message, Named) and isinstance(vector, Vector)
        values: list[str] = []
        for item in vector.items:
            value = self.expr.number(item)
            if value.kind == "wide":
                raise UnsupportedConstruct("log_msg of a value wider than 128 bits", primitive.source)
            if value.kind == "u128" and value.hi >= 1 << 127:
                raise UnsupportedConstruct("log_msg of a value wider than 127 bits", primitive.source)
            values.append(f"(u128)(i128){self.expr.convert(value, 'i128' if value.lo < 0 else 'u128')}")
        self.messages.append(message.name)
        number = len(self.messages) - 1
        if not values:
            return [Statement(f"s->services->log(s->device, {number}, NULL, 0);", barrier=True)]
        text = (
            f"{{ const u128 values[] = {{{', '.join(values)}}}; "
            f"s->services->log(s->device, {number}, values, {len(values)}); }}"
        )
        return [Statement(text, barrier=True)]


def _comment(text: str) -> str:
    return "".join(c if c.isalnum() or c in "._" else "?" for c in text)
