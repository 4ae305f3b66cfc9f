"""Arguments of primitive calls as C, for all generators of primitives."""

from __future__ import annotations

from collections.abc import Callable

from softswitch.bmv2json.model import Argument, Named, Primitive, Vector
from softswitch.compiler.expr import ExprGen
from softswitch.compiler.layout import Layout, Slot
from softswitch.compiler.reroll import Statement
from softswitch.compiler.values import Value
from softswitch.errors import BadProgram

Handler = Callable[[Primitive], list[Statement]]
"""The type of a function that compiles one call of a primitive."""


class Operands:
    """A generator of C for arguments; the generators of primitives are derived from it and share its `expr`."""

    def __init__(self, layout: Layout, expr: ExprGen) -> None:
        self.layout = layout
        self.program = layout.program
        self.expr = expr

    def _number(self, argument: Argument | object, demand: int | None = None) -> Value:
        if isinstance(argument, Named | Vector):
            raise BadProgram(f"{self.expr.source}: a number is expected")
        return self.expr.number(argument, demand)  # type: ignore[arg-type]

    def _uint64(self, argument: Argument) -> str:
        return self.expr.convert(self._number(argument, 64), "u64")

    def assignment(self, slot: Slot, source: Argument) -> Statement:
        """Return the statement ``slot = source``."""
        return Statement(self.expr.store(slot, self._number(source, slot.width)), writes=frozenset({slot.key}))
