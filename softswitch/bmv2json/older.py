"""Brings bmv2 JSON of other compilers and older versions of p4c into the form that p4c-bm2-ss writes today.

p4c-bm (P4-14) and p4c before 2018 omit members that bmv2 does not need. This module adds them, with the meaning that
bmv2 gives to their absence, so that the rest of this package reads one form only.
"""

from __future__ import annotations

from typing import Any

from softswitch.bmv2json.refusals import JsonObject
from softswitch.errors import BadProgram

NO_ACTION = "NoAction"


def modernise(root: dict[str, Any]) -> None:
    """Add the members that older JSON lacks, in place."""
    actions = root.get("actions", [])
    ids: dict[str, int] = {}
    for action in actions:
        ids.setdefault(action["name"], action["id"])
    for pipeline in root.get("pipelines", []):
        for table in pipeline["tables"]:
            if "action_ids" not in table:
                table["action_ids"] = [_id_of(ids, name, table) for name in table["actions"]]
            if "max_size" not in table and "entries" in table:
                table["max_size"] = len(table["entries"])
            if "act_prof_name" in table and "action_profile" not in table:
                table["action_profile"] = table["act_prof_name"]
                pipeline.setdefault("action_profiles", []).append(_profile_of(table))
            if table["type"] == "simple" and not table.get("default_entry"):
                if NO_ACTION not in ids:
                    ids[NO_ACTION] = 1 + max(ids.values(), default=-1)
                    actions.append(_no_action(ids[NO_ACTION]))
                table["default_entry"] = JsonObject(action_id=ids[NO_ACTION], action_data=[])


def _id_of(ids: dict[str, int], name: str, table: dict[str, Any]) -> int:
    if name not in ids:
        raise BadProgram(f"table {table['name']!r} has the action {name!r}, which the program does not declare")
    return ids[name]


def _profile_of(table: dict[str, Any]) -> JsonObject:
    """Return the action profile that a table declares by its name alone; its size is not limited."""
    profile = JsonObject(name=table["act_prof_name"], id=table["id"], max_size=0)
    if "selector" in table:
        profile["selector"] = table["selector"]
    return profile


def _no_action(number: int) -> JsonObject:
    """Return the action of a miss in a table without a default action."""
    return JsonObject(name=NO_ACTION, id=number, runtime_data=[], primitives=[])
