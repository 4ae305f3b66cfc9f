"""What people write: JSON that is nested too deeply, names that nobody knows."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from difflib import get_close_matches
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Raises ValueError, in words."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def unknown_name(given: Iterable[str], known: Collection[str]) -> str:
    """The first name that is not known, in words, with the nearest that is; "": all are."""
    for name in given:
        if name not in known:
            near = get_close_matches(str(name), known, 1, 0.5)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            return f"unknown attribute {name!r}; {hint}"
    return ""
