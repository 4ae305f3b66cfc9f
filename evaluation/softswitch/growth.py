"""Measures the cost of each kind of state as it grows: writes, reads and look-ups of softswitch.

The unit is microseconds of CPU through the Python library, in this process (P4Runtime's own cost is added to that);
look-ups are of whole frames, parsed and deparsed.
"""

from __future__ import annotations

import random
import struct
import time
from collections.abc import Callable, Iterator, Sequence

from evaluation.softswitch.figures import Row
from evaluation.softswitch.lookups import frames_per_second
from evaluation.softswitch.programs import STATEFUL, TABLES
from evaluation.softswitch.workloads import lookup_frame, prefix
from softswitch import Device, Fabric, Match, Program
from softswitch.dataplane.profiles import Group, GroupMember

SECTION = "growth"
STEPS = (1_000, 10_000, 100_000)
FEW = 2_000  # entries deleted and inserted again at each step
LOOKUP_SECONDS = 0.5
TIMEOUT_S = 2
DIGEST_STEPS = (1_000, 10_000, 60_000)  # at most 65,536 messages may be under way

Key = tuple[int, int, int, int, int]  # protocol, source, target, source port, target port
Make = Callable[[random.Random, int], tuple[tuple[Match, ...], Key, int]]


def _exact(draw: random.Random, i: int) -> tuple[tuple[Match, ...], Key, int]:
    source = draw.getrandbits(32)
    return (Match("exact", source), Match("exact", i)), (6, source, i, 0, 0), 0


def _lpm(draw: random.Random, i: int) -> tuple[tuple[Match, ...], Key, int]:
    length = draw.choice((24, 24, 24, 28, 32)) if i >= 256 else 16
    value = (i << 8 | draw.getrandbits(8)) & prefix(length) if i >= 256 else (0xFF00 | i) << 16
    return (Match("lpm", value, prefix_len=length),), (6, 0, value, 0, 0), 0


def _ternary(masks: int) -> Make:
    def make(draw: random.Random, i: int) -> tuple[tuple[Match, ...], Key, int]:
        shape = random.Random(i % masks)
        key = (6, draw.getrandbits(32), draw.getrandbits(32), draw.getrandbits(16), draw.getrandbits(16))
        masked = [shape.getrandbits(width) for width in (8, 32, 32, 16, 16)]
        match = tuple(Match("ternary", v & m, mask=m) for v, m in zip(key, masked, strict=True))
        return match, key, draw.randrange(1, 1 << 20)

    return make


def _range(draw: random.Random, i: int) -> tuple[tuple[Match, ...], Key, int]:
    low = [draw.randrange(60000) for _ in "sd"]
    spans = [Match("range", v, high=v + draw.randrange(1, 5000)) for v in low]
    return (Match("lpm", 0, prefix_len=0), *spans), (6, 0, 0, low[0], low[1]), i + 1


Kind = tuple[str, int, Make, tuple[int, ...]]  # name, number in the frame, how to make an entry, numbers of entries
TABLE_KINDS: tuple[Kind, ...] = (
    ("exact", 0, _exact, STEPS),
    ("LPM", 1, _lpm, STEPS),
    ("ternary, 200 masks", 2, _ternary(200), STEPS),
    ("ternary, each its mask", 2, _ternary(1 << 62), (1_000, 4_000, 16_000, 64_000)),
    ("range, one prefix", 3, _range, (1_000, 4_000, 16_000, 64_000)),
)
TABLE_NAMES = ("I.exact_table", "I.lpm_table", "I.ternary_table", "I.range_table")


def _large() -> Program:
    """Return the program with tables that have room for all entries."""
    text = TABLES.read_text()
    for size in (4096, 65536, 131072):
        text = text.replace(f'"max_size":{size}', '"max_size":1048576')
    return Program.load(text)


def _timed(do: Callable[[int], object], which: Sequence[int]) -> float:
    begin = time.process_time()
    for i in which:
        do(i)
    return 1e6 * (time.process_time() - begin) / len(which)


def table(what: str, number: int, make: Make, steps: Sequence[int]) -> Iterator[Row]:
    """Yield the costs of inserting, modifying, getting, deleting and reading entries, and of look-ups."""
    name, draw = TABLE_NAMES[number], random.Random(1)
    made: list[tuple[tuple[Match, ...], Key, int]] = []
    with Fabric() as fabric:
        device = fabric.add_device(1)
        device.load(_large())

        def insert(i: int) -> None:
            match, _, priority = made[i]
            device.insert(name, match, "I.to", (2,), priority)

        def modify(i: int) -> None:
            match, _, priority = made[i]
            device.modify(name, match, "I.to", (2,), priority)

        def get(i: int) -> None:
            device.get(name, made[i][0], made[i][2])

        def delete(i: int) -> None:
            device.delete(name, made[i][0], made[i][2])

        for n in steps:
            new = range(len(made), n)
            made += [make(draw, i) for i in new]
            few = draw.sample(range(n), min(n, FEW))
            figures = {"insert": _timed(insert, new), "modify": _timed(modify, new), "get": _timed(get, new)}
            figures["delete"] = _timed(delete, few)
            for i in few:
                insert(i)
            begin = time.process_time()
            device.entries(name)
            figures["read all, per entry"] = 1e6 * (time.process_time() - begin) / n
            frames = [lookup_frame(number, made[i][1]) for i in few[:1024]]
            rate, missed = frames_per_second(device, frames, LOOKUP_SECONDS)
            if missed:
                raise RuntimeError(f"{what}: {missed} frames found no entry")
            figures["look-up"] = 1e6 / rate
            for action, value in figures.items():
                yield Row(SECTION, f"{what}: {action}", "softswitch", value, "us", entries=n)


def _steps(what: str, do: Callable[[int], object], steps: Sequence[int] = STEPS) -> Iterator[Row]:
    done = 0
    for n in steps:
        yield Row(SECTION, what, "softswitch", _timed(do, range(done, n)), "us", entries=n)
        done = n


def _frame(which: int, source: int, target: int) -> bytes:
    return bytes.fromhex("020000000001020000000002") + b"\x88\xb6" + struct.pack(">BBII", which, 0, source, target)


def profiles(device: Device) -> Iterator[Row]:
    """Yield the costs of members, groups of three, entries for them, and one group that becomes large."""
    profile = device.profiles["I.selector"]
    yield from _steps("member", lambda i: profile.insert_member(i, "I.to", (i & 255,)))
    most = len(profile)
    yield from _steps("group of 3 members", lambda i: profile.insert_group(
        i, [GroupMember(i), GroupMember((i + 1) % most, 2), GroupMember((i + 2) % most)]))  # fmt: skip
    yield from _steps("entry for a group", lambda i: device.insert(
        "I.selector_table", [Match("exact", i)], Group(i)))  # fmt: skip
    everybody = [GroupMember(i) for i in range(60_000)]
    for n in (1, 600, 60_000):
        profile.modify_group(0, everybody[:n])
        rate, _ = frames_per_second(device, [_frame(0, i, 0) for i in range(1024)], LOOKUP_SECONDS)
        yield Row(SECTION, "frame, group of so many members", "softswitch", 1e6 / rate, "us", entries=n)


def replication(device: Device) -> Iterator[Row]:
    """Yield the cost of multicast groups of two copies."""
    copies = [(1, 1), (2, 1)]
    yield from _steps("multicast group", lambda i: device.multicast_set(i + 1, copies), (1_000, 10_000, 65_535))


def timeouts(device: Device) -> Iterator[Row]:
    """Yield the cost of setting idle timeouts, and the cost when all entries expire again and again."""
    seen = [0]

    def count(_: str, entries: Sequence[object]) -> None:
        seen[0] += len(entries)

    for i in range(STEPS[-1]):
        device.insert("I.idle_table", [Match("exact", i)], "I.to", (1,))
    yield from _steps("idle timeout", lambda i: device.set_idle_timeout(
        "I.idle_table", [Match("exact", i)], TIMEOUT_S * 1_000_000_000))  # fmt: skip
    device.idle = count
    begin, cpu = time.monotonic(), time.process_time()
    time.sleep(3 * TIMEOUT_S)
    share = (time.process_time() - cpu) / (time.monotonic() - begin)
    note = f"{seen[0]:,} reports in {3 * TIMEOUT_S} s, each read"
    yield Row(SECTION, f"all expire every {TIMEOUT_S} s", "softswitch", 100 * share, "% of a core", note, STEPS[-1])
    device.idle = None


def digests(device: Device) -> Iterator[Row]:
    """Yield the cost of distinct messages that are not acknowledged, so that each is compared with all that are under
    way.
    """
    device.digest_enable(0, True)
    yield from _steps("digest, with the frame", lambda i: device.process(1, _frame(2, i, 0)), DIGEST_STEPS)
    device.digest_enable(0, False)


def growth() -> Iterator[Row]:
    """Yield all costs."""
    for kind in TABLE_KINDS:
        yield from table(*kind)
    for part in (profiles, replication, timeouts, digests):
        with Fabric() as fabric:
            device = fabric.add_device(1)
            device.load(Program.load(STATEFUL.read_bytes()))
            if part is timeouts:
                fabric.start()
            yield from part(device)
