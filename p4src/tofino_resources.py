"""Prints what the Tofino program takes of the chip's resources, from the compiler's reports, as a Markdown table.

    python -m p4src.tofino_resources [--tofino 2]
    python -m p4src.tofino_resources FOLDER        FOLDER: an artifact's folder switch/

The reports exist after ``make p4-tofino``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from p4src.artifacts import SWITCH, find
from p4src.tofino_install import GENERATIONS
from p4src.tofino_toolchain import CHIPS

COLUMNS = {
    "SRAM": ("rams", "srams"),
    "map RAM": ("map_rams", "maprams"),
    "TCAM": ("tcams", "tcams"),
    "stateful ALUs": ("meter_alus", "meters"),
    "tables": ("logical_tables", "ids"),
    "instructions": ("vliw", "instructions"),
    "input bytes": ("xbar_bytes", "bytes"),
    "hash bits": ("hash_bits", "bits"),
}
"""By column, the places in a stage's report where the used resources stand."""


def sizes(stage: dict[str, Any]) -> dict[str, int]:
    """Return how many of each resource a stage has."""
    return {
        "SRAM": stage["rams"]["nRows"] * stage["rams"]["nColumns"],
        "map RAM": stage["map_rams"]["nRows"] * stage["map_rams"]["nUnits"],
        "TCAM": stage["tcams"]["nRows"] * stage["tcams"]["nColumns"],
        "stateful ALUs": stage["meter_alus"]["nAlus"],
        "tables": stage["logical_tables"]["size"],
        "instructions": stage["vliw"]["size"],
        "input bytes": stage["xbar_bytes"]["size"],
        "hash bits": stage["hash_bits"]["nBits"] * stage["hash_bits"]["nFunctions"],
    }


def stages(report: dict[str, Any], number: int | None = None) -> list[str]:
    """Return one row for each stage, one for the sum, and one for the chip's resources in ``number`` stages (by default
    those that are used)."""
    found = report["resources"]["mau"]["mau_stages"]
    used = [{column: len(stage[part][key]) for column, (part, key) in COLUMNS.items()} for stage in found]
    total = {column: sum(row[column] for row in used) for column in COLUMNS}
    whole = {column: sizes(found[0])[column] * (number or len(found)) for column in COLUMNS}
    share = {column: f"{100 * total[column] / whole[column]:.0f} %" for column in COLUMNS}
    rows = [("stage", {column: column for column in COLUMNS}), ("---", dict.fromkeys(COLUMNS, "---:"))]
    for name, counts in [*((str(s["stage_number"]), row) for s, row in zip(found, used, strict=True)), ("all", total)]:
        rows.append((name, {column: str(count) for column, count in counts.items()}))
    rows += [("of", {column: str(count) for column, count in whole.items()}), ("", share)]
    return [f"| {name} | {' | '.join(cells[column] for column in COLUMNS)} |" for name, cells in rows]


def containers(report: dict[str, Any]) -> list[str]:
    """Return rows with the packet header vector containers that are used, by width. ALUs can access the normal
    containers fully, and the other kinds only in part."""
    used = Counter((c["container_type"], c["bit_width"]) for c in report["containers"] if c["slices"])
    chip = next(chip for chip in CHIPS.values() if chip.family == report.get("target", "tofino")).containers
    rows = ["| containers | 8 bits | 16 bits | 32 bits |", "|---|---:|---:|---:|"]
    for kind, widths in chip.items():
        cells = " | ".join(f"{used[kind, bits]} of {number}" for bits, number in widths.items())
        rows.append(f"| {kind} | {cells} |")
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m p4src.tofino_resources", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("folder", type=Path, nargs="?", help="an artifact's folder switch/")
    parser.add_argument("--tofino", choices=sorted(GENERATIONS), default="1", help="which chip (default: %(default)s)")
    options = parser.parse_args(arguments)
    folder = options.folder or find(GENERATIONS[options.tofino]).directory / SWITCH
    try:
        resources, vector = (json.loads((folder / name).read_text()) for name in ("resources.json", "phv.json"))
    except FileNotFoundError as error:
        print(f"{error.filename} is missing: make p4-tofino writes it", file=sys.stderr)
        return 1
    print("\n".join([*stages(resources, vector.get("nStages")), "", *containers(vector)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
