"""Says what is wrong with JSON that has not the form of a program, in terms of the JSON and its compiler."""

from __future__ import annotations

from typing import Any

MAX_SHOWN = 200  # characters of a name from the JSON

# The JSON versions that p4c 1.2 has written.
_VERSIONS = ([2, 18], [2, 23])


class JsonObject(dict[str, Any]):
    """A JSON object. An access to a member that is missing raises :class:`MissingMember`."""

    def __missing__(self, member: str) -> Any:
        raise MissingMember(self, member)


class MissingMember(Exception):
    """A JSON object lacks a member."""

    def __init__(self, owner: dict[str, Any], member: str) -> None:
        known = next((f"{owner[name]!r}" for name in ("name", "op", "type") if name in owner), None)
        where = f"object {known}" if known else f"an object with the members {', '.join(owner) or 'none'}"
        super().__init__(f"{where[:MAX_SHOWN]} has no member {member!r}")


MALFORMED = (MissingMember, LookupError, TypeError, AttributeError, ValueError, AssertionError, RecursionError)
"""The exceptions that JSON of another form causes in code that reads it."""


def reason_of(error: BaseException) -> str:
    """Return what is wrong with the JSON, for one of the exceptions of ``MALFORMED``."""
    if isinstance(error, MissingMember):
        return str(error)
    if isinstance(error, KeyError):
        return f"reference to {str(error)[:MAX_SHOWN]}, which the program does not declare"
    if isinstance(error, IndexError):
        return "a list is too short"
    if isinstance(error, RecursionError):
        return "expressions are nested too deeply"
    if isinstance(error, LookupError):
        return str(error)[: 2 * MAX_SHOWN]
    return f"a member has an impossible value ({str(error)[:MAX_SHOWN] or 'no details'})"


def origin(root: dict[str, Any]) -> str:
    """Return the compiler that wrote the program, and a remedy; an empty text if it is p4c 1.2."""
    meta = root.get("__meta__")
    if not isinstance(meta, dict):
        meta = {}
    compiler, version = str(meta.get("compiler", "an unknown compiler"))[:MAX_SHOWN], meta.get("version")
    if compiler.rstrip("/").endswith("/p4c") and version in _VERSIONS:
        return ""
    numbers = ".".join(map(str, version))[:20] if isinstance(version, list) else "unknown"
    remedy = "compile the program with p4c-bm2-ss of p4c 1.2 or newer"
    return f" (written by {compiler}, JSON version {numbers}; {remedy})"
