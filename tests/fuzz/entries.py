"""Makes random control-plane state for a program, as STF statements."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from softswitch.p4runtime.stubs import p4info_pb2
from softswitch.tests.conformance.stf import Add, Call, Command, SetDefault, Statement
from tests.fuzz.packets import draw_value

PORTS = 8  # Most parameters and replicas name a port below this number.


def constants(value: Any) -> list[int]:
    """Return the numbers that a bmv2 JSON names, each once."""
    found: set[int] = set()

    def collect(node: Any) -> None:
        if isinstance(node, dict):
            if node.get("type") == "hexstr" and isinstance(node.get("value"), str):
                try:
                    found.add(abs(int(node["value"], 0)))
                except ValueError:
                    pass
            for inner in node.values():
                collect(inner)
        elif isinstance(node, list):
            for inner in node:
                collect(inner)

    collect(value)
    return sorted(found)[:400]


def _scope_allows(ref: p4info_pb2.ActionRef, default: bool) -> bool:
    unwanted = p4info_pb2.ActionRef.TABLE_ONLY if default else p4info_pb2.ActionRef.DEFAULT_ONLY
    return ref.scope != unwanted


class EntrySource:
    """Makes statements for the tables, multicast groups and clone sessions of a program."""

    def __init__(self, info: p4info_pb2.P4Info, pool: Sequence[int], source: random.Random) -> None:
        self.info = info
        self.pool = pool
        self.source = source
        self.actions = {a.preamble.id: a for a in info.actions}

    def statements(self, per_table: int = 6) -> list[Statement]:
        source = self.source
        out: list[Statement] = []
        seen: set[tuple[object, ...]] = set()
        choices: dict[int, list[Call]] = {}  # by action profile
        for profile in self.info.action_profiles:
            made, choices[profile.preamble.id] = self._profile(profile)
            out += made
        for table in self.info.tables:
            if table.is_const_table:
                continue
            if source.random() < 0.3 and not table.const_default_action_id and not table.implementation_id:
                call = self._call(table, default=True)
                if call is not None:
                    out.append(SetDefault(table.preamble.name, call))
            if not table.match_fields or table.has_initial_entries:
                continue
            prioritised = any(
                f.match_type in (p4info_pb2.MatchField.TERNARY, p4info_pb2.MatchField.RANGE,
                                 p4info_pb2.MatchField.OPTIONAL)
                for f in table.match_fields
            )  # fmt: skip
            for _ in range(min(source.randrange(per_table + 1), table.size)):
                if table.implementation_id:
                    call = source.choice(choices[table.implementation_id] or [None])  # type: ignore[list-item]
                else:
                    call = self._call(table, default=False)
                if call is None:
                    break
                keys = self._keys(table)
                priority = source.randrange(1, 1000) if prioritised else None
                # P4Runtime leaves open which of several entries with equal priority wins, so each has its own priority.
                identity = (table.preamble.id, priority) if prioritised else (table.preamble.id, keys)
                if identity not in seen:
                    seen.add(identity)
                    out.append(Add(table.preamble.name, priority, keys, call))
        out += self._groups()
        return out

    def _profile(self, profile: p4info_pb2.ActionProfile) -> tuple[list[Statement], list[Call]]:
        """Return statements that make members and groups, and the references to them that entries can have.

        No group is empty, because bmv2 leaves that undefined.
        """
        source, name = self.source, profile.preamble.name
        tables = [table for table in self.info.tables if table.implementation_id == profile.preamble.id]
        out: list[Statement] = []
        members: list[int] = []
        for number in source.sample(range(1, 30), source.randrange(1, 6)) if tables else ():
            call = self._call(tables[0], default=False)
            if call is not None:
                arguments = ",".join(f"{param}:{value:#x}" for param, value in call.arguments)
                out.append(Command("member", (name, str(number), f"{call.action}({arguments})")))
                members.append(number)
        found = [Call("@member", (("id", number),)) for number in members]
        if profile.with_selector and members:
            for group in source.sample(range(1, 20), source.randrange(4)):
                chosen = source.sample(members, source.randint(1, len(members)))
                parts = [f"{number}*{source.choice((1, 1, 2, 5))}" for number in chosen]
                out.append(Command("group", (name, str(group), *parts)))
                found.append(Call("@group", (("id", group),)))
        return out, found

    def _keys(self, table: p4info_pb2.Table) -> tuple[tuple[str, str], ...]:
        kinds = p4info_pb2.MatchField
        keys: list[tuple[str, str]] = []
        for f in table.match_fields:
            value, full = draw_value(self.source, f.bitwidth, self.pool), (1 << f.bitwidth) - 1
            if f.match_type == kinds.EXACT:
                keys.append((f.name, f"{value:#x}"))
            elif f.match_type == kinds.LPM:
                length = self.source.choice((0, 1, f.bitwidth, f.bitwidth - 1, self.source.randint(0, f.bitwidth)))
                length = max(0, length)
                keys.append((f.name, f"{value >> (f.bitwidth - length) << (f.bitwidth - length):#x}/{length}"))
            elif f.match_type == kinds.TERNARY:
                mask = self.source.choice((0, full, full, self.source.getrandbits(max(f.bitwidth, 1)), full >> 1, 1))
                if mask & full:
                    keys.append((f.name, f"{value & mask:#x}&&&{mask & full:#x}"))
            elif f.match_type == kinds.RANGE:
                other = draw_value(self.source, f.bitwidth, self.pool)
                low, high = sorted((value, other))
                if (low, high) != (0, full):
                    keys.append((f.name, f"{low:#x}..{high:#x}"))
            elif f.match_type == kinds.OPTIONAL and self.source.random() < 0.7 and value:
                keys.append((f.name, f"{value:#x}"))
        return tuple(keys)

    def _call(self, table: p4info_pb2.Table, default: bool) -> Call | None:
        refs = [ref for ref in table.action_refs if _scope_allows(ref, default)]
        if not refs:
            return None
        action = self.actions[self.source.choice(refs).id]
        arguments: list[tuple[str, int]] = []
        for param in action.params:
            value = draw_value(self.source, param.bitwidth, self.pool)
            if "port" in param.name.lower() or (param.bitwidth == 9 and self.source.random() < 0.8):
                value = self.source.randrange(PORTS) & ((1 << param.bitwidth) - 1)
            arguments.append((param.name, value))
        return Call(action.preamble.name, tuple(arguments))

    def _groups(self) -> list[Statement]:
        source = self.source
        out: list[Statement] = []
        small = [value for value in self.pool if 0 < value < 1000] or [1]
        for session in {source.choice((1, 2, 3, 5, source.choice(small))) for _ in range(source.randrange(3))}:
            out.append(Command("mirroring_add", (str(session), str(source.randrange(PORTS)))))
        node = 0
        for group in {source.choice((1, 2, 3, source.choice(small))) for _ in range(source.randrange(3))}:
            out.append(Command("mc_mgrp_create", (str(group),)))
            for rid in source.sample(range(1, 50), source.randrange(1, 4)):
                ports = source.sample(range(PORTS), source.randrange(1, 4))
                out.append(Command("mc_node_create", (str(rid), *map(str, ports))))
                out.append(Command("mc_node_associate", (str(group), str(node))))
                node += 1
        return out
