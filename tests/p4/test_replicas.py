"""softswitch: replicas share their bytes until one is changed, and that is not visible."""

from __future__ import annotations

import pytest

from p4src.artifacts import find
from tests.model.packet import Packet
from tests.model.switch import Aggregate, Forward, Replicate
from tests.p4.targets import parameters
from tests.support.waiting import wait_until as until

FRAMES = 300
LABEL, NEXT = 50, 60


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("writer", [2, 3])
def test_a_switch_that_changes_its_copy_changes_no_other(threads: int, writer: int) -> None:
    """1 replicates to 2 and 3, on links in memory: one of them changes what it gets, the other passes it on."""
    from softswitch import Fabric, Match, Program

    program = Program.load(find("v1model", 4).program.read_bytes())
    frames = [Packet(LABEL, 5, number, 0, (number, 2, 3, 4)) for number in range(FRAMES)]
    seen: dict[int, list[bytes]] = {2: [], 3: []}
    with Fabric(threads=threads) as fabric:
        devices = {number: fabric.add_device(number) for number in (1, 2, 3)}
        changes = Aggregate(0, 15, 1, 1, NEXT, NEXT, 9)
        for number, device in devices.items():
            device.load(program)
            device.multicast_set(1, [(2, 1), (3, 2), (4, 3)])
            name, values = parameters(Replicate(1) if number == 1 else changes if number == writer else Forward(9))
            key = (Match("exact", 1), Match("exact", LABEL))
            device.insert("label_table", key, name, [value for _, value in values])
            if number > 1:
                fabric.connect((1, number), (number, 1))
                device.capture = lambda port, data, number=number: seen[number].append(data)
        own: list[bytes] = []
        devices[1].capture = lambda port, data: own.append(data)
        fabric.start()
        for frame in frames:
            devices[1].inject(1, frame.encode())
        until(lambda: all(len(got) == FRAMES for got in (own, *seen.values())))
    unchanged = [frame.encode() for frame in frames]
    assert own == unchanged
    assert seen[5 - writer] == unchanged
    assert [(p[46:50], p[66:]) for p in seen[writer]] == [(NEXT.to_bytes(4, "big"), p[66:]) for p in unchanged]
