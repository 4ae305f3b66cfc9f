"""STF, the test language of p4c: one statement a line, what a packet test does to a switch and expects of it.

    add TABLE [PRIORITY] KEY:VALUE ... ACTION(PARAM:VALUE, ...)      # a larger priority wins
    setdefault TABLE ACTION(PARAM:VALUE, ...)
    packet PORT HEX                expect PORT [HEX with * per digit, $: and no more bytes]
    check_counter NAME(INDEX) [packets|bytes ==|!=|<|<=|>|>= N]
    mirroring_add SESSION PORT     mc_mgrp_create GROUP      mc_node_create RID PORT ...    mc_node_associate GROUP NODE
    register_read NAME INDEX       register_write NAME INDEX VALUE       counter_read NAME INDEX        wait

VALUE is decimal, 0x, 0b or 0o; in a key also with * for digits that do not matter, V/LENGTH for a prefix, and, as an
extension, V&&&MASK for ternary and LOW..HIGH for range keys. ``register_read NAME INDEX VALUE``, another extension,
expects that value. More extensions:

    meter NAME INDEX CIR CBURST PIR PBURST        direct_meter TABLE CIR CBURST PIR PBURST KEY:VALUE ...
    member PROFILE ID ACTION(PARAM:VALUE,...)     group PROFILE ID MEMBER[*WEIGHT] ...
    delete member PROFILE ID                      delete group PROFILE ID
    add TABLE KEY:VALUE ... @member(id:ID)        the same with @group(id:ID)
    add TABLE KEY:VALUE ... @one_shot(WEIGHT:ARGUMENT, ...)      a set of the table's first action with such an argument
    value_set NAME MEMBER ...                     a member: its fields, with commas between them
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path


class StfError(Exception):
    """A statement is not valid STF; the message names the line of the file."""


@dataclass(frozen=True)
class Call:
    """An action with its arguments by parameter name."""

    action: str
    arguments: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Add:
    table: str
    priority: int | None
    keys: tuple[tuple[str, str], ...]
    call: Call


@dataclass(frozen=True)
class SetDefault:
    table: str
    call: Call


@dataclass(frozen=True)
class Packet:
    port: int
    frame: bytes


@dataclass(frozen=True)
class Expect:
    """The expectation of one frame.

    ``pattern``: hex digits and ``*``, or empty for any frame. ``exact``: no byte may follow the pattern.
    """

    port: int
    pattern: str
    exact: bool

    def matches(self, frame: bytes) -> bool:
        digits = frame.hex()
        if len(digits) < len(self.pattern) or (self.exact and len(digits) != len(self.pattern)):
            return False
        return all(p in ("*", d) for p, d in zip(self.pattern, digits, strict=False))


@dataclass(frozen=True)
class CheckCounter:
    counter: str
    index: int
    unit: str  # "packets" or "bytes"
    comparison: str
    number: int


@dataclass(frozen=True)
class Command:
    """A statement of bmv2's command line: its name and its arguments."""

    name: str
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Wait:
    pass


Statement = Add | SetDefault | Packet | Expect | CheckCounter | Command | Wait

COMMANDS = {
    "mirroring_add": 2,
    "mirroring_get": 1,
    "mc_mgrp_create": 1,
    "mc_node_create": 2,
    "mc_node_associate": 2,
    "register_read": 2,
    "register_write": 3,
    "register_reset": 1,
    "counter_read": 2,
    "counter_write": 4,
    "meter": 6,
    "direct_meter": 6,
    "member": 3,
    "group": 2,
    "delete": 3,
    "value_set": 1,
}
"""Maps each command to the smallest number of arguments that it takes."""

_CALL = re.compile(r'(?P<action>"[^"]*"|[^\s("]+)\s*\((?P<arguments>[^)]*)\)\s*(=\s*\w+)?$')
_COUNTER = re.compile(r"(?P<name>[^\s(]+)\s*\((?P<index>\w+)\)(?:\s+(?P<unit>packets|bytes)\s*"
                      r"(?P<comparison>==|!=|<=|>=|<|>)\s*(?P<number>\w+))?$")  # fmt: skip
_ACTION = re.compile(r'\s("[^"]*"|[^\s:("]+)\s*\([^()]*\)\s*(=\s*\w+)?$')
_CODE = re.compile(r'(?:[^"#]|"[^"]*"|")*')  # what stands before a comment; a name in quotes may have a #
_WORDS = re.compile(r'(?:"[^"]*"|\S)+')  # a name in quotes may have spaces


def number(text: str) -> int:
    """Return the value of a plain STF number."""
    try:
        return int(text, 10) if text.isdigit() else int(text, 0)
    except ValueError:
        raise StfError(f"{text!r} is not a number") from None


def read(path: Path) -> list[Statement]:
    """Return the statements of a file. Raises ``StfError``."""
    return read_text(path.read_text(), f"{path.name}:")


def read_text(text: str, where: str = "line ") -> list[Statement]:
    """Return the statements of a text. The message of a ``StfError`` begins with ``where`` and the line's number."""
    statements: list[Statement] = []
    for at, raw in enumerate(text.splitlines(), 1):
        found = _CODE.match(raw)
        line = found[0].strip() if found else ""
        if not line:
            continue
        try:
            statements.append(_statement(line))
        except StfError as error:
            raise StfError(f"{where}{at}: {error}") from None
    return statements


def _statement(line: str) -> Statement:
    word, _, rest = line.partition(" ")
    rest = rest.strip()
    name = word.lower()
    if name == "add":
        return _add(rest)
    if name == "setdefault":
        words = _WORDS.match(rest)
        if words is None:
            raise StfError("setdefault without a table")
        return SetDefault(words[0].strip('"'), call(rest[words.end() :]))
    if name == "packet":
        port, _, data = rest.partition(" ")
        try:
            return Packet(number(port), bytes.fromhex(data))
        except ValueError:
            raise StfError(f"not whole bytes of hex: {data!r}") from None
    if name == "expect":
        port, _, data = rest.partition(" ")
        pattern = re.sub(r"\s", "", data).lower()
        exact = pattern.endswith("$")
        pattern = pattern.rstrip("$")
        if not re.fullmatch(r"[0-9a-f*]*", pattern):
            raise StfError(f"not a pattern of hex digits and *: {data!r}")
        return Expect(number(port), pattern, exact)
    if name == "check_counter":
        match = _COUNTER.match(rest)
        if match is None:
            raise StfError(f"check_counter {rest!r}")
        unit, comparison, wanted = match["unit"] or "packets", match["comparison"] or "==", match["number"] or "0"
        return CheckCounter(match["name"], number(match["index"]), unit, comparison, number(wanted))
    if name == "wait":
        return Wait()
    if name in COMMANDS:
        arguments = tuple(rest.split())
        if len(arguments) < COMMANDS[name]:
            raise StfError(f"{name} takes {COMMANDS[name]} arguments")
        return Command(name, arguments)
    raise StfError(f"statement {word!r} is not known here")


def call(text: str) -> Call:
    """Parse ``ACTION(PARAM:VALUE, ...)``."""
    match = _CALL.match(text.strip())
    if match is None:
        raise StfError(f"not an action call: {text!r}")
    arguments: list[tuple[str, int]] = []
    for part in match["arguments"].split(","):
        if part.strip():
            name, colon, value = part.partition(":")
            if not colon:
                raise StfError(f"argument {part.strip()!r} is not NAME:VALUE")
            arguments.append((name.strip().strip('"'), number(value.strip())))
    return Call(match["action"].strip('"'), tuple(arguments))


def _add(rest: str) -> Add:
    start = _ACTION.search(rest)
    if start is None:
        raise StfError("add without an action")
    words = _WORDS.findall(rest[: start.start()])
    if not words:
        raise StfError("add without a table")
    table, keys = words[0].strip('"'), words[1:]
    priority = None
    if keys and ":" not in keys[0]:
        priority = number(keys[0])
        keys = keys[1:]
    pairs: list[tuple[str, str]] = []
    for key in keys:
        name, colon, value = key.rpartition(":")
        if not colon:
            raise StfError(f"key {key!r} is not NAME:VALUE")
        pairs.append((name.strip('"'), value))
    return Add(table, priority, tuple(pairs), call(rest[start.start() :]))
