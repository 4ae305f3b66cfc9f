"""Scapy's packets and the C engines' packets are the same: each side speaks to an agent in place of the other."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scapy.layers.inet import IP, UDP
from scapy.layers.l2 import Ether

from evaluation.hosts.star import TreeShape
from p4src.protocol import (
    GROUP,
    GROUP_MAC,
    PROTOCOL,
    VERSION,
    Flag,
    HostFlag,
    data_values,
    exponents_per_packet,
    frame_bytes,
    udp_port,
)
from tests.hosts.checked import Checked
from tests.hosts.rig import Rig, finish
from tests.model.checkword import MARK
from tests.support.waiting import wait_until
from worker_agent import fixedpoint
from worker_agent.errors import AllReduceError
from worker_agent.io_options import IoOptions
from worker_agent.wire import InArt, packet

VALUES = 64
DATA = data_values(VALUES)
DIRECT = (TreeShape(0, 1.0, False),)
MAY_BE_MARKED, MARKED = 2, 3
DSCP = 32
"""The lowest bits of IPv4's type of service (ECN, RFC 3168)."""


def test_scapy_lays_the_header_out_as_protocol_json_says() -> None:
    frame = bytes(
        packet(
            [1, -2],
            flags=5,
            job=0x0203,
            label=0x04050607,
            epoch=0x08090A0B,
            sequence=0x0C0D0E0F,
            bitmap=0x1011121314151617,
            port=udp_port(5, 3),
        )
    )
    assert frame[:6] == GROUP_MAC
    ip = Ether(frame)[IP]
    assert (ip.dst, ip.len, ip.ttl, ip.flags, ip.frag) == (str(GROUP), len(frame) - 14, PROTOCOL.ttl, "DF", 0)
    assert (ip[UDP].dport, ip[UDP].len, ip[UDP].chksum) == (udp_port(5, 3), len(frame) - 34, 0)
    expected = {
        "version": 3,
        "flags": 5,
        "job": 0x0203,
        "label": 0x04050607,
        "epoch": 0x08090A0B,
        "sequence": 0x0C0D0E0F,
        "bitmap": 0x1011121314151617,
    }
    for field in PROTOCOL.header:
        assert int.from_bytes(frame[field.offset : field.offset + field.size], "big") == expected[field.name]
    assert struct.unpack_from(">2i", frame, PROTOCOL.values_offset) == (1, -2)
    assert len(frame) == frame_bytes(2)


@pytest.mark.parametrize(("port", "ours"), [(0x4FFF, False), (0x5000, True), (0x5FFF, True), (0x6000, False)])
def test_scapy_takes_udp_for_ours_by_its_port(port: int, ours: bool) -> None:
    frame = Ether(bytes(packet([7], port=port)))
    assert (InArt in frame) is ours
    assert bytes(frame) == bytes(packet([7], port=port))


def sent_by_engine(raw: Any) -> Any:
    frame = raw.recv()
    assert len(frame) == frame_bytes(VALUES)
    decoded = Ether(frame)[InArt]
    assert bytes(Ether(frame)) == frame
    return decoded


@pytest.mark.parametrize(("service", "flag"), [(MAY_BE_MARKED, 0), (MARKED, 0), (0, HostFlag.CONGESTED)])
def test_scapy_can_be_the_server_of_a_c_worker(make_rig: Callable[..., Rig], service: int, flag: int) -> None:
    """The worker counts a result that a switch has marked, or whose contributions were."""
    rig = make_rig(DIRECT, values=VALUES, workers=1, without=["s0", "s1"], io=IoOptions(dscp=DSCP))
    config, server = rig.job.workers[0], rig.raw("s0")
    tree = config.worker_trees[0]
    tensor, checked = np.linspace(-3, 5, 100, dtype=np.float32), Checked(1, VALUES)
    work = rig.engines[0].allreduce_async(tensor, bits=32)

    def result(of: Any, values: list[int]) -> bytes:
        made = packet(
            values,
            flags=int(of.flags) & Flag.MAXIMUM | Flag.RESULT | (flag if of.sequence else 0),
            job=of.job,
            label=tree.return_label,
            epoch=of.epoch,
            sequence=of.sequence,
            bitmap=len(config.workers),
            port=tree.port,
        )
        made[IP].tos = service if of.sequence else 0
        return bytes(made)

    first = server.recv()
    assert Ether(first)[IP].tos == DSCP << 2 | MAY_BE_MARKED
    exponents = Ether(first)[InArt]
    assert (exponents.version, exponents.flags, exponents.job) == (VERSION, Flag.MAXIMUM, 7)
    assert exponents.label == tree.up_label
    assert (exponents.epoch, exponents.sequence, exponents.bitmap) == (config.epoch, 0, 0)
    chunks = [tensor[:DATA], np.concatenate([tensor[DATA:], np.zeros(2 * DATA - 100, np.float32)])]
    agreed = [fixedpoint.exponent(chunk) for chunk in chunks]
    assert exponents.values[:2] == [100 - 2**31, -100 - 1], "sizes, for messages"
    count = exponents_per_packet(VALUES)
    for first in (0, count):  # Each is there twice.
        mine = enumerate(exponents.values[first : first + count], first)
        words = [checked.check.exponent_of(tree.tree, 0, j, word) for j, word in mine][2:]
        assert all(word >= MARK for word in words[:6]), "what the operation is"
        assert words[6:] == [0, *agreed, *[0] * (count - 11)], "nobody has NaN, and two exponents"
    server.send(result(exponents, checked.result(exponents.values, tree.tree, 0, 0, Flag.MAXIMUM)))
    sent: dict[int, Any] = {}
    while len(sent) < len(chunks):  # A packet that the machine was too busy for comes again later.
        data = sent_by_engine(server)
        if data.sequence != exponents.sequence:  # Exponents may come again, too.
            sent.setdefault(data.sequence, data)
    assert set(sent) == {1, 2}
    for number, chunk in enumerate(chunks):
        data = sent[1 + number]
        assert int(data.flags) & ~Flag.RESEND == 0
        sent_words = fixedpoint.quantise(chunk, agreed[number], 1).tolist()
        assert data.values == checked.sent(sent_words, [0], tree.tree, 1 + number)
        answer = checked.sent([7 + number] * DATA, [0], tree.tree, 1 + number)
        server.send(result(data, checked.result(answer, tree.tree, 1 + number, 0)))
    finish([work])
    expected = [
        fixedpoint.dequantise(np.full(DATA, 7 + number, np.int32), biased, 1) for number, biased in enumerate(agreed)
    ]
    assert (tensor == np.concatenate(expected)[:100]).all()
    marked = 0 if service == MAY_BE_MARKED else len(chunks)
    assert rig.engines[0].stats().trees[0].marked == marked


def test_a_worker_that_is_told_a_lower_exponent_than_its_own_says_so_at_once(make_rig: Callable[..., Rig]) -> None:
    """A switch has taken the worker for there before it was. The others may have used the exponent, so waiting for
    another would be in vain.
    """
    rig = make_rig(DIRECT, values=VALUES, workers=1, without=["s0", "s1"])
    config, server = rig.job.workers[0], rig.raw("s0")
    tree, checked = config.worker_trees[0], Checked(1, VALUES)
    work = rig.engines[0].allreduce_async(np.ones(100, np.float32), bits=32)
    sent = sent_by_engine(server)
    count = exponents_per_packet(VALUES)
    words = list(sent.values)
    for position in (9, 9 + count):  # the first chunk's exponent, after eight words about the operation and one of NaN
        exponent = checked.check.exponent_of(tree.tree, 0, position, words[position])
        words[position] = checked.check.exponent_word(tree.tree, 0, position, exponent - 1)
    answer = packet(
        checked.result(words, tree.tree, 0, 0, Flag.MAXIMUM),
        flags=Flag.MAXIMUM | Flag.RESULT,
        job=sent.job,
        label=tree.return_label,
        epoch=sent.epoch,
        sequence=0,
        bitmap=1,
        port=tree.port,
    )
    server.send(bytes(answer))
    with pytest.raises(AllReduceError, match="a switch has lost what this worker sent"):
        work.wait()


@pytest.mark.parametrize("marked", [(), (0,), (1,)])
def test_scapy_can_be_the_workers_of_a_c_server(make_rig: Callable[..., Rig], marked: tuple[int, ...]) -> None:
    """The result says whether a switch has marked a contribution, whichever."""
    rig = make_rig(DIRECT, values=VALUES, workers=2, without=["w0", "w1"])
    result = Flag.RESULT | (HostFlag.CONGESTED if marked else 0)
    raws = [rig.raw("w0"), rig.raw("w1")]
    labels, checked = [config.worker_trees[0] for config in rig.job.workers], Checked(2, VALUES)
    total = [3 * (position - 30) for position in range(DATA)]
    expected = checked.result(checked.sent(total, [0, 1], labels[0].tree, 0), labels[0].tree, 0, 1)
    for worker in range(2):
        data = [(worker + 1) * (position - 30) for position in range(DATA)]
        values = checked.sent(data, [worker], labels[worker].tree, 0)
        sent = packet(values, job=7, label=labels[worker].up_label, epoch=1, sequence=0, port=labels[0].port)
        sent[IP].tos = MARKED if worker in marked else MAY_BE_MARKED
        raws[worker].send(bytes(sent))
    for raw in raws:
        frame = Ether(raw.recv())
        decoded = frame[InArt]
        assert frame[IP].tos == MAY_BE_MARKED
        assert (decoded.flags, decoded.job, decoded.epoch, decoded.sequence) == (result, 7, 1, 0)
        assert decoded.bitmap == 1 << 32 | 2, "one chunk is complete, two workers"
        assert decoded.label == labels[0].return_label
        assert decoded.values == expected
    # Worker 1 asks again and is answered alone.
    again = packet(
        [0] * VALUES, flags=int(Flag.RESEND), job=7, label=labels[1].up_label, epoch=1, sequence=0, port=labels[0].port
    )
    raws[1].send(bytes(again))
    decoded = Ether(raws[1].recv())[InArt]
    assert decoded.label == labels[1].answer_label
    assert decoded.values == expected
    wait_until(lambda: rig.servers[0].stats().trees[0].answers == 1, "the answer is counted")


def test_a_rig_has_the_switch_without_the_faults_of_the_one_before(make_rig: Callable[..., Rig]) -> None:
    alone: dict[str, Any] = {"values": VALUES, "workers": 1, "without": ["w0", "s0", "s1"]}
    make_rig(DIRECT, **alone).faults(loss=1.0, duplicate=1.0, reorder=1.0, delay_seconds=1.0, hold_seconds=1.0)
    rig = make_rig(DIRECT, **alone)
    sender, receiver, tree = rig.raw("w0"), rig.raw("s0"), rig.job.workers[0].worker_trees[0]
    for sequence in range(8):  # Each packet comes once and in order.
        sender.send(bytes(packet([1] * VALUES, job=7, label=tree.up_label, epoch=1, sequence=sequence, port=tree.port)))
    assert [sent_by_engine(receiver).sequence for _ in range(8)] == list(range(8))
