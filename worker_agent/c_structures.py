"""Reads the structures that the C engines share with Python from their headers, so that each has one list of fields."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_TYPES: Mapping[str, Any] = {
    "char": ctypes.c_char,
    "uint8_t": ctypes.c_uint8,
    "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "double": ctypes.c_double,
}
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_DECLARATION = re.compile(r"(?:const |_Atomic )*(?:struct )?(\w+) (.+)")
_DECLARATOR = re.compile(r"(\*?)(\w+)((?:\[[^\]]+\])*)")


class Header:
    """A C header.

    Args:
        path: the file.
        sizes: the sizes of arrays, by the text between their brackets.
    """

    def __init__(self, path: Path, sizes: Mapping[str, int] | None = None) -> None:
        self._path, self._sizes = path, sizes or {}
        self._text = _COMMENT.sub(" ", path.read_text())

    def fields(self, name: str, **types: Any) -> list[tuple[str, Any]]:
        """Return the `_fields_` of `struct name` for ctypes. Raise ValueError for declarations that it cannot read.

        Args:
            name: name of the structure.
            types: the ctypes types of further types of C, by name: structures that its fields have or point to. A
                pointer to a type that is not known is an address (void *).
        """
        body = re.search(rf"^struct {name} \{{(.*?)\n\}};", self._text, re.DOTALL | re.MULTILINE)
        if body is None:
            raise ValueError(f"{self._path.name}: there is no struct {name}")
        known = {**_TYPES, **types}
        found: list[tuple[str, Any]] = []
        for text in body[1].split(";"):
            words = " ".join(text.split())
            declaration = _DECLARATION.fullmatch(words)
            if declaration is None:
                if words:
                    raise ValueError(f"{self._path.name}: struct {name}: cannot read '{words}'")
                continue
            of = known.get(declaration[1])
            found += [self._field(name, of, each.strip()) for each in declaration[2].split(",")]
        return found

    def _field(self, structure: str, of: Any, text: str) -> tuple[str, Any]:
        declarator = _DECLARATOR.fullmatch(text)
        if declarator is None or (of is None and not declarator[1]):
            raise ValueError(f"{self._path.name}: struct {structure}: cannot read '{text}'")
        pointer, name, dimensions = declarator.groups()
        if pointer:
            return name, ctypes.c_void_p if of is None else ctypes.POINTER(of)
        for dimension in reversed(re.findall(r"\[([^\]]+)\]", dimensions)):
            of *= self._sizes[dimension]
        return name, of
