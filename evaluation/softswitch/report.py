"""Writes the figures as a page: one table per section, softswitch beside bmv2, and how many times better softswitch
is.
"""

from __future__ import annotations

from collections.abc import Sequence

from evaluation.softswitch.figures import Row

LESS_IS_BETTER = ("us of CPU/MB", "us of CPU/packet", "us of CPU/entry", "us", "s", "MiB", "bytes", "% of a core")
TITLES = {
    "traffic": "Traffic on veth ports",
    "tables": "The same with large tables, one look-up per frame",
    "look-ups": "Look-ups without ports",
    "writes": "Tables over P4Runtime",
    "start-up": "From start to loaded program",
    "memory": "Private memory",
    "devices": "Devices in a row, forwarding of 64-byte frames",
    "growth": "What grows with the number of entries",
}


def number(value: float) -> str:
    """Return a number with three significant digits."""
    if value >= 1000:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}"


def ratio(ours: Row, theirs: Row) -> str:
    """Return how many times better softswitch is; a fraction if it is worse."""
    if not ours.value or not theirs.value:
        return ""
    factor = theirs.value / ours.value if ours.unit in LESS_IS_BETTER else ours.value / theirs.value
    return f"{number(factor)} times" if factor >= 1 else f"1/{number(1 / factor)}"


def page(rows: Sequence[Row], machine: str) -> str:
    """Return the page in Markdown."""
    lines = ["# softswitch beside bmv2", "", machine, ""]
    for section, title in TITLES.items():
        chosen = [row for row in rows if row.section == section]
        if not chosen:
            continue
        loads = [row.load for row in chosen]
        lines += [f"## {title}", "", f"Load of the machine meanwhile: {min(loads):g} to {max(loads):g}.", ""]
        lines += _growth(chosen) if section == "growth" else _beside(chosen)
        lines.append("")
    return "\n".join(lines)


def _beside(rows: Sequence[Row]) -> list[str]:
    lines = ["| | unit | softswitch | bmv2 | softswitch is better by |", "|---|---|---:|---:|---:|"]
    noted = any(row.switch == "softswitch" and row.note and row.section == "start-up" for row in rows)
    for key in dict.fromkeys((row.what, row.unit) for row in rows):
        same = [row for row in rows if (row.what, row.unit) == key]
        theirs = next((row for row in same if row.switch == "bmv2"), None)
        for ours in (row for row in same if row.switch == "softswitch"):
            what = key[0] + (f", {ours.note}" if noted and ours.note else "")
            limit = " (limit of the generator)" if "limit" in ours.note else ""
            beside = f"{number(theirs.value)} | {ratio(ours, theirs)}" if theirs is not None else " | "
            lines.append(f"| {what} | {key[1]} | {number(ours.value)}{limit} | {beside} |")
    return lines


def _growth(rows: Sequence[Row]) -> list[str]:
    steps = sorted({row.entries for row in rows})
    lines = ["| | unit | " + " | ".join(f"{n:,}" for n in steps) + " |", "|---|---|" + "---:|" * len(steps)]
    for what, unit in dict.fromkeys((row.what, row.unit) for row in rows):
        found = {row.entries: row.value for row in rows if row.what == what}
        cells = (number(found[n]) if n in found else "" for n in steps)
        lines.append(f"| {what} | {unit} | " + " | ".join(cells) + " |")
    return lines
