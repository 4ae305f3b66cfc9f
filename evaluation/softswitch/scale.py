"""What traffic alone does not show: cost of a look-up, writes, start-up, memory, many devices in a process."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from evaluation.softswitch.bench import Bench, compiled
from evaluation.softswitch.switches import Bmv2, Process, Softswitch, SoftswitchProcess, Switch, resident_bytes
from evaluation.softswitch.workloads import TABLE_WORKLOADS, Workload, aggregation, forwarding, table
from softswitch import Fabric, Program, native

LOOKUPS = Path(__file__).with_name("lookups.c")
SINGLE, BATCHED, BATCH = 2000, 20000, 100  # entries written
LOOKUP_SECONDS = 1.0
READY = 60.0  # seconds that a fabric may take to start


@dataclass(frozen=True)
class Row:
    """One figure. ``switch``: softswitch, bmv2 or a variant of one."""

    section: str
    what: str
    switch: str
    value: float
    unit: str
    note: str = ""


def lookups() -> Iterator[Row]:
    """Frames per second through one device without ports, on one thread."""
    library = ctypes.CDLL(str(compiled(LOOKUPS, "-shared", "-fPIC")))
    library.run.restype = ctypes.c_uint64
    process = ctypes.cast(native.library().ss_process, ctypes.c_void_p)
    for make in TABLE_WORKLOADS.values():
        workload = make()
        frames = workload.frames(0)
        data = b"".join(frames)
        with Fabric() as fabric:
            device = fabric.add_device(1)
            device.load(Program.load(workload.program.read_bytes()))
            for row in workload.rows:
                device.insert(row.table, row.match, row.action, row.params, row.priority)
            answered = ctypes.c_uint64()
            done = library.run(
                process, ctypes.c_void_p(device._native), data, len(frames), len(frames[0]),
                ctypes.c_uint64(int(LOOKUP_SECONDS * 1e9)), ctypes.byref(answered),
            )  # fmt: skip
        note = "" if answered.value == done else f"{done - answered.value} frames missed the table"
        yield Row("look-ups", workload.name, "softswitch", done / LOOKUP_SECONDS, "frames/s", note)


def _process(name: str, environment: dict[str, str] | None = None) -> Process:
    return SoftswitchProcess(environment=environment) if name == "softswitch" else Bmv2()


def writes(switches: tuple[str, ...]) -> Iterator[Row]:
    """Inserts per second over P4Runtime into an empty exact table."""
    workload = table("exact", SINGLE + BATCHED)
    for name in switches:
        switch = _process(name)
        try:
            assert switch.client is not None
            switch.client.load(workload)
            single = switch.client.requests(workload.rows[:SINGLE], 1)
            batched = switch.client.requests(workload.rows[SINGLE:], BATCH)
            for what, requests, count in (("one per Write", single, SINGLE), (f"{BATCH} per Write", batched, BATCHED)):
                start = time.monotonic()
                switch.client.send(requests)
                yield Row("writes", what, name, count / (time.monotonic() - start), "entries/s")
        finally:
            switch.close()


def startup(switches: tuple[str, ...]) -> Iterator[Row]:
    """From starting the process until a client has loaded a program."""
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
    """Private memory per device that runs the program with 256 values."""
    workload = aggregation(256)
    if "softswitch" in switches:
        used = {n: _fabric_bytes(workload, n) for n in (1, 45)}
        yield Row("memory", "process with one device", "softswitch", used[1] / 2**20, "MiB")
        yield Row("memory", "each further device", "softswitch", (used[45] - used[1]) / 44 / 2**20, "MiB")
    if "bmv2" in switches:
        switch = Bmv2(workload)
        try:
            yield Row("memory", "process with one device", "bmv2", switch.resident_bytes() / 2**20, "MiB")
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

    def close(self) -> None:
        self.first.close()
        self.second.close()


def devices(bench: Bench, switches: tuple[str, ...], seconds: float) -> Iterator[Row]:
    """Packets per second through devices in a row, forwarding 64-byte frames."""
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
