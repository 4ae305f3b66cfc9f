"""The Tofino program's tables and register actions: never a wrong sum, never stuck, and otherwise as on v1model."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from p4src.protocol import GATEWAY_MAC, GROUP_MAC, HEADER_OFFSET, PROTOCOL, Flag, Verdict, frame_bytes
from tests.model import switch as switch_module
from tests.model import tofino, tofino_search
from tests.model.merge import subset
from tests.model.packet import Packet, envelope, ours
from tests.model.search import Found
from tests.model.simulation import VALUES, Harm, Simulation
from tests.model.switch import Aggregate, Slot, Switch, aggregate
from tests.model.test_simulation import harms, trees
from tests.model.tofino import CLOSED, GROUP_ADDRESS, LOOPBACK, Cell, Contribution, ReadOut, TofinoSwitch, ingress
from tests.model.tofino_search import TofinoSearch
from tests.model.tree import ROOT, Tree, star, two_level, with_direct
from tests.p4.rig import GROUPS, LABELS, ROUTES, SLOTS, Arrival, Traffic

BOUNDED = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize(
    ("tree", "slots", "chunks", "epochs", "history"),
    [
        (star(2), 1, 3, 1, None),
        (star(2), 2, 2, 1, None),
        (star(2), 1, 2, 2, None),
        (with_direct(3), 1, 2, 1, None),
        (two_level(2, 1), 1, 1, 1, None),
        (two_level(1, 1), 1, 2, 1, None),
        (star(2), 1, 2, 1, 1),
    ],
    ids=str,
)
def test_no_reachable_state_is_wrong_or_stuck(
    tree: Tree, slots: int, chunks: int, epochs: int, history: int | None
) -> None:
    statistics = TofinoSearch(tree, slots, chunks, epochs, history).run()
    assert statistics.complete
    assert statistics.states > 20


def reads_whatever_is_there(cell: Cell, packet: Packet, entry: Contribution | ReadOut) -> tuple[Cell, Any]:
    """A second pass that does not look whether the slot is still the packet's."""
    if isinstance(entry, ReadOut):
        cell = cell._replace(epoch=packet.epoch, sequence=packet.sequence, flows=(packet.sequence, 1))
    return ingress(cell, packet, entry)


def forgets_that_it_is_closed(cell: Cell, packet: Packet, entry: Contribution | ReadOut) -> tuple[Cell, Any]:
    """A slot that stays open after a resend: what is read out on the second pass may have grown."""
    cell, outcome = ingress(cell, packet, entry)
    return cell._replace(flows=(cell.flows[0], cell.flows[1] & ~CLOSED)), outcome


def epoch_without_sequence(cell: Cell, packet: Packet, entry: Contribution | ReadOut) -> tuple[Cell, Any]:
    """A slot that follows the epoch but keeps what it has of the old one."""
    return ingress(cell._replace(epoch=max(cell.epoch, packet.epoch)), packet, entry)


def adds_twice(cell: Cell, packet: Packet, entry: Contribution | ReadOut) -> tuple[Cell, Any]:
    """A slot that forgets its flows when it has stored something."""
    cell, outcome = ingress(cell, packet, entry)
    if isinstance(entry, Contribution) and outcome.verdict is Verdict.ABSORBED and cell.flows[1] == entry.flow:
        cell = cell._replace(flows=(cell.flows[0], 1 << 20))
    return cell, outcome


@pytest.mark.parametrize(
    ("mistake", "arguments"),
    [
        (reads_whatever_is_there, (star(2), 1, 2, 1, 2)),
        (forgets_that_it_is_closed, (star(3), 1, 1, 1, 1)),
        (epoch_without_sequence, (star(2), 1, 1, 2, None)),
        (adds_twice, (star(2), 1, 1, 1, None)),
    ],
)
def test_the_search_finds_mistakes(
    monkeypatch: pytest.MonkeyPatch,
    mistake: Callable[[Cell, Packet, Contribution | ReadOut], tuple[Cell, Any]],
    arguments: tuple[Any, ...],
) -> None:
    monkeypatch.setattr(tofino_search, "ingress", mistake)
    with pytest.raises(Found):
        TofinoSearch(*arguments).run()


@dataclass
class RoundSwitch(TofinoSwitch):
    """What goes round is a packet in the network of a simulation, until the switch restarts: each life of the switch
    has its own loopback port there.
    """

    put_round: Callable[[int, bytes], None] = print
    life: int = 0

    def reboot(self) -> None:
        super().reboot()
        self.life += 1

    def process(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        if port >= 1000:
            if port != 1000 + self.life:
                return []
            port = LOOPBACK
        leaving = []
        for out, sent in super().process(port, frame):
            if out == LOOPBACK:
                self.put_round(1000 + self.life, sent)
            else:
                leaving.append((out, sent))
        return leaving


class TofinoSimulation(Simulation):
    """Whole systems of switches with this program. What goes round is lost, doubled and late as everything else."""

    def _switch(self, point: int) -> Switch:
        plain = super()._switch(point)

        def put_round(port: int, frame: bytes) -> None:
            self.put("switch", point, port, frame)

        return RoundSwitch(
            VALUES, self.slots, plain.labels, plain.groups, plain.routes, delayed=True, put_round=put_round
        )


@BOUNDED
@given(trees(), st.sampled_from([1, 2, 4]), st.integers(1, 12), harms, st.integers(0, 2**32))
def test_every_worker_gets_every_exact_result(tree: Tree, slots: int, chunks: int, harm: Harm, seed: int) -> None:
    TofinoSimulation(tree, slots, chunks, harm, seed).run(limit=200_000)


@BOUNDED
@given(trees(), st.sampled_from([1, 4]), harms, st.integers(0, 2**32), st.integers(0, 300))
def test_a_new_epoch_in_the_middle_of_anything(tree: Tree, slots: int, harm: Harm, seed: int, before: int) -> None:
    simulation = TofinoSimulation(tree, slots, 8, harm, seed)
    for _ in range(before):
        if simulation.done:
            break
        simulation.step()
    simulation.new_epoch(5)
    simulation.run(limit=200_000)


def test_without_harm_one_packet_a_chunk_reaches_the_root_and_goes_round_once_at_each_point() -> None:
    for tree, direct in ((star(4), 0), (two_level(3, 2), 0), (with_direct(4), 1)):
        simulation = TofinoSimulation(tree, 4, 20, Harm(), seed=1)
        while not simulation.done and (simulation.network or any(w.sent < w.chunks for w in simulation.workers)):
            simulation.step()
        assert simulation.done
        for switch in simulation.switches:
            assert isinstance(switch, RoundSwitch)
            assert switch.verdicts[Verdict.COMPLETED] == 20
            assert sum(n for (port, _), n in switch.label_packets.items() if port == LOOPBACK) == 20
            assert switch.overtaken == 0
        assert direct == sum(at == ROOT for at in tree.workers)


def as_on_tofino(slot: Slot, packet: Packet, action: Aggregate) -> tuple[Slot, Verdict, Packet | None]:
    """The reference's slot algorithm with the one difference that a worker's packet meets: a resend of what an open
    slot has already closes the slot and goes on alone, instead of taking what is there along.
    """
    after, verdict, leaving = aggregate(slot, packet, action)
    bits = action.contributor or packet.bitmap
    if verdict is Verdict.FLUSHED and packet.own == slot.owner and subset(bits, slot.bitmap):
        assert leaving is not None
        return after, verdict, leaving._replace(bitmap=bits, values=packet.values)
    return after, verdict, leaving


def workers_only() -> dict[tuple[int, int], Any]:
    """The entries of the rig without the aggregation point of partial sums, whose bitmaps the rig makes up."""
    return {key: rule for key, rule in LABELS.items() if not isinstance(rule, Aggregate) or rule.next_label != 101}


def arrivals(traffic: Traffic, number: int) -> Iterator[Arrival]:
    """Frames of the rig; those of ours without what is behind their values, which a Tofino does not see, and to a
    group's MAC address, without which they are not ours to it."""
    right = frame_bytes(traffic.values_per_packet)
    for _ in range(number):
        arrival = traffic.arrival()
        if ours(arrival.frame):
            mac = arrival.frame[:6] if arrival.frame[0] & GROUP_ADDRESS else GROUP_MAC
            arrival = Arrival(arrival.port, mac + arrival.frame[6:right])
        yield arrival


def pair_of_switches(monkeypatch: pytest.MonkeyPatch, values: int) -> tuple[TofinoSwitch, Switch]:
    """A Tofino switch and the reference with the difference above, in the same configuration."""
    monkeypatch.setattr(switch_module, "aggregate", as_on_tofino)
    configuration = (values, SLOTS, workers_only(), dict(GROUPS), dict(ROUTES))
    return TofinoSwitch(*configuration), Switch(*configuration)


@pytest.mark.parametrize("values", [4, 64])
def test_a_long_sequence_of_workers_packets_is_treated_as_on_v1model(
    monkeypatch: pytest.MonkeyPatch, values: int
) -> None:
    switch, reference = pair_of_switches(monkeypatch, values)
    for arrival in arrivals(Traffic(random.Random(20), values, 1000), 4000 if values == 4 else 600):
        assert sorted(switch.process(arrival.port, arrival.frame)) == sorted(
            reference.process(arrival.port, arrival.frame)
        )
    assert switch.verdicts == reference.verdicts
    assert values > 4 or all(switch.verdicts[verdict] >= 15 for verdict in Verdict), switch.verdicts


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(source=st.randoms(use_true_random=False), length=st.integers(1, 40))
def test_any_sequence_of_workers_packets_is_treated_as_on_v1model(
    monkeypatch: pytest.MonkeyPatch, source: random.Random, length: int
) -> None:
    switch, reference = pair_of_switches(monkeypatch, 4)
    for arrival in arrivals(Traffic(source, 4, 1), length):
        assert sorted(switch.process(arrival.port, arrival.frame)) == sorted(
            reference.process(arrival.port, arrival.frame)
        )
    assert switch.verdicts == reference.verdicts


@pytest.mark.parametrize("missing", range(1, 9))
def test_a_packet_that_is_short_of_values_is_refused(missing: int) -> None:
    """Its sender says the truth about its length: what the parser takes for values does not matter."""
    switch = TofinoSwitch(4, SLOTS, workers_only())
    whole = Packet(10, 9, 1, 0, (1, 2, 3, 4)).encode()
    udp_length = PROTOCOL.udp_length(4) - missing
    outer = bytearray(envelope(4))
    outer[16:18] = (20 + udp_length).to_bytes(2, "big")
    outer[38:40] = udp_length.to_bytes(2, "big")
    assert switch.process(1, bytes(outer) + whole[HEADER_OFFSET:-missing]) == []
    assert switch.verdicts == Counter({Verdict.MALFORMED: 1})
    assert not switch.cells


def test_a_frame_of_another_length_than_its_headers_say() -> None:
    """Longer: the rest leaves with it. Shorter: refused, also by less than a frame check sequence."""
    frame = Packet(32, 9, 1, 0, (1, 2, 3, 4)).encode()
    leaving = Packet(0xFFFFFFFF, 9, 1, 1 << 40, (1, 2, 3, 4)).encode()
    for length in range(len(frame) - 8, len(frame) + 8):
        switch = TofinoSwitch(4, SLOTS, workers_only())
        out = switch.process(3, (frame + bytes(8))[:length])
        if length < len(frame):
            assert (out, switch.verdicts) == ([], Counter({Verdict.MALFORMED: 1}))
            continue
        ((port, sent),) = out
        assert (port, sent) == (4, leaving + bytes(length - len(frame)))
        assert switch.verdicts == Counter({Verdict.COMPLETED: 1})


FLOWS = {(1, 20): (0b0011, 1), (2, 21): (0b1100, 2), (3, 22): (0b10000, 3)}


def partial_sums() -> TofinoSwitch:
    """Two flows of partial sums (workers 0 and 1, 2 and 3) and worker 4 into one slot."""
    labels: dict[tuple[int, int], Any] = {
        (1, 20): Aggregate(4, 0, 0, 0b11111, 101, 6),
        (2, 21): Aggregate(4, 0, 0, 0b11111, 101, 6),
        (3, 22): Aggregate(4, 0, 0b10000, 0b11111, 101, 6),
    }
    return TofinoSwitch(4, SLOTS, labels)


def sent(switch: TofinoSwitch, port: int, bitmap: int, flags: int = 0, sequence: int = 7) -> list[Packet]:
    """What leaves when the flow on ``port`` brings ``bitmap``; every worker's values are its bit."""
    bits = bitmap or 0b10000
    packet = Packet(19 + port, 9, sequence, bitmap, (bits,) * 4, flags)
    frames = switch.process(port, packet.encode())
    return [leaving for out, frame in frames for leaving in [tofino.decode(frame, 4)] if out == 6 and leaving]


def test_partial_sums_meet() -> None:
    switch = partial_sums()
    assert sent(switch, 2, 0b1100) == []
    assert sent(switch, 3, 0) == []
    assert sent(switch, 1, 0b0011) == [Packet(101, 9, 7, 0b11111, (31,) * 4)]
    assert switch.verdicts == Counter({Verdict.ABSORBED: 2, Verdict.COMPLETED: 1})


def test_a_flows_second_partial_sum_passes_through() -> None:
    """On v1model it would be merged; the root does it instead."""
    switch = partial_sums()
    assert sent(switch, 1, 0b0001, Flag.RESEND) == [Packet(101, 9, 7, 0b0001, (1,) * 4, int(Flag.RESEND))]
    switch = partial_sums()
    assert sent(switch, 1, 0b0001) == []
    assert sent(switch, 1, 0b0010) == [Packet(101, 9, 7, 0b0010, (2,) * 4)]
    assert sent(switch, 3, 0) == []
    assert sent(switch, 2, 0b1100) == [Packet(101, 9, 7, 0b11101, (29,) * 4)]
    assert switch.verdicts == Counter({Verdict.ABSORBED: 2, Verdict.STALE: 1, Verdict.COMPLETED: 1})


@pytest.mark.parametrize("bitmap", [0, 1 << 5, 1 << 63, 0b100001])
def test_bits_that_do_not_belong_are_refused_and_touch_nothing(bitmap: int) -> None:
    switch = partial_sums()
    assert sent(switch, 3, 0) == []
    before = dict(switch.cells)
    packet = Packet(20, 10, 7, bitmap, (1,) * 4)
    assert switch.process(1, packet.encode()) == []
    assert switch.verdicts[Verdict.REFUSED] == 1
    assert switch.cells == before


def test_a_sum_whose_slot_was_taken_over_is_dropped_on_its_second_pass() -> None:
    switch = partial_sums()
    switch.delayed = True
    sent(switch, 1, 0b0011)
    sent(switch, 2, 0b1100)
    ((out, going_round),) = switch.process(3, Packet(22, 9, 7, 0, (16,) * 4).encode())
    assert out == LOOPBACK
    assert sent(switch, 3, 0, sequence=8) == []
    assert switch.process(LOOPBACK, going_round) == []
    assert switch.overtaken == 1
    assert switch.cells[4].sequence == 8


def test_the_slot_is_found_by_exclusive_or() -> None:
    """The sum that v1model takes, where slot_base is a multiple of slot_mask + 1, as the control plane has it."""
    for base in range(0, 64, 8):
        for sequence in range(20):
            assert base ^ (sequence & 7) == base + (sequence & 7)


def test_only_what_has_a_groups_mac_address_is_ours() -> None:
    frame = Packet(32, 9, 1, 0, (1, 2, 3, 4)).encode()
    for first, leaves in ((frame[:6], 1), (b"\xff" * 6, 1), (GATEWAY_MAC, 0)):
        switch = TofinoSwitch(4, SLOTS, workers_only())
        assert len(switch.process(3, first + frame[6:])) == leaves
        assert switch.verdicts.total() == leaves
