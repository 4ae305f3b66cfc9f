"""Shows the entries that would be written to a Tofino switch, checked against bf-rt.json. This needs no switch and no
SDE."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from controlplane.planner.entries import RuleSet
from controlplane.planner.topology import Topology
from controlplane.targets.bri.entries import Entry, check
from controlplane.targets.bri.ports import Panel, PortMap
from controlplane.targets.bri.program import Program
from controlplane.targets.bri.schema import local


def planned_entries(program: Program, topology: Topology, rules: RuleSet) -> list[Entry]:
    """Return the switch's entries with front-panel names as ports. Raise TargetError where bf-rt.json does not allow
    one."""
    entries = program.entries(rules, PortMap(Panel.of(topology, rules.switch)))
    check(program.schema, entries, f"switch {rules.switch}")
    return entries


def entry_lines(program: Program, topology: Topology, rules: RuleSet, flows: Mapping[int, str]) -> Iterator[str]:
    """Yield how full the tables are, then one line per entry, each label with the flow that it stands for."""
    entries = planned_entries(program, topology, rules)
    counts = Counter(entry.table for entry in entries)
    full = ", ".join(f"{local(table)} {n}/{program.schema.tables[table].size}" for table, n in counts.items())
    source = os.path.relpath(program.own.source)
    yield f"program {program.name}, {len(entries)} entries, all allowed by {source} ({full})"
    for entry in entries:
        label = {local(name): value for name, value in entry.key}.get("label")
        meaning = f"   # {flows.get(label, 'partial sums')}" if isinstance(label, int) else ""
        yield f"{entry}{meaning}"


def entries_json(program: Program, topology: Topology, rules: RuleSet) -> list[dict[str, Any]]:
    return [entry.to_json() for entry in planned_entries(program, topology, rules)]
