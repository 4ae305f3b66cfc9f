"""The exceptions that softswitch raises on purpose; each message says what to do about it."""

from __future__ import annotations


class SoftswitchError(Exception):
    """The base of all errors that softswitch raises on purpose."""


class UnsupportedConstruct(SoftswitchError):
    """The program uses something that softswitch does not implement; raised when the program is loaded.

    ``construct`` names it in P4 terms; ``source`` is ``file.p4:line`` when the compiler recorded it, else ``None``.
    """

    def __init__(self, construct: str, source: str | None = None) -> None:
        self.construct = construct
        self.source = source
        super().__init__(f"{source}: {construct}" if source else construct)


class BadProgram(SoftswitchError):
    """The bmv2 JSON is malformed: not JSON, a missing member, or a reference to something that does not exist."""


class CompilerFailed(SoftswitchError):
    """The system C compiler is missing or refused the generated code."""


class NoSuchObject(SoftswitchError, KeyError):
    """There is no table, action, counter, register, port or device of that name, or an index is beyond its size."""

    def __str__(self) -> str:  # KeyError would print the repr of the message
        return Exception.__str__(self)


class AlreadyExists(SoftswitchError):
    """A table entry, port or link with this key is already there."""


class NotFound(SoftswitchError):
    """There is no table entry, group or session with this key."""


class CapacityExceeded(SoftswitchError):
    """The table (or the device) is full."""


class InvalidValue(SoftswitchError):
    """A value does not fit its field, a match does not fit the key, or the object may not be changed."""


class StillInUse(SoftswitchError):
    """The object cannot be deleted, because others refer to it."""
