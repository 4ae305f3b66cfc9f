"""The same packets give the same frames on the same ports on every target, and the same counts."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from p4src.protocol import Flag, Verdict
from tests.model.packet import Packet
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
    compare(pair.target, pair.reference, (traffic.arrival() for _ in range(length)))
    compare_counters(pair.target, pair.reference)


def test_long_sequences_meet_every_verdict(pair: Pair) -> None:
    traffic = Traffic(random.Random(20), pair.values, pair.next_epoch())
    before = Counter(pair.reference.verdicts)
    compare(pair.target, pair.reference, (traffic.arrival() for _ in range(3000)))
    compare_counters(pair.target, pair.reference)
    pair.epoch = traffic.epoch
    met = pair.reference.verdicts - before
    assert all(met[verdict] >= 15 for verdict in Verdict), met


def test_packets_of_256_values(wide_pair: Pair) -> None:
    traffic = Traffic(random.Random(21), wide_pair.values, wide_pair.next_epoch())
    compare(wide_pair.target, wide_pair.reference, (traffic.arrival() for _ in range(600)))
    compare_counters(wide_pair.target, wide_pair.reference)


def contribution(worker: int, epoch: int, sequence: int, values: tuple[int, ...], flags: int = 0) -> Arrival:
    """Worker ``worker``'s packet."""
    port, label = WORKERS[worker]
    return Arrival(port, Packet(label, epoch, sequence, 0, values, flags, job=7).encode())


def leaving(pair: Pair, arrivals: list[Arrival]) -> list[tuple[int, bytes]]:
    """What leaves the target, in order of arrivals; the reference has to agree."""
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
    frames = leaving(pair, [contribution(w, epoch, 5, data[w]) for w in (2, 0, 3, 1)])
    total = Packet(100, epoch, 5, 0b1111, (10, 1, 5, 0xFFFFFFF7), 0, job=7)
    assert frames == [(5, total.encode())]


def test_the_maximum_is_of_signed_numbers(pair: Pair) -> None:
    epoch = pair.next_epoch()
    data = [
        (1, 0xFFFFFFFF, 0x80000000, 7),
        (2, 0xFFFFFFFE, 0x7FFFFFFF, 9),
        (3, 0x80000000, 0, 8),
        (0, 0x80000001, 1, 0),
    ]
    frames = leaving(pair, [contribution(w, epoch, 2, data[w], Flag.MAXIMUM) for w in range(4)])
    top = Packet(100, epoch, 2, 0b1111, (3, 0xFFFFFFFF, 0x7FFFFFFF, 9), int(Flag.MAXIMUM), job=7)
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
    assert frames == [
        (5, flushed.encode()),
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
            contribution(1, epoch - 1, 9, ones),
            *(contribution(worker, epoch, 5, twos) for worker in (1, 2, 3)),
            contribution(0, epoch + 1, 1, ones),
            contribution(2, epoch, 5, twos),
        ],
    )
    assert frames == [
        (5, Packet(100, epoch, 1, 0b0010, ones, 0, job=7).encode()),
        (5, Packet(100, epoch - 1, 9, 0b0010, ones, 0, job=7).encode()),
        (5, Packet(100, epoch, 5, 0b1111, (8,) * pair.values, 0, job=7).encode()),
        (5, Packet(100, epoch, 5, 0b0100, twos, 0, job=7).encode()),
    ]


def test_a_restarted_switch_has_forgotten_its_slots_and_its_counts(pair: Pair) -> None:
    epoch = pair.next_epoch()
    ones = (1,) * pair.values
    before = [contribution(worker, epoch, 3, ones) for worker in (0, 1, 2)]
    after = [contribution(worker, epoch, 3, ones) for worker in (3, 0, 1, 2)]
    assert leaving(pair, before) == []
    pair.restart()
    # Epoch 0 and sequence 0 are what a fresh slot seems to be owned by.
    frames = leaving(pair, [contribution(worker, 0, 0, ones) for worker in range(4)] + after)
    assert [
        Packet(100, at, sequence, 0b1111, (4,) * pair.values, 0, job=7).encode()
        for at, sequence in ((0, 0), (epoch, 3))
    ] == [frame for _, frame in frames]
    compare_counters(pair.target, pair.reference)


def test_nothing_malformed_changes_a_slot(pair: Pair) -> None:
    """Between the contributions of a chunk comes everything that is wrong with a packet; the sum is right."""
    epoch = pair.next_epoch()
    ones = (1,) * pair.values
    good = [contribution(worker, epoch, 6, ones) for worker in range(4)]
    frame = good[1].frame
    wrong = [
        *(Arrival(2, frame[:length]) for length in range(14, len(frame))),
        Arrival(2, frame + b"\0"),
        Arrival(2, frame[:14] + b"\x02" + frame[15:]),
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
        Verdict.MALFORMED: 3 * (len(frame) - 14 + 2),
        Verdict.UNKNOWN: 6,
        Verdict.REFUSED: 3,
    }
    compare_counters(pair.target, pair.reference)


def test_every_prefix_of_an_ipv4_frame(pair: Pair) -> None:
    traffic = Traffic(random.Random(3), pair.values, 1)
    whole = next(frame for frame in (traffic.ipv4_frame() for _ in range(200)) if len(switch(4).process(1, frame)) == 1)
    compare(pair.target, pair.reference, [Arrival(1, whole[:length]) for length in range(14, len(whole) + 1)])
