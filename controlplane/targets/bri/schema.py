"""Schemas of bf-rt.json (version 1.0.0): the tables of a switch with their keys, actions and data."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from controlplane.targets.base import TargetError

Found = TypeVar("Found")

WIDTHS = {"uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64}
UNNUMBERED = ("bool", "string", "float", "int8", "int16", "int32", "int64", "container")
MATCHES = ("Exact", "Ternary", "LPM", "Range", "Optional", "ATCAM")


class SchemaError(TargetError):
    """A bf-rt.json cannot be read, or lacks the requested item."""


@dataclass(frozen=True)
class Field:
    """A key or data field. `bits` is the width of an unsigned number, None for other kinds; `match` is the match kind
    of a key field."""

    name: str
    id: int
    kind: str
    bits: int | None
    choices: tuple[str, ...] = ()
    repeated: bool = False
    mandatory: bool = False
    read_only: bool = False
    match: str = ""


@dataclass(frozen=True)
class Action:
    name: str
    id: int
    fields: dict[str, Field]
    scope: str = "TableAndDefault"


@dataclass(frozen=True)
class Table:
    """A table. `size` is the number of entries that fit, and `data` are the fields beside those of the action
    (counters, or all fields of a table without actions)."""

    name: str
    id: int
    kind: str
    size: int
    keys: dict[str, Field]
    actions: dict[str, Action]
    data: dict[str, Field]
    constant: bool = False

    @property
    def shape(self) -> tuple[object, ...]:
        """All properties but ids: the same entries fit into two tables whose shapes are equal."""

        def fields(of: Mapping[str, Field]) -> frozenset[tuple[str, str, int | None, str]]:
            return frozenset((field.name, field.kind, field.bits, field.match) for field in of.values())

        actions = frozenset((action.name, fields(action.fields)) for action in self.actions.values())
        return self.size, fields(self.keys), actions, fields(self.data)

    def key(self, name: str) -> Field:
        """Return the key field with this name, or with this last component of its name. Raise SchemaError where there
        is none."""
        return _find(self.keys, name, f"table {self.name}", "key field")

    def action(self, name: str) -> Action:
        return _find(self.actions, name, f"table {self.name}", "action")

    def fields(self, action: str | None) -> dict[str, Field]:
        """Return all data fields of an entry with this action (full name)."""
        return {**(self.actions[action].fields if action is not None else {}), **self.data}


@dataclass(frozen=True)
class Schema:
    """The tables of a program, by full name. `source` names it in messages."""

    tables: dict[str, Table]
    source: str

    @classmethod
    def load(cls, path: Path) -> Schema:
        try:
            content = path.read_bytes()
        except OSError as error:
            raise SchemaError(f"cannot read {path}: {error.strerror}") from None
        return cls.parse(content, str(path))

    @classmethod
    def parse(cls, content: bytes, source: str) -> Schema:
        """Parse a bf-rt.json. Raise SchemaError, which names the table and what is wrong with it, where that fails."""
        try:
            data = json.loads(content)
            tables = [_table(table) for table in data["tables"]]
        except (ValueError, KeyError, TypeError) as error:
            raise SchemaError(f"{source} is not a bf-rt.json: {type(error).__name__}: {error}") from None
        if len({table.name for table in tables}) != len(tables) or len({table.id for table in tables}) != len(tables):
            raise SchemaError(f"{source} names a table, or an id, twice")
        return cls({table.name: table for table in tables}, source)

    def with_tables(self, other: Schema) -> Schema:
        """Return a schema with the tables of both schemas (a program's and the fixed-function ones)."""
        return Schema({**self.tables, **other.tables}, self.source)

    def table(self, name: str) -> Table:
        """Return the table with this name, or the only one with these last components. Raise SchemaError where there is
        none."""
        return _find(self.tables, name, self.source, "table")


def local(name: str) -> str:
    """Return the last component of a dotted name, which is "label" for "hdr.inart.label". Names that begin with $ have
    one component."""
    return name if name.startswith("$") else name.rpartition(".")[2]


def _find(found: Mapping[str, Found], name: str, where: str, what: str) -> Found:
    if name in found:
        return found[name]
    matching = [full for full in found if full.endswith(f".{name}")]
    if len(matching) == 1:
        return found[matching[0]]
    if matching:
        raise SchemaError(f"{where} has several {what}s {name!r}: {', '.join(matching)}")
    raise SchemaError(f"{where} has no {what} {name!r}; it has {', '.join(found) or 'none'}")


def _table(table: Mapping[str, Any]) -> Table:
    try:
        actions = [_action(action) for action in table.get("action_specs", ())]
        return Table(
            name=table["name"],
            id=int(table["id"]),
            kind=table["table_type"],
            size=int(table["size"]),
            keys=_named(_field(key) for key in table["key"]),
            actions={action.name: action for action in actions},
            data=_named(field for data in table["data"] for field in _data(data)),
            constant="ConstTable" in table.get("attributes", ()),
        )
    except KeyError as error:
        raise KeyError(f"table {table.get('name', '(no name)')}: {error} is missing") from None


def _action(action: Mapping[str, Any]) -> Action:
    return Action(
        action["name"],
        int(action["id"]),
        _named(_field(data) for data in action["data"]),
        action.get("action_scope", "TableAndDefault"),
    )


def _data(data: Mapping[str, Any]) -> Iterable[Field]:
    """Return the fields of a data item: a plain one (of actions), a "singleton", or the choices of a "oneof".

    The choices share `mandatory` and `read_only`.
    """
    shared = {key: data[key] for key in ("mandatory", "read_only") if key in data}
    if "oneof" in data:
        return [_field({**choice, **shared}) for choice in data["oneof"]]
    return [_field({**data.get("singleton", data), **shared})]


def _named(fields: Iterable[Field]) -> dict[str, Field]:
    return {field.name: field for field in fields}


def _field(field: Mapping[str, Any]) -> Field:
    described = field.get("type", {"type": "container"})
    kind = described["type"]
    bits: int | None
    if kind == "bytes":
        bits = int(described["width"])
    elif kind in WIDTHS:
        bits = WIDTHS[kind]
    elif kind in UNNUMBERED:
        bits = None
    else:
        raise ValueError(f"field {field['name']} has the unknown type {kind!r}")
    match = field.get("match_type", "")
    if match and match not in MATCHES:
        raise ValueError(f"key field {field['name']} has the unknown match type {match!r}")
    return Field(
        name=field["name"],
        id=int(field["id"]),
        kind=kind,
        bits=bits,
        choices=tuple(described.get("choices", ())),
        repeated=bool(field.get("repeated", False)),
        mandatory=bool(field.get("mandatory", False)),
        read_only=bool(field.get("read_only", False)),
        match="Exact" if match == "ATCAM" else match,
    )
