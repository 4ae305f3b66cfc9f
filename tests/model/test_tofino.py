"""The Tofino program's tables and register actions: never a wrong sum, never stuck, and otherwise as on v1model."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from p4src.protocol import GATEWAY_MAC, GROUP_MAC, HEADER_OFFSET, PROTOCOL, Flag, Verdict, frame_bytes
from tests.model import switch as switch_module
from tests.model import tofino_search
from tests.model.merge import WORD
from tests.model.packet import Packet, envelope, ours
from tests.model.rounds import RoundSwitch, TofinoSimulation
from tests.model.search import Found
from tests.model.simulation import Harm
from tests.model.switch import Aggregate, Slot, Switch, aggregate
from tests.model.test_simulation import harms, trees
from tests.model.tofino import CLOSED, GROUP_ADDRESS, LOOPBACK, Cell, Contribution, ReadOut, TofinoSwitch, ingress
from tests.model.tofino_search import TofinoSearch
from tests.model.tree import ROOT, Tree, star, two_level, with_direct
from tests.p4.rig import GROUPS, LABELS, ROUTES, SLOTS, Arrival, Traffic
from tests.support.examples import examples

BOUNDED = settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow])


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


@pytest.mark.parametrize(("tree", "chunks"), [(star(2), 2), (two_level(1, 1), 1)], ids=str)
def test_packets_of_an_unassigned_epoch_do_no_lasting_harm(tree: Tree, chunks: int) -> None:
    assert TofinoSearch(tree, 1, chunks, hostile=True).run().complete


@pytest.mark.parametrize(("tree", "chunks"), [(star(2), 2), (two_level(1, 1), 1)], ids=str)
def test_contributions_of_another_attempt_are_aggregated_again(tree: Tree, chunks: int) -> None:
    assert TofinoSearch(tree, 1, chunks, attempts=2, hostile=tree == star(2)).run().complete


def test_a_slot_with_exhausted_generations_works_in_the_next_attempt() -> None:
    """After 2^32 other epochs a slot's generation is 0, and then it starts afresh in the next attempt.

    Generation 0 says that the epoch is another one: no packet finds what is there, and none is added to another's
    values. The next attempt of a chunk counts on from there.
    """
    search = TofinoSearch(star(2), 1, 1, history=1)

    def arrive(cell: Cell, worker: int, attempt: int) -> tuple[Cell, list[Packet]]:
        cell, leaving, _ = search.at_slot(cell, 0, search.worker_packet(worker, 0, 0, 0, attempt))
        while leaving is not None and leaving.job:  # the packet recirculates
            cell, leaving, _ = search.at_slot(cell, 0, leaving)
        return cell, [] if leaving is None else [leaving]

    cell = Cell(epoch=(7, WORD))
    for worker in (0, 1, 0, 1):
        cell, came = arrive(cell, worker, 0)
        assert cell.epoch[1] == 0
        assert came == [], "at_slot has found no wrong sum, and none is complete"
    cell, came = arrive(cell, 0, 1)
    assert came == []
    cell, came = arrive(cell, 1, 1)
    assert [packet.values for packet in came] == [search.values(3, 0, 0)]


def test_recirculated_packets_meet_an_unassigned_epoch() -> None:
    assert TofinoSearch(star(2), 1, 1, history=1, hostile=True).run().complete


def reads_whatever_is_there(cell: Cell, packet: Packet, entry: Contribution | ReadOut) -> tuple[Cell, Any]:
    """Run a faulty second pass that does not check whether the slot still belongs to the packet."""
    if isinstance(entry, ReadOut):
        cell = cell._replace(epoch=(packet.epoch, packet.bitmap >> 32), sequence=packet.sequence)
    return ingress(cell, packet, entry)


def forgets_that_it_is_closed(cell: Cell, packet: Packet, entry: Contribution | ReadOut) -> tuple[Cell, Any]:
    """Run a faulty slot that stays open after a resend: what the second pass reads may have grown."""
    cell, outcome = ingress(cell, packet, entry)
    return cell._replace(flows=(cell.flows[0], cell.flows[1] & ~CLOSED)), outcome


def epoch_without_sequence(cell: Cell, packet: Packet, entry: Contribution | ReadOut) -> tuple[Cell, Any]:
    """Run a faulty slot that follows the epoch but keeps what it has of the old one."""
    return ingress(cell._replace(epoch=(packet.epoch, max(1, cell.epoch[1]))), packet, entry)


def asks_for_the_chunk_only(cell: Cell, packet: Packet, entry: Contribution | ReadOut) -> tuple[Cell, Any]:
    """Run a faulty second pass that ignores the generation: another epoch may have had the slot in between."""
    if isinstance(entry, ReadOut):
        packet = packet._replace(bitmap=cell.epoch[1] << 32 | packet.bitmap & WORD)
    return ingress(cell, packet, entry)


def adds_twice(cell: Cell, packet: Packet, entry: Contribution | ReadOut) -> tuple[Cell, Any]:
    """Run a faulty slot that forgets its flows when it has stored something."""
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
        (asks_for_the_chunk_only, (star(2), 1, 1, 1, 1)),
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
        TofinoSearch(*arguments, hostile=mistake is asks_for_the_chunk_only).run()


@BOUNDED
@given(trees(), st.sampled_from([1, 2, 4]), st.integers(1, 12), harms, st.integers(0, 2**32))
def test_every_worker_gets_every_exact_result(tree: Tree, slots: int, chunks: int, harm: Harm, seed: int) -> None:
    TofinoSimulation(tree, slots, chunks, harm, seed).run(limit=200_000)


@BOUNDED
@given(trees(), st.sampled_from([1, 4]), harms, st.integers(0, 2**32), st.integers(0, 300))
def test_a_new_epoch_in_the_middle_of_anything(tree: Tree, slots: int, harm: Harm, seed: int, before: int) -> None:
    TofinoSimulation(tree, slots, 8, harm, seed).run_with_new_epoch(5, before, limit=200_000)


def test_without_faults_one_packet_per_chunk_reaches_the_root_and_recirculates_once_at_each_point() -> None:
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
    """Run the reference's slot algorithm with the one difference that a worker's packet can notice.

    A resend of what an open slot has already closes the slot and goes on alone, instead of taking along what is there.
    """
    after, verdict, leaving = aggregate(slot, packet, action)
    if verdict is Verdict.FLUSHED and packet.own == slot.owner and action.flow & slot.bitmap:
        assert leaving is not None
        return after, verdict, leaving._replace(bitmap=action.flow, values=packet.values)
    return after, verdict, leaving


def labels() -> dict[tuple[int, int], Any]:
    """Return the entries of the rig, with the highest flow that exists here in place of higher ones."""
    highest = 1 << PROTOCOL.targets["tna"].flows - 1

    def low(bits: int) -> int:
        return bits & highest - 1 | (highest if bits >= highest else 0)

    return {
        key: replace(rule, flow=low(rule.flow), everyone=low(rule.everyone)) if isinstance(rule, Aggregate) else rule
        for key, rule in LABELS.items()
    }


def arrivals(traffic: Traffic, number: int) -> Iterator[Arrival]:
    """Yield frames of the rig as a Tofino can get them.

    Ours are without the bytes after their values, which a Tofino does not see, and go to a group's MAC address, without
    which they are not ours to it.
    """
    right = frame_bytes(traffic.values_per_packet)
    for _ in range(number):
        arrival = traffic.arrival()
        if ours(arrival.frame):
            mac = arrival.frame[:6] if arrival.frame[0] & GROUP_ADDRESS else GROUP_MAC
            arrival = Arrival(arrival.port, mac + arrival.frame[6:right])
        yield arrival


def pair_of_switches(monkeypatch: pytest.MonkeyPatch, values: int) -> tuple[TofinoSwitch, Switch]:
    """Return a Tofino switch and the reference with the difference above, in the same configuration."""
    monkeypatch.setattr(switch_module, "aggregate", as_on_tofino)
    configuration = (values, SLOTS, labels(), dict(GROUPS), dict(ROUTES))
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


@settings(max_examples=examples(80), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(source=st.randoms(use_true_random=False), length=st.integers(1, 40))
def test_any_sequence_of_workers_packets_is_treated_as_on_v1model(
    monkeypatch: pytest.MonkeyPatch, source: random.Random, length: int
) -> None:
    switch, reference = pair_of_switches(monkeypatch, 4)
    for arrival in arrivals(Traffic(source, 4, 2), length):
        assert sorted(switch.process(arrival.port, arrival.frame)) == sorted(
            reference.process(arrival.port, arrival.frame)
        )
    assert switch.verdicts == reference.verdicts


@pytest.mark.parametrize("missing", range(1, 9))
def test_a_packet_that_is_short_of_values_is_refused(missing: int) -> None:
    """Its sender states its length correctly: what the parser takes for values does not matter."""
    switch = TofinoSwitch(4, SLOTS, labels())
    whole = Packet(10, 9, 1, 0, (1, 2, 3, 4)).encode()
    udp_length = PROTOCOL.udp_length(4) - missing
    outer = bytearray(envelope(4))
    outer[16:18] = (20 + udp_length).to_bytes(2, "big")
    outer[38:40] = udp_length.to_bytes(2, "big")
    assert switch.process(1, bytes(outer) + whole[HEADER_OFFSET:-missing]) == []
    assert switch.verdicts == Counter({Verdict.MALFORMED: 1})
    assert not switch.cells


def test_a_frame_of_another_length_than_its_headers_say() -> None:
    """In a longer frame the rest leaves with it; a shorter one is refused, also by less than a frame check sequence."""
    frame = Packet(32, 9, 1, 0, (1, 2, 3, 4)).encode()
    leaving = Packet(0xFFFFFFFF, 9, 1, 1 << 30, (1, 2, 3, 4)).encode()
    for length in range(len(frame) - 8, len(frame) + 8):
        switch = TofinoSwitch(4, SLOTS, labels())
        out = switch.process(3, (frame + bytes(8))[:length])
        if length < len(frame):
            assert (out, switch.verdicts) == ([], Counter({Verdict.MALFORMED: 1}))
            continue
        ((port, sent),) = out
        assert (port, sent) == (4, leaving + bytes(length - len(frame)))
        assert switch.verdicts == Counter({Verdict.COMPLETED: 1})


def three_flows() -> TofinoSwitch:
    """Return a switch with three flows into one slot; complete sums have the label 101, others 201."""
    entries: dict[tuple[int, int], Any] = {
        (1, 20): Aggregate(4, 0, 0b001, 0b111, 101, 201, 6),
        (2, 21): Aggregate(4, 0, 0b010, 0b111, 101, 201, 6),
        (3, 22): Aggregate(4, 0, 0b100, 0b111, 101, 201, 6),
    }
    return TofinoSwitch(4, SLOTS, entries, delayed=True)


def contribution(port: int, epoch: int = 9, sequence: int = 7, flags: int = 0) -> bytes:
    """Return a packet of the flow on ``port``, whose values are its bit."""
    return Packet(19 + port, epoch, sequence, 0, (1 << port - 1,) * 4, flags).encode()


def going_round(switch: TofinoSwitch) -> bytes:
    """Let all three contribute; returns the sum on its way to the second pass."""
    frames = [frame for port in (1, 2, 3) for frame in switch.process(port, contribution(port))]
    ((out, frame),) = frames
    assert out == LOOPBACK
    return frame


def test_a_complete_sum_recirculates_once() -> None:
    switch = three_flows()
    assert switch.process(LOOPBACK, going_round(switch)) == [(6, Packet(101, 9, 7, 0b111, (7,) * 4).encode())]
    assert switch.verdicts == Counter({Verdict.ABSORBED: 2, Verdict.COMPLETED: 1})


@pytest.mark.parametrize(("epoch", "sequence"), [(9, 8), (10, 0), (8, 0), (0xFFFFFFFF, 7), (0, 0)])
def test_a_sum_whose_slot_was_taken_over_is_dropped_on_its_second_pass(epoch: int, sequence: int) -> None:
    switch = three_flows()
    frame = going_round(switch)
    assert switch.process(3, contribution(3, epoch, sequence)) == []
    before = dict(switch.cells)
    assert switch.process(LOOPBACK, frame) == []
    assert (switch.overtaken, switch.cells) == (1, before)


def test_a_slot_that_another_epoch_had_meanwhile_is_not_read() -> None:
    """This holds even if the right epoch has the slot again, with the same flows: they may have passed a closed
    slot.
    """
    switch = three_flows()
    frame = going_round(switch)
    switch.process(1, contribution(1, epoch=8))
    for port in (3, 1):
        switch.process(port, contribution(port))
        assert switch.process(LOOPBACK, frame) == []
    ((out, again),) = switch.process(2, contribution(2))
    assert out == LOOPBACK
    assert switch.process(LOOPBACK, frame) == []
    assert switch.overtaken == 3
    assert switch.process(LOOPBACK, again) == [(6, Packet(101, 9, 7, 0b111, (7,) * 4).encode())]


def test_a_resend_that_passes_a_complete_slot_does_not_cost_its_sum() -> None:
    switch = three_flows()
    frame = going_round(switch)
    ((out, _),) = switch.process(1, contribution(1, flags=Flag.RESEND))
    assert out == 6
    assert switch.process(LOOPBACK, frame) == [(6, Packet(101, 9, 7, 0b111, (7,) * 4).encode())]


def test_the_slot_is_found_by_exclusive_or() -> None:
    """It is the sum that v1model computes, because the control plane makes slot_base a multiple of slot_mask + 1."""
    for base in range(0, 64, 8):
        for sequence in range(20):
            assert base ^ (sequence & 7) == base + (sequence & 7)


def test_only_frames_to_a_groups_mac_address_are_ours() -> None:
    frame = Packet(32, 9, 1, 0, (1, 2, 3, 4)).encode()
    for first, leaves in ((frame[:6], 1), (b"\xff" * 6, 1), (GATEWAY_MAC, 0)):
        switch = TofinoSwitch(4, SLOTS, labels())
        assert len(switch.process(3, first + frame[6:])) == leaves
        assert switch.verdicts.total() == leaves
