"""``python -m evaluation.softswitch``: softswitch, and bmv2 beside it in the same run where it is on PATH.

Sections: traffic (packets per second and CPU per packet of forwarding and aggregation), tables (the same with large
tables), look-ups (softswitch without ports), writes (over P4Runtime), start-up, memory, devices (several in a process).
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from evaluation.softswitch import scale
from evaluation.softswitch.bench import Bench
from evaluation.softswitch.scale import Row
from evaluation.softswitch.switches import Bmv2, Softswitch, Switch, is_root
from evaluation.softswitch.workloads import TABLE_WORKLOADS, WORKLOADS, Workload

SECTIONS = ("traffic", "tables", "look-ups", "writes", "start-up", "memory", "devices")
ALL = {**WORKLOADS, **TABLE_WORKLOADS}


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m evaluation.softswitch", description=__doc__)
    parser.add_argument("what", nargs="*", default=[], metavar="SECTION|WORKLOAD",
                        help=f"of {', '.join((*SECTIONS, *ALL))}; default: all sections")  # fmt: skip
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one trial (default 2)")
    parser.add_argument("--no-bmv2", action="store_true", help="measure softswitch only")
    parser.add_argument("--csv", type=Path, help="also write the figures to this file")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--plot", type=Path, help="also draw them into this PNG")
    arguments = parser.parse_args()
    for name in arguments.what:
        if name not in ALL and name not in SECTIONS:
            parser.error(f"unknown section or workload {name!r}; there are {', '.join((*SECTIONS, *ALL))}")
    return arguments


def traffic(
    section: str, workloads: Iterable[Callable[[], Workload]], switches: Sequence[str], bench: Bench, seconds: float
) -> Iterator[Row]:
    """The highest rate that each switch keeps up with, and what a packet costs at that rate."""
    for make in workloads:
        workload = make()
        for name in switches:
            switch: Switch
            if name == "softswitch":
                switch = Softswitch(workload, bench.interfaces)
            else:
                switch = Bmv2(workload, bench.interfaces)
            try:
                trial, limited = bench.search(switch, workload, seconds)
            finally:
                switch.close()
            note = "the generator was the limit" if limited else ""
            yield Row(section, workload.name, name, trial.rate, "packets/s", note)
            yield Row(section, workload.name, name, trial.cpu_us, "us of CPU/packet", note)


def measure(arguments: argparse.Namespace, switches: tuple[str, ...]) -> Iterator[Row]:
    """All that was asked for."""
    wanted = arguments.what or SECTIONS
    seconds = arguments.seconds
    chosen = {name: ALL[name] for name in wanted if name in ALL}
    with Bench() as bench:
        for section, workloads in (("traffic", WORKLOADS), ("tables", TABLE_WORKLOADS)):
            if section in wanted:
                yield from traffic(section, workloads.values(), switches, bench, seconds)
            else:
                makes = [make for name, make in chosen.items() if name in workloads]
                yield from traffic(section, makes, switches, bench, seconds)
        if "look-ups" in wanted:
            yield from scale.lookups()
        if "writes" in wanted:
            yield from scale.writes(switches)
        if "start-up" in wanted:
            yield from scale.startup(switches)
        if "memory" in wanted:
            yield from scale.memory(switches)
        if "devices" in wanted:
            yield from scale.devices(bench, switches, seconds)


def _ratio(row: Row, others: Sequence[Row]) -> str:
    """Softswitch's figure against bmv2's, when this row completes the pair."""
    pair = [r for r in others if (r.section, r.what, r.unit) == (row.section, row.what, row.unit)]
    if row.switch != "bmv2" or not pair or not row.value or not pair[-1].value:
        return ""
    factor = pair[-1].value / row.value
    return f"softswitch: {factor:.1f} times" if factor >= 1 else f"softswitch: 1/{1 / factor:.1f}"


def main() -> int:
    arguments = parse()
    if not is_root():
        print("run as root: the benchmark makes network namespaces and opens raw sockets")
        return 1
    reason = "not wanted" if arguments.no_bmv2 else Bmv2.missing()
    switches: tuple[str, ...] = ("softswitch",) if reason else ("softswitch", "bmv2")
    if reason:
        print(f"bmv2 is not measured: {reason}")
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}; generator and switch share them")
    print(f"{'section':9} {'what':34} {'switch':11} {'figure':>11} {'unit':17} note")
    rows: list[Row] = []
    for row in measure(arguments, switches):
        figure = f"{row.value:11,.0f}" if row.value >= 1000 else f"{row.value:11.2f}"
        notes = "; ".join(n for n in (row.note, _ratio(row, rows)) if n)
        print(f"{row.section:9} {row.what:34} {row.switch:11} {figure} {row.unit:17} {notes}", flush=True)
        rows.append(row)
    for path in (arguments.csv, arguments.json):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
    if arguments.csv:
        with arguments.csv.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([f.name for f in dataclasses.fields(Row)])
            writer.writerows(dataclasses.astuple(row) for row in rows)
    if arguments.json:
        figures = {"cpus": os.cpu_count(), "load": os.getloadavg()[0], "rows": [dataclasses.asdict(r) for r in rows]}
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")
    if arguments.plot:
        from evaluation.softswitch.plots import plot  # not needed otherwise, and slow to import

        plot(rows, arguments.plot)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
