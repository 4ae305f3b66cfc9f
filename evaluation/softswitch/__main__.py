"""``python -m evaluation.softswitch``: packets per second and CPU per packet, of softswitch and of bmv2 beside it."""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Callable
from pathlib import Path

from evaluation.softswitch.bench import Bench
from evaluation.softswitch.switches import Bmv2, Softswitch, Switch, is_root
from evaluation.softswitch.workloads import WORKLOADS, Workload

Make = Callable[[Workload, tuple[str, str]], Switch]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m evaluation.softswitch", description=__doc__)
    parser.add_argument("workloads", nargs="*", default=[], help=f"of {', '.join(WORKLOADS)}; default: all")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one trial (default 2)")
    parser.add_argument("--no-bmv2", action="store_true", help="measure softswitch only")
    parser.add_argument("--csv", type=Path, help="also write the table to this file")
    arguments = parser.parse_args()
    for name in arguments.workloads:
        if name not in WORKLOADS:
            parser.error(f"unknown workload {name!r}; there are {', '.join(WORKLOADS)}")
    return arguments


def main() -> int:
    arguments = parse()
    if not is_root():
        print("run as root: the benchmark makes network namespaces and opens raw sockets")
        return 1
    makes: list[Make] = [Softswitch]
    reason = "not wanted" if arguments.no_bmv2 else Bmv2.missing()
    if reason:
        print(f"bmv2 is not measured: {reason}")
    else:
        makes.append(Bmv2)
    print(f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}; generator and switch share them")
    print(f"{'workload':34} {'switch':11} {'packets/s':>10} {'CPU us/packet':>14}  note")
    rows: list[list[str]] = [["workload", "switch", "packets_per_second", "cpu_us_per_packet", "generator_limited"]]
    with Bench() as bench:
        for name in arguments.workloads or WORKLOADS:
            workload = WORKLOADS[name]()
            rates: list[float] = []
            for make in makes:
                switch = make(workload, bench.interfaces)
                try:
                    trial, limited = bench.search(switch, workload, arguments.seconds)
                finally:
                    switch.close()
                note = "the generator was the limit" if limited else ""
                numbers = f"{trial.rate:10.0f} {trial.cpu_us:14.2f}"
                print(f"{workload.name:34} {switch.name:11} {numbers}  {note}", flush=True)
                rows.append([name, switch.name, f"{trial.rate:.0f}", f"{trial.cpu_us:.3f}", str(limited)])
                rates.append(trial.rate)
            if len(rates) == 2:
                print(f"{'':34} softswitch processes {rates[0] / max(rates[1], 1e-9):.0f} times the packets of bmv2")
    if arguments.csv:
        arguments.csv.parent.mkdir(parents=True, exist_ok=True)
        with arguments.csv.open("w", newline="") as file:
            csv.writer(file).writerows(rows)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
