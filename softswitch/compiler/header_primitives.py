"""Compiles primitives that assign, add, remove and shift headers, unions and stacks of them."""

from __future__ import annotations

from softswitch.bmv2json.model import (
    Const,
    FieldRef,
    HeaderRef,
    Primitive,
    StackRef,
    UnionRef,
    UnionStackName,
)
from softswitch.compiler.operands import Handler, Operands
from softswitch.compiler.reroll import Statement
from softswitch.errors import BadProgram


class HeaderPrimitives(Operands):
    """A generator of C for the primitives on whole headers."""

    def handlers(self) -> dict[str, Handler]:
        """Return the method that compiles each primitive, by the primitive's name."""
        return {
            "assign_VL": self._assign_varbit,
            "assign_header": self._assign_header,
            "copy_header": self._assign_header,
            "assign_header_stack": self._assign_stack,
            "assign_union": self._assign_union,
            "add_header": self._add_header,
            "remove_header": self._remove_header,
            "push": lambda p: self._shift_stack(p, "push"),
            "pop": lambda p: self._shift_stack(p, "pop"),
        }

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
