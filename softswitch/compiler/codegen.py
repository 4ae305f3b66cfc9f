"""Assembles the C source of a program: packet state, actions, parser, controls, deparser and the descriptor."""

from __future__ import annotations

from dataclasses import dataclass

from softswitch.bmv2json.model import P4Program, Table
from softswitch.bmv2json.refusals import MALFORMED, reason_of
from softswitch.compiler.actions import ActionGen, param_layout
from softswitch.compiler.calculations import CalculationGen, custom_crcs
from softswitch.compiler.checksums import update_checksums
from softswitch.compiler.control import ControlGen, key_layout, profile_actions
from softswitch.compiler.expr import ExprGen
from softswitch.compiler.layout import Layout, storage_bits, table_actions
from softswitch.compiler.parser import ParserGen, value_set_words
from softswitch.compiler.registers import MAX_BYTES, RegisterPlace, place_registers
from softswitch.compiler.reroll import plain
from softswitch.compiler.trace import Point, TraceGen
from softswitch.errors import BadProgram, SoftswitchError, UnsupportedConstruct

MAX_PACKET_STATE = 1 << 20  # bytes
METER_BYTES = 128  # bytes of struct ss_meter


@dataclass(frozen=True)
class TablePlan:
    """The numbers and places by which Python addresses a table of the native code."""

    table: Table
    index: int
    key_places: tuple[tuple[int, int], ...]  # per key: (byte offset, bytes), network order
    key_words: int
    ranges: tuple[int, ...]  # positions of the range keys
    action_ids: tuple[int, ...]  # action ids by the number in entries
    params_bytes: int


@dataclass(frozen=True)
class ProfilePlan:
    """The numbers and places by which Python addresses an action profile of the native code."""

    index: int
    action_ids: dict[str, int]  # one action id per name, for its parameters
    numbers: dict[str, int]
    params_bytes: int


# An entry of a table with an action profile has the number of a choice as its parameter, in this many bytes.
CHOICE_BYTES = 4


@dataclass(frozen=True)
class Generated:
    """The C source of a program, and the numbers of its objects in it."""

    source: str
    tables: dict[str, TablePlan]
    counters: dict[str, int]
    registers: dict[str, RegisterPlace]
    params: dict[int, tuple[tuple[tuple[int, int], ...], int]]  # action id -> (places, bytes)
    messages: tuple[str, ...]
    points: tuple[Point, ...]  # trace points of the traced variant
    profiles: dict[str, ProfilePlan]
    meters: dict[str, int]
    value_sets: dict[str, int]
    crcs: dict[str, int]


def generate(program: P4Program, trace: bool = False) -> Generated:
    """Generate C for ``program``. With ``trace`` it is the variant of the program that reports its steps; its state is
    the same.

    Raise ``UnsupportedConstruct`` for what it cannot express, ``BadProgram`` for inconsistent input.
    """
    try:
        return _generate(program, trace)
    except UnsupportedConstruct as error:
        raise UnsupportedConstruct(error.construct + program.origin, error.source) from error
    except MALFORMED as error:
        if isinstance(error, SoftswitchError):
            raise
        raise BadProgram(f"inconsistent bmv2 JSON: {reason_of(error)}{program.origin}") from error


def _generate(program: P4Program, trace: bool) -> Generated:
    layout = Layout(program)
    registers, group_bytes = place_registers(program)
    if sum(group_bytes) > MAX_BYTES:
        raise UnsupportedConstruct(f"registers of {sum(group_bytes) >> 20} MiB altogether")
    if layout.header_bytes + layout.wide_bytes > MAX_PACKET_STATE:
        raise UnsupportedConstruct("headers and metadata of more than 1 MiB")
    meter_bytes = METER_BYTES * sum(m.size for m in program.meters.values())
    if meter_bytes > MAX_BYTES:
        raise UnsupportedConstruct(f"meters of {meter_bytes >> 20} MiB altogether")
    profiles = {name: _profile_plan(name, i, program) for i, name in enumerate(program.profiles)}
    expr = ExprGen(layout)
    tracing = TraceGen(expr) if trace else None
    calculations = CalculationGen(layout, expr)
    actions = ActionGen(layout, expr, registers, calculations, tracing)
    tables = [*program.ingress.tables.values(), *program.egress.tables.values()]
    plans = {t.name: _plan(t, i, program) for i, t in enumerate(tables)}
    control = ControlGen(layout, expr, actions, tables)
    used = {i for t in tables for i in table_actions(t)}
    alike = _copies_alike(program, expr, calculations)
    body = [
        layout.declaration(),
        *(calculations.function(c) for c in program.calculations.values()),
        *(actions.function(a) for a in program.actions.values() if a.id in used),
        *(_default_params(plan, program) for plan in plans.values()),
        ParserGen(layout, expr, actions).function(),
        control.function(program.ingress),
        control.function(program.egress),
        update_checksums(layout, expr, actions),
        _deparser(program, layout),
        _field_lists(program, layout, expr),
        _descriptor(program, plans, profiles, group_bytes, _Parallel(alike, alike and actions.sharing is not None)),
    ]
    limbs = max(3, (expr.wide_bits + 8 + 63) // 64)
    head = [
        f"#define SS_LIMBS {limbs}",
        '#include "ss_abi.h"',
        '#include "ss_bits.h"',
        *(['#include "ss_crc.h"'] if any("ss_crc" in part for part in body) else []),
    ]
    return Generated(
        source="\n".join([*head, *body]) + "\n",
        tables=plans,
        counters={name: i for i, name in enumerate(program.counters)},
        registers=registers,
        params={a.id: _frozen(param_layout(a)) for a in program.actions.values()},
        messages=tuple(actions.switch.messages),
        points=() if tracing is None else tuple(tracing.points),
        profiles=profiles,
        meters={name: i for i, name in enumerate(program.meters)},
        value_sets={name: i for i, name in enumerate(program.value_sets)},
        crcs={name: i for i, name in enumerate(custom_crcs(program))},
    )


def _frozen(layout: tuple[list[tuple[int, int]], int]) -> tuple[tuple[tuple[int, int], ...], int]:
    return tuple(layout[0]), layout[1]


def _plan(table: Table, index: int, program: P4Program) -> TablePlan:
    places, words = key_layout(table)
    ids = table_actions(table)
    return TablePlan(
        table,
        index,
        tuple(places),
        words,
        tuple(i for i, k in enumerate(table.keys) if k.match_kind == "range"),
        () if table.profile else tuple(ids),
        CHOICE_BYTES if table.profile else max(param_layout(program.actions[i])[1] for i in ids),
    )


def _profile_plan(name: str, index: int, program: P4Program) -> ProfilePlan:
    names = profile_actions(program, name)
    by_name: dict[str, int] = {}
    for table in (*program.ingress.tables.values(), *program.egress.tables.values()):
        if table.profile == name:
            for i in table.actions:
                first = by_name.setdefault(program.actions[i].name, i)
                if program.actions[i].params != program.actions[first].params:
                    raise BadProgram(f"action profile {name!r} has two actions {program.actions[i].name!r}")
    size = max((param_layout(program.actions[i])[1] for i in by_name.values()), default=0)
    return ProfilePlan(index, by_name, {n: i for i, n in enumerate(names)}, size)


def pack_params(places: tuple[tuple[int, int], ...], size: int, values: tuple[int, ...]) -> bytes:
    """Return action parameters in the form that the native code reads."""
    data = bytearray(size)
    for (at, width), value in zip(places, values, strict=True):
        bits = storage_bits(width)
        if bits:
            data[at : at + bits // 8] = value.to_bytes(bits // 8, "little")
        else:
            count = (width + 7) // 8
            data[at : at + count] = value.to_bytes(count, "big")
    return bytes(data)


def unpack_params(places: tuple[tuple[int, int], ...], data: bytes) -> tuple[int, ...]:
    """Return the parameters in data that :func:`pack_params` made."""
    values: list[int] = []
    for at, width in places:
        bits = storage_bits(width)
        if bits:
            values.append(int.from_bytes(data[at : at + bits // 8], "little"))
        else:
            values.append(int.from_bytes(data[at : at + (width + 7) // 8], "big"))
    return tuple(values)


def _default_params(plan: TablePlan, program: P4Program) -> str:
    if plan.table.profile is not None:
        return f"static const uint8_t params_{plan.index}[{CHOICE_BYTES}];"
    action = program.actions[plan.table.default_action]
    places, _ = _frozen(param_layout(action))
    data = pack_params(places, max(plan.params_bytes, 1), plan.table.default_params)
    content = ", ".join(str(b) for b in data)
    return f"static const uint8_t params_{plan.index}[] __attribute__((aligned(16))) = {{{content}}};"


def _deparser(program: P4Program, layout: Layout) -> str:
    size = [
        "static uint32_t headers_bytes(const struct ss_packet *base) {",
        "const struct packet *const p = (const struct packet *)base; uint32_t n = 0; (void)p;",
    ]
    out = [
        "static void emit(const struct ss_packet *restrict base, uint8_t *restrict out) {",
        "const struct packet *const p = (const struct packet *)base; (void)p; (void)out;",
    ]
    for name in program.deparser:
        kind = program.headers[name].type
        count = kind.width // 8
        valid = plain(layout.valid(name))
        if kind.varbit is not None:
            length, start, most = layout.varbit_length(name), kind.varbit.offset // 8, kind.varbit.width // 8
            rest = count - start - most
            at = layout.header_at(name)
            size.append(f"if ({valid}) n += {start + rest}u + {length};")
            out.append(
                f"if ({valid}) {{ memcpy(out, p->h + {at}, {start}u + {length}); out += {start}u + {length}; "
                f"memcpy(out, p->h + {at + start + most}, {rest}); out += {rest}; }}"
            )
            continue
        size.append(f"if ({valid}) n += {count};")
        out.append(f"if ({valid}) {{ memcpy(out, p->h + {layout.header_at(name)}, {count}); out += {count}; }}")
    return "\n".join([*size, "return n;", "}", *out, "}"])


def _field_lists(program: P4Program, layout: Layout, expr: ExprGen) -> str:
    lines = [
        "static void copy_fields(uint32_t list, struct ss_packet *to, const struct ss_packet *from) {",
        "struct packet *const p = (struct packet *)to; const struct packet *const q = (const struct packet *)from;",
        "(void)p; (void)q;",
        "switch (list) {",
    ]
    for number, fields in program.field_lists.items():
        lines.append(f"case {number}:")
        for ref in fields:
            slot = layout.slot(ref)
            if slot.kind == "native":
                place = plain(slot.place)
                lines.append(f"{place} = {place.replace('p->', 'q->', 1)};")
                continue
            value = expr.load(slot)
            ctype = {"u32": "uint32_t", "u64": "uint64_t", "i64": "int64_t", "u128": "u128", "i128": "i128"}
            load = plain(value.c).replace("p->", "q->")
            stored = expr.store(slot, type(value)("v", value.kind, value.lo, value.hi))
            lines.append(f"{{ const {ctype.get(value.kind, 'ss_wide')} v = {load}; {plain(stored)} }}")
        lines.append("break;")
    return "\n".join([*lines, "default: break;", "}", "}"])


@dataclass(frozen=True)
class _Parallel:
    """Properties of a program that allow more work at a time.

    Attributes:
        copies_alike: whether replicas of a packet are equal.
        shareable: whether packets may run at once (sharing.py).
    """

    copies_alike: bool
    shareable: bool


def _copies_alike(program: P4Program, expr: ExprGen, calculations: CalculationGen) -> bool:
    """Return whether replicas of a packet are equal: egress is empty, and no checksum reads standard metadata."""
    updates = [checksum for checksum in program.checksums if checksum.update]
    read = [calculations.function(program.calculations[checksum.calculation]) for checksum in updates]
    read += [plain(expr.boolean(c.condition)) for c in updates if c.condition is not None]
    return program.egress.init is None and not any("base.standard." in text for text in read)


def _descriptor(
    program: P4Program,
    plans: dict[str, TablePlan],
    profiles: dict[str, ProfilePlan],
    group_bytes: list[int],
    parallel: _Parallel,
) -> str:
    lines: list[str] = []
    rows: list[str] = []
    for plan in plans.values():
        ranges = "NULL"
        if plan.ranges:
            ranges = f"ranges_{plan.index}"
            pairs = ", ".join(f"{{{at}, {size}}}" for at, size in (plan.key_places[i] for i in plan.ranges))
            lines.append(f"static const struct ss_range_key {ranges}[] = {{{pairs}}};")
        default = 0 if plan.table.profile else plan.action_ids.index(plan.table.default_action)
        rows.append(
            f"{{{plan.key_words}, {plan.table.size}u, {plan.params_bytes}, {len(plan.ranges)}, {ranges}, "
            f"{default}, params_{plan.index}, {int(plan.table.meter is not None)}, {int(plan.table.with_timeout)}}}"
        )
    counters = ", ".join(f"{c.size}u" for c in program.counters.values())
    meters = ", ".join(f"{m.size}u" for m in program.meters.values())
    members = ", ".join(f"{p.params_bytes}u" for p in profiles.values())
    sets = ", ".join(f"{value_set_words(v)}u" for v in program.value_sets.values())
    crcs = custom_crcs(program).values()
    return "\n".join(
        [
            *lines,
            f"static const struct ss_table_info tables[] = {{{', '.join(rows) or '{0}'}}};",
            f"static const uint64_t counters[] = {{{counters or '0'}}};",
            f"static const uint64_t registers[] = {{{', '.join(f'{n}ull' for n in group_bytes) or '0'}}};",
            f"static const uint64_t meters[] = {{{meters or '0'}}};",
            f"static const uint32_t profiles[] = {{{members or '0'}}};",
            f"static const uint32_t value_sets[] = {{{sets or '0'}}};",
            f"static const uint32_t crcs[] = {{{', '.join(f'{bits}u' for bits in crcs) or '0'}}};",
            '__attribute__((visibility("default"))) const struct ss_program ss_program = {',
            "    .abi = SS_ABI_VERSION, .packet_bytes = sizeof(struct packet),",
            f"    .metadata_end = offsetof(struct packet, stack_next), .copies_alike = {int(parallel.copies_alike)},",
            f"    .shareable = {int(parallel.shareable)},",
            f"    .n_tables = {len(plans)}, .n_counters = {len(program.counters)}, .n_registers = {len(group_bytes)},",
            f"    .n_digests = {len(program.digests)},",
            f"    .n_meters = {len(program.meters)}, .n_profiles = {len(profiles)},",
            f"    .n_value_sets = {len(program.value_sets)}, .n_crcs = {len(crcs)}, .crcs = crcs,",
            "    .tables = tables, .counters = counters, .registers = registers,",
            "    .meters = meters, .profiles = profiles, .value_sets = value_sets,",
            "    .parse = parse, .ingress = ingress, .egress = egress, .checksums = checksums,",
            "    .headers_bytes = headers_bytes, .emit = emit, .copy_fields = copy_fields,",
            "};",
        ]
    )
