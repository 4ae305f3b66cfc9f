"""The parameter server behaves as the model of a root (tests/model/root.py), packet by packet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.common.agentconfig import RootFlow, RootTree
from evaluation.hosts.star import TreeShape
from p4src.protocol import Flag, HostFlag, exponents_per_packet, udp_port
from tests.hosts.checked import Checked, unsigned
from tests.hosts.raw import RawSocket
from tests.hosts.rig import Rig
from tests.model import root as model
from tests.model.packet import Packet, decode, envelope
from tests.support.waiting import wait_until

VALUES, SLOTS, WORKERS = 64, 4, 3
PORT = udp_port(1, 0)
EXPECTED = (1 << WORKERS) - 1
RETURN, ANSWERS = 900, (901, 902, 903)
# There are direct flows of every worker, partial sums of all, of the first two, and of a point with one flow of two
# workers, and a complete sum of the last two.
FLOWS = (
    *(RootFlow(10 + worker, ((worker,),), False) for worker in range(WORKERS)),
    RootFlow(20, ((0,), (1,), (2,)), True),
    RootFlow(21, ((0,), (1,)), True),
    RootFlow(22, ((2,), (1, 0)), True),
    RootFlow(23, ((1,), (2,)), False),
)


def of_the_model(flow: RootFlow) -> model.RootFlow:
    return model.RootFlow(tuple(sum(1 << worker for worker in part) for part in flow.parts), flow.partial)


# An event is (flow, bitmap in the packet, flags, how far past the oldest incomplete chunk, a value).
events = st.lists(
    st.tuples(
        st.sampled_from(FLOWS),
        st.integers(0, 15),
        st.sampled_from([0, int(Flag.RESEND), int(Flag.RESULT)]),
        st.integers(-SLOTS, SLOTS),
        st.integers(-(2**28), 2**28 - 1),
    ),
    min_size=1,
    max_size=60,
)


def words_of(checked: Checked, flow: RootFlow, bitmap: int, sequence: int, value: int) -> tuple[int, ...]:
    """Return the words that a packet of the flow carries for these contributions."""
    if sequence % 3 == 0:
        return unsigned(checked.exponents([abs(value) % 5000] * exponents_per_packet(VALUES), 0, sequence))
    data = [value + position for position in range(checked.data)]
    return unsigned(checked.sent(data, workers_of(flow, bitmap), 0, sequence))


def workers_of(flow: RootFlow, bitmap: int) -> list[int]:
    parts = [part for bit, part in enumerate(flow.parts) if not flow.partial or bitmap >> bit & 1]
    return [worker for part in parts for worker in part]


def test_the_server_behaves_as_the_model(make_rig: Callable[..., Rig]) -> None:
    rig = make_rig([TreeShape()], values=VALUES, workers=WORKERS, without=["w0", "w1", "w2", "s1"])
    server = rig.servers[0]
    # This is the switch's end of the server's link: the switch sees the answers too, and has no label for them.
    raw = rig.raw_port("s0")
    epochs, checked = iter(range(100, 10_000)), Checked(WORKERS, VALUES)

    @settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
    @given(events)
    def run(story: list[tuple[RootFlow, int, int, int, int]]) -> None:
        epoch = next(epochs)
        server.reconfigure(
            replace(server.config, epoch=epoch, root_trees=(RootTree(0, FLOWS, RETURN, ANSWERS, SLOTS, PORT),))
        )
        while raw.recv_waiting() is not None:  # These are packets that the previous example still sent.
            pass
        before, sent_before = server.stats().packets_received, server.stats().packets_sent
        ring = [model.RootSlot() for _ in range(2 * SLOTS)]
        expected: list[tuple[int, int, int, tuple[int, ...]]] = []
        oldest = 0
        for sent, (flow, bitmap, flags, ahead, value) in enumerate(story, 1):
            sequence = max(0, oldest + ahead)
            # The kind of a chunk is the same for all of its packets.
            kind = int(Flag.MAXIMUM) if sequence % 3 == 0 else 0
            values = words_of(checked, flow, bitmap, sequence, value)
            packet = Packet(flow.label, epoch, sequence, bitmap, values, flags | kind, 7)
            raw.send(packet._replace(outer=envelope(VALUES, port=PORT)).encode())
            wait_until(lambda sent=sent: server.stats().packets_received == before + sent, "the server has it")  # type: ignore[misc]
            if sequence >= oldest + SLOTS:
                continue  # Nobody's window reaches that far.
            index = sequence % (2 * SLOTS)
            ring[index], answer = model.root_receive(ring[index], packet, of_the_model(flow), EXPECTED)
            while ring[oldest % (2 * SLOTS)].sequence == oldest and ring[oldest % (2 * SLOTS)].bitmap == EXPECTED:
                oldest += 1
            if answer is not None and not answer.workers:
                # A result says that all chunks before `oldest` are complete.
                words = unsigned(checked.result(answer.values, 0, sequence, oldest, kind))
                expected.append((RETURN, sequence, oldest << 32 | WORKERS, words))
        assert server.stats().trees[0].oldest_incomplete == oldest
        # Beside the results there are answers to hosts that ask for them once more, to one label or to all.
        found = received(raw, server.stats().packets_sent - sent_before, no_more=False)
        first = {result[1]: result for result in reversed(found)}
        assert [first[result[1]] for result in expected] == expected
        sums = {sequence: values for _, sequence, _, values in expected}
        assert all(sums[sequence] == values for _, sequence, _, values in found)

    run()


def test_a_forged_first_packet_of_another_kind_blocks_no_contribution(make_rig: Callable[..., Rig]) -> None:
    """A sender that knows a label sends the first packet of a chunk as one that the job does not send. It is a maximum,
    a part of a reduce-scatter, or the whole chunk of a gather. The real packets that follow make the result, and
    nothing waits.
    """
    rig = make_rig([TreeShape()], values=VALUES, workers=WORKERS, without=["w0", "w1", "w2", "s1"])
    server, raw, checked = rig.servers[0], rig.raw_port("s0"), Checked(WORKERS, VALUES)
    kinds = [Flag.MAXIMUM, HostFlag.SCATTER, HostFlag.SINGLE, Flag.MAXIMUM | HostFlag.SCATTER]
    for epoch, (kind, forger) in enumerate(product(kinds, range(WORKERS)), 100):
        tree = RootTree(0, FLOWS, RETURN, ANSWERS, SLOTS, PORT)
        server.reconfigure(replace(server.config, epoch=epoch, root_trees=(tree,)))
        while raw.recv_waiting() is not None:
            pass
        before, outer = server.stats().packets_received, envelope(VALUES, port=PORT)
        raw.send(Packet(10 + forger, epoch, 0, 0, tuple(range(VALUES)), int(kind), 7, outer=outer).encode())
        for worker in range(WORKERS):
            words = unsigned(checked.sent([worker + 1] * checked.data, [worker], 0, 0))
            raw.send(Packet(10 + worker, epoch, 0, 0, words, 0, 7, outer=outer).encode())
        wait_until(lambda n=before: server.stats().packets_received == n + 1 + WORKERS, "the server has them")  # type: ignore[misc]
        (found,) = {one[3][:-1] for one in received(raw, 0, no_more=False) if one[0] == RETURN}
        assert found == (sum(range(1, WORKERS + 1)),) * checked.data, (kind, forger)
        assert server.stats().trees[0].oldest_incomplete == 1


def test_a_switch_that_lost_a_workers_exponent_is_no_maximum(make_rig: Callable[..., Rig]) -> None:
    """A switch's memory loses the largest of the workers' exponents. What is left is another worker's, which proves
    itself. Nobody may be told it: the worker with the largest could not put its values into a sum, and all would wait.
    """
    rig = make_rig([TreeShape()], values=VALUES, workers=WORKERS, without=["w0", "w1", "w2", "s1"])
    server, raw, checked = rig.servers[0], rig.raw_port("s0"), Checked(WORKERS, VALUES)
    count, outer = exponents_per_packet(VALUES), envelope(VALUES, port=PORT)
    own = [[1000 + 10 * worker + j for j in range(count)] for worker in range(WORKERS)]
    words = [unsigned(checked.exponents(one, 0, 0)) for one in own]
    for epoch, lost in enumerate((0, 2, count - 1, count, count + 1, 2 * count - 1), 100):
        tree = RootTree(0, FLOWS, RETURN, ANSWERS, SLOTS, PORT)
        server.reconfigure(replace(server.config, epoch=epoch, root_trees=(tree,)))
        while raw.recv_waiting() is not None:
            pass
        before = server.stats().packets_received
        added = [*words[-1]]
        added[lost] = words[0][lost]
        raw.send(Packet(20, epoch, 0, 0b111, tuple(added), int(Flag.MAXIMUM), 7, outer=outer).encode())
        for worker in range(WORKERS):
            raw.send(Packet(10 + worker, epoch, 0, 0, words[worker], int(Flag.MAXIMUM), 7, outer=outer).encode())
        wait_until(lambda n=before: server.stats().packets_received == n + 1 + WORKERS, "the server has them")  # type: ignore[misc]
        results = {one[3][:-1] for one in received(raw, 0, no_more=False) if one[0] == RETURN}
        assert results == {words[-1][:-1]}, lost
        assert server.stats().trees[0].check_failures == 1


def test_a_job_of_more_workers_than_a_bitmap_has_bits(make_rig: Callable[..., Rig]) -> None:
    """130 workers share three flows: the root tells them apart, reports which are missing, and answers each."""
    rig = make_rig([TreeShape()], values=VALUES, workers=WORKERS, without=["w0", "w1", "w2", "s1"])
    server, raw = rig.servers[0], rig.raw_port("s0")
    first = RootFlow(20, tuple((worker,) for worker in range(64)), True)
    second = RootFlow(21, (tuple(range(64, 101)), *((worker,) for worker in range(101, 129))), True)
    last = RootFlow(22, ((129,),), False)
    answers = tuple(range(1000, 1130))
    names = tuple(f"w{worker}" for worker in range(130))
    tree = RootTree(0, (first, second, last), RETURN, answers, SLOTS, PORT)
    server.reconfigure(replace(server.config, epoch=9, workers=names, root_trees=(tree,)))
    before, checked = server.stats().packets_received, Checked(130, VALUES)

    def send(flow: RootFlow, bitmap: int, value: int, flags: int = 0) -> None:
        nonlocal before
        words = unsigned(checked.sent([value] * checked.data, workers_of(flow, bitmap), 0, 0))
        packet = Packet(flow.label, 9, 0, bitmap, words, flags, 7, outer=envelope(VALUES, port=PORT))
        raw.send(packet.encode())
        before += 1
        wait_until(lambda: server.stats().packets_received == before, "the server has it")

    send(first, (1 << 64) - 2, 100)
    send(second, 1 | 1 << 28, 20)
    assert server.stats().trees[0].missing == ("w0", *(f"w{worker}" for worker in range(101, 128)), "w129")
    send(second, 1 << 29, 1)  # There is no such contribution.
    send(second, 0b11, 1)  # These overlap.
    assert server.stats().trees[0].refused == 2
    send(second, (1 << 28) - 2, 3)
    send(last, 0, 4)
    assert received(raw, 0) == []
    send(first, 1, 5)
    result = checked.result(checked.sent([132] * checked.data, range(130), 0, 0), 0, 0, 1)
    assert received(raw, 1) == [(RETURN, 0, 1 << 32 | 130, unsigned(result))]  # All chunks before 1 are complete.
    send(first, 1 << 63, 0, int(Flag.RESEND))
    assert [label for label, _, _, _ in received(raw, 1)] == [answers[63]]
    send(second, 1, 0, int(Flag.RESEND))  # It is not the only worker that lacks the result: all get it, once.
    send(first, 1, 0, int(Flag.RESEND))
    assert [label for label, _, _, _ in received(raw, 1)] == [RETURN]


def received(raw: RawSocket, count: int, no_more: bool = True) -> list[tuple[int, int, int, tuple[int, ...]]]:
    """Return (label, sequence, bitmap, values) of the results among `count` packets (the others are questions).
    `no_more`: check that no more results have arrived; otherwise those that have are taken, too (a result that somebody
    asks for once more comes in its turn).
    """
    packets = [decode(raw.recv(), VALUES) for _ in range(count)]
    while (frame := raw.recv_waiting()) is not None:
        packets.append(decode(frame, VALUES))
        assert packets[-1] is not None
        assert packets[-1].ask or not no_more
    assert all(packet is not None and packet.flags & Flag.RESULT for packet in packets)
    return [
        (packet.label, packet.sequence, packet.bitmap, packet.values)
        for packet in packets
        if packet is not None and not packet.ask
    ]
