"""Parsers for what people write: JSON, names with a suggestion for a misspelt one, sizes and percentages."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import Any

UNITS = {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3, "Ki": 1024, "Mi": 1024**2, "Gi": 1024**3}


def parse_json(text: str | bytes) -> Any:
    """Parse JSON. Raise ValueError where it is invalid, or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def unknown_name(given: Iterable[str], known: Collection[str]) -> str:
    """Return a message about the first unknown name, with the nearest known one; "" where all are known."""
    for name in given:
        if name not in known:
            near = get_close_matches(str(name), known, 1, 0.5)
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
