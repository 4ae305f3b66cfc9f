"""``python -m evaluation.softswitch.stateful``: what members, groups, entries and idle timeouts of a device cost as
there come to be many of them. Microseconds of CPU, through the library, with one device in this process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

from softswitch import Device, Entry, Fabric, Match, Program
from softswitch.profiles import Group, GroupMember

PROGRAMS = Path(__file__).parents[2] / "tests" / "conformance" / "programs"
STEPS = (1_000, 10_000, 100_000)
TIMEOUT_S = 2
FRAME = bytes.fromhex("01000000010000123400000000") + bytes(50)


def large(name: str) -> Program:
    """A program of ours, with larger tables and profiles."""
    text = (PROGRAMS / f"{name}.json").read_text()
    for old, new in (('"max_size":1024', '"max_size":200000'), ('"max_size":64', '"max_size":1000000')):
        text = text.replace(old, new)
    return Program.load(text)


def grow(what: str, do: Callable[[int], object]) -> None:
    """Print the CPU time of ``do(i)`` as more and more of them are there."""
    done = 0
    for n in STEPS:
        begin = time.process_time()
        for i in range(done, n):
            do(i)
        print(f"{what:28} up to {n:7,}: {1e6 * (time.process_time() - begin) / (n - done):8.1f} us each", flush=True)
        done = n


def each(what: str, device: Device, frames: Iterable[bytes]) -> None:
    begin, n = time.perf_counter(), 0
    for frame in frames:
        device.process(0, frame)
        n += 1
    print(f"{what:28} {1e6 * (time.perf_counter() - begin) / n:25.1f} us per call of process()", flush=True)


def profiles() -> None:
    with Fabric() as fabric:
        device = fabric.add_device(1)
        device.load(large("profiles"))
        profile = device.profiles["I.shared"]
        grow("member", lambda i: profile.insert_member(i, "I.set", (i & 255,)))
        most = len(profile)
        grow("group of 3, weights 1, 2, 1", lambda i: profile.insert_group(
            i, [GroupMember(i), GroupMember((i + 1) % most, 2), GroupMember((i + 2) % most)]))  # fmt: skip
        grow("entry for a group", lambda i: device.insert(
            "I.lpm_table", [Match("lpm", i << 8, prefix_len=24)], Group(i)))  # fmt: skip
        everybody = [GroupMember(i) for i in range(60_000)]
        begin = time.process_time()
        profile.modify_group(0, everybody)
        print(f"{'group of 60,000':28} {1e3 * (time.process_time() - begin):25.0f} ms", flush=True)
        each("frame, group of 60,000", device, [FRAME] * 50_000)
        profile.modify_group(0, everybody[:1])
        each("frame, group of 1", device, [FRAME] * 50_000)


def timeouts() -> None:
    with Fabric() as fabric:
        device = fabric.add_device(1)
        device.load(large("idle"))
        seen = [0]

        def count(table: str, entries: list[Entry]) -> None:
            seen[0] += len(entries)

        grow("entry", lambda i: device.insert("I.exact_table", [Match("exact", i)], "I.set", (1,)))
        grow("idle timeout", lambda i: device.set_idle_timeout(
            "I.exact_table", [Match("exact", i)], TIMEOUT_S * 1_000_000_000))  # fmt: skip
        fabric.start()
        for what, callback in (("reports read", count), ("reports not read", None)):
            device.idle = callback
            seen[0], begin, cpu = 0, time.monotonic(), time.process_time()
            time.sleep(3 * TIMEOUT_S)
            share = (time.process_time() - cpu) / (time.monotonic() - begin)
            print(f"{STEPS[-1]:,} entries idle for {TIMEOUT_S} s each, {what}: {100 * share:.1f} % of a core"
                  f" ({seen[0]:,} entries reported)", flush=True)  # fmt: skip


if __name__ == "__main__":
    profiles()
    timeouts()
