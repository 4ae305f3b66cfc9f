"""Reads the leaves of the JSON: numbers, with checks of their limits, and positions in the P4 source."""

from __future__ import annotations

from typing import Any

from softswitch.errors import BadProgram

# Bits in a field, register or constant. This is far above any real program, and keeps hostile JSON cheap.
MAX_WIDTH = 1 << 16


def source_of(obj: Any) -> str | None:
    """Return ``file.p4:line`` from a JSON object's ``source_info``, if the compiler wrote it."""
    info = obj.get("source_info") if isinstance(obj, dict) else None
    if not isinstance(info, dict) or "filename" not in info:
        return None
    return f"{info['filename']}:{info.get('line', '?')}"


def text_of(obj: Any) -> str | None:
    """Return the P4 text of a JSON object, if the compiler wrote it."""
    info = obj.get("source_info") if isinstance(obj, dict) else None
    text = info.get("source_fragment") if isinstance(info, dict) else None
    return " ".join(text.split()) if isinstance(text, str) else None


def hex_number(text: str) -> int:
    if len(text) > MAX_WIDTH // 4:
        raise BadProgram("a constant of more than 65536 bits")
    negative = text.startswith("-")
    value = int(text[1:] if negative else text, 16)
    return -value if negative else value


def check_width(width: Any, what: str) -> None:
    if not isinstance(width, int) or isinstance(width, bool) or not 0 < width <= MAX_WIDTH:
        raise BadProgram(f"{what} has an impossible width: {width!r}")


def checked_count(value: Any, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 32:
        raise BadProgram(f"{what} has an impossible size: {value!r}")
    return value
