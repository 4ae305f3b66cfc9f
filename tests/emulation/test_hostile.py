"""Foreign frames that a host sends while others sum are counted, and have no effect."""

import random
import socket
from collections.abc import Callable, Iterator

import pytest

from p4src.protocol import HEADER_OFFSET, IPV4_OFFSET, PROTOCOL, UDP_OFFSET, VERSION
from tests.emulation.rig import Rig, paper_testbed
from tests.support.packet_socket import packet_socket
from worker_agent.wire import packet

VALUES = PROTOCOL.targets["v1model"].values_per_packet
COUNT = 60
BATCH = 6  # frames sent at once; bmv2 drops frames that come much faster


def good(rig: Rig, **fields: int) -> bytes:
    """Return a packet that could be of this job and epoch, as the worker W1 sends it, with all header fields from
    `fields`.
    """
    config = rig.service.roster.configs["W1"]
    tree = config.worker_trees[0]
    header = {"job": config.job_id, "epoch": rig.service.roster.epoch, "label": tree.up_label, "sequence": 5}
    header |= {"port": tree.port} | fields
    return bytes(packet([7] * VALUES, **header))


def random_bytes(rig: Rig, draw: random.Random) -> bytes:
    return good(rig)[:HEADER_OFFSET] + draw.randbytes(draw.randrange(46, 1450))


def truncated(rig: Rig, draw: random.Random) -> bytes:
    return good(rig)[: draw.randrange(UDP_OFFSET, PROTOCOL.values_offset)]


def wrong_length(rig: Rig, draw: random.Random) -> bytes:
    whole = good(rig)
    return draw.choice([whole[: draw.randrange(66, len(whole))], whole + draw.randbytes(draw.randrange(1, 400))])


def lying_about_its_length(rig: Rig, draw: random.Random) -> bytes:
    """Return a frame of the right length whose IPv4 or UDP header states another length."""
    frame = bytearray(good(rig))
    frame[draw.choice([IPV4_OFFSET + 2, UDP_OFFSET + 4])] ^= draw.randrange(1, 256)
    return bytes(frame)


def fragment(rig: Rig, draw: random.Random) -> bytes:
    frame = bytearray(good(rig))
    frame[IPV4_OFFSET + 6 : IPV4_OFFSET + 8] = draw.choice([0x2000, draw.randrange(1, 0x2000)]).to_bytes(2, "big")
    return bytes(frame)


def wrong_version(rig: Rig, draw: random.Random) -> bytes:
    return good(rig, version=draw.choice([0, 1, VERSION + 1, 255]))


def unknown_label(rig: Rig, draw: random.Random) -> bytes:
    return good(rig, label=draw.randrange(1 << 20, 1 << 32))


def other_port(rig: Rig, draw: random.Random) -> bytes:
    """Return a packet with a label of the plan and a forged bitmap, for a port where its flow does not belong."""
    return good(rig, sequence=draw.randrange(1000), bitmap=draw.getrandbits(6), flags=draw.choice([0, 1, 2, 4]))


CASES: dict[str, tuple[Callable[[Rig, random.Random], bytes], str, str]] = {
    "random bytes": (random_bytes, "W1", "malformed"),
    "truncated header": (truncated, "W1", "malformed"),
    "wrong length": (wrong_length, "W1", "malformed"),
    "length in a header": (lying_about_its_length, "W1", "malformed"),
    "fragment": (fragment, "W1", "malformed"),
    "wrong version": (wrong_version, "W1", "malformed"),
    "unknown label": (unknown_label, "W1", "unknown"),
    "wrong port": (other_port, "W6", "unknown"),
}


@pytest.fixture(scope="module", params=["softswitch", "bmv2"])
def rig(request: pytest.FixtureRequest) -> Iterator[Rig]:
    import shutil

    if request.param == "bmv2" and shutil.which("simple_switch_grpc") is None:
        pytest.skip("simple_switch_grpc is not on PATH")
    with Rig(request.param, paper_testbed(60.0 if request.param == "softswitch" else 6.0), "atp") as running:
        running.start_all()
        yield running


def socket_of(rig: Rig, host: str) -> socket.socket:
    return packet_socket(rig.emulation.namespace(host), rig.emulation.interface(host))


@pytest.mark.parametrize("case", list(CASES))
def test_hostile_frames_are_counted_and_change_nothing(rig: Rig, case: str) -> None:
    make, sender, verdict = CASES[case]
    draw = random.Random(case)
    before = rig.verdicts()
    rig.submit(100_000)
    with socket_of(rig, sender) as raw:
        for sent in range(BATCH, COUNT + 1, BATCH):
            for _ in range(BATCH):
                raw.send(make(rig, draw))
            rig.emulation.wait(
                lambda sent=sent: rig.verdicts()[verdict] - before[verdict] >= sent, f"{sent} {verdict} counted"
            )
    rig.collect().check()
    after = rig.verdicts()
    assert after[verdict] - before[verdict] == COUNT
    others = {"malformed", "unknown", "refused"} - {verdict}
    assert {name: after[name] for name in others} == {name: before[name] for name in others}


def test_a_stranger_cannot_speak_to_the_root(rig: Rig) -> None:
    """Results, partial sums and answers that a host forges without being part of a flow reach nobody."""
    roots = rig.service.roster.configs["S1"].root_trees
    labels = {flow.label for tree in roots for flow in tree.flows} | {tree.return_label for tree in roots}
    before = rig.verdicts()["unknown"]
    rig.submit(100_000)
    with socket_of(rig, "W6") as raw:
        for label in sorted(labels):
            for flags in (0, 1, 2):
                raw.send(good(rig, label=label, bitmap=0b111111, flags=flags))
    rig.collect().check()
    assert rig.verdicts()["unknown"] >= before


def test_the_socket_is_the_hosts(rig: Rig) -> None:
    with socket_of(rig, "W2") as raw:
        assert raw.getsockname()[0] == rig.emulation.interface("W2")
        assert raw.family == socket.AF_PACKET
