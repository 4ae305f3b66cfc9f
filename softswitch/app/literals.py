"""The notation of bmv2's runtime_CLI.py for numbers, addresses, match keys and entries."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

from softswitch.bmv2json.model import Action, Key, Match
from softswitch.errors import InvalidValue

ARROW = "=>"


def number(text: str, what: str) -> int:
    """Return a number that is not negative, in decimal or with the prefix 0x, 0o or 0b."""
    try:
        value = int(text, 0 if text[:1] == "0" and not text.isdecimal() else 10)
    except ValueError:
        raise InvalidValue(f"{what}: {text!r} is not a whole number; give it in decimal or with 0x") from None
    if value < 0:
        raise InvalidValue(f"{what}: {text} is negative")
    return value


def value(text: str, width: int, what: str) -> int:
    """Return a value of ``width`` bits: a number, or an IPv4 (32 bits), MAC (48) or IPv6 address (128)."""
    try:
        if width == 32 and "." in text:
            return int(ipaddress.IPv4Address(text))
        if width == 48 and ":" in text:
            parts = [int(part, 16) for part in text.split(":")]
            if len(parts) != 6:
                raise ValueError
            return int.from_bytes(bytes(parts))
        if width == 128 and ":" in text:
            return int(ipaddress.IPv6Address(text))
    except ValueError:
        raise InvalidValue(f"{what}: {text!r} is not an address of {width} bits") from None
    found = number(text, what)
    if found >> width:
        raise InvalidValue(f"{what}: {text} does not fit {width} bits")
    return found


def params(action: Action, texts: Sequence[str]) -> tuple[int, ...]:
    """Return the parameters of an action."""
    if len(texts) != len(action.params):
        raise InvalidValue(f"action {action.name} needs {len(action.params)} parameters, got {len(texts)}")
    named = zip(texts, action.params, strict=True)
    return tuple(value(text, width, f"parameter {name} of {action.name}") for text, (name, width) in named)


def _two(text: str, separator: str, what: str) -> tuple[str, str]:
    first, found, second = text.partition(separator)
    if not found or separator in second:
        raise InvalidValue(f"{what}: {text!r} has no {separator!r}; write A{separator}B")
    return first, second


def match(text: str, key: Key) -> Match:
    """Return one field of a match key: ``A``, ``A/LENGTH``, ``A&&&MASK`` or ``LOW->HIGH``, as the key demands.

    Bits outside the mask or prefix are cleared, as in bmv2.
    """
    what, width, full = f"key {key.name}", key.width, (1 << key.width) - 1
    if key.match_kind == "lpm":
        prefix, text_length = _two(text, "/", what)
        length = number(text_length, what)
        if length > width:
            raise InvalidValue(f"{what}: prefix length {length} is above {width}")
        return Match("lpm", value(prefix, width, what) & (full ^ full >> length), prefix_len=length)
    if key.match_kind == "ternary":
        one, mask = (value(part, width, what) for part in _two(text, "&&&", what))
        return Match("ternary", one & mask, mask=mask)
    if key.match_kind == "range":
        low, high = (value(part, width, what) for part in _two(text, "->", what))
        if low > high:
            raise InvalidValue(f"{what}: the range {text} ends before it starts")
        return Match("range", low, high=high)
    return Match("exact", value(text, width, what))


def hexadecimal(number_: int, width: int) -> str:
    """Return a value's bytes in hexadecimal, without a prefix, as bmv2 prints them."""
    return f"{number_:0{2 * ((width + 7) // 8)}x}"


def show(one: Match, width: int) -> str:
    """Return one field of a match key as bmv2 prints it."""
    text = hexadecimal(one.value, width)
    if one.kind == "lpm":
        return f"{text}/{one.prefix_len}"
    if one.kind == "ternary":
        return f"{text} &&& {hexadecimal(one.mask, width)}"
    if one.kind == "range":
        return f"{text} -> {hexadecimal(one.high, width)}"
    return text


def show_action(action: Action, values: Sequence[int]) -> str:
    """Return an action with its parameters as bmv2 prints it."""
    widths = (width for _, width in action.params)
    return f"{action.name} - {', '.join(hexadecimal(v, w) for v, w in zip(values, widths, strict=True))}"
