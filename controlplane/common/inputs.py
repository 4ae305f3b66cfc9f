"""Parsers for what people write: JSON, names with a suggestion for a misspelt one, sizes and percentages."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

UNITS = {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "Ki": 1024, "Mi": 1024**2, "Gi": 1024**3}


def parse_json(text: str | bytes) -> Any:
    """Parse JSON in UTF-8, with or without a byte order mark. Raise ValueError, which says in words what is wrong, if
    the text is something else or nested too deeply, or if an object has a key twice.
    """
    try:
        text = (text.decode() if isinstance(text, bytes) else text).removeprefix("\ufeff")
        return json.loads(text, object_pairs_hook=_object)
    except UnicodeDecodeError as error:
        raise ValueError(f"it is not UTF-8 text (byte {error.start + 1})") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(_not_json(error)) from None


def read_json(path: Path) -> Any:
    """Parse the JSON in a file, as `parse_json` does. Raise OSError if it cannot be read."""
    return parse_json(path.read_bytes())


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON. Raise ValueError if a key is given twice: only one of the values could be used."""
    made = dict(pairs)
    if len(made) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for key in made if keys.count(key) > 1)!r} is given twice in one object")
    return made


COMMENTS = ("#", "//", "/*")
FORMATS = {"<": "XML (GraphML?)", "graph": "GML", "---": "YAML"}
"""Names of formats that files may have instead, by their first letters."""


def _not_json(error: json.JSONDecodeError) -> str:
    """Return why a text is no JSON, in words that someone who wrote it understands."""
    at, rest = f"line {error.lineno} column {error.colno}", error.doc[error.pos :].lstrip()
    start = error.doc.lstrip()
    if not start:
        return "it is empty"
    found = next((name for first, name in FORMATS.items() if start.startswith(first)), None)
    if found is not None:
        return f"it looks like {found}"
    if rest.startswith(COMMENTS):
        return f"JSON has no comments; remove the one at {at}"
    if not start.startswith(("{", "[")) and error.pos == len(error.doc) - len(start):
        return f"it begins with {start.split(maxsplit=1)[0][:40]!r}, a JSON file with an object or a list: {{ or ["
    return f"{error.msg}: {at}"


def unknown_name(given: Iterable[str], known: Collection[str], near_to: Collection[str] = ()) -> str:
    """Return a message about the first unknown name, with the nearest known one, or the nearest one of `near_to`; "" if
    all are known.
    """
    for name in given:
        if name not in known:
            near = get_close_matches(str(name), near_to or known, 1, 0.5)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            return f"unknown attribute {name!r}; {hint}"
    return ""


def parse_bytes(text: str) -> int:
    """Parse a size in bytes: "200K" is 200000, "97M" and "1.5Gi" work, too. Raise ValueError where it is none."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(|K|M|G|Ki|Mi|Gi)B?", text.strip())
    if not match:
        raise ValueError(f"a size is a number with K, M, G, Ki, Mi or Gi behind it, got {text!r}")
    return int(float(match[1]) * UNITS[match[2]])


def parse_part(text: str, option: str, of: str = "the rate") -> float:
    """Parse a part, above 0 and at most 1: "90%" or "0.9". `of` is the whole, for the message. Raise ValueError, which
    names the option, where it is none."""
    try:
        part = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        part = -1.0
    if not 0 < part <= 1:
        raise ValueError(f"{option} must be a part of {of}, like 90% or 0.9, got {text!r}")
    return part
