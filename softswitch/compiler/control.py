"""Compiles ingress and egress: the graph of tables and conditionals becomes C labels with the tables' look-ups."""

from __future__ import annotations

from collections.abc import Callable

from softswitch.bmv2json.model import Key, P4Program, Pipeline, Table
from softswitch.compiler.actions import ActionGen, param_layout
from softswitch.compiler.expr import ExprGen
from softswitch.compiler.layout import Layout, table_actions
from softswitch.compiler.reroll import plain
from softswitch.compiler.trace import Field, Point
from softswitch.compiler.values import Value, kind_for_bits

ENDING = ("exit", "assert", "assume")  # a packet may skip the rest of its pipeline after these primitives


def key_layout(table: Table) -> tuple[list[tuple[int, int]], int]:
    """Return the place of each key in the look-up key: ([(byte offset, bytes)], total 64-bit words)."""
    places: list[tuple[int, int]] = []
    at = 0
    for key in table.keys:
        size = (key.width + 7) // 8
        places.append((at, size))
        at += size
    return places, (at + 7) // 8


def profile_actions(program: P4Program, profile: str) -> list[str]:
    """Return the names of the actions that a profile's members can have, in the order of their numbers in members.

    Each table has copies of its actions, with the same names.
    """
    tables = (*program.ingress.tables.values(), *program.egress.tables.values())
    ids = (i for table in tables if table.profile == profile for i in table.actions)
    return list(dict.fromkeys(program.actions[i].name for i in ids))


class ControlGen:
    def __init__(self, layout: Layout, expr: ExprGen, actions: ActionGen, tables: list[Table]) -> None:
        self.layout = layout
        self.trace = actions.trace
        self.program = layout.program
        self.expr = expr
        self.actions = actions
        self.table_index = {t.name: i for i, t in enumerate(tables)}
        self.exits = any(p.op in ENDING for a in self.program.actions.values() for p in a.primitives)

    def function(self, pipeline: Pipeline) -> str:
        """Return the C function ``static void <name>(state, packet)`` of a pipeline."""
        labels = {name: i for i, name in enumerate((*pipeline.tables, *pipeline.conditionals))}
        lines = [
            f"static void {pipeline.name}(struct ss_state *restrict s, struct ss_packet *restrict base) {{",
            "struct packet *restrict const p = (struct packet *)base; const uint8_t *const a = NULL;",
            "(void)s; (void)p; (void)a;",
        ]

        def goto(name: str | None) -> str:
            return "return;" if name is None else f"goto N{labels[name]};"

        lines.append(goto(pipeline.init))
        for table in pipeline.tables.values():
            lines.append(f"N{labels[table.name]}:;")
            self.expr.source = table.source
            lines += [plain(line) for line in self._table(table, goto)]
        for node in pipeline.conditionals.values():
            self.expr.source = node.source
            lines.append(f"N{labels[node.name]}:;")
            if self.trace is not None:
                condition = Value(f"(uint32_t){self.expr.boolean(node.expr)}", "u32", 0, 1)
                text = node.text or node.name
                lines.append(plain(self.trace.point("if", text, node.source, [("condition", condition, 1)])))
            lines.append(
                plain(f"if ({self.expr.boolean(node.expr)}) {goto(node.true_next)} else {goto(node.false_next)}")
            )
        return "\n".join([*lines, "}"])

    # --------------------------------------------------------------------------------------------------------- tables

    def _table(self, table: Table, goto: Callable[[str | None], str]) -> list[str]:
        exit_check = "if (p->base.target.exited) return;" if self.exits else ""
        ids = table_actions(table)
        if not table.keys and table.default_const and not table.with_counters and table.profile is None:
            action = self.program.actions[table.default_action]
            following = table.next_miss if table.has_hit_miss else table.next_by_action[table.default_action]
            params = f"params_{self.table_index[table.name]}" if action.params else "NULL"
            if self.trace is not None:
                lines = [self._applied(table, "false"), self._calls(table, action.id, params)]
                return [*lines, f"act_{action.id}(s, p, {params}); {exit_check} {goto(following)}"]
            return [f"act_{action.id}(s, p, {params}); {exit_check} {goto(following)}"]
        index = self.table_index[table.name]
        lines = ["{", f"struct ss_table *const t = &s->tables[{index}]; struct ss_entry *e = NULL;"]
        if table.keys:
            lines += self._key(table)
            words = key_layout(table)[1]
            masked = any(k.match_kind != "exact" for k in table.keys)
            lines.append(f"e = ss_lookup_{'masked' if masked else 'exact'}(t, key, {words});")
        lines.append("const bool hit = e != NULL; (void)hit; if (!hit) e = t->default_entry;")
        if self.trace is not None:
            lines.append(self._applied(table, "hit"))
        if table.with_timeout:
            lines.append("if (hit) e->hit_us = s->now_us;")
        if table.meter is not None:
            lines.append(self._meter(table.meter))
        if table.with_counters:
            lines.append("ss_count(&p->base, &e->counter);")
        otherwise = "break;"  # This is not reached: an entry always has one of the table's actions.
        if table.profile is not None:
            lines.append(self._choose(table.profile))
            numbers = {name: i for i, name in enumerate(profile_actions(self.program, table.profile))}
            cases = {numbers[self.program.actions[i].name]: i for i in ids}
            entry, chosen = "m", "m ? m->action : UINT32_MAX"
            nothing = next((i for i in ids if self.program.actions[i].name == "NoAction"), None)
            following = table.next_default if nothing is None else table.next_by_action.get(nothing)
            if not table.has_hit_miss:
                otherwise = goto(following)
        else:
            cases, entry, chosen = dict(enumerate(ids)), "e", "e->action"
        lines.append(f"switch ({chosen}) {{")
        for number, action_id in cases.items():
            call = f"act_{action_id}(s, p, {entry}->params); {exit_check}"
            if self.trace is not None:
                call = f"{self._calls(table, action_id, f'{entry}->params')} {call}"
            after = "break;" if table.has_hit_miss else goto(table.next_by_action[action_id])
            lines.append(f"case {number}: {call} {after}")
        lines.append(f"default: {otherwise} }}")
        if table.has_hit_miss:
            lines.append(f"if (hit) {goto(table.next_hit)} else {goto(table.next_miss)}")
        else:
            lines.append("return;")
        return [*lines, "}"]

    def _applied(self, table: Table, hit: str) -> str:
        """Return C that reports a look-up: whether it hit, and the key."""
        assert self.trace is not None
        fields = [Field("hit", 1)]
        fill, at = f"d[0] = {hit};", 1
        if table.keys:
            places, _ = key_layout(table)
            for key, (offset, size) in zip(table.keys, places, strict=True):
                fields.append(Field(key.name, key.width))
                fill += f" memcpy(d + {at}, kb + {offset}, {size});"
                at += size
        return self.trace.raw(Point("table", table.name, table.source, tuple(fields)), fill, at)

    def _calls(self, table: Table, action_id: int, params: str) -> str:
        """Return C that reports the action that a table calls."""
        assert self.trace is not None
        action = self.program.actions[action_id]
        places, size = param_layout(action)
        fields = tuple(Field(name, width) for name, width in action.params)
        source = next((p.source for p in action.primitives if p.source), None)
        return self.trace.at(Point("action", action.name, source, fields, tuple(places)), params, size)

    def _meter(self, name: str) -> str:
        """Return C that executes a direct meter, which bmv2 does before the action, and only on a hit."""
        meter = self.program.meters[name]
        assert meter.target is not None
        length = "p->base.target.ingress_length"
        store = self.expr.store(self.layout.slot(meter.target), Value("colour", "u32", 0, 2))
        return (
            f"if (hit) {{ const uint32_t colour = ss_meter_execute(ss_entry_meter(t, e), s->now_us, "
            f"{length if meter.in_bytes else 1}, {length}); {store} }}"
        )

    def _choose(self, name: str) -> str:
        """Return C that finds the member for the present entry; there is none on a miss, and in an empty group."""
        index = list(self.program.profiles).index(name)
        selector = self.program.profiles[name].selector
        pick = "0"
        if selector is not None:
            pick = f"c->n == 1 ? 0 : (uint32_t){self.actions.calculations.call(selector)} % c->n"
        return (
            "const struct ss_member *m = NULL; "
            f"if (hit) {{ const struct ss_choice *const c = "
            f"s->profiles[{index}].choices[*(const uint32_t *)e->params]; "
            f"if (c->n) m = c->members[{pick}]; }}"
        )

    def _key(self, table: Table) -> list[str]:
        places, words = key_layout(table)
        lines = [f"uint64_t key[{words}]; uint8_t *const kb = (uint8_t *)key; memset(key, 0, {8 * words});"]
        for key, (at, size) in zip(table.keys, places, strict=True):
            lines.append(self._key_field(key, at, size))
        return lines

    def _key_field(self, key: Key, at: int, size: int) -> str:
        slot = self.layout.slot(key.target)
        if slot.kind == "bytes" and slot.bit == 0 and slot.width % 8 == 0 and key.mask is None:
            return f"memcpy(kb + {at}, {slot.place}, {size});"
        value = self.expr.load(slot)
        kind = kind_for_bits(key.width)
        if value.lo < 0:
            value = self.expr.truncate(value, key.width)
        if key.mask is not None:
            mask = key.mask & ((1 << key.width) - 1)
            c = self.expr.convert(value, kind)
            both = (
                f"ss_w_and({c}, {self.expr.const(mask, kind)})"
                if kind == "wide"
                else f"({c} & {self.expr.const(mask, kind)})"
            )
            value = Value(both, kind, 0, mask)
        c = self.expr.convert(value, kind)
        if kind == "wide":
            return f"ss_w_put(kb + {at}, 0, {8 * size}, {c});"
        if size == 1:
            return f"kb[{at}] = (uint8_t){c};"
        if size in (2, 4, 8):
            return f"ss_store{8 * size}(kb + {at}, (uint{8 * size}_t){c});"
        put = "ss_put64" if size < 8 else "ss_put128"
        return f"{put}(kb + {at}, 0, {8 * size}, {c});"
