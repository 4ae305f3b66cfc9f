"""Copying by switches: packets are reassembled in any order; a user who asks for it without having switches gets an
error.
"""

import random
import struct
from dataclasses import replace

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.planner.plan.limits import Limits
from controlplane.planner.plan.task import Edge, SumTree, Task, TaskError
from overlay.core.errors import OverlayError
from overlay.core.execution import Environment, Execution, SendRequest
from overlay.core.message import Kind
from overlay.core.systems import make
from overlay.net.coordinator import Coordinator
from overlay.net.multicast import TAG_BYTES, Assembly, Carrier, Seal
from overlay.net.replication import Replication
from overlay.sim.simulation import Simulation
from topologies.wan.networks import emulated

CARRIER = Carrier(1, 8)
LIMITS = Limits.of_target("v1model")


def copied(values: int, chunk: int, receivers: tuple[str, ...] = ("b", "c")) -> Task:
    down = tuple(Edge("a", each) for each in receivers)
    routes = tuple(("a", "s", each) for each in receivers)
    tree = SumTree("a", 0, values, (), down, ("a",), receivers, 10.0, routes=routes, label=3)
    return Task(1, values, (tree,), "mix", chunk_values=chunk, window=0)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.integers(1, 30), st.randoms(use_true_random=False))
def test_packets_in_any_order_and_twice_make_the_chunks(values: int, chunk: int, rng: random.Random) -> None:
    source = np.arange(values, dtype=np.float32)
    task = copied(values, chunk)
    assembly = Assembly(CARRIER, chunk)
    packets = []
    for number in range(task.chunks(0)):
        first, end = task.chunk(0, number)
        for k in range(CARRIER.packets(end - first)):
            content = np.full(8, np.nan, np.float32)
            part = source[first + 8 * k : min(end, first + 8 * (k + 1))]
            content[: len(part)] = part
            packets.append((number * assembly.packets_per_chunk + k, content))
    packets += rng.sample(packets, rng.randint(0, len(packets)))
    rng.shuffle(packets)
    found: dict[int, np.ndarray] = {}
    for sequence, content in packets:
        number, k = assembly.place(sequence)
        if number in found:
            continue  # The agent already has it.
        first, end = task.chunk(0, number)
        whole = assembly.add(number, k, content, lambda n=end - first: np.empty(n, np.float32))
        if whole is not None:
            found[number] = whole
    assert np.array_equal(np.concatenate([found[n] for n in sorted(found)]), source)


def test_a_chunk_leaves_its_root_once_and_missing_packets_go_to_those_that_lack_them() -> None:
    requests: list[SendRequest] = []
    timers: list = []
    now = [0.0]
    sender = Execution(
        copied(20, 4), "a",
        Environment(
            requests.append, lambda: None, lambda: now[0],
            lambda seconds, callback: timers.append((now[0] + seconds, callback)),
        ),
    )  # fmt: skip
    sender.start(np.arange(20, dtype=np.float32))
    while timers:
        now[0], callback = timers.pop(0)
        callback()
    assert [(request.chunk, request.edge) for request in requests] == [(n, None) for n in range(5)]
    requests.clear()
    sender.resend(0, [1, 4, 9], "c")
    sender.resend(0, [2], "nobody")
    assert [(request.chunk, request.edge) for request in requests] == [(1, Edge("a", "c")), (4, Edge("a", "c"))]
    assert requests[0].values.tolist() == [4, 5, 6, 7] and requests[0].kind == Kind.DOWN

    receiver = Execution(
        copied(20, 4), "c", Environment(requests.append, lambda: None, lambda: 0.0, lambda s, callback: None)
    )
    receiver.start(np.zeros(20, np.float32))
    receiver.result(0, 0, np.ones(4, np.float32))
    receiver.result(0, 2, np.ones(4, np.float32))
    assert receiver.trees[0].missing() == [1, 3, 4]


def test_tasks_that_switches_cannot_carry_out_are_refused() -> None:
    good = copied(8, 4)
    good.check()
    assert Task.from_json(good.to_json()) == good
    for change, words in (
        ({"rate_mbps": 0.0}, "needs a rate"),
        ({"routes": (("a", "s", "b"),)}, "do not lead from the root"),
    ):
        (tree,) = good.trees
        wrong = replace(good, trees=(replace(tree, **change),))
        with pytest.raises(TaskError, match=words):
            wrong.check()


def ring() -> nx.DiGraph:
    graph = nx.cycle_graph(6).to_directed()
    nx.set_edge_attributes(graph, 50.0, "mbps")
    return graph


def test_a_coordinator_without_switches_says_so() -> None:
    policy = make("selmcast-bsp-l3", ring(), 1000, p=3, chunk=100, seed=0)
    with Coordinator(policy) as coordinator, pytest.raises(OverlayError, match="--switches"):
        coordinator.driver.prepare(policy.task(1, 1000, 0.0))


@settings(max_examples=30, deadline=None)
@given(st.binary(min_size=32, max_size=96), st.integers(0, 2**32 - 1), st.data())
def test_sealed_packets_are_taken_as_sent_or_not_at_all(values: bytes, sequence: int, data: st.DataObject) -> None:
    key = Seal.draw()
    header = struct.pack(">BBHIIIQ", 3, 0, 1, 7, 8, sequence, 9)
    packet = header + Seal(key).seal(header, values)
    assert len(packet) == len(header) + len(values) + TAG_BYTES and values not in packet
    assert Seal(key).open(packet[: len(header)], packet[len(header) :]) == values
    place, bit = data.draw(st.integers(0, len(packet) - 1)), data.draw(st.integers(0, 7))
    wrong = packet[:place] + bytes([packet[place] ^ 1 << bit]) + packet[place + 1 :]
    assert Seal(key).open(wrong[: len(header)], wrong[len(header) :]) is None
    assert Seal(Seal.draw()).open(header, packet[len(header) :]) is None


def test_a_seal_takes_the_place_of_values() -> None:
    sealed = Carrier(1, 256, sealed=True)
    assert sealed.packet_values == 252 and sealed.packets(253) == 2
    assert sealed.bytes(252) == Carrier(1, 256).bytes(256)  # Switches see the program's packets.


def test_only_agents_with_certificates_get_a_key() -> None:
    policy = make("selmcast-bsp-l3", ring(), 1000, p=3, chunk=100, seed=0)
    replication = Replication(emulated(ring(), 1.0), LIMITS, lambda: ())
    with Coordinator(policy, replication=replication) as plain:
        carrier = plain.multicast_format()
        assert carrier is not None and not carrier["key"]


def test_every_pair_meets_within_k_rounds_and_copies_cost_less_where_senders_are_slow() -> None:
    """Six sites around one switch would be the paper's network; a ring shares links, so copies save there, too."""
    graph, seconds = ring(), {}
    for name in ("selmcast-bsp", "selmcast-bsp-l3"):
        policy = make(name, graph, 100_000, p=4, chunk=2048, seed=1)
        took: list[float] = []
        met: dict[tuple[str, str], int] = {}
        oldest = [0]

        def finished(task: Task, s: float) -> None:
            took.append(s)  # noqa: B023
            for tree in task.trees:
                for receiver in tree.receivers:
                    pair = tree.root, receiver
                    oldest[0] = max(oldest[0], len(took) - met.get(pair, 0))  # noqa: B023
                    met[pair] = len(took)  # noqa: B023

        Simulation(policy, emulated(graph, 1.0), 100_000, finished=finished).run(6)
        assert len(took) == 6 and oldest[0] <= 5
        seconds[name] = sum(took)
    assert seconds["selmcast-bsp-l3"] < seconds["selmcast-bsp"]
