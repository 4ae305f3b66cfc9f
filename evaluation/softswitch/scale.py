"""Measures what traffic alone does not show: cost of a look-up, writes, start-up, memory, many devices in a process."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from evaluation.softswitch.bench import Bench
from evaluation.softswitch.figures import Row
from evaluation.softswitch.lookups import frames_per_second
from evaluation.softswitch.switches import Bmv2, Process, Softswitch, SoftswitchProcess, Switch, resident_bytes
from evaluation.softswitch.workloads import TABLE_WORKLOADS, Workload, aggregation, forwarding, table
from evaluation.softswitch.workloads import Row as Entry
from softswitch import Fabric, Program

SINGLE, BATCHED, BATCH = 2000, 20000, 100  # entries written
GROUPS, REPLICAS = 4000, 4  # multicast groups written (bmv2 has 4,096), and ports of each
LARGE, PART = 100_000, 10_000
LOOKUP_SECONDS = 1.0
READY = 60.0  # seconds that a fabric may take to start


def lookups() -> Iterator[Row]:
    """Yield frames per second through one device without ports, on one thread."""
    for make in TABLE_WORKLOADS.values():
        workload = make()
        with Fabric() as fabric:
            device = fabric.add_device(1)
            device.load(Program.load(workload.program.read_bytes()))
            for row in workload.rows:
                device.insert(row.table, row.match, row.action, row.params, row.priority)
            rate, missed = frames_per_second(device, workload.frames(0), LOOKUP_SECONDS)
        note = f"{missed} frames missed the table" if missed else ""
        yield Row("look-ups", workload.name, "softswitch", rate, "frames/s", note)


def _process(name: str, environment: dict[str, str] | None = None) -> Process:
    return SoftswitchProcess(environment=environment) if name == "softswitch" else Bmv2()


def writes(switches: tuple[str, ...]) -> Iterator[Row]:
    """Yield entries per second over P4Runtime and the switch's CPU time, for writing into small and large tables,
    reading and deleting.
    """
    for name in switches:
        switch = _process(name)
        try:
            yield from _writes(switch)
        finally:
            switch.close()


def _writes(switch: Process) -> Iterator[Row]:
    client = switch.client
    assert client is not None
    exact, lpm = table("exact", SINGLE + BATCHED), table("lpm", LARGE)
    client.load(exact)

    def timed(what: str, entries: int, do: Callable[[], object]) -> Iterator[Row]:
        start, cpu = time.monotonic(), switch.cpu_seconds()
        do()
        took, used = time.monotonic() - start, switch.cpu_seconds() - cpu
        yield Row("writes", what, switch.name, entries / took, "entries/s")
        yield Row("writes", what, switch.name, used / entries * 1e6, "us of CPU/entry")

    def write(what: str, rows: Sequence[Entry], batch: int, delete: bool = False) -> Iterator[Row]:
        requests = client.requests(rows, batch, delete=delete)
        yield from timed(what, len(rows), lambda: client.send(requests))

    yield from write("insert, exact, one per Write", exact.rows[:SINGLE], 1)
    yield from write(f"insert, exact, {BATCH} per Write", exact.rows[SINGLE:], BATCH)
    groups = client.group_requests(GROUPS, REPLICAS, BATCH)
    yield from timed(f"insert, groups of {REPLICAS}", GROUPS, lambda: client.send(groups))
    yield from write("insert, LPM, none there", lpm.rows[:PART], BATCH)
    client.send(client.requests(lpm.rows[PART:-PART], BATCH))
    yield from write(f"insert, LPM, {LARGE - PART:,} there", lpm.rows[-PART:], BATCH)
    yield from timed(f"read all, LPM, {LARGE:,}", LARGE, lambda: client.read_all(lpm.rows[0].table, LARGE))
    yield from write(f"delete, LPM, of {LARGE:,}", lpm.rows[:PART], BATCH, delete=True)


def startup(switches: tuple[str, ...]) -> Iterator[Row]:
    """Yield the seconds from starting the process until a client has loaded a program."""
    for workload, what in ((forwarding(64), "v1model-4"), (aggregation(256), "v1model-256")):
        for name in switches:
            with tempfile.TemporaryDirectory(prefix="softswitch-bench-") as cache:
                environment = {"XDG_CACHE_HOME": cache}
                for variant in ("nothing compiled yet", "compiled before") if name == "softswitch" else ("",):
                    start = time.monotonic()
                    switch = _process(name, environment)
                    try:
                        assert switch.client is not None
                        switch.client.load(workload)
                        took = time.monotonic() - start
                    finally:
                        switch.close()
                    yield Row("start-up", what, name, took, "s", variant)


def memory(switches: tuple[str, ...]) -> Iterator[Row]:
    """Yield the private memory per device that runs the program with 256 values."""
    workload = aggregation(256)
    if "softswitch" in switches:
        used = {n: _fabric_bytes(workload, n) for n in (1, 45)}
        yield Row("memory", "process with one device", "softswitch", used[1] / 2**20, "MiB")
        yield Row("memory", "each further device", "softswitch", (used[45] - used[1]) / 44 / 2**20, "MiB")
    if "bmv2" in switches:
        bmv2 = Bmv2(workload)
        try:
            yield Row("memory", "process with one device", "bmv2", bmv2.resident_bytes() / 2**20, "MiB")
        finally:
            bmv2.close()
    for make in (TABLE_WORKLOADS["exact-65536"], TABLE_WORKLOADS["lpm-100000"]):
        full = make()
        for name in switches:
            switch = _process(name)
            try:
                assert switch.client is not None
                switch.client.load(full)
                before = switch.resident_bytes()
                switch.client.send(switch.client.requests(full.rows, BATCH))
                each = (switch.resident_bytes() - before) / len(full.rows)
                yield Row("memory", f"an entry, of {full.name}", name, each, "bytes")
            finally:
                switch.close()


def _fabric_bytes(workload: Workload, devices: int) -> int:
    with tempfile.TemporaryDirectory(prefix="softswitch-bench-") as directory:
        path = Path(directory) / "fabric.json"
        described = [
            {"id": n, "program": str(workload.program), "p4info": str(workload.p4info)} for n in range(1, devices + 1)
        ]
        path.write_text(json.dumps({"grpc": f"unix:{directory}/grpc", "devices": described}))
        process = subprocess.Popen(
            [sys.executable, "-m", "softswitch", "fabric", str(path)], stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        try:
            assert process.stdout is not None
            if not process.stdout.readline().startswith("READY"):
                raise RuntimeError("the fabric did not start")
            return resident_bytes(process.pid)
        finally:
            process.terminate()
            process.wait(10)


class _TwoByVeth:
    """Two devices of a process, joined by a veth pair instead of a link in memory."""

    def __init__(self, workload: Workload, interfaces: tuple[str, ...], between: tuple[str, str]) -> None:
        self.name = "softswitch"
        self.first = Softswitch(workload, (interfaces[0], between[0]))
        try:
            second = self.first.fabric.add_device(2)
            second.load(Program.load(workload.program.read_bytes()))
            for row in workload.rows:
                second.insert(row.table, row.match, row.action, row.params, row.priority)
            second.add_port(1, between[1])
            second.add_port(2, interfaces[1])
        except BaseException:
            self.first.close()
            raise
        self.cpu_seconds = self.first.cpu_seconds
        self.threads = self.first.threads
        self.close = self.first.close


class _TwoBmv2:
    """Two bmv2 processes, joined by a veth pair."""

    def __init__(self, workload: Workload, interfaces: tuple[str, ...], between: tuple[str, str]) -> None:
        self.name = "bmv2"
        self.first = Bmv2(workload, (interfaces[0], between[0]))
        try:
            self.second = Bmv2(workload, (between[1], interfaces[1]))
        except BaseException:
            self.first.close()
            raise

    def cpu_seconds(self) -> float:
        return self.first.cpu_seconds() + self.second.cpu_seconds()

    def threads(self) -> list[int]:
        return [*self.first.threads(), *self.second.threads()]

    def close(self) -> None:
        self.first.close()
        self.second.close()


def devices(bench: Bench, switches: tuple[str, ...], seconds: float) -> Iterator[Row]:
    """Yield packets per second through devices in a row, forwarding 64-byte frames."""
    workload = forwarding(64)

    def measured(what: str, switch: Switch) -> Iterator[Row]:
        try:
            trial, limited = bench.search(switch, workload, seconds)
        finally:
            switch.close()
        note = "the generator was the limit" if limited else ""
        yield Row("devices", what, switch.name, trial.rate, "packets/s", note)
        yield Row("devices", what, switch.name, trial.cpu_us, "us of CPU/packet", note)

    for n in (1, 2, 45):
        yield from measured(
            f"{n} in a row, links in memory" if n > 1 else "1", Softswitch(workload, bench.interfaces, n)
        )
    with bench.pair() as between:
        yield from measured("2 in a row, joined by veth", _TwoByVeth(workload, bench.interfaces, between))
        if "bmv2" in switches:
            yield from measured("2 in a row, joined by veth", _TwoBmv2(workload, bench.interfaces, between))
