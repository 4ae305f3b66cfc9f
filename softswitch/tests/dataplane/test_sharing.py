"""Packets of one device that run at once: which programs allow it, and that nobody can tell that they do."""

from __future__ import annotations

import ctypes
import functools
import json
import struct
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softswitch import Device, Fabric, Program
from softswitch.bmv2json.reader import read_program
from softswitch.compiler.build import compiler
from softswitch.compiler.codegen import generate
from softswitch.dataplane import native
from softswitch.tests.dataplane.programs import json_path, program
from softswitch.tests.dataplane.scenarios import ethernet

VALUES, INDICES = 32, (0, 1, 255, 256, 1023, 1024)
STORE, ADD, MAXIMUM, FETCH, BOUND = range(5)
SLOT = ["scalars", "index_0"]


def frame(operation: int, index: int, values: list[int]) -> bytes:
    return ethernet(1, 2, 0x1234) + struct.pack(f">I{VALUES}I", operation << 24 | index, *values)


def shareable(text: str) -> bool:
    return ".shareable = 1," in generate(read_program(text)).source


@functools.cache
def source() -> str:
    return json_path("sums").read_text()


def field(*name: str) -> dict[str, Any]:
    return {"type": "field", "value": list(name)}


def assign(target: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
    return {"op": "assign", "parameters": [target, value]}


def changed(change: Callable[[dict[str, list[Any]]], None]) -> str:
    """Return the program of sums with changed actions, by their names."""
    root = json.loads(source())
    change({a["name"].rpartition(".")[2]: a["primitives"] for a in root["actions"]})
    return json.dumps(root)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("sums", True), ("matching", True), ("arithmetic", True), ("router", False), ("features", False)],
)
def test_programs(name: str, expected: bool) -> None:
    """``router`` clones and has an egress; ``features`` does much else."""
    assert shareable(json_path(name).read_text()) == expected


HEADER = field("command", "index")
ONE = {"type": "hexstr", "value": "0x01"}


def another_index(actions: dict[str, list[Any]]) -> None:
    actions["store"][0]["parameters"][1] = ONE


def a_header_field_in_one_action(actions: dict[str, list[Any]]) -> None:
    actions["store"][0]["parameters"][1] = HEADER


def written_afterwards(actions: dict[str, list[Any]]) -> None:
    actions["store"].append(assign(field(*SLOT), ONE))


def written_between(actions: dict[str, list[Any]]) -> None:
    actions["add"].insert(4, assign(field(*SLOT), ONE))


def read_into_the_index(actions: dict[str, list[Any]]) -> None:
    actions["fetch"][0]["parameters"][0] = field(*SLOT)


def random_numbers(actions: dict[str, list[Any]]) -> None:
    actions["store"].append({"op": "modify_field_rng_uniform", "parameters": [field(*SLOT), ONE, ONE]})


@pytest.mark.parametrize(
    "change",
    [another_index, a_header_field_in_one_action, written_afterwards, written_between, read_into_the_index,
     random_numbers],
)  # fmt: skip
def test_one_lock_where_packets_could_tell(change: Callable[[dict[str, list[Any]]], None]) -> None:
    assert shareable(source())
    assert not shareable(changed(change))


def test_copies_of_the_index_do_not_matter() -> None:
    """An index that is assigned in the action itself is what it was assigned."""

    def through_a_copy(actions: dict[str, list[Any]]) -> None:
        copy = next(p["parameters"][0]["value"] for p in actions["add"] if p["op"] == "register_read")
        assert copy != SLOT
        write = actions["store"][0]
        actions["store"][:1] = [assign(field(*copy), field(*SLOT)), write]
        write["parameters"][1] = field(*copy)

    assert shareable(changed(through_a_copy))


FRAMES = st.builds(
    frame,
    st.sampled_from((STORE, ADD, MAXIMUM, FETCH, BOUND, 9)),
    st.sampled_from(INDICES),
    st.lists(st.integers(0, (1 << 32) - 1), min_size=VALUES, max_size=VALUES),
)


def state(device: Device) -> dict[str, list[int]]:
    assert device.program is not None
    return {name: device.register_read_all(name) for name in device.program.registers}


@settings(max_examples=15, deadline=None)
@given(st.lists(FRAMES | st.binary(max_size=60), min_size=1, max_size=12))
def test_one_after_the_other_it_is_the_same(frames: list[bytes]) -> None:
    with Fabric() as alone, Fabric(threads=2) as beside:
        one, other = alone.add_device(1), beside.add_device(1)
        for device in (one, other):
            device.load(program("sums"))
        for each in frames:
            assert one.process(3, each) == other.process(3, each)
        assert state(one) == state(other)
        assert one.drop_stats() == other.drop_stats()


@pytest.fixture(scope="module")
def at_once(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Return at_once.c, compiled: Python's threads alone would hardly ever be in the switch at the same time."""
    library = tmp_path_factory.mktemp("native") / "at_once.so"
    command = [compiler()[0], "-O2", "-shared", "-fPIC", "-o", str(library), str(Path(__file__).with_name("at_once.c"))]
    subprocess.run(command, check=True, timeout=60)
    return ctypes.CDLL(str(library))


def test_at_once_each_packet_is_one_step(at_once: ctypes.CDLL) -> None:
    """Threads add to the same elements at once: each gets a sum that nobody else gets, and none is lost."""
    n, indices = 60_000, (7, 7, 7 + 256, 8)
    with Fabric(threads=4) as fabric:
        device = fabric.add_device(1)
        device.load(program("sums"))
        answers = [(ctypes.c_uint32 * n)() for _ in indices]
        alike: list[int] = []

        def run(index: int, into: ctypes.Array[ctypes.c_uint32]) -> None:
            data = frame(ADD, index, [1] * VALUES)
            process = ctypes.cast(native.library().ss_process, ctypes.c_void_p)
            alike.append(at_once.run(process, ctypes.c_void_p(device.native), data, len(data), n, VALUES, into))

        threads = [threading.Thread(target=run, args=each) for each in zip(indices, answers, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = {index: device.register_read("MyIngress.sum00", index) for index in indices}
    assert alike == [n] * len(indices), "another packet came between the registers of one"
    assert found == {index: n * indices.count(index) for index in indices}
    for index, total in found.items():
        sums = [value for at, each in zip(indices, answers, strict=True) if at == index for value in each]
        assert sorted(sums) == list(range(1, total + 1))


def test_a_write_falls_between_two_packets() -> None:
    """While others' packets run, a program is loaded and unloaded: each frame finds all of it, or nothing."""
    with Fabric(threads=2) as fabric:
        device = fabric.add_device(1)
        loaded: Program = program("sums")
        device.load(loaded)
        ended = threading.Event()
        found: list[int] = []

        def run() -> None:
            while not ended.is_set():
                found.append(len(device.process(1, frame(ADD, 5, [1] * VALUES))))

        threads = [threading.Thread(target=run) for _ in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(20):
            device.unload()
            device.load(loaded)
        ended.set()
        for thread in threads:
            thread.join()
        device.load(loaded)
        assert device.drop_stats()["no_program"] == found.count(0)
