"""Constructs that softswitch lacks are refused when a program is loaded, by name and P4 line; so is broken JSON."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softswitch import BadProgram, Program, SoftswitchError, UnsupportedConstruct
from softswitch.bmv2json.reader import read_program
from softswitch.compiler.codegen import generate
from softswitch.tests.dataplane.programs import json_path

ROUTER = json.loads(json_path("router").read_text())
SOURCE = {"filename": "some.p4", "line": 12, "column": 3}
Json = dict[str, Any]


def primitive(root: Json, op: str) -> Json:
    """Return the first use of a primitive."""
    return next(p for a in root["actions"] for p in a["primitives"] if p["op"] == op)


def table(root: Json, name: str) -> Json:
    return next(t for p in root["pipelines"] for t in p["tables"] if t["name"] == name)


def unknown_primitive(root: Json) -> None:
    primitive(root, "register_write").update(op="launch_rocket", source_info=SOURCE)


def unknown_operator(root: Json) -> None:
    node = root["pipelines"][0]["conditionals"][1]
    node["expression"] = {"type": "expression", "value": {"op": "<=>", "left": {"type": "hexstr", "value": "0x1"},
                                                            "right": {"type": "hexstr", "value": "0x1"}}}  # fmt: skip
    node["source_info"] = SOURCE


def unknown_match_kind(root: Json) -> None:
    table(root, "MyIngress.routes")["key"][0]["match_type"] = "fuzzy"
    table(root, "MyIngress.routes")["source_info"] = SOURCE


def own_entries_of_profile_table(root: Json) -> None:
    root["pipelines"][0]["action_profiles"] = [{"name": "p", "id": 0, "max_size": 4}]
    table(root, "MyIngress.routes").update(type="indirect", action_profile="p", source_info=SOURCE)


def meter(root: Json) -> None:
    root["meter_arrays"] = [{"name": "m", "rate_count": 3, "type": "bytes", "source_info": SOURCE}]


def extern(root: Json) -> None:
    root["extern_instances"] = [{"name": "e", "source_info": SOURCE}]


def hash_over_bool(root: Json) -> None:
    flag = {"op": "d2b", "left": None, "right": {"type": "field", "value": ["standard_metadata", "egress_spec"]}}
    root["calculations"][0]["input"].append({"type": "expression", "value": flag})
    root["calculations"][0]["source_info"] = SOURCE


def varbit(root: Json) -> None:
    root["header_types"].append({"name": "v_t", "id": 99, "fields": [["v", "*"]], "source_info": SOURCE})


def hash_algorithm(root: Json) -> None:
    root["calculations"][0].update(algo="md5", source_info=SOURCE)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (unknown_primitive, "launch_rocket"),
        (unknown_operator, "<=>"),
        (unknown_match_kind, "fuzzy"),
        (own_entries_of_profile_table, "action profile"),
        (meter, "meter 'm'"),
        (extern, "extern instance 'e'"),
        (hash_over_bool, "over a bool"),
        (varbit, "varbit"),
        (hash_algorithm, "md5"),
    ],
)
def test_refused_with_name_and_line(change: Callable[[Json], None], named: str) -> None:
    root = copy.deepcopy(ROUTER)
    change(root)
    with pytest.raises(UnsupportedConstruct) as error:
        generate(read_program(json.dumps(root)))
    assert named in str(error.value)
    assert str(error.value).startswith("some.p4:12:")


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda root: root.update(surprise=[]), "surprise"),
        (lambda root: root["parsers"].append(root["parsers"][0]), "2 parsers"),
        (lambda root: root["deparsers"][0].update(primitives=[{"op": "assign", "parameters": []}]), "deparser"),
        (lambda root: root["__meta__"].update(version=[3, 0]), "version 3.0"),
        (lambda root: root["parsers"][0]["parse_states"][0]["parser_ops"].append(
            {"op": "guess", "parameters": []}), "guess"),
        (lambda root: root["headers"][1].update(name="not_standard"), ""),
        (lambda root: table(root, "MyIngress.routes").update(type="indirect_ws", action_profile="p"), "'p'"),
        (lambda root: table(root, "MyIngress.routes").update(type="indirect"), "action_profile"),
        (lambda root: table(root, "MyIngress.routes").update(direct_meters="m"), "'m'"),
        (lambda root: root.update(parse_vsets=[{"name": "v"}]), "compressed_bitwidth"),
        (lambda root: root.update(parse_vsets=[{"name": "v", "max_size": 1, "compressed_bitwidth": 0}]), "value set v"),
    ],
)  # fmt: skip
def test_refused_by_name(change: Callable[[Json], None], named: str) -> None:
    root = copy.deepcopy(ROUTER)
    change(root)
    with pytest.raises((UnsupportedConstruct, BadProgram)) as error:
        generate(read_program(json.dumps(root)))
    assert named in str(error.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "{}", '{"headers": 5}', b"\xff\xfe", "[" * 100000])
def test_not_a_program(text: str | bytes) -> None:
    with pytest.raises(BadProgram):
        Program.load(text)


def paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path to every member of a JSON value."""
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += paths(inner, (*path, key))
    return found


PATHS = paths(ROUTER)
REPLACEMENTS = [
    None, 0, -1, 1 << 70, "", "0x", "no such thing", [], {}, [1, 2], True, 3.5, {"type": "field", "value": 1},
]  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(path=st.sampled_from(PATHS), value=st.sampled_from(REPLACEMENTS), remove=st.booleans())
def test_damaged_json_is_refused_or_harmless(path: tuple[Any, ...], value: Any, remove: bool) -> None:
    """With any one member replaced or removed, loading gives one of our errors or a program, never another
    exception.
    """
    root = copy.deepcopy(ROUTER)
    at = root
    for key in path[:-1]:
        at = at[key]
    if remove:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    try:
        generate(read_program(json.dumps(root)))
    except SoftswitchError as error:
        assert "Error:" not in str(error)  # Names of Python's exceptions do not help people with their JSON.
