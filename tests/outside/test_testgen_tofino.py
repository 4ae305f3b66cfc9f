"""p4testgen's tests of our Tofino program pass on our model of it, which other tests take for the chip; its scripts."""

from __future__ import annotations

import json
import sys

import pytest

from tests.outside.ptf_scripts import Added, Expected, Script, as_json, from_json, read
from tests.outside.testgen_tofino import differences, kept, on_model

KEPT = {script.name: script for script in kept()[1]}
FRAME = bytes.fromhex("0127607d921a00000000000008004500") + bytes(40)
SCRIPT = r"""
import bfrt_grpc.bfruntime_pb2 as bfruntime_pb2
import bfrt_grpc.client as gc
from bfruntime_client_base_tests import BfRuntimeTest
from ptf.mask import Mask
from ptf.testutils import send_packet, verify_packet, verify_no_other_packets

class AbstractTest(BfRuntimeTest):
    def insertTableEntry(self, *given):
        raise AssertionError("no switch is here")

class Test1(AbstractTest):
    def setupCtrlPlane(self):
        self.setRegisterValue('pipe.A.slots.slot_epoch', [('A.slots.slot_epoch.epoch', 7), ('generation', 1)], 3)
        self.setRegisterValue('pipe.A.slots.slot_sequence', 9, 3)
        self.insertTableEntry('pipe.A.label.label_table', [gc.KeyTuple('hdr.inart.label', 0xA5)],
                              'A.label.forward', [gc.DataTuple('port', 5)])
        self.insertTableEntry('pipe.A.ipv4_table', [gc.KeyTuple('destination', 0x0A000000, prefix_len=8)],
                              'A.route', [])

    def sendPacket(self):
        send_packet(self, 3, b'\x01\x02')

    def verifyPackets(self):
        exp_pkt = Mask(b'\x01\x02')
        exp_pkt.set_do_not_care(4, 6)
        verify_packet(self, exp_pkt, 5)

class Test2(AbstractTest):
    def setupCtrlPlane(self):
        pass

    def sendPacket(self):
        send_packet(self, 4, b'\x00')

    def verifyPackets(self):
        verify_no_other_packets(self, self.dev_id)
"""


@pytest.mark.parametrize("name", KEPT)
def test_what_leaves_is_what_p4testgen_expects(name: str) -> None:
    assert differences(KEPT[name], on_model()) == []


def test_the_tests_that_are_kept_fill_registers_and_expect_frames() -> None:
    assert any(script.registers for script in KEPT.values()) and any(script.expected for script in KEPT.values())


def test_a_script_says_what_its_tests_install_send_and_expect() -> None:
    before = dict(sys.modules)
    first, second = read(SCRIPT.replace("verify_no_other_packets(self, self.dev_id)", "pass"))
    assert first == Script(
        "Test1",
        [
            Added("label_table", {"label": (0xA5, None)}, "forward", {"port": 5}),
            Added("ipv4_table", {"destination": (0x0A000000, 8)}, "route", {}),
        ],
        {("pipe.A.slots.slot_epoch", 3): {"epoch": 7, "generation": 1}, ("pipe.A.slots.slot_sequence", 3): 9},
        [(3, b"\x01\x02")],
        [Expected(5, b"\x01\x02", b"\xf0\x3f")],
    )
    assert second == Script("Test2", packets=[(4, b"\x00")])
    assert sys.modules == before, "a script leaves a module of another switch behind"
    assert from_json(json.loads(json.dumps(as_json([first, second])))) == [first, second]


def bridged(port: int, mask: int = 0x1FF) -> Added:
    """Return an entry that sends what comes in by port 3, as far as the mask says, out of a port."""
    return Added("bridge_table", {"ingress_port": (3, mask), "destination": (0, 0)}, "bridge", {"port": port})


@pytest.mark.parametrize(
    "entries, arrives, expected, problem",
    [
        ([], 3, [Expected(5, FRAME, b"\xff" * len(FRAME))], "nothing left port 5"),
        ([bridged(5)], 3, [], f"port 5: {FRAME.hex()} left"),
        ([bridged(5)], 3, [Expected(5, FRAME + b"\0", b"\xff" * 57)], "nothing left port 5"),
        ([bridged(5)], 3, [Expected(5, b"\0" + FRAME[1:], b"\xff" * len(FRAME))], "nothing left port 5"),
        ([bridged(5)], 3, [Expected(5, b"\0" + FRAME[1:], b"\xfe" + b"\xff" * 55)], ""),
        ([bridged(5)], 4, [], ""),
        ([bridged(5, mask=0x100)], 4, [Expected(5, FRAME, b"\xff" * len(FRAME))], ""),
        ([bridged(0x1FF)], 3, [], ""),
    ],
)
def test_a_difference_is_said(entries: list[Added], arrives: int, expected: list[Expected], problem: str) -> None:
    found = "; ".join(differences(Script("a", entries, {}, [(arrives, FRAME)], expected), on_model()))
    assert problem in found if problem else not found
