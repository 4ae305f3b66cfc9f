"""``python -m evaluation.softswitch.sharing``: aggregation on one device by one thread and by several at once.

Frames go through the program without ports, so without what interfaces cost: each thread has a tree of its own, and
gives the frames of its two flows to the device as fast as it can (``lookups.c``). "one lock" is the same program with a
meter that nothing uses, which keeps packets of a device one after the other; "a lock for each slot" is the program as
it is. Frames a second are of the wall clock, all threads together, so this needs as many idle cores as threads.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import threading
import time

from evaluation import machine
from evaluation.softswitch.lookups import library
from p4src.artifacts import find
from p4src.protocol import PROTOCOL
from softswitch import Device, Fabric, Match, Program
from softswitch.dataplane import native
from worker_agent.wire import packet

FLOWS, SLOTS, RING = 2, 2048, 64
MOST_THREADS = 16


def programs(values: int) -> dict[str, Program]:
    """Return the program with one lock and with a lock for each slot."""
    text = find("v1model", values).program.read_text()
    root = json.loads(text)
    root["meter_arrays"] = [
        {"name": "unused", "id": 0, "is_direct": False, "size": 1, "rate_count": 2, "type": "packets"}
    ]
    return {"one lock": Program.load(json.dumps(root)), "a lock for each slot": Program.load(text)}


def entries(device: Device, trees: int) -> None:
    """Install the flows of the trees, which share the slots out evenly."""
    each = SLOTS // MOST_THREADS
    for tree in range(trees):
        for flow in range(FLOWS):
            match = (Match("exact", 1), Match("exact", 1 + FLOWS * tree + flow))
            params = (each * tree, each - 1, 1 << flow, (1 << FLOWS) - 1, 99, 99, 2)
            device.insert("label_table", match, "aggregate", params)


def frames(tree: int, values: int) -> list[bytes]:
    """Return frames of which every second completes a slot."""
    return [
        bytes(packet(range(values), address=f"10.0.0.{flow + 1}", job=7, label=1 + FLOWS * tree + flow, epoch=1,
                     sequence=sequence))
        for sequence in range(RING) for flow in range(FLOWS)
    ]  # fmt: skip


def rate(program: Program, threads: int, values: int, seconds: float) -> float:
    """Return frames a second of the wall clock, all threads together."""
    with Fabric(threads=max(threads, 2)) as fabric:
        device = fabric.add_device(1)
        device.load(program)
        entries(device, threads)
        process = ctypes.cast(native.library().ss_process, ctypes.c_void_p)
        begin = threading.Barrier(threads + 1)
        done: list[int] = []

        def run(tree: int) -> None:
            ring = frames(tree, values)
            joined = ctypes.create_string_buffer(b"".join(ring))
            begin.wait()
            done.append(
                library().run_until(
                    process, ctypes.c_void_p(device._native), joined, len(ring), len(ring[0]),
                    ctypes.c_uint64(int(seconds * 1e9)), PROTOCOL.field("epoch").offset,
                )
            )  # fmt: skip

        started = [threading.Thread(target=run, args=(tree,)) for tree in range(threads)]
        for thread in started:
            thread.start()
        begin.wait()
        since = time.perf_counter()
        for thread in started:
            thread.join()
        return sum(done) / (time.perf_counter() - since)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m evaluation.softswitch.sharing", description=__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, os.cpu_count() or 1])
    parser.add_argument("--values", type=int, default=256)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each measurement (2)")
    parser.add_argument("--repeat", type=int, default=3, help="measurements of each, in turns; the best is shown (3)")
    options = parser.parse_args()
    print(machine.description())
    best: dict[tuple[str, int], float] = {}
    for _ in range(options.repeat):
        for name, program in programs(options.values).items():
            for threads in options.threads:
                found = rate(program, threads, options.values, options.seconds)
                best[name, threads] = max(found, best.get((name, threads), 0.0))
    for (name, threads), found in best.items():
        print(f"{name}, {threads} threads: {found / 1e6:.2f} million frames a second")


if __name__ == "__main__":
    main()
