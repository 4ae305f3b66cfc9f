"""``python -m evaluation.softswitch`` measures softswitch, and bmv2 beside it in the same run if it is on PATH.

It writes report.md, figures.json and plots to results/softswitch. A run of some sections replaces theirs and keeps the
others.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from controlplane.common import command_line
from evaluation import commands
from evaluation.softswitch import scale
from evaluation.softswitch.bench import Bench
from evaluation.softswitch.figures import Row
from evaluation.softswitch.growth import growth
from evaluation.softswitch.plots import plot
from evaluation.softswitch.report import number, page, ratio
from evaluation.softswitch.switches import Bmv2, Softswitch, Switch, is_root
from evaluation.softswitch.tcp import tcp
from evaluation.softswitch.workloads import TABLE_WORKLOADS, WORKLOADS, Workload

SECTIONS = {
    "traffic": "packets per second and CPU per packet of forwarding and aggregation",
    "tables": "the same with large tables",
    "tcp": "a TCP connection through softswitch, with and without super-frames where it sends",
    "look-ups": "softswitch without ports",
    "writes": "entries per second over P4Runtime",
    "start-up": "from start to loaded program",
    "memory": "of a process, of each further device, of a table entry",
    "devices": "several in a row, joined in memory and by veth",
    "growth": "cost of writes, reads and look-ups of softswitch against the number of entries",
}
ALL = {**WORKLOADS, **TABLE_WORKLOADS}
RESULTS = Path("results/softswitch")


def parse() -> argparse.Namespace:
    listed = "\n".join(f"  {name:9} {what}" for name, what in SECTIONS.items())
    parser = commands.parser("softswitch", f"{__doc__}\nsections:\n{listed}")
    parser.add_argument("what", nargs="*", default=["all"], metavar="WHAT",
                        help=f"all (default), sections (above), or workloads, which are printed only: "
                             f"{', '.join(ALL)}")  # fmt: skip
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one trial [2]")
    parser.add_argument("--no-bmv2", action="store_true", help="measure softswitch only")
    parser.add_argument("--realtime", action="store_true",
                        help="in a trial generator and switch go before everything else on the machine")  # fmt: skip
    arguments = parser.parse_args()
    for name in arguments.what:
        if name != "all" and name not in ALL and name not in SECTIONS:
            parser.error(f"unknown section or workload {name!r}; there are all, {', '.join((*SECTIONS, *ALL))}")
    if "all" in arguments.what:
        arguments.what = list(SECTIONS)
    return arguments


def traffic(
    section: str, workloads: Iterable[Callable[[], Workload]], switches: Sequence[str], bench: Bench, seconds: float
) -> Iterator[Row]:
    """Yield the highest rate that each switch keeps up with, and the cost of a packet at that rate."""
    for make in workloads:
        workload = make()
        for name in switches:
            switch: Switch
            if name == "softswitch":
                switch = Softswitch(workload, bench.interfaces)
            else:
                switch = Bmv2(workload, bench.interfaces)
                workload = dataclasses.replace(workload, superframe=1)  # bmv2 needs frames as they are on a wire
            try:
                trial, limited = bench.search(switch, workload, seconds)
            finally:
                switch.close()
            note = "the generator was the limit" if limited else ""
            yield Row(section, workload.name, name, trial.rate, "packets/s", note)
            yield Row(section, workload.name, name, trial.cpu_us, "us of CPU/packet", note)


def measure(wanted: Sequence[str], seconds: float, switches: tuple[str, ...], realtime: bool = False) -> Iterator[Row]:
    """Yield all rows of the wanted sections."""
    with Bench(realtime) as bench:
        for section, workloads in (("traffic", WORKLOADS), ("tables", TABLE_WORKLOADS)):
            makes = [make for name, make in workloads.items() if section in wanted or name in wanted]
            yield from traffic(section, makes, switches, bench, seconds)
        if "tcp" in wanted:
            yield from tcp(bench, seconds)
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
        if "growth" in wanted:
            yield from growth()


def show(row: Row, rows: Sequence[Row]) -> None:
    """Print a row, with the ratio if it completes a pair."""
    ours = [r for r in rows if (r.section, r.what, r.unit) == (row.section, row.what, row.unit)]
    notes = [row.note] if row.note else []
    if row.switch == "bmv2" and ours:
        notes.append(f"softswitch is better by {ratio(ours[-1], row)}")
    entries = f"{row.entries:,}" if row.entries else ""
    print(f"{row.section:9} {row.what:40} {entries:>8} {row.switch:11} {number(row.value):>10} {row.unit:17} "
          f"{'; '.join(notes)}", flush=True)  # fmt: skip


def save(rows: Sequence[Row], machine: str, output: Path) -> None:
    """Write the figures to a folder, including those of sections that were not measured again."""
    path = output / "figures.json"
    new = {row.section for row in rows}
    kept: list[Row] = []
    if path.exists():
        kept = [Row(**row) for row in json.loads(path.read_text())["rows"] if row["section"] not in new]
    everything = sorted([*kept, *rows], key=lambda row: list(SECTIONS).index(row.section))
    output.mkdir(parents=True, exist_ok=True)
    figures = {"machine": machine, "rows": [dataclasses.asdict(row) for row in everything]}
    path.write_text(json.dumps(figures, indent=1) + "\n")
    (output / "report.md").write_text(page(everything, machine))
    made = [path, output / "report.md", *plot(everything, output)]
    print("written:", *made)


def main() -> int:
    arguments = parse()
    if not is_root():
        print("run as root: the benchmark makes network namespaces and opens raw sockets")
        return 1
    reason = "not wanted" if arguments.no_bmv2 else Bmv2.missing()
    switches: tuple[str, ...] = ("softswitch",) if reason else ("softswitch", "bmv2")
    if reason:
        print(f"bmv2 is not measured: {reason}")
    machine = f"{os.cpu_count()} CPUs, which generator and switch share."
    print(f"{machine} Load {os.getloadavg()[0]:.1f}", flush=True)
    rows: list[Row] = []
    for row in measure(arguments.what, arguments.seconds, switches, arguments.realtime):
        show(row, rows)
        rows.append(row)
    whole = [row for row in rows if row.section in arguments.what]
    if whole:
        save(whole, machine, RESULTS)
    return 0


if __name__ == "__main__":
    command_line.end_in_order()
    raise SystemExit(main())
