"""Reads ingress and egress: tables, their entries, action profiles and conditions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from softswitch.bmv2json.expressions import Expressions
from softswitch.bmv2json.model import (
    ActionProfile,
    Calculation,
    Conditional,
    ConstEntry,
    FieldRef,
    Key,
    Match,
    Pipeline,
    Table,
)
from softswitch.bmv2json.scalars import checked_count, hex_number, source_of, text_of
from softswitch.errors import BadProgram, UnsupportedConstruct

_MATCH_KINDS = {"exact", "lpm", "ternary", "range", "valid"}


class Pipelines:
    """A reader of the pipelines of one program whose actions are read already.

    ``calculation`` is a function that reads the calculation of a selector.
    """

    def __init__(
        self, root: dict[str, Any], expressions: Expressions, calculation: Callable[[dict[str, Any]], Calculation]
    ) -> None:
        self.root = root
        self.expressions = expressions
        self.program = expressions.program
        self._calculation = calculation

    def read(self) -> None:
        found = {item["name"]: self._pipeline(item) for item in self.root.get("pipelines", [])}
        for name in found:
            if name not in ("ingress", "egress"):
                raise UnsupportedConstruct(f"pipeline {name!r} (not a v1model program)")
        if set(found) != {"ingress", "egress"}:
            raise UnsupportedConstruct("a program without ingress or egress pipeline (not a v1model program)")
        self.program.ingress, self.program.egress = found["ingress"], found["egress"]
        for counter in self.program.counters.values():
            if counter.table is not None and self._find_table(counter.table) is None:
                raise BadProgram(f"direct counter {counter.name!r} is bound to unknown table {counter.table!r}")
        for meter in self.program.meters.values():
            if meter.table is not None and getattr(self._find_table(meter.table), "meter", None) != meter.name:
                raise BadProgram(f"direct meter {meter.name!r} is not that of table {meter.table!r}")

    def _find_table(self, name: str) -> Table | None:
        return self.program.ingress.tables.get(name) or self.program.egress.tables.get(name)

    def _pipeline(self, item: dict[str, Any]) -> Pipeline:
        for profile in item.get("action_profiles", []):
            self._profile(profile)
        if item.get("action_calls"):
            raise UnsupportedConstruct("action call outside a table", source_of(item["action_calls"][0]))
        tables = {t["name"]: self._table(t) for t in item["tables"]}
        conditionals: dict[str, Conditional] = {}
        for c in item["conditionals"]:
            expr = self.expressions.expr(c["expression"], source_of(c))
            next_nodes = (c["true_next"], c["false_next"])
            conditionals[c["name"]] = Conditional(c["name"], expr, *next_nodes, source_of(c), text_of(c))
        nodes = {None, *tables, *conditionals}
        nexts: list[Iterable[str | None]] = [[item["init_table"]]]
        nexts += [[*t.next_by_action.values(), t.next_hit, t.next_miss] for t in tables.values()]
        nexts += [[c.true_next, c.false_next] for c in conditionals.values()]
        for name in (n for group in nexts for n in group):
            if name not in nodes:
                raise BadProgram(f"pipeline {item['name']!r} refers to unknown node {name!r}")
        return Pipeline(item["name"], item["init_table"], tables, conditionals)

    def _profile(self, item: dict[str, Any]) -> None:
        name, selector = item["name"], item.get("selector")
        if name in self.program.profiles:
            raise BadProgram(f"two action profiles of the name {name!r}")
        calculation = None
        if selector is not None:
            calculation = f"selector of {name}"
            self.program.calculations[calculation] = self._calculation(
                {"name": calculation, "source_info": item.get("source_info"), **selector}
            )
        size = checked_count(item["max_size"], f"profile {name}")
        self.program.profiles[name] = ActionProfile(name, size, calculation)

    def _table(self, item: dict[str, Any]) -> Table:
        name, source = item["name"], source_of(item)
        profile, meter = self._profile_of(item), item.get("direct_meters") or None
        if meter is not None and getattr(self.program.meters.get(meter), "table", None) != name:
            raise BadProgram(f"table {name!r} has the direct meter {meter!r}, which is not for it")
        keys = [self._key(key, name, source) for key in item["key"]]
        kinds = {k.match_kind for k in keys}
        if sum(k.match_kind == "lpm" for k in keys) > 1 and not kinds & {"ternary", "range"}:
            raise UnsupportedConstruct(f"table {name!r} with several lpm keys", source)
        action_ids = tuple(int(i) for i in item["action_ids"])
        default = item.get("default_entry") or {}
        default_id = -1
        if profile is None:
            if not default:
                raise UnsupportedConstruct(f"table {name!r} without a default entry", source)
            default_id = int(default["action_id"])
        for i in (*action_ids, *([] if default_id < 0 else [default_id])):
            if i not in self.program.actions:
                raise BadProgram(f"table {name!r} uses unknown action id {i}")
        by_name = dict(zip(item["actions"], action_ids, strict=True))
        nexts, base = item["next_tables"], item.get("base_default_next")
        has_hit_miss = "__HIT__" in nexts or "__MISS__" in nexts
        next_by_action = {} if has_hit_miss else {by_name[a]: nexts[a] for a in nexts}
        return Table(
            name=name,
            match_type=item["match_type"],
            keys=tuple(keys),
            actions=action_ids,
            size=checked_count(item["max_size"], f"table {name}"),
            with_counters=bool(item.get("with_counters")),
            meter=meter,
            with_timeout=bool(item.get("support_timeout")),
            profile=profile,
            next_by_action={i: next_by_action.get(i, base) for i in {*action_ids, default_id} - {-1}},
            next_default=base,
            next_hit=nexts.get("__HIT__", base) if has_hit_miss else None,
            next_miss=nexts.get("__MISS__", base) if has_hit_miss else None,
            has_hit_miss=has_hit_miss,
            default_action=default_id,
            default_params=() if profile else self._action_data(default_id, default.get("action_data") or []),
            default_const=bool(profile or default.get("action_const") or default.get("action_entry_const")),
            entries=tuple(self._const_entry(e, keys, source) for e in item.get("entries", [])),
            const_entries="entries" in item,
            source=source,
        )

    def _profile_of(self, item: dict[str, Any]) -> str | None:
        """Return the name of the table's action profile; None for a table without one."""
        name, source = item["name"], source_of(item)
        if item["type"] == "simple":
            return None
        profile: str = item["action_profile"]
        if profile not in self.program.profiles:
            raise BadProgram(f"table {name!r} has the unknown action profile {profile!r}")
        if item["type"] not in ("indirect", "indirect_ws"):
            raise UnsupportedConstruct(f"table {name!r} of type {item['type']!r}", source)
        if item.get("default_entry") or item.get("entries"):
            raise UnsupportedConstruct(f"table {name!r} with an action profile and entries of its own", source)
        return profile

    def _key(self, key: dict[str, Any], table: str, source: str | None) -> Key:
        """Return one of the table's keys. A key on the validity of a header is an exact match of the header's field
        $valid$.
        """
        if key["match_type"] not in _MATCH_KINDS:
            raise UnsupportedConstruct(f"match kind {key['match_type']!r} in table {table!r}", source)
        if key["match_type"] == "valid":
            target = FieldRef(key["target"] if isinstance(key["target"], str) else key["target"][0], "$valid$")
            kind = "exact"
        else:
            target, kind = FieldRef(*key["target"]), key["match_type"]
        width = self.program.field_of(target).width
        mask = None if key.get("mask") is None else hex_number(key["mask"])
        return Key(key.get("name") or ".".join((target.header, target.field)), kind, target, width, mask)

    def _action_data(self, action_id: int, data: list[str]) -> tuple[int, ...]:
        action = self.program.actions.get(action_id)
        if action is None or len(action.params) != len(data):
            raise BadProgram(f"wrong action data for action id {action_id}")
        return tuple(hex_number(d) & ((1 << w) - 1) for d, (_, w) in zip(data, action.params, strict=True))

    def _const_entry(self, item: dict[str, Any], keys: list[Key], source: str | None) -> ConstEntry:
        """Return an entry. P4 allows bits of a value outside its mask, which are left out."""
        values: list[Match] = []
        for key, m in zip(keys, item["match_key"], strict=True):
            kind = m["match_type"]
            if kind in ("exact", "valid"):
                raw = m["key"]
                values.append(Match("exact", int(raw) if isinstance(raw, bool) else hex_number(raw)))
            elif kind == "lpm":
                length = int(m["prefix_length"])
                value = hex_number(m["key"]) >> key.width - length << key.width - length
                values.append(Match("lpm", value, prefix_len=length))
            elif kind == "ternary":
                mask = hex_number(m["mask"])
                values.append(Match("ternary", hex_number(m["key"]) & mask, mask))
            elif kind == "range":
                values.append(Match("range", hex_number(m["start"]), high=hex_number(m["end"])))
            else:
                raise UnsupportedConstruct(f"const entry with match kind {kind!r} for key {key.name}", source)
        entry = item["action_entry"]
        action_id = int(entry["action_id"])
        return ConstEntry(
            tuple(values), action_id, self._action_data(action_id, entry["action_data"]), int(item.get("priority", 0))
        )
