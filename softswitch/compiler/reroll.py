"""Turns runs of look-alike statements back into loops.

P4 has no loops: a program that treats 256 values spells out 256 times the same few statements, which differ only in
which field, header byte or register array they touch. A run of statements whose texts agree but for numbers written
«n», and whose numbers grow by constant steps, is emitted as one loop, in the original order of execution, so the
meaning is the same whatever the statements do. The C compiler can then vectorise it, and compiles it in no time.

A statement may access an element of a register array: it then has two texts, `checked` (tests the index each time)
and `fast` (uses a row pointer that is in range). When a loop's indices cannot change while it runs, the test is done
once before it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

MARK = re.compile(r"«(-?\d+)»")
MIN_REPEATS = 4
MAX_PERIOD = 12


@dataclass(frozen=True)
class RowAccess:
    """An access to row ``index`` of register group ``group``, through the C variable ``name`` in the fast text."""

    name: str
    index: str  # C of type uint64_t
    rows: int
    declaration: str  # C that declares `name`, given that `name`_ix holds the index


@dataclass(frozen=True)
class Statement:
    """A C statement.

    A ``label`` ends a run (it is a jump target). ``reads`` is the memory that the row indices depend on.
    """

    checked: str
    fast: str = ""
    rows: tuple[RowAccess, ...] = ()
    index_reads: frozenset[tuple[str, int]] = frozenset()
    writes: frozenset[tuple[str, int]] = frozenset()
    barrier: bool = False
    shape: str = field(init=False)
    numbers: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        both = self.checked + "\0" + self.fast
        object.__setattr__(self, "shape", MARK.sub("«»", both))
        object.__setattr__(self, "numbers", tuple(int(n) for n in MARK.findall(both)))


def plain(text: str) -> str:
    """Return the text with its marks replaced by the numbers in them."""
    return MARK.sub(r"\1", text)


def emit(statements: Sequence[Statement]) -> list[str]:
    """Return C lines for the statements, in order, with runs turned into loops."""
    lines: list[str] = []
    at = 0
    while at < len(statements):
        period, repeats = _longest_run(statements, at)
        if repeats >= MIN_REPEATS:
            lines += _loop(statements[at : at + period * repeats], period, repeats)
            at += period * repeats
        else:
            lines.append(plain(statements[at].checked))
            at += 1
    return lines


def _longest_run(statements: Sequence[Statement], at: int) -> tuple[int, int]:
    best = (1, 1)
    for period in range(1, MAX_PERIOD + 1):
        repeats = _repeats(statements, at, period)
        if repeats >= MIN_REPEATS and period * repeats > best[0] * best[1]:
            best = (period, repeats)
    return best


def _repeats(statements: Sequence[Statement], at: int, period: int) -> int:
    if at + 2 * period > len(statements) or any(s.barrier for s in statements[at : at + period]):
        return 1
    steps: list[tuple[int, ...]] = []
    for first, second in zip(statements[at : at + period], statements[at + period : at + 2 * period], strict=True):
        if first.shape != second.shape or second.barrier:
            return 1
        steps.append(tuple(b - a for a, b in zip(first.numbers, second.numbers, strict=True)))
    repeats = 2
    while at + (repeats + 1) * period <= len(statements):
        for i in range(period):
            before, after = statements[at + (repeats - 1) * period + i], statements[at + repeats * period + i]
            if after.shape != before.shape or after.barrier:
                return repeats
            if tuple(b - a for a, b in zip(before.numbers, after.numbers, strict=True)) != steps[i]:
                return repeats
        repeats += 1
    return repeats


def _loop(run: Sequence[Statement], period: int, repeats: int) -> list[str]:
    body, second = run[:period], run[period : 2 * period]
    header = f"for (int i = 0; i < {repeats}; i++) {{"
    checked = [header, *(_affine(a.checked, b.checked) for a, b in zip(body, second, strict=True)), "}"]
    rows = {row.name: row for statement in body for row in statement.rows}
    if not rows:
        return checked
    varying = {r.name for s in second for r in s.rows} != set(rows) or any(
        rows[r.name].index != r.index for s in run for r in s.rows
    )
    reads = frozenset().union(*(s.index_reads for s in body))
    writes = frozenset().union(*(s.writes for s in run))
    if varying or reads & writes:
        return checked
    pairs = ((a.fast or a.checked, b.fast or b.checked) for a, b in zip(body, second, strict=True))
    fast = [header, *(_affine(a, b) for a, b in pairs), "}"]
    lines = ["{"]
    lines += [f"const uint64_t {row.name}_ix = {plain(row.index)};" for row in rows.values()]
    lines.append(f"if ({' && '.join(f'{row.name}_ix < {row.rows}u' for row in rows.values())}) {{")
    lines += [row.declaration for row in rows.values()]
    return [*lines, *_with_locals(fast), "} else {", *checked, "}", "}"]


_PLACE = re.compile(r"p->m(8|16|32|64|128)\[(?:\((-?\d+) \+ (-?\d+) \* i\)|(\d+))\]")


def _with_locals(loop: list[str]) -> list[str]:
    """Keep metadata fields that every iteration uses in local variables, so that iterations do not depend on each
    other.
    """
    text = "\n".join(loop)
    varying = {m[1] for m in _PLACE.finditer(text) if m[4] is None}
    fixed = {(m[1], m[4]) for m in _PLACE.finditer(text) if m[4] is not None and m[1] not in varying}
    before: list[str] = []
    after: list[str] = []
    for bits, index in sorted(fixed):
        place, local = f"p->m{bits}[{index}]", f"local{bits}_{index}"
        text = text.replace(place, local)
        before.append(f"{'u128' if bits == '128' else f'uint{bits}_t'} {local} = {place};")
        after.append(f"{place} = {local};")
    return [*before, *text.split("\n"), *after]


def _affine(first: str, second: str) -> str:
    """Return ``first`` with each mark replaced by its value in iteration ``i``."""
    seconds = iter(int(n) for n in MARK.findall(second))

    def replace(match: re.Match[str]) -> str:
        base = int(match[1])
        step = next(seconds) - base
        if step == 0:
            return str(base)
        return f"({base} + {step} * i)"

    return MARK.sub(replace, first)
