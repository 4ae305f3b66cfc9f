"""The same packets give the same frames on the same ports on every target, and the same counts."""

from __future__ import annotations

import random
from collections import Counter
from itertools import islice

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from p4src.protocol import HEADER_OFFSET, IPV4_OFFSET, PROTOCOL, UDP_OFFSET, Flag, Verdict
from tests.model.packet import Packet, envelope
from tests.model.switch import Aggregate
from tests.p4.comparison import compare, compare_counters
from tests.p4.conftest import Pair
from tests.p4.rig import Arrival, Traffic, switch

WORKERS = ((1, 10), (2, 11), (3, 12), (4, 13))
"""Port and label of the flows that four workers send into four slots."""
SHARED = settings(
    max_examples=100,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)


@SHARED
@given(source=st.randoms(use_true_random=False), length=st.integers(1, 40))
def test_any_sequence(pair: Pair, source: random.Random, length: int) -> None:
    traffic = Traffic(source, pair.values, pair.next_epoch())
    compare(pair.target, pair.reference, islice(pair.arrivals(traffic), length))
    compare_counters(pair.target, pair.reference)


def test_long_sequences_meet_every_verdict(pair: Pair) -> None:
    traffic = Traffic(random.Random(20), pair.values, pair.next_epoch())
    before = Counter(pair.reference.verdicts)
    compare(pair.target, pair.reference, islice(pair.arrivals(traffic), 3000))
    compare_counters(pair.target, pair.reference)
    pair.epoch = traffic.epoch
    met = pair.reference.verdicts - before
    assert all(met[verdict] >= 15 for verdict in Verdict), met


def test_packets_of_256_values(wide_pair: Pair) -> None:
    traffic = Traffic(random.Random(21), wide_pair.values, wide_pair.next_epoch())
    compare(wide_pair.target, wide_pair.reference, (traffic.arrival() for _ in range(600)))
    compare_counters(wide_pair.target, wide_pair.reference)


def contribution(worker: int, epoch: int, sequence: int, values: tuple[int, ...], flags: int = 0) -> Arrival:
    """Return the packet of worker ``worker``."""
    port, label = WORKERS[worker]
    return Arrival(port, Packet(label, epoch, sequence, 0, values, flags, job=7).encode())


def leaving(pair: Pair, arrivals: list[Arrival]) -> list[tuple[int, bytes]]:
    """Return what leaves the target, in order of arrivals; the reference has to agree."""
    frames = []
    for arrival in arrivals:
        compare_to = sorted(pair.reference.process(arrival.port, arrival.frame))
        found = sorted(pair.target.process(arrival.port, arrival.frame))
        assert found == compare_to
        frames += found
    return frames


def test_four_workers_make_one_packet(pair: Pair) -> None:
    epoch = pair.next_epoch()
    data = [(1, 0xFFFFFFFF, 0x80000000, 7), (2, 2, 0x80000000, 0), (3, 0, 5, 0), (4, 0, 0, 0xFFFFFFF0)]
    frames = leaving(pair, [contribution(w, epoch, 5, pair.repeated(data[w])) for w in (2, 0, 3, 1)])
    total = Packet(100, epoch, 5, 0b1111, pair.repeated((10, 1, 5, 0xFFFFFFF7)), 0, job=7)
    assert frames == [(5, total.encode())]


def test_the_maximum_is_of_signed_numbers(pair: Pair) -> None:
    epoch = pair.next_epoch()
    data = [
        (1, 0xFFFFFFFF, 0x80000000, 7),
        (2, 0xFFFFFFFE, 0x7FFFFFFF, 9),
        (3, 0x80000000, 0, 8),
        (0, 0x80000001, 1, 0),
    ]
    frames = leaving(pair, [contribution(w, epoch, 2, pair.repeated(data[w]), Flag.MAXIMUM) for w in range(4)])
    largest = pair.repeated((3, 0xFFFFFFFF, 0x7FFFFFFF, 9))
    top = Packet(100, epoch, 2, 0b1111, largest, int(Flag.MAXIMUM), job=7)
    assert frames == [(5, top.encode())]


def test_flush_then_late_packets_pass_through(pair: Pair) -> None:
    epoch = pair.next_epoch()
    ones = (1,) * pair.values
    frames = leaving(
        pair,
        [
            contribution(0, epoch, 9, ones),
            contribution(1, epoch, 9, ones),
            contribution(1, epoch, 9, ones, Flag.RESEND),
            contribution(2, epoch, 9, ones),
            contribution(0, epoch, 9, ones, Flag.RESEND),
        ],
    )
    flushed = Packet(100, epoch, 9, 0b0011, (2,) * pair.values, int(Flag.RESEND), job=7)
    first = flushed if pair.flushes else flushed._replace(bitmap=0b0010, values=ones)
    assert frames == [
        (5, first.encode()),
        (5, flushed._replace(bitmap=0b0100, values=ones, flags=0).encode()),
        (5, flushed._replace(bitmap=0b0001, values=ones).encode()),
    ]


def test_a_newer_chunk_takes_the_slot_and_an_older_one_passes(pair: Pair) -> None:
    epoch = pair.next_epoch()
    ones, twos = (1,) * pair.values, (2,) * pair.values
    frames = leaving(
        pair,
        [
            contribution(0, epoch, 1, ones),
            contribution(0, epoch, 5, twos),
            contribution(1, epoch, 1, ones),
            *(contribution(worker, epoch, 5, twos) for worker in (1, 2, 3)),
            contribution(0, epoch, 9, ones),
            contribution(2, epoch, 5, twos),
        ],
    )
    assert frames == [
        (5, Packet(100, epoch, 1, 0b0010, ones, 0, job=7).encode()),
        (5, Packet(100, epoch, 5, 0b1111, (8,) * pair.values, 0, job=7).encode()),
        (5, Packet(100, epoch, 5, 0b0100, twos, 0, job=7).encode()),
    ]


def test_any_other_epoch_takes_the_slot_and_none_keeps_it(pair: Pair) -> None:
    epoch = pair.next_epoch()
    ones, twos = (1,) * pair.values, (2,) * pair.values
    flushed = Packet(100, 0xFFFFFFFF, 1, 0b0001, ones, int(Flag.RESEND), job=7)
    for strange in (0xFFFFFFFF, epoch + 1, epoch - 1):
        frames = leaving(
            pair,
            [
                contribution(0, epoch, 1, ones),
                contribution(0, strange, 0xFFFFFFFD, ones),
                contribution(0, strange, 1, ones, Flag.RESEND),
                *(contribution(worker, epoch, 1, twos) for worker in range(4)),
            ],
        )
        assert frames == [
            (5, flushed._replace(epoch=strange).encode()),
            (5, Packet(100, epoch, 1, 0b1111, (8,) * pair.values, 0, job=7).encode()),
        ]
        epoch = pair.next_epoch()


def test_only_complete_sums_have_the_next_label(pair: Pair) -> None:
    """What is flushed or passes through leaves with another label: it is not added again before the root."""
    epoch = pair.next_epoch()
    ones = (1,) * pair.values
    flows = [Arrival(port, Packet(label, epoch, 3, 0, ones).encode()) for port, label in ((1, 20), (2, 21), (3, 22))]
    total = Packet(101, epoch, 3, 0b111, (3,) * pair.values)
    assert leaving(pair, [*flows, flows[1]]) == [
        (6, total.encode()),
        (6, Packet(201, epoch, 3, 0b010, ones).encode()),
    ]
    again = [Arrival(port, Packet(label, epoch, 5, 0, ones).encode()) for port, label in ((1, 20), (2, 21))]
    resend = Packet(22, epoch, 5, 0, ones, int(Flag.RESEND))
    assert leaving(pair, [*again, Arrival(3, resend.encode())]) == [
        (6, Packet(101, epoch, 5, 0b111, (3,) * pair.values, int(Flag.RESEND)).encode())
    ]
    early = resend._replace(sequence=7)
    late = Arrival(2, Packet(21, epoch, 7, 0, ones).encode())
    assert leaving(pair, [Arrival(3, early.encode()), late]) == [
        (6, early._replace(label=201, bitmap=0b100).encode()),
        (6, Packet(201, epoch, 7, 0b010, ones).encode()),
    ]


def test_forwarded_packets_keep_their_headers_and_sums_have_no_udp_checksum(pair: Pair) -> None:
    """Any sender, port of ours, service, TTL, and a wrong IPv4 checksum: forwarded, replicated, completed.

    It runs before the test that restarts the switch: bmv2 keeps the nodes of its groups when it gets a program again,
    and replicates twice from then on.
    """
    epoch = pair.next_epoch()
    outer = bytearray(
        envelope(
            pair.values,
            source_mac=bytes.fromhex("020000000077"),
            source=0xC0A80105,
            source_port=7,
            port=PROTOCOL.ports[-1],
            checksum=0xABCD,
            service=0xB8 | 3,
            identification=0x1234,
            fragment=0,
            ttl=1,
        )
    )
    outer[IPV4_OFFSET + 10] ^= 0x40
    without_checksum = bytes(outer[:-2]) + b"\0\0"
    ones = (1,) * pair.values
    for port, label, sent in ((5, 10, [6]), (6, 50, [1, 2, 3, 4]), (3, 32, [4])):
        packet = Packet(label, epoch, 1, 0, ones, outer=bytes(outer))
        left = packet
        if label == 32:
            rule = pair.reference.labels[3, 32]
            assert isinstance(rule, Aggregate)
            left = packet._replace(label=0xFFFFFFFF, bitmap=rule.flow, outer=without_checksum)
        assert leaving(pair, [Arrival(port, packet.encode())]) == [(out, left.encode()) for out in sent]
    # The sum's headers are those of its last packet.
    arrivals = [contribution(worker, epoch, 7, ones) for worker in range(3)]
    last = Packet(13, epoch, 7, 0, ones, outer=bytes(outer))
    total = Packet(100, epoch, 7, 0b1111, (4,) * pair.values, outer=without_checksum)
    assert leaving(pair, [*arrivals, Arrival(4, last.encode())]) == [(5, total.encode())]
    compare_counters(pair.target, pair.reference)


def test_a_restarted_switch_has_forgotten_its_slots_and_its_counts(pair: Pair) -> None:
    epoch = pair.next_epoch()
    ones = (1,) * pair.values
    before = [contribution(worker, epoch, 3, ones) for worker in (0, 1, 2)]
    after = [contribution(worker, epoch, 3, ones) for worker in (3, 0, 1, 2)]
    assert leaving(pair, before) == []
    pair.restart()
    # Epoch 0 and sequence 0 are the apparent owner of a fresh slot.
    frames = leaving(pair, [contribution(worker, pair.zero, 0, ones) for worker in range(4)] + after)
    assert [
        Packet(100, at, sequence, 0b1111, (4,) * pair.values, 0, job=7).encode()
        for at, sequence in ((pair.zero, 0), (epoch, 3))
    ] == [frame for _, frame in frames]
    compare_counters(pair.target, pair.reference)


def test_nothing_malformed_changes_a_slot(pair: Pair) -> None:
    """Between the contributions of a chunk comes every kind of wrong packet; the sum is right."""
    epoch = pair.next_epoch()
    ones = (1,) * pair.values
    good = [contribution(worker, epoch, 6, ones) for worker in range(4)]
    frame, longer = good[1].frame, envelope(pair.values + 1)
    wrong = [
        *(Arrival(2, frame[:length]) for length in range(14, len(frame))),
        Arrival(2, frame + b"\0"),
        Arrival(2, frame[:HEADER_OFFSET] + b"\x01" + frame[HEADER_OFFSET + 1 :]),
        Arrival(2, envelope(pair.values, fragment=0x2000) + frame[HEADER_OFFSET:]),
        Arrival(2, envelope(pair.values, fragment=1) + frame[HEADER_OFFSET:]),
        Arrival(2, longer + frame[HEADER_OFFSET:]),
        Arrival(2, longer[:UDP_OFFSET] + frame[UDP_OFFSET:]),
        Arrival(2, frame[:UDP_OFFSET] + longer[UDP_OFFSET:] + frame[HEADER_OFFSET:]),
        Arrival(2, envelope(pair.values, port=PROTOCOL.ports[-1] + 1) + frame[HEADER_OFFSET:]),
        Arrival(3, frame),
        contribution(1, epoch, 6, ones, Flag.RESULT),
        Arrival(2, Packet(12345, epoch, 6, 0, ones).encode()),
    ]
    before = Counter(pair.reference.verdicts)
    arrivals = [good[0], *wrong, good[1], *wrong, good[2], *wrong, good[3]]
    assert leaving(pair, arrivals) == [(5, Packet(100, epoch, 6, 0b1111, (4,) * pair.values, 0, job=7).encode())]
    met = pair.reference.verdicts - before
    assert met == {
        Verdict.ABSORBED: 3,
        Verdict.COMPLETED: 1,
        Verdict.MALFORMED: 3 * (len(frame) - UDP_OFFSET + 7),
        Verdict.UNKNOWN: 6,
        Verdict.REFUSED: 3,
    }
    compare_counters(pair.target, pair.reference)


def test_every_prefix_of_an_ipv4_frame(pair: Pair) -> None:
    traffic = Traffic(random.Random(3), pair.values, 1)
    whole = next(frame for frame in (traffic.ipv4_frame() for _ in range(200)) if len(switch(4).process(1, frame)) == 1)
    compare(pair.target, pair.reference, [Arrival(1, whole[:length]) for length in range(14, len(whole) + 1)])
