"""Generates C that verifies and updates a program's checksums."""

from __future__ import annotations

from softswitch.compiler.actions import ActionGen
from softswitch.compiler.calculations import CalculationGen
from softswitch.compiler.expr import ExprGen
from softswitch.compiler.layout import Layout
from softswitch.compiler.reroll import plain
from softswitch.compiler.trace import TraceGen, name_of
from softswitch.compiler.values import Value
from softswitch.errors import UnsupportedConstruct


def verify_checksums(layout: Layout, expr: ExprGen, calculations: CalculationGen, trace: TraceGen | None) -> list[str]:
    """Return C for the end of the parser, which sets checksum_error if a checksum that is to be verified is wrong."""
    lines = ["p->base.standard.checksum_error = 0;"]
    for checksum in layout.program.checksums:
        if not checksum.verify:
            continue
        call = calculations.call(checksum.calculation, "data + at, len - at")
        condition = "true" if checksum.condition is None else expr.boolean(checksum.condition)
        value = expr.load(layout.slot(checksum.target))
        checksum_width = layout.slot(checksum.target).width
        if value.kind not in ("u32", "u64"):
            raise UnsupportedConstruct(f"checksum {checksum.name!r} in a field wider than 64 bits")
        valid = "true"
        if not layout.is_metadata(checksum.target.header):
            valid = layout.valid(checksum.target.header)
        if trace is not None:
            computed = Value(call, "u64", 0, (1 << 64) - 1)
            shown = [("packet", value, checksum_width), ("computed", computed, checksum_width)]
            report = trace.point("verify", name_of(checksum.target), checksum.source, shown)
            lines.append(plain(f"if ({valid} && {condition}) {report}"))
        lines.append(
            plain(
                f"if ({valid} && {condition} && {call} != {expr.convert(value, 'u64')}) "
                "p->base.standard.checksum_error = 1;"
            )
        )
    return lines


def update_checksums(layout: Layout, expr: ExprGen, actions: ActionGen) -> str:
    """Return the C function that precedes the deparser: it updates checksums, and logs what the deparser logs."""
    calculations, trace = actions.calculations, actions.trace
    lines = [
        "static void checksums(struct ss_state *restrict s, struct ss_packet *restrict base,",
        "        const uint8_t *restrict payload, uint32_t len) {",
        "struct packet *restrict const p = (struct packet *)base; const uint8_t *const a = NULL;",
        "(void)s; (void)p; (void)a; (void)payload; (void)len;",
    ]
    for checksum in layout.program.checksums:
        if not checksum.update:
            continue
        condition = "true" if checksum.condition is None else expr.boolean(checksum.condition)
        slot = layout.slot(checksum.target)
        store = expr.store(slot, Value("v", "u64", 0, (1 << 64) - 1))
        call = calculations.call(checksum.calculation, "payload, len")
        report = ""
        if trace is not None:
            shown = [(name_of(checksum.target), expr.load(slot), slot.width)]
            report = trace.point("checksum", "", checksum.source, shown)
        text = f"if ({condition}) {{ const uint64_t v = {call}; {store} {report} }}"
        lines.append(plain(text))
    for primitive in layout.program.deparser_logs:
        lines += [plain(statement.checked) for statement in actions.primitive(primitive)]
    if trace is not None:
        shown = [(name, Value(f"(uint32_t){layout.valid(name)}", "u32", 0, 1), 1) for name in layout.program.deparser]
        lines.append(plain(trace.point("deparse", "", None, shown)))
    return "\n".join([*lines, "}"])
