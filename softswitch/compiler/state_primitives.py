"""Compiles primitives on registers, counters and meters."""

from __future__ import annotations

from softswitch.bmv2json.model import Argument, Named, Primitive
from softswitch.compiler.expr import ExprGen
from softswitch.compiler.layout import Layout, Slot
from softswitch.compiler.operands import Handler, Operands
from softswitch.compiler.registers import RegisterPlace
from softswitch.compiler.reroll import RowAccess, Statement
from softswitch.compiler.values import Value
from softswitch.errors import UnsupportedConstruct


class StatePrimitives(Operands):
    """A generator of C for the primitives on state that the switch keeps between packets."""

    def __init__(self, layout: Layout, expr: ExprGen, registers: dict[str, RegisterPlace]) -> None:
        super().__init__(layout, expr)
        self.registers = registers
        self.counter_index = {name: i for i, name in enumerate(self.program.counters)}
        self._row_names: dict[tuple[int, str], str] = {}

    def handlers(self) -> dict[str, Handler]:
        """Return the method that compiles each primitive, by the primitive's name."""
        return {
            "register_read": self._register_read,
            "register_write": self._register_write,
            "count": self._count,
            "execute_meter": self._execute_meter,
        }

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
            f"ss_count(&p->base, &s->counters[{self.counter_index[counter.name]}][ix]); }} }}"
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
