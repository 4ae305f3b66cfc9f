"""Compiles calculations to one C function each, for the hashes of actions and the checksums of parser and deparser."""

from __future__ import annotations

from softswitch.bmv2json.model import CalcInput, Calculation, Const, FieldRef, HeaderRef, P4Program
from softswitch.compiler.expr import ExprGen
from softswitch.compiler.layout import Layout, Slot
from softswitch.compiler.reroll import plain
from softswitch.errors import UnsupportedConstruct

_ALGORITHMS = {
    "csum16": "ss_csum16",
    "crc16": "ss_crc16",
    "crc32": "ss_crc32",
    "crcCCITT": "ss_crc_ccitt",
    "identity": "ss_identity",
    "xor16": "ss_xor16",
}

CUSTOM = {"crc16_custom": 16, "crc32_custom": 32}
"""The algorithms whose parameters the host may choose, with the bits of their results."""


def custom_crcs(program: P4Program) -> dict[str, int]:
    """Return a program's calculations with such an algorithm, in the order of their numbers, with the bits of their
    results.
    """
    return {name: CUSTOM[calc.algo] for name, calc in program.calculations.items() if calc.algo in CUSTOM}


class CalculationGen:
    """A generator of the calculations, and of calls to them."""

    def __init__(self, layout: Layout, expr: ExprGen) -> None:
        self.layout = layout
        self.program = layout.program
        self.expr = expr
        self._index = {name: i for i, name in enumerate(self.program.calculations)}

    def call(self, name: str, payload: str = "NULL, 0") -> str:
        """Return C for the result over the present packet; `payload` is the address and size of the bytes that follow
        the headers.
        """
        return f"calc_{self._index[name]}(s, p, {payload})"

    def function(self, calc: Calculation) -> str:
        """Return the function ``static uint64_t calc_<n>(const struct ss_state *s, const struct packet *p, const
        uint8_t *payload, uint32_t len)``.
        """
        index = self._index[calc.name]
        total = 0
        lines: list[str] = []
        has_payload = False
        for part in self._merge(calc.inputs):
            if part.kind == "payload":
                has_payload = True
                continue
            width = part.width
            if isinstance(part.ref, HeaderRef):
                width = self.program.headers[part.ref.header].type.width
            total += width
            lines.append(self._append(part, width))
        if has_payload:
            lines.append("at = (at + 7) / 8 * 8;")
            lines.append("if (len) memcpy(buf + at / 8, payload, len);")
            lines.append("at += 8 * len;")
        if calc.algo in CUSTOM:
            number = list(custom_crcs(self.program)).index(calc.name)
            algorithm = f"ss_crc_custom(&s->crcs[{number}], "
        else:
            algorithm = f"{_ALGORITHMS[calc.algo]}("
        size = f"{(total + 7) // 8 + 32}" + (" + len" if has_payload else "")
        return "\n".join(
            [
                f"static __attribute__((unused)) uint64_t calc_{index}(const struct ss_state *s,",
                "        const struct packet *p, const uint8_t *payload, uint32_t len) {",
                f"uint8_t buf[{size}]; unsigned at = 0; (void)s; (void)p; (void)payload; (void)len;",
                f"memset(buf, 0, {(total + 7) // 8 + 32});",
                *(plain(line) for line in lines),
                f"return {algorithm}buf, (at + 7) / 8);",
                "}",
            ]
        )

    def _merge(self, inputs: tuple[CalcInput, ...]) -> list[CalcInput | _Run]:
        """Join neighbouring fields of one header into runs, which are copied at once."""
        merged: list[CalcInput | _Run] = []
        for part in inputs:
            if isinstance(part.ref, FieldRef) and not self.layout.is_metadata(part.ref.header):
                offset = self.program.field_of(part.ref).offset
                last = merged[-1] if merged else None
                if self.program.field_of(part.ref).varbit:
                    merged.append(part)
                    continue
                if part.ref.field == "$valid$":
                    raise UnsupportedConstruct("a checksum or hash over a header's validity")
                if isinstance(last, _Run) and last.header == part.ref.header and last.offset + last.width == offset:
                    merged[-1] = _Run(last.header, last.offset, last.width + part.width)
                else:
                    merged.append(_Run(part.ref.header, offset, part.width))
            else:
                merged.append(part)
        return merged

    def _append(self, part: CalcInput | _Run, width: int) -> str:
        if isinstance(part, _Run):
            base = self.layout.header_at(part.header)
            valid = self.layout.valid(part.header)
            return f"if ({valid}) {{ ss_append_bits(buf, at, p->h + {base}, {part.offset}, {width}); at += {width}; }}"
        if isinstance(part.ref, FieldRef) and self.program.field_of(part.ref).varbit:
            return self._append_varbit(part.ref)
        if isinstance(part.ref, HeaderRef):
            kind = self.program.headers[part.ref.header].type
            if kind.varbit is not None:
                before = kind.varbit.offset
                after = before + kind.varbit.width
                return (
                    self._append(_Run(part.ref.header, 0, before), before)
                    + self._append_varbit(FieldRef(part.ref.header, kind.varbit.name))
                    + self._append(_Run(part.ref.header, after, width - after), width - after)
                )
            base, valid = self.layout.header_at(part.ref.header), self.layout.valid(part.ref.header)
            return f"if ({valid}) {{ ss_append_bits(buf, at, p->h + {base}, 0, {width}); at += {width}; }}"
        temporary = Slot("bytes", "tmp", 0, -width % 8, width, False, ("tmp", 0))
        if isinstance(part.ref, FieldRef):
            value = self.expr.load(self.layout.slot(part.ref))
        else:
            value = self.expr.number(Const(part.value & (1 << width) - 1))
        store = self.expr.store(temporary, value)
        size = (width + 7) // 8 + 16
        append = f"ss_append_bits(buf, at, tmp, {-width % 8}, {width}); at += {width};"
        return f"{{ uint8_t tmp[{size}] = {{0}}; {store} {append} }}"

    def _append_varbit(self, ref: FieldRef) -> str:
        place, length, _ = self.layout.varbit(ref)
        valid = "true" if self.layout.is_metadata(ref.header) else self.layout.valid(ref.header)
        return f"if ({valid}) {{ ss_append_bits(buf, at, {place}, 0, 8u * {length}); at += 8u * {length}; }}"


class _Run:
    """A run of adjacent bits of one header."""

    kind = "run"
    ref = None

    def __init__(self, header: str, offset: int, width: int) -> None:
        self.header, self.offset, self.width = header, offset, width
