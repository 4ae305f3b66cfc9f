"""The parts that the commands of ``softswitch cli`` share: their list, names, handles and answers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from softswitch.app import literals
from softswitch.app.handles import TableHandles
from softswitch.app.multicast import Multicast
from softswitch.dataplane.codec import Entry
from softswitch.dataplane.device import Device
from softswitch.dataplane.profiles import ActionProfile
from softswitch.dataplane.program import Program, TableInfo
from softswitch.errors import InvalidValue, NoSuchObject


class Answer(NamedTuple):
    """The answer to a command: lines for people, as bmv2 prints them, and the same as a JSON value."""

    lines: list[str]
    value: object = None


Function = Callable[["Context", list[str]], Answer]


@dataclass(frozen=True)
class Command:
    """A command: its function, the form of its words, and their minimum and maximum number (``None``: no maximum)."""

    function: Function
    words: str
    least: int
    most: int | None


COMMANDS: dict[str, Command] = {}
"""The commands by name."""


def command(name: str, words: str = "") -> Callable[[Function], Function]:
    """Register a command with the form of its words: ``<needed> [optional] <repeated>...``."""
    parts = words.split()
    repeated = any(part.endswith("...") for part in parts)
    least = sum(not part.startswith("[") and not part.endswith("]") and not part.endswith("...") for part in parts)

    def register(function: Function) -> Function:
        COMMANDS[name] = Command(function, words, least, None if repeated else len(parts))
        return function

    return register


class Context:
    """Finds the tables, entries and profiles that commands name, on one device while its program runs."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.multicast = Multicast(device)
        self._handles: dict[str, TableHandles] = {}

    @property
    def program(self) -> Program:
        """The program; this raises ``NoSuchObject`` if there is none."""
        if self.device.program is None:
            raise NoSuchObject(f"device {self.device.device_id}: no program is loaded")
        return self.device.program

    def table(self, name: str) -> TableInfo:
        tables = self.program.tables
        return tables[resolve("table", name, tables)]

    def profile(self, name: str) -> ActionProfile:
        """Return an action profile, by its name or by that of a table that uses it."""
        profiles = self.device.profiles
        try:
            return profiles[resolve("action profile", name, profiles)]
        except NoSuchObject as error:
            try:
                table = self.table(name)
            except NoSuchObject:
                raise error from None
            if table.profile is None:
                raise InvalidValue(f"table {table.name} has no action profile") from None
            return profiles[table.profile]

    def handles(self, table: TableInfo) -> TableHandles:
        if table.name not in self._handles:
            self._handles[table.name] = TableHandles(self.device, table.name)
        return self._handles[table.name]

    def entry(self, table: TableInfo, text: str) -> tuple[int, Entry]:
        """Return the handle in ``text``, and its entry."""
        handle = literals.number(text, "entry handle")
        return handle, self.handles(table).find(handle)

    def action(
        self, name: str, owner: str, allowed: Collection[str], texts: Sequence[str]
    ) -> tuple[str, tuple[int, ...]]:
        """Return the name of an action that ``owner`` allows, and its parameters."""
        found = resolve("action", name, allowed, owner)
        return found, literals.params(self.program.actions[found], texts)


def resolve(kind: str, name: str, names: Collection[str], owner: str = "the program") -> str:
    """Return the full name of an object, from its name or a suffix that only it has."""
    if name in names:
        return name
    found = sorted({full for full in names if full.endswith(f".{name}")})
    if len(found) == 1:
        return found[0]
    if found:
        raise NoSuchObject(f"{kind} {name} is ambiguous: {', '.join(found)}; write more of the name")
    raise NoSuchObject(f"{owner} has no {kind} {name}; there are {', '.join(sorted(names)) or 'none'}")


def without_arrow(words: Sequence[str]) -> list[str]:
    """Return words without a leading arrow."""
    return list(words[1:] if words[:1] == [literals.ARROW] else words)
