"""Generates C for numbers, each in the narrowest C type that holds its interval: loads from slots, stores and
arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

from softswitch.compiler.layout import Slot, c_type
from softswitch.errors import BadProgram, UnsupportedConstruct

MAX_INTERMEDIATE = 1 << 14  # largest number of bits of an intermediate result
C_TYPES = {"u32": "uint32_t", "u64": "uint64_t", "i64": "int64_t", "u128": "u128", "i128": "i128", "wide": "ss_wide"}
"""The C type of each kind of value; "wide" has more than 128 bits."""
_RING = {"+": "add", "-": "sub", "*": "mul", "&": "and", "|": "or", "^": "xor"}
_BITS = {"u32": 32, "u64": 64, "u128": 128}


@dataclass(frozen=True)
class Value:
    """A C expression.

    Where ``exact`` is set, it equals the P4 value, which lies in [lo, hi]; otherwise only its low bits are right.
    """

    c: str
    kind: str  # u32 u64 i64 u128 i128 wide bool
    lo: int = 0
    hi: int = 1
    exact: bool = True


def fit(lo: int, hi: int) -> str:
    """Return the narrowest kind that holds every value of [lo, hi]."""
    if lo >= 0:
        for kind, bits in _BITS.items():
            if hi < 1 << bits:
                return kind
        return "wide"
    for kind, bits in (("i64", 63), ("i128", 127)):
        if -(1 << bits) <= lo and hi < 1 << bits:
            return kind
    return "wide"


def kind_for_bits(bits: int) -> str:
    """Return the unsigned kind of so many bits."""
    return next((kind for kind, n in _BITS.items() if bits <= n), "wide")


class ValueGen:
    """A generator of C for numbers; ``source`` is the present P4 line, for error messages."""

    def __init__(self) -> None:
        self.source: str | None = None
        self.wide_bits = 0  # widest intermediate result so far
        self.reads: set[tuple[str, int]] = set()  # memory that the C generated since reset() reads

    def reset(self) -> None:
        self.reads = set()

    # ------------------------------------------------------------------------------------------------ representation

    def unsupported(self, construct: str) -> UnsupportedConstruct:
        return UnsupportedConstruct(construct, self.source)

    def _note_wide(self, *bounds: int) -> None:
        bits = max(b.bit_length() for b in bounds) + 2
        if bits > MAX_INTERMEDIATE:
            raise self.unsupported(f"an intermediate result of more than {MAX_INTERMEDIATE} bits")
        self.wide_bits = max(self.wide_bits, bits)

    def const(self, value: int, kind: str) -> str:
        """Return a C literal."""
        if kind == "u32":
            return f"{value & 0xFFFFFFFF:#x}u"
        if kind == "u64":
            return f"{value & (1 << 64) - 1:#x}ull"
        if kind == "i64":
            return f"((int64_t){value & (1 << 64) - 1:#x}ull)"
        if kind in ("u128", "i128"):
            bits = value & (1 << 128) - 1
            return f"(({C_TYPES[kind]})SS_U128({bits >> 64:#x}ull, {bits & (1 << 64) - 1:#x}ull))"
        self._note_wide(value)
        n = (value.bit_length() + 64) // 64
        limbs = ", ".join(f"{(value >> 64 * i) & (1 << 64) - 1:#x}ull" for i in range(n))
        if value < 0:
            return f"ss_w_sext((ss_wide){{{{{limbs}}}}}, {64 * n})"
        return f"(ss_wide){{{{{limbs}}}}}"

    def convert(self, value: Value, kind: str) -> str:
        """Return C for ``value`` as ``kind``, keeping at least the low bits."""
        if value.kind == kind:
            return value.c
        if value.kind == "bool":
            raise BadProgram(f"{self.source}: a boolean where a number is expected")
        if kind == "wide":
            source = {"u32": "ss_w_from_u64", "u64": "ss_w_from_u64", "u128": "ss_w_from_u128"}
            self._note_wide(value.lo, value.hi)
            return f"{source.get(value.kind, 'ss_w_from_i128')}({value.c})"
        if value.kind == "wide":
            low = f"ss_w_low({value.c})" if kind in ("u128", "i128") else f"({value.c}).limb[0]"
            return f"(({C_TYPES[kind]}){low})"
        return f"(({C_TYPES[kind]}){value.c})"

    def _exact(self, c: str, lo: int, hi: int, kind: str | None = None) -> Value:
        kind = kind or fit(lo, hi)
        if kind == "wide":
            self._note_wide(lo, hi)
        return Value(c, kind, lo, hi)

    # ---------------------------------------------------------------------------------------------------------- slots

    def load(self, slot: Slot, demand: int | None = None) -> Value:
        """Return the value in a slot; with ``demand``, only its low ``demand`` bits if that is cheaper."""
        self.reads.add(slot.key)
        width = slot.width
        if slot.kind == "native":
            kind = "u32" if slot.bits <= 32 else kind_for_bits(slot.bits)
            c = f"({C_TYPES[kind]}){slot.place}"
            if slot.place.startswith("p->base.standard.") and width != slot.bits:
                c = f"({c} & {self.const((1 << width) - 1, kind)})"
            raw = Value(c, kind, 0, (1 << width) - 1)
        else:
            raw = self._load_bytes(slot, demand)
            if not raw.exact:
                return raw
        if slot.signed:
            return self.sign_extend(raw, width)
        return raw

    def _load_bytes(self, slot: Slot, demand: int | None) -> Value:
        width, bit, place = slot.width, slot.bit, slot.place
        partial = demand is not None and demand < width and width > 64
        if partial:
            assert demand is not None
            skip = bit + width - demand
            place, bit, width = f"{place} + {skip // 8}", skip % 8, demand
        kind = kind_for_bits(width)
        if kind == "wide":
            self._note_wide(1 << width)
            c = f"ss_w_get({place}, {bit}, {width})"
        elif bit == 0 and width == 8:
            c = f"(uint32_t)*({place})"
        elif bit == 0 and width in (16, 32, 64):
            c = f"ss_load{width}({place})"
            c = f"(uint32_t){c}" if width == 16 else c
        elif width <= 64:
            c = f"({C_TYPES[kind]})ss_get64({place}, {bit}, {width})"
        else:
            c = f"ss_get128({place}, {bit}, {width})"
        return Value(c, kind, 0, (1 << width) - 1, exact=not partial)

    def store(self, slot: Slot, value: Value) -> str:
        """Return a C statement that stores ``value``, modulo 2^width, in a slot."""
        width = slot.width
        kind = kind_for_bits(width)
        fits = value.exact and value.lo >= 0 and value.hi < 1 << width
        if slot.kind == "native":
            c = self.convert(value, kind)
            if not fits and width != slot.bits:
                c = f"({c} & {self.const((1 << width) - 1, kind)})"
            return f"{slot.place} = ({c_type(slot.bits)}){c};"
        c = self.convert(value, kind)
        if kind == "wide":
            return f"ss_w_put({slot.place}, {slot.bit}, {width}, {c});"
        if slot.bit == 0 and width == 8:
            return f"*({slot.place}) = (uint8_t){c};"
        if slot.bit == 0 and width in (16, 32, 64):
            return f"ss_store{width}({slot.place}, (uint{width}_t){c});"
        put = "ss_put64" if width <= 64 else "ss_put128"
        return f"{put}({slot.place}, {slot.bit}, {width}, {c});"

    def sign_extend(self, value: Value, width: int) -> Value:
        """Return the two's complement reading of the low ``width`` bits."""
        lo, hi = -(1 << width - 1), (1 << width - 1) - 1
        if value.exact and lo <= value.lo and value.hi <= hi:
            return value
        if width <= 64:
            return Value(f"ss_sext64({self.convert(value, 'u64')}, {width})", "i64", lo, hi)
        if width <= 128:
            return Value(f"ss_sext128({self.convert(value, 'u128')}, {width})", "i128", lo, hi)
        self._note_wide(lo, hi)
        return Value(f"ss_w_sext({self.convert(value, 'wide')}, {width})", "wide", lo, hi)

    def truncate(self, value: Value, width: int) -> Value:
        """Return the low ``width`` bits, as an unsigned number."""
        kind = kind_for_bits(width)
        c = self._infix("&", self.convert(value, kind), self.const((1 << width) - 1, kind), kind)
        return self._exact(c, 0, (1 << width) - 1, kind)

    # ----------------------------------------------------------------------------------------------------- arithmetic

    def _infix(self, op: str, a: str, b: str, kind: str) -> str:
        return f"ss_w_{_RING[op]}({a}, {b})" if kind == "wide" else f"({a} {op} {b})"

    @staticmethod
    def _interval(op: str, a: Value, b: Value) -> tuple[int, int]:
        if op == "+":
            return a.lo + b.lo, a.hi + b.hi
        if op == "-":
            return a.lo - b.hi, a.hi - b.lo
        if op == "*":
            corners = [x * y for x in (a.lo, a.hi) for y in (b.lo, b.hi)]
            return min(corners), max(corners)
        if op == "&" and (a.lo >= 0 or b.lo >= 0):
            return 0, min(v.hi for v in (a, b) if v.lo >= 0)
        bits = max(v.bit_length() for v in (a.lo, a.hi, b.lo, b.hi))
        if a.lo >= 0 and b.lo >= 0:
            return 0, (1 << bits) - 1
        return -(1 << bits), (1 << bits) - 1

    def _shl(self, c: str, amount: Value, kind: str) -> str:
        n = self.convert(amount, "u64") if amount.hi < 1 << 64 else self._saturate(amount)
        if kind == "wide":
            return f"ss_w_shl({c}, {n})"
        bits = {"i64": 64, "i128": 128}.get(kind) or _BITS[kind]
        if amount.lo == amount.hi and amount.lo < bits and not kind.startswith("i"):
            return f"({c} << {amount.lo})"
        unsigned = f"u{bits}"
        return f"(({C_TYPES[kind]})ss_shl{bits}(({C_TYPES[unsigned]}){c}, {n}))"

    def _saturate(self, amount: Value) -> str:
        kind = amount.kind
        if kind == "wide":
            c = f"ss_w_low(ss_w_clamp({amount.c}, {self.const(0, 'wide')}, {self.const(1 << 32, 'wide')}))"
            return f"(uint64_t){c}"
        return f"(uint64_t)ss_clamp_{kind}({amount.c}, 0, {1 << 32})"

    def _shr(self, c: str, amount: Value, kind: str) -> str:
        n = self.convert(amount, "u64") if amount.hi < 1 << 64 else self._saturate(amount)
        if kind == "wide":
            return f"ss_w_shr({c}, {n})"
        bits = {"i64": 64, "i128": 128}.get(kind) or _BITS[kind]
        if amount.lo == amount.hi and amount.lo < bits:
            return f"({c} >> {amount.lo})"
        return f"ss_shr_{kind}({c}, {n})"

    def _compare(self, a: Value, op: str, b: Value) -> str:
        kind = fit(min(a.lo, b.lo), max(a.hi, b.hi))
        if kind == "wide":
            self._note_wide(a.lo, a.hi, b.lo, b.hi)
            return f"ss_w_cmp({self.convert(a, kind)}, {self.convert(b, kind)}) {op} 0"
        return f"{self.convert(a, kind)} {op} {self.convert(b, kind)}"
