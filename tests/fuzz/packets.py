"""Makes random frames for a program: walks of its parser with the field values that its states expect, and mutations of
frames.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from softswitch.bmv2json.model import (
    Const,
    FieldRef,
    HeaderRef,
    HeaderType,
    Lookahead,
    Op,
    P4Program,
    StackField,
    StackRef,
    Transition,
    UnionStackRef,
)

MAX_STATES = 24  # the most states of one walk
MAX_BITS = 8 * 1600
LENGTH_TRIES = 16

Frame = tuple[int, bytes]
"""(port, frame)"""


def draw_value(source: random.Random, width: int, pool: Sequence[int]) -> int:
    """Draw a number of ``width`` bits: often one that the program or an entry names, or one at an edge of the range."""
    if width <= 0:
        return 0
    full = (1 << width) - 1
    choice = source.random()
    if choice < 0.5 and pool:
        return source.choice(pool) & full
    if choice < 0.75:
        return source.choice((0, 1, 2, 3, full, full - 1, 1 << (width - 1), full >> 1)) & full
    return source.getrandbits(width)


@dataclass
class _Walk:
    """A frame that is being made: its bits so far, the bits that later ones must have, and the origin of its fields."""

    bits: list[int] = field(default_factory=list)
    at: int = 0
    wanted: dict[int, int] = field(default_factory=dict)
    values: dict[tuple[str, str], int] = field(default_factory=dict)
    origin: dict[tuple[str, str], tuple[int, int]] = field(default_factory=dict)
    following: dict[str, int] = field(default_factory=dict)  # by header stack
    last: dict[str, str] = field(default_factory=dict)  # by header stack: the header extracted last

    def put(self, value: int, width: int) -> int:
        """Append a field and return the value that its bits have in the end."""
        start = len(self.bits)
        for i in range(width):
            bit = value >> (width - 1 - i) & 1
            self.bits.append(self.wanted.pop(start + i, bit))
        return self.get(start, width)

    def get(self, start: int, width: int) -> int:
        value = 0
        for bit in self.bits[start : start + width]:
            value = value << 1 | bit
        return value

    def patch(self, start: int, width: int, value: int, mask: int) -> None:
        """Give the bits of ``mask`` their values of ``value``, now or when they are appended."""
        for i in range(width):
            shift = width - 1 - i
            if mask >> shift & 1:
                bit = value >> shift & 1
                if start + i < len(self.bits):
                    self.bits[start + i] = bit
                else:
                    self.wanted[start + i] = bit

    def bytes(self) -> bytes:
        if self.wanted:
            last = max(self.wanted)
            self.put(0, last + 1 - len(self.bits))
        self.put(0, -len(self.bits) % 8)
        return self.get(0, len(self.bits)).to_bytes(len(self.bits) // 8, "big")


class PacketSource:
    """Makes frames for one program. ``pool``: numbers that mean something to the program; ``seeds``: frames that its
    parser accepts; ``ports``: where frames arrive.
    """

    def __init__(
        self, program: P4Program, pool: Sequence[int], source: random.Random, seeds: Sequence[bytes] = (),
        ports: Sequence[int] = (0, 1, 2, 3),
    ) -> None:  # fmt: skip
        self.program = program
        self.pool = pool
        self.source = source
        self.seeds = [*seeds]
        self.ports = ports

    def frame(self) -> Frame:
        source = self.source
        if self.seeds and source.random() < 0.3:
            data = source.choice(self.seeds)
            if source.random() < 0.8:
                data = self._mutate(data)
        else:
            data = self._walk()
            if source.random() < 0.2:
                data = self._mutate(data)
        return source.choice(self.ports), data[:1600] or b"\0"  # bmv2 ignores empty frames.

    def _mutate(self, data: bytes) -> bytes:
        source = self.source
        out = bytearray(data)
        for _ in range(source.choice((0, 1, 1, 2, 4))):
            if not out:
                break
            at = source.randrange(len(out))
            if source.random() < 0.5:
                out[at] ^= 1 << source.randrange(8)
            else:
                width = source.choice((1, 2, 4))
                value = draw_value(source, 8 * width, self.pool).to_bytes(width, "big")
                out[at : at + width] = value[: len(out) - at]
        choice = source.random()
        if choice < 0.2:
            del out[source.randrange(len(out) + 1) :]
        elif choice < 0.3:
            out += source.randbytes(source.randrange(30))
        return bytes(out)

    # --------------------------------------------------------------------------------------------------------- walks

    def _walk(self) -> bytes:
        walk = _Walk()
        name = self.program.init_state
        for _ in range(MAX_STATES):
            if name is None or len(walk.bits) > MAX_BITS:
                break
            state = self.program.states[name]
            for op in state.ops:
                if op.op in ("extract", "extract_VL"):
                    self._extract(walk, op.args[0], op.args[1] if op.op == "extract_VL" else None)
                elif op.op == "set":
                    self._set(walk, op.args[0], op.args[1])
                elif op.op == "advance":
                    amount = self._value(walk, op.args[0]) or 0
                    if 0 < amount <= MAX_BITS:
                        walk.at += amount
                        walk.put(self.source.getrandbits(amount), max(0, walk.at - len(walk.bits)))
            name = self._transition(walk, state.key, state.transitions)
        data = walk.bytes()
        return data + self.source.randbytes(self.source.choice((0, 0, 1, 4, 20, 46)))

    def _extract(self, walk: _Walk, target: object, length: object) -> None:
        program = self.program
        if isinstance(target, HeaderRef):
            name = target.header
        elif isinstance(target, StackRef):
            stack = program.stacks[target.stack]
            index = walk.following.get(target.stack, 0)
            walk.following[target.stack] = index + 1
            name = stack.headers[min(index, len(stack.headers) - 1)].name
            walk.last[target.stack] = name
        elif isinstance(target, UnionStackRef):
            unions = program.union_stacks[target.stack]
            index = walk.following.get(target.stack, 0)
            walk.following[target.stack] = index + 1
            name = program.unions[unions[min(index, len(unions) - 1)]][target.member]
        else:
            return
        kind: HeaderType = program.headers[name].type
        bits = self._varbit_length(walk, kind, length) if kind.varbit is not None else 0
        for f in kind.fields:
            width = bits if f.varbit else f.width
            start = walk.at
            walk.at += width
            missing = max(0, walk.at - len(walk.bits))
            walk.put(draw_value(self.source, missing, self.pool), missing)
            walk.values[name, f.name] = walk.get(start, width)
            walk.origin[name, f.name] = (start, width)

    def _varbit_length(self, walk: _Walk, kind: HeaderType, length: object) -> int:
        """Return the length that the program computes; the fields that it is computed from are redrawn until it is
        valid.
        """
        varbit = kind.varbit
        assert varbit is not None
        for _ in range(LENGTH_TRIES):
            bits = self._value(walk, length)
            if bits is None:
                return 8 * self.source.randrange(varbit.width // 8 + 1)
            if 0 <= bits <= varbit.width and bits % 8 == 0:
                return bits
            for place in _fields_of(length):
                origin = walk.origin.get(place)
                if origin is not None:
                    value = self.source.randrange(1 << min(origin[1], 4))
                    walk.patch(*origin, value, (1 << origin[1]) - 1)
                    for key, (start, width) in walk.origin.items():
                        if start + width <= len(walk.bits):
                            walk.values[key] = walk.get(start, width)
        return 0

    def _set(self, walk: _Walk, target: object, value: object) -> None:
        if not isinstance(target, FieldRef):
            return
        key = (target.header, target.field)
        walk.origin.pop(key, None)
        walk.values.pop(key, None)
        origin = self._origin(walk, value)
        if origin is not None:
            walk.origin[key] = origin
        number = self._value(walk, value)
        if number is not None:
            walk.values[key] = number

    def _origin(self, walk: _Walk, expr: object) -> tuple[int, int] | None:
        """Return where in the frame the bits of a plain copy (also through masks) are."""
        if isinstance(expr, Lookahead):
            return walk.at + expr.offset, expr.width
        if isinstance(expr, FieldRef):
            return walk.origin.get((expr.header, expr.field))
        if isinstance(expr, StackField):
            return walk.origin.get((walk.last.get(expr.stack, ""), expr.field))
        if isinstance(expr, Op) and expr.op == "&" and isinstance(expr.args[1], Const):
            return self._origin(walk, expr.args[0])
        return None

    def _value(self, walk: _Walk, expr: object) -> int | None:
        """Return the value of an expression as far as this walk knows it."""
        if isinstance(expr, Const):
            return expr.value
        if isinstance(expr, FieldRef):
            return walk.values.get((expr.header, expr.field))
        if isinstance(expr, StackField):
            return walk.values.get((walk.last.get(expr.stack, ""), expr.field))
        if isinstance(expr, Lookahead):
            end = walk.at + expr.offset + expr.width
            missing = max(0, end - len(walk.bits))
            walk.put(draw_value(self.source, missing, self.pool), missing)
            return walk.get(walk.at + expr.offset, expr.width)
        if isinstance(expr, Op) and len(expr.args) == 2:
            left, right = (self._value(walk, a) for a in expr.args)
            if left is None or right is None:
                return None
            return _binary(expr.op, left, right)
        return None

    def _transition(
        self, walk: _Walk, key: Sequence[tuple[object, int]], transitions: Sequence[Transition]
    ) -> str | None:
        if not transitions:
            return None
        chosen = self.source.choice(transitions)
        value = getattr(chosen, "value", None)
        if not isinstance(value, int) or value < 0:
            return chosen.next_state
        mask = chosen.mask
        shift = 8 * sum((width + 7) // 8 for _, width in key)
        for expr, width in key:
            shift -= 8 * ((width + 7) // 8)
            full = (1 << width) - 1
            part = value >> shift & full
            part_mask = full if mask is None else mask >> shift & full
            origin = self._origin(walk, expr)
            if origin is not None and origin[1]:
                walk.patch(*origin, part, part_mask)
        return chosen.next_state


def _fields_of(expr: object) -> list[tuple[str, str]]:
    if isinstance(expr, FieldRef):
        return [(expr.header, expr.field)]
    if isinstance(expr, Op):
        return [place for argument in expr.args for place in _fields_of(argument)]
    return []


def _binary(op: str, left: int, right: int) -> int | None:
    if op == "+":
        return left + right
    if op == "-":
        return left - right
    if op == "*":
        return left * right
    if op == "&":
        return left & right
    if op == "|":
        return left | right
    if op == "<<" and right < 64:
        return left << right
    if op == ">>":
        return left >> min(right, 4096)
    return None
