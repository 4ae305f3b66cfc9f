"""Reads a whole program from bmv2 JSON."""

from __future__ import annotations

import json
from typing import Any

from softswitch.bmv2json.declarations import Declarations
from softswitch.bmv2json.expressions import Expressions
from softswitch.bmv2json.model import P4Program
from softswitch.bmv2json.older import modernise
from softswitch.bmv2json.parser import Parser
from softswitch.bmv2json.pipelines import Pipelines
from softswitch.bmv2json.refusals import MALFORMED, JsonObject, origin, reason_of
from softswitch.bmv2json.scalars import source_of
from softswitch.errors import BadProgram, UnsupportedConstruct

_EXTERN_LISTS = {
    "extern_instances": "extern instance",
}
_TOP_LEVEL = {
    "program", "__meta__", "header_types", "headers", "header_stacks", "header_union_types", "header_unions",
    "header_union_stacks", "field_lists", "errors",
    "enums", "parsers", "deparsers", "counter_arrays", "register_arrays", "calculations", "actions", "pipelines",
    "checksums", "force_arith", "field_aliases", "learn_lists", "parse_vsets", "meter_arrays",
    *_EXTERN_LISTS,
}  # fmt: skip


def read_program(text: bytes | str) -> P4Program:
    """Parse bmv2 JSON. Raise ``BadProgram`` for malformed JSON, ``UnsupportedConstruct`` for what softswitch does not
    implement.
    """
    try:
        root = json.loads(text, object_hook=JsonObject)
    except (ValueError, RecursionError) as error:
        raise BadProgram(f"not JSON: {error}") from None
    if not isinstance(root, dict):
        raise BadProgram("the top level is not a JSON object; expected the output of p4c-bm2-ss")
    try:
        return _read(root)
    except UnsupportedConstruct as error:
        raise UnsupportedConstruct(error.construct + origin(root), error.source) from error
    except BadProgram as error:
        raise BadProgram(f"{error}{origin(root)}") from error
    except MALFORMED as error:
        raise BadProgram(f"malformed bmv2 JSON: {reason_of(error)}{origin(root)}") from error


def _read(root: dict[str, Any]) -> P4Program:
    _check_top_level(root)
    modernise(root)
    program = P4Program(name=str(root.get("program", "")), origin=origin(root))
    expressions = Expressions(program)
    declarations = Declarations(root, expressions)
    declarations.read()
    for item in root.get("actions", []):
        action = expressions.action(item)
        program.actions[action.id] = action
    parser = Parser(root, expressions)
    parser.read()
    parser.read_deparser()
    Pipelines(root, expressions, declarations.calculation).read()
    declarations.read_checksums()
    return program


def _check_top_level(root: dict[str, Any]) -> None:
    for name in root:
        if name not in _TOP_LEVEL:
            raise UnsupportedConstruct(f"top-level JSON member {name!r}")
    for name, construct in _EXTERN_LISTS.items():
        items = root.get(name) or []
        if items:
            raise UnsupportedConstruct(f"{construct} {items[0].get('name', '')!r}", source_of(items[0]))
    version = (root.get("__meta__") or {}).get("version", [2, 0])
    if version[0] != 2:
        raise UnsupportedConstruct(f"bmv2 JSON version {version[0]}.{version[1]} (only 2.x)")
