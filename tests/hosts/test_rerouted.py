"""A tree was rerouted around a failure: chunks in progress are sent once more, and nobody has to ask for them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from controlplane.common.agentconfig import ReroutedTree, RootFlow, RootTree
from evaluation.hosts.star import TreeShape
from p4src.protocol import Flag, HostFlag, data_values, udp_port
from tests.hosts.checked import Checked, unsigned
from tests.hosts.conftest import WORKERS
from tests.hosts.raw import RawSocket
from tests.hosts.rig import Rig, check, finish, tensors
from tests.hosts.test_allreduce import starts
from tests.model.packet import Packet, decode, envelope
from tests.support.waiting import wait_until

MakeRig = Callable[..., Rig]
SLOTS, VALUES = 16, 64
LATE = int(Flag.RESEND) | int(HostFlag.LATE)
RETURN, ANSWERS = 900, (901, 902, 903)


def rerouted(rig: Rig, rate_mbps: float = 0.0, results: bool = True) -> None:
    """Tell all agents, as the controller does."""
    for server in rig.servers:
        server.rerouted([ReroutedTree(tree.return_label, 1000.0, True, results) for tree in server.config.root_trees])
    for engine in rig.engines:
        engine.rerouted([ReroutedTree(tree.up_label, rate_mbps, True, results) for tree in engine.config.worker_trees])


def until(raw: RawSocket, enough: Callable[[list[Packet]], bool]) -> list[Packet]:
    """Return packets until the condition holds, but not the root's questions, which come when something is late. Raises
    TimeoutError."""
    found: list[Packet] = []
    while not enough(found):
        packet = decode(raw.recv(), VALUES)
        assert packet is not None
        if not packet.flags & HostFlag.ASK:
            found.append(packet)
    return found


def test_a_worker_sends_its_window_once_more_without_asking(make_rig: MakeRig) -> None:
    rig = make_rig([TreeShape()], values=VALUES, slots=SLOTS, workers=3, without=["w1", "w2", "s0", "s1"])
    raw = rig.raw_port("w0")
    for seed in range(SLOTS):  # Each has an exponent chunk, and a chunk of data that has to wait for it.
        rig.submit(tensors(seed, 1, VALUES - 1))
    window = list(range(0, 4, 2))  # Nobody has answered yet, so the window begins with few chunks.
    first = until(raw, lambda found: {p.sequence for p in found if not p.resend} == set(window))
    values = {packet.sequence: packet.values for packet in first}
    rerouted(rig, results=False)
    again = until(raw, lambda found: {p.sequence for p in found if not p.flags & LATE} == set(window))
    for packet in again:
        assert packet.values == values[packet.sequence], "the same again"
        assert packet.flags & ~LATE == first[0].flags & ~LATE
    assert [p.sequence for p in again if not p.flags & LATE] == window, "once, and in order"


def test_a_root_sends_results_once_more_that_may_be_lacking(make_rig: MakeRig) -> None:
    rig = make_rig([TreeShape()], values=VALUES, workers=3, without=["w0", "w1", "w2", "s1"])
    server, raw = rig.servers[0], rig.raw_port("s0")
    flow, port, epoch = RootFlow(20, ((0,), (1,), (2,)), False), udp_port(1, 0), 100
    tree = RootTree(0, (flow,), RETURN, ANSWERS, SLOTS, port)
    server.reconfigure(replace(server.config, epoch=epoch, root_trees=(tree,)))
    checked = Checked(3, VALUES)
    complete = [*range(SLOTS + 5), SLOTS + 7]  # SLOTS + 5 is missing.
    for sequence in complete:
        words = checked.sent([sequence] * (VALUES - 1), range(3), 0, sequence)
        sent = Packet(flow.label, epoch, sequence, 0, unsigned(words), 0, 7)
        raw.send(sent._replace(outer=envelope(VALUES, port=port)).encode())
    results = until(raw, lambda found: sum(p.label == RETURN for p in found) == len(complete))
    lacking = {p.sequence: p for p in results if p.label == RETURN and p.sequence >= SLOTS + 8 - SLOTS}
    server.rerouted([ReroutedTree(RETURN, 1000.0, False, True)])
    again = until(raw, lambda found: sum(p.label == RETURN for p in found) == len(lacking))
    assert {p.sequence: p.values[:-1] for p in again} == {p.sequence: p.values[:-1] for p in lacking.values()}
    server.rerouted([ReroutedTree(RETURN, 1000.0, True, False), ReroutedTree(RETURN + 1, 1000.0, True, True)])
    wait_until(lambda: server.stats().trees[0].answers == len(lacking), "no more than these")


def test_sums_are_right_for_any_losses_and_any_time_of_the_report(make_rig: MakeRig) -> None:
    rig = make_rig(rate_mbps=60)
    before = tensors(5, WORKERS, 60_000)
    chunks = len(before[0]) // rig.job.workers[0].values_per_packet // 2  # These are the chunks of the first tree.
    for share in (0.1, 0.5, 0.9):
        after = [tensor.copy() for tensor in before]
        done = [engine.stats().trees[0].answers for engine in rig.engines]
        works = rig.submit(after)
        wait_until(
            lambda share=share, done=done: all(  # type: ignore[misc]
                engine.stats().trees[0].answers - before >= share * chunks * 0.9
                for engine, before in zip(rig.engines, done, strict=True)
            ),
            "it is under way",
        )
        rig.faults(loss=1.0)
        rig.switch.forget()
        rerouted(rig, rate_mbps=20.0)  # This is too early: all of it is lost as well.
        rig.faults()
        rerouted(rig, rate_mbps=40.0)
        rerouted(rig)
        finish(works)
        check(before, after, starts(rig, len(before[0])), data_values(rig.job.workers[0].values_per_packet))
