"""Action profiles and selectors of a device: which member is chosen, what may be deleted, and ports that are down."""

from __future__ import annotations

import itertools
import os
import shutil
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from softswitch import AlreadyExists, Device, Fabric, InvalidValue, Match, NotFound, Program
from softswitch.dataplane.links import HEADER, IFINFO, IFLA_IFNAME, RTM_DELLINK, RTM_NEWLINK, Change, changes
from softswitch.dataplane.profiles import ActionProfile, Group, GroupMember, Member
from softswitch.errors import StillInUse
from softswitch.tests.support.switches import run
from softswitch.tests.support.waiting import wait_until as until

PROGRAM = Path(__file__).parents[1] / "conformance" / "programs" / "profiles.json"
KEY = (Match("lpm", 0, prefix_len=0),)
NUMBERS = itertools.count()

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler (cc)")


@pytest.fixture(name="device")
def _device(fabric: Fabric) -> Device:
    device = fabric.add_device(1)
    device.load(Program.load(PROGRAM.read_bytes()))
    return device


@pytest.fixture(name="shared")
def _shared(device: Device) -> ActionProfile:
    profile = device.profiles["I.shared"]
    for member in range(1, 6):
        profile.insert_member(member, "I.set", (member,))
    return profile


def result(device: Device, flow: int, table: int = 1) -> int:
    ((_, frame),) = device.process(0, bytes([table, 0, 0, 0, 0]) + flow.to_bytes(2, "big") + bytes(4))
    return frame[9]


def crc(flow: int) -> int:
    return zlib.crc32(flow.to_bytes(2, "big") + bytes(2))


def test_the_hash_chooses(device: Device, shared: ActionProfile) -> None:
    shared.insert_group(1, [GroupMember(1), GroupMember(3, 2), GroupMember(5)])
    device.insert("I.lpm_table", KEY, Group(1))
    order = [1, 3, 5, 3]  # the second slot of member 3 was made last
    assert [result(device, flow) for flow in range(50)] == [order[crc(flow) % 4] for flow in range(50)]
    shared.modify_group(1, [GroupMember(2)])
    assert {result(device, flow) for flow in range(20)} == {2}
    shared.modify_member(2, "I.both", (7, 8))
    assert {result(device, flow) for flow in range(20)} == {7}
    shared.modify_group(1, [])
    assert {result(device, flow) for flow in range(20)} == {0}  # an empty group runs no action


def test_only_unused_members_and_groups_may_be_deleted(device: Device, shared: ActionProfile) -> None:
    shared.insert_group(1, [GroupMember(1), GroupMember(2)])
    device.insert("I.lpm_table", KEY, Group(1))
    other = (Match("lpm", 1 << 31, prefix_len=1),)
    device.insert("I.lpm_table", other, Member(3))
    assert [entry.chosen for entry in device.entries("I.lpm_table")] == [Group(1), Member(3)]
    for refused in (1, 3):
        with pytest.raises(StillInUse):
            shared.delete_member(refused)
    with pytest.raises(StillInUse):
        shared.delete_group(1)
    device.modify("I.lpm_table", other, Member(4))
    shared.delete_member(3)
    device.delete("I.lpm_table", KEY)
    shared.delete_group(1)
    shared.delete_member(1)
    assert (shared.members(), shared.groups()) == ([2, 4, 5], [])


def test_refused(device: Device, shared: ActionProfile) -> None:
    with pytest.raises(NotFound):
        device.insert("I.lpm_table", KEY, Member(9))
    with pytest.raises(NotFound):
        device.insert("I.lpm_table", KEY, Group(9))
    with pytest.raises(InvalidValue):
        device.insert("I.lpm_table", KEY, "I.set", (1,))
    with pytest.raises(AlreadyExists):
        shared.insert_member(1, "I.set", (1,))
    with pytest.raises(InvalidValue):
        shared.insert_member(9, "I.nothing", ())
    with pytest.raises(InvalidValue):
        shared.insert_member(9, "I.set", (256,))
    with pytest.raises(NotFound):
        shared.insert_group(1, [GroupMember(1), GroupMember(9)])
    with pytest.raises(InvalidValue):
        shared.insert_group(1, [GroupMember(1), GroupMember(1)])
    with pytest.raises(InvalidValue):
        device.profiles["I.plain"].insert_group(1, [])
    device.insert("I.lpm_table", KEY, Member(1))
    with pytest.raises(AlreadyExists):
        device.insert("I.lpm_table", KEY, Member(2))
    for member in shared.members():  # what was refused uses no resources
        if member != 1:
            shared.delete_member(member)
    assert shared.groups() == []
    assert shared.members() == [1]


def test_links(fabric: Fabric, device: Device, shared: ActionProfile) -> None:
    fabric.add_device(2)
    for port in (1, 2):
        fabric.connect((1, port), (2, port))
    shared.insert_group(1, [GroupMember(1, 1, 1), GroupMember(2, 1, 2), GroupMember(3, 1, 3)])
    device.insert("I.lpm_table", KEY, Group(1))
    flows = range(30)
    assert {result(device, flow) for flow in flows} == {1, 2}  # port 3 has no link
    fabric.devices[2].remove_port(2)
    assert {result(device, flow) for flow in flows} == {1}
    fabric.connect((1, 3), (2, 3))
    assert {result(device, flow) for flow in flows} == {1, 3}
    fabric.devices[1].remove_port(1)
    fabric.devices[1].remove_port(3)
    assert {result(device, flow) for flow in flows} == {0}
    assert len(shared.group(1)) == 3


def test_ports_change_while_a_program_is_staged(fabric: Fabric, device: Device) -> None:
    fabric.add_device(2)
    fabric.connect((1, 1), (2, 1))
    staged = device.stage(Program.load(PROGRAM.read_bytes()))
    profile = staged.profiles["I.shared"]
    profile.insert_member(1, "I.set", (1,))
    profile.insert_member(2, "I.set", (2,))
    profile.insert_group(1, [GroupMember(1, 1, 1), GroupMember(2, 1, 2)])
    staged.insert("I.lpm_table", KEY, Group(1))
    device.remove_port(1)
    fabric.connect((1, 2), (2, 2))
    device.commit(staged)
    assert {result(device, flow) for flow in range(20)} == {2}


@pytest.fixture(name="interface")
def _interface() -> Iterator[str]:
    name = f"itp{os.getpid() % 10000}{next(NUMBERS)}"
    run("ip", "link", "add", name, "type", "veth", "peer", "name", f"{name}p")
    try:
        run("ip", "link", "set", name, "up")
        run("ip", "link", "set", f"{name}p", "up")
        yield name
    finally:
        run("ip", "link", "delete", name)


@pytest.mark.namespaces
@pytest.mark.skipif(os.geteuid() != 0, reason="network interfaces need root")
def test_interfaces(device: Device, shared: ActionProfile, interface: str) -> None:
    device.add_port(1, interface)
    shared.insert_group(1, [GroupMember(1, 1, 1), GroupMember(2)])
    device.insert("I.lpm_table", KEY, Group(1))

    def chosen() -> set[int]:
        return {result(device, flow) for flow in range(20)}

    until(lambda: chosen() == {1, 2})  # the kernel takes a moment to call the link up
    run("ip", "link", "set", f"{interface}p", "down")  # no carrier
    until(lambda: chosen() == {2})
    run("ip", "link", "set", f"{interface}p", "up")
    until(lambda: chosen() == {1, 2})
    run("ip", "link", "set", interface, "down")
    until(lambda: chosen() == {2})


def test_malformed_news() -> None:
    def message(kind: int, index: int, length: int | None = None, more: bytes = b"") -> bytes:
        body = IFINFO.pack(0, 1, index, 0, 0) + more
        return HEADER.pack(HEADER.size + len(body) if length is None else length, kind, 0, 0, 0) + body

    good = message(RTM_NEWLINK, 5) + message(RTM_DELLINK, 6) + message(99, 7)
    expected = [Change(5, "", True), Change(6, "", False)]
    assert changes(good) == expected
    assert changes(good[:-1]) == expected
    assert changes(message(RTM_NEWLINK, 5, length=0) + good) == []
    assert changes(message(RTM_NEWLINK, 5, length=1000)) == []
    assert changes(b"") == []
    name = struct.pack("=HH", 8, 99) + bytes(4) + struct.pack("=HH", 9, IFLA_IFNAME) + b"eth0\0"
    assert changes(message(RTM_NEWLINK, 5, more=name)) == [Change(5, "eth0", True)]
    assert changes(message(RTM_NEWLINK, 5, more=struct.pack("=HH", 0, IFLA_IFNAME))) == [Change(5, "", True)]
