"""Traces: their content, which packets they cover, and that a traced packet is treated like any other."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from softswitch import Fabric
from softswitch.bmv2json.model import Match
from softswitch.dataplane.device import Device
from softswitch.dataplane.program import Program
from softswitch.dataplane.trace import Step, Trace, as_json, lines
from softswitch.errors import AlreadyExists
from softswitch.tests.dataplane.programs import program
from softswitch.tests.dataplane.scenario import Recording, answers_of, configure

HERE = Path(__file__).parent
DEMO = HERE.parent / "p4runtime" / "demo.json"
WAIT = 10.0


@pytest.fixture(scope="module")
def demo() -> Program:
    return Program.load(DEMO.read_bytes())


def traced(device: Device, port: int, frame: bytes) -> list[Step]:
    with Trace(device, 1) as trace:
        trace.start()
        device.process(port, frame)
        packet = trace.next(WAIT)
    assert packet is not None
    return packet


def entry(device: Device, action: str, *params: int) -> None:
    match = (Match("ternary"), Match("range", 0, high=0xFFFF), Match("ternary"), Match("exact", 0))
    device.insert("MyIngress.acl", match, f"MyIngress.{action}", params, 1)


ETHERNET = bytes.fromhex("000000000002 000000000001 1234".replace(" ", ""))


def test_the_path_of_a_packet(demo: Program) -> None:
    with Fabric() as fabric:
        device = fabric.add_device(1, 255)
        device.load(demo)
        device.insert("MyIngress.exact_table", (Match("exact", 2), Match("exact", 4)), "MyIngress.forward", (7,))
        assert lines(traced(device, 4, ETHERNET + b"payload")) == [
            "21 bytes came in on port 4",
            "  parser state start",
            "    select standard_metadata.ingress_port 4",
            "  parser state parse_ethernet",
            "    extract eth: dst 2, src 1, type 4660",
            "    select eth.type 4660",
            "  parser accepts after 14 bytes",
            "  if hdr.packet_out.isValid(): false  [demo.p4:134]",
            "      std.egress_spec = 511  -> standard_metadata.egress_spec 511  [demo.p4:139]",
            "  table MyIngress.const_table: miss, hdr.eth.type 4660  [demo.p4:119]",
            "    action NoAction",
            "  table MyIngress.exact_table: hit, hdr.eth.dst 2, standard_metadata.ingress_port 4  [demo.p4:96]",
            "    action MyIngress.forward port 7  [demo.p4:83]",
            "      std.egress_spec = port  -> standard_metadata.egress_spec 7  [demo.p4:83]",
            "  if hdr.demo.isValid(): false  [demo.p4:142]",
            "  table MyIngress.acl: miss, hdr.ipv4.protocol 0, meta.port 0, meta.class 0, hdr.ipv4.valid 0"
            "  [demo.p4:108]",
            "    action NoAction",
            "  table MyIngress.keyless: no key  [demo.p4:128]",
            "    action NoAction",
            "      verdicts.count(1)  [demo.p4:151]",
            "  egress to port 7",
            "  if std.egress_port == CPU_PORT: false  [demo.p4:158]",
            "  deparser: eth",
            "  14 bytes of headers, 7 of payload",
            "  21 bytes leave by port 7",
        ]


def test_drops_copies_and_parser_errors(demo: Program) -> None:
    with Fabric() as fabric:
        device = fabric.add_device(1, 255)
        device.load(demo)
        assert lines(traced(device, 1, b"short"))[4] == "  parser error PacketTooShort after 0 bytes"
        assert lines(traced(device, 1, ETHERNET))[-1] == "  dropped: by the program, at the end of ingress"
        entry(device, "replicate", 9)
        assert lines(traced(device, 1, ETHERNET))[-1] == "  dropped: no_such_multicast_group"
        device.multicast_set(9, [(1, 0), (2, 5)])
        packet = traced(device, 1, ETHERNET)
        assert [step.values["port"] for step in packet if step.kind == "sent"] == [1, 2]
        shown = [line for line in lines(packet) if "copies" in line or "egress to" in line]
        assert shown == [
            "  multicast group 9: 2 copies",
            "  egress to port 1 (replica)",
            "  egress to port 2, replication id 5 (replica)",
        ]
        device.set_default("MyIngress.keyless", "MyIngress.copy", (3,))
        device.clone_set(3, [(6, 1)])
        shown = lines(traced(device, 1, ETHERNET))
        assert "  clone session 3: 1 copy" in shown
        assert "  egress to port 6, replication id 1 (clone from ingress)" in shown
        json.dumps(as_json(traced(device, 1, ETHERNET)))


def test_only_the_packets_that_are_asked_for(demo: Program) -> None:
    with Fabric() as fabric:
        device = fabric.add_device(1, 255)
        device.load(demo)
        device.set_default("MyIngress.exact_table", "MyIngress.forward", (7,))
        device.insert("MyIngress.exact_table", (Match("exact", 2), Match("exact", 1)), "MyIngress.forward", (8,))
        for ports, expected in (((2, None), [2, 2]), ((None, 8), [1, 1]), ((1, 7), []), ((2, 7), [2, 2])):
            with Trace(device, 2, *ports) as trace:
                trace.start()
                for port in (1, 2, 1, 2, 1, 2):
                    device.process(port, ETHERNET)
                for port in expected:
                    packet = trace.next(WAIT)
                    assert packet is not None
                    assert packet[0].values["port"] == port
                assert trace.done == bool(expected)
                assert trace.next(0.01) is None
        with Trace(device), pytest.raises(AlreadyExists):
            Trace(device)
        with Trace(device, 1):
            pass


def test_trace_goes_on_with_the_next_program(demo: Program) -> None:
    with Fabric() as fabric:
        device = fabric.add_device(1, 255)
        with Trace(device, 2) as trace:
            assert trace.next(0.01) is None  # there is no program yet
            device.load(demo)
            trace.start()
            device.process(1, ETHERNET)
            assert trace.next(WAIT) is not None
            device.load(program("router"))
            device.process(2, ETHERNET)
            device.process(3, ETHERNET)
            packet = trace.next(WAIT)
            assert packet is not None and packet[0].values["port"] == 2
            assert trace.done


def test_a_packet_without_end_has_a_trace_with_one() -> None:
    recording = Recording.read(HERE / "recorded" / "router.jsonl")
    with Fabric() as fabric:
        device = fabric.add_device(1)
        device.load(program("router"))
        configure(device, recording.scenario)
        for one in device.entries("MyIngress.acl"):
            device.delete("MyIngress.acl", one.match, one.priority)
        everything = [_any(key.match_kind, key.width) for key in program("router").tables["MyIngress.acl"].keys]
        device.insert("MyIngress.acl", everything, "MyIngress.again", (), 1)
        for port, frame in recording.scenario.frames:
            packet = traced(device, port, frame)
            if packet[-1].kind == "too_long" or "dropped: too_many_passes" in [step.text for step in packet]:
                return
    pytest.fail("no frame went round and round")


def _any(kind: str, width: int) -> Match:
    return Match("range", 0, high=(1 << width) - 1) if kind == "range" else Match(kind)


@pytest.mark.parametrize("name", ["router", "matching", "features", "sums"])
def test_traced_packets_fare_as_others(name: str) -> None:
    recording = Recording.read(HERE / "recorded" / f"{name}.jsonl")
    source = random.Random(5)
    with Fabric() as fabric:
        traced, other = (fabric.add_device(number) for number in (1, 2))
        for device in (traced, other):
            device.load(program(name))
            configure(device, recording.scenario)
        with Trace(traced) as trace:
            trace.start()
            assert list(answers_of(traced, recording.scenario)) == recording.answers
            list(answers_of(other, recording.scenario))  # both have the same state again
            for _ in recording.scenario.frames:
                packet = trace.next(WAIT)
                assert packet is not None and lines(packet)
            for port, frame in recording.scenario.frames:
                hostile = bytearray(frame[: source.randrange(len(frame) + 1)])
                for _ in range(3):
                    if hostile:
                        hostile[source.randrange(len(hostile))] = source.randrange(256)
                assert traced.process(port, bytes(hostile)) == other.process(port, bytes(hostile))
                packet = trace.next(WAIT)
                assert packet is not None and lines(packet)


def test_no_packet_of_a_new_program_is_missed(demo: Program) -> None:
    """The trace has the first packets of the new program, and the last ones of the program before."""
    other = program("matching")
    with Fabric() as fabric:
        device = fabric.add_device(1, 255)
        with Trace(device) as trace:
            trace.start()  # There is no program yet.
            for pushed in (demo, other, demo):
                device.load(pushed)
                for size in (1, 2):
                    device.process(4, ETHERNET + bytes(size))
            packets = [trace.next(WAIT) for _ in range(6)]
    texts = [lines(packet or [])[0] for packet in packets]
    assert texts == [f"{14 + size} bytes came in on port 4" for size in (1, 2)] * 3
    states = [[step.text for step in packet or [] if step.kind == "state"] for packet in packets]
    assert states[0] == states[1] == states[4] == states[5] != states[2] == states[3]


def test_a_trace_of_few_packets_ends_across_a_push(demo: Program) -> None:
    with Fabric() as fabric:
        device = fabric.add_device(1, 255)
        device.load(demo)
        with Trace(device, 3) as trace:
            trace.start()
            for size in range(1, 6):
                device.process(4, ETHERNET + bytes(size))
                if size == 2:
                    device.load(demo)
            found = [lines(trace.next(WAIT) or [])[0] for _ in range(3)]
            assert trace.done
            assert trace.next(0) is None
    assert found == [f"{14 + size} bytes came in on port 4" for size in (1, 2, 3)]
