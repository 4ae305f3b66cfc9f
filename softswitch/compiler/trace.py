"""Trace points, which the traced variant of a program reports while it runs.

The variant has the same packet state and tables as the program itself, so that a frame may run through either. A point
has a number; at run time it comes with the values of its fields, each in whole bytes in network order.
"""

from __future__ import annotations

from dataclasses import dataclass

from softswitch.bmv2json.model import FieldRef, Op, StackField
from softswitch.compiler.expr import ExprGen
from softswitch.compiler.layout import Slot
from softswitch.compiler.values import Value

SLACK = 16  # Bytes after the last field of a buffer, because it is accessed in whole words.


@dataclass(frozen=True)
class Field:
    """A value that a point reports; ``signed`` ones are two's complement of ``width`` bits."""

    name: str
    width: int
    signed: bool = False


@dataclass(frozen=True)
class Point:
    """A trace point.

    ``kind`` says how it is shown (dataplane/trace.py); ``source`` is the P4 line, if the compiler wrote it.
    """

    kind: str
    text: str
    source: str | None = None
    fields: tuple[Field, ...] = ()
    params: tuple[tuple[int, int], ...] = ()  # of an action: (byte offset, width) of each parameter in entries


class TraceGen:
    """A collector of a program's trace points; :meth:`point` returns the C that reports one."""

    def __init__(self, expr: ExprGen) -> None:
        self.points: list[Point] = []
        self._expr = expr

    def point(
        self, kind: str, text: str, source: str | None = None, values: list[tuple[str, Value, int]] | None = None
    ) -> str:
        """Return C that reports a new point.

        ``values`` has the name, value and width of each field (0: as wide as the value can be).
        """
        fields: list[Field] = []
        fill, at = "", 0
        for name, value, wanted in values or []:
            signed = value.exact and value.lo < 0
            width = wanted or max(1, value.hi.bit_length() + signed, value.lo.bit_length() + 1 if signed else 1)
            slot = Slot("bytes", f"d + {at}", 0, -width % 8, width, False, ("d", at))
            fill += " " + self._expr.store(slot, self._expr.truncate(value, width) if signed else value)
            fields.append(Field(name, width, signed))
            at += (width + 7) // 8
        return self.raw(Point(kind, text, source, tuple(fields)), f"memset(d, 0, sizeof d);{fill}", at)

    def raw(self, point: Point, fill: str, size: int) -> str:
        """Return C that reports a point with the ``size`` bytes that ``fill`` puts into ``d``."""
        number = len(self.points)
        self.points.append(point)
        if size == 0:
            return f"s->services->trace(s->device, {number}u, NULL, 0);"
        return f"{{ uint8_t d[{size + SLACK}]; {fill} s->services->trace(s->device, {number}u, d, {size}); }}"

    def at(self, point: Point, address: str, size: int) -> str:
        """Return C that reports a point with the ``size`` bytes at an address."""
        number = len(self.points)
        self.points.append(point)
        return f"s->services->trace(s->device, {number}u, (const uint8_t *)({address}), {size});"


def name_of(expr: object) -> str:
    """Return a field's name as P4 programs write it, as far as the JSON has it."""
    if isinstance(expr, FieldRef):
        return f"{expr.header}.{'isValid()' if expr.field == '$valid$' else expr.field}"
    if isinstance(expr, StackField):
        return f"{expr.stack}.last.{expr.field}"
    return expr.op if isinstance(expr, Op) else "value"
