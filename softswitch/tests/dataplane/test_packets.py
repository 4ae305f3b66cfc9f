"""Hostile frames: every frame that arrives is accounted for, and malformed ones change nothing."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from softswitch import Device, Fabric, InvalidValue, Match, Program
from softswitch.tests.dataplane import scenarios
from softswitch.tests.dataplane.programs import NAMES, json_path, program
from softswitch.tests.dataplane.scenario import configure

DECIDED = ("ingress", "egress", "no_such_multicast_group", "no_such_clone_session", "too_many_passes")


@pytest.fixture(scope="module")
def devices() -> Iterator[dict[str, Device]]:
    """Return one configured device per test program."""
    with Fabric(seed=1) as fabric:
        made: dict[str, Device] = {}
        for number, name in enumerate(NAMES):
            made[name] = fabric.add_device(number)
            made[name].load(program(name))
            configure(made[name], scenarios.ALL[name]())
        yield made


def mutated(source: bytes) -> st.SearchStrategy[bytes]:
    """Return good frames with some bytes replaced, cut short or made longer."""
    edits = st.lists(st.tuples(st.integers(0, max(len(source) - 1, 0)), st.integers(0, 255)), max_size=6)

    def apply(edit: tuple[list[tuple[int, int]], int, bytes]) -> bytes:
        data = bytearray(source)
        for at, value in edit[0]:
            if data:
                data[at] = value
        return bytes(data[: edit[1]]) + edit[2]

    return st.tuples(edits, st.integers(0, len(source)), st.binary(max_size=40)).map(apply)


GOOD = {name: scenarios.ALL[name]().frames for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_any_frame_is_answered_or_counted(devices: dict[str, Device], name: str, data: st.DataObject) -> None:
    device = devices[name]
    port, good = data.draw(st.sampled_from(GOOD[name]))
    frame = data.draw(st.one_of(mutated(good), st.binary(max_size=200)))
    before = device.drop_stats()
    answers = device.process(port, frame)
    after = device.drop_stats()
    for reason, count in after.items():
        assert count == before[reason] or reason in DECIDED, reason
    assert answers or any(after[r] > before[r] for r in DECIDED)
    assert all(len(out) <= len(frame) + 512 for _, out in answers)


@settings(max_examples=100, deadline=None)
@given(length=st.integers(0, 145), operation=st.integers(0, 4))
def test_a_truncated_packet_changes_no_register(devices: dict[str, Device], length: int, operation: int) -> None:
    device = devices["sums"]
    whole = scenarios.ethernet(1, 2, 3) + struct.pack(">I", operation << 24 | 77) + b"\xff" * 128
    before = device.register_read_all("MyIngress.sum00")[77], device.register_read_all("MyIngress.sum1f")[77]
    assert device.process(1, whole[:length]) == []
    after = device.register_read_all("MyIngress.sum00")[77], device.register_read_all("MyIngress.sum1f")[77]
    assert before == after


def test_frames_of_every_size(fabric: Fabric) -> None:
    device = fabric.add_device(1)
    device.load(program("arithmetic"))
    for size in (0, 1, 1499, 1500, 2047, 2048, 2049, 9000, 65535, 65536):
        frame = bytes([99]) * size
        ((_, out),) = device.process(1, frame)
        assert out == frame
    with pytest.raises(InvalidValue):
        device.process(1, bytes(65537))
    with pytest.raises(InvalidValue):
        device.process(512, b"x")


def test_endless_recirculation_is_stopped(fabric: Fabric) -> None:
    """A resubmission whose condition never ends is stopped; bmv2 would repeat it for ever."""
    device = fabric.add_device(1)
    device.load(program("router"))
    anything = [Match("ternary", 0, mask=0), Match("ternary", 0, mask=0), Match("range", 0, high=65535),
                Match("optional", 0, mask=0), Match("ternary", 0, mask=0)]  # fmt: skip
    device.insert("MyIngress.acl", anything, "MyIngress.again", [], 1)
    assert device.process(1, scenarios.ethernet(1, 2, 0x0806) + bytes(30)) == []
    assert device.drop_stats()["too_many_passes"] == 1


@pytest.mark.parametrize(("queues", "passes"), [(1, False), (5, False), (6, True), (8, True)])
def test_priorities_below_the_number_of_queues_pass(queues: int, passes: bool) -> None:
    root = json.loads(json_path("router").read_text())
    for action in root["actions"]:
        if action["name"] == "MyIngress.forward":
            priority, five = ["standard_metadata", "priority"], {"type": "hexstr", "value": "0x5"}
            action["primitives"].append({"op": "assign", "parameters": [{"type": "field", "value": priority}, five]})
    with Fabric() as fabric:
        device = fabric.add_device(1, priority_queues=queues)
        device.load(Program.load(json.dumps(root)))
        frame = scenarios.ethernet(2, 1, 0x1234)
        device.insert("MyIngress.switching", [Match("exact", 2), Match("exact", 0)], "MyIngress.forward", [3])
        assert device.process(1, frame) == ([(3, frame)] if passes else [])
        assert device.drop_stats()["priority_out_of_range"] == (0 if passes else 1)
