"""The throughput of TCP over links that lose packets: the formula, the simulator's connections, the plan, and real
connections.
"""

from __future__ import annotations

import asyncio
import math
import socket
from random import Random

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.planner.evaluate import unit_loads
from controlplane.planner.simulate import Simulator
from controlplane.planner.wan_networks import netstorm_draw, overlay
from evaluation.wan.networks import whole_job
from overlay.core.framing import FRAME_HEADERS, segment_bytes
from overlay.core.message import HEADER_BYTES, Header, Kind
from overlay.core.systems import planned
from overlay.core.tcp import (
    BITS,
    Connections,
    Window,
    connections_for,
    utilisation,
    window_distribution,
    with_tcp_rates,
)
from overlay.net.connector import Connector
from overlay.net.tcp_info import Seen, connections_by, seen
from overlay.net.transport import Peer

PLAIN = Connector(None)

FRAME = (1448 + FRAME_HEADERS) * BITS
losses = st.floats(1e-4, 0.1)


def mathis_mbps(rtt_seconds: float, loss: float) -> float:
    """Return a connection's rate in Mbit/s: MSS / RTT sqrt(3 / 2 p) (Mathis et al., 1997)."""
    return segment_bytes() * BITS / rtt_seconds * math.sqrt(1.5 / loss)


@settings(max_examples=20, deadline=None)
@given(losses)
def test_windows_agree_with_simulated_rounds(loss: float) -> None:
    """The exact distribution agrees with rounds that are drawn one by one."""
    found = window_distribution(loss)
    assert found.sum() == pytest.approx(1.0) and found[0] == pytest.approx(0.0, abs=1e-9)
    random, window, recovers, total, rounds = Random(1), 10, False, 0, 20_000
    for _ in range(rounds):
        total += window
        if random.random() >= (1 - loss) ** window:
            window, recovers = max(window // 2, 2), True
        else:
            window, recovers = window + (not recovers), False
    assert total / rounds == pytest.approx(found @ np.arange(len(found)), rel=0.1)


def test_where_the_link_has_room_it_is_mathis_law_with_the_constant_of_losses_at_random() -> None:
    # The factor is 1.31 instead of the square root of 3/2 (Ott, Kemperman, Mathis: The stationary behavior of ideal
    # TCP, 1996).
    for loss in (1e-4, 1e-5):
        payload = utilisation(1e4, 0.06, loss) * 1e4 * 1448 / (1448 + FRAME_HEADERS)
        assert payload / mathis_mbps(0.06, loss) == pytest.approx(1.31 / math.sqrt(1.5), rel=0.03)


@settings(max_examples=25, deadline=None)
@given(st.floats(0.5, 50), st.floats(0.001, 0.2), losses, st.integers(1, 4))
def test_more_connections_carry_more_and_never_more_than_the_link(
    mbps: float, rtt: float, loss: float, connections: int
) -> None:
    part = utilisation(mbps, rtt, loss, connections)
    assert 0 < part <= utilisation(mbps, rtt, loss, connections + 1) + 1e-9
    assert utilisation(mbps, rtt, loss, connections + 1) <= 1 - loss + 1e-9
    few = connections_for(mbps, rtt, loss, part - 1e-9, 8)
    assert few <= connections and utilisation(mbps, rtt, loss, few) >= part - 1e-9


@pytest.mark.parametrize(("mbps", "loss"), [(1.5, 0.01), (6.7, 0.01), (3.0, 0.05)])
def test_a_simulated_connection_has_the_rate_of_the_formula(mbps: float, loss: float) -> None:
    sim, rtt, frames = Simulator([mbps]), 0.06, 30_000
    connection = Window(sim, [0], rtt, loss, random=Random(1))
    ended: list[float] = []

    def message(left: int) -> None:
        if not left:
            ended.append(sim.now)
            return
        connection.send(20 * FRAME, 20, lambda: 100.0, lambda: message(left - 20))

    message(frames)
    sim.run()
    # Retransmissions are not in the simulator's count of frames.
    assert frames * FRAME / ended[0] / mbps == pytest.approx(utilisation(mbps, rtt, loss) / (1 - loss), rel=0.1)


class Drawn(Random):
    """Draws the given values, then 1."""

    def __init__(self, *drawn: float) -> None:
        super().__init__()
        self.drawn = list(drawn)

    def random(self) -> float:
        return self.drawn.pop(0) if self.drawn else 1.0


@pytest.mark.parametrize(
    ("behind", "drawn", "round_trips"),
    [(1.0, (0.0, 1.0), 1), (1.0, (0.0, 0.0, 1.0), 2), (0.0, (0.0, 1.0), 2)],
    ids=["once", "and again", "nothing comes after it"],
)
def test_segments_after_a_lost_one_wait_for_it(behind: float, drawn: tuple[float, ...], round_trips: int) -> None:
    sim, rtt = Simulator([12.0]), 0.1
    connection = Window(sim, [0], rtt, 0.5, random=Drawn(*drawn))
    sent: list[float] = []

    def then() -> None:
        sent.append(sim.now)
        connection.send(FRAME, 1, float, lambda: sent.append(sim.now))

    connection.send(FRAME, 1, lambda: behind, then)
    sim.run()
    assert sent == [pytest.approx(FRAME / 12.0), pytest.approx(2 * FRAME / 12.0)]  # Nothing stops.
    assert connection.held == pytest.approx(sent[0] + round_trips * rtt)
    assert connection.window == 5.0


@settings(max_examples=5, deadline=None)
@given(st.integers(1, 30), st.sampled_from([0.0002, 0.002, 0.01]), st.integers(1, 4))
def test_wan_loads_no_link_above_its_connections_rate(seed: int, loss: float, connections: int) -> None:
    graph = netstorm_draw(np.random.default_rng(seed))
    for _, _, data in graph.edges(data=True):
        data["mbps"] /= 20
    topology, job = overlay(graph, 30.0), whole_job(graph, 400_000)
    plan = planned(
        "wan", topology, job, seed=1, chunk=2048, loss=loss, connections=Connections(connections, connections)
    )
    load, _, _ = unit_loads(plan, topology.results_on_links)
    for u, v in graph.edges:
        mbps = graph.edges[u, v]["mbps"]
        most = mbps * utilisation(mbps, 0.06, loss, connections)
        assert plan.rate_mbps * load.get((f"dc{u}", f"dc{v}"), 0.0) <= most * (1 + 1e-6)
    assert plan.rate_mbps < planned("wan", topology, job, seed=1, chunk=2048).rate_mbps


def test_a_topology_without_loss_is_unchanged() -> None:
    topology = overlay(nx.DiGraph([(0, 1, {"mbps": 3.0}), (1, 0, {"mbps": 3.0})]), 30.0)
    assert with_tcp_rates(topology, 0.0) is topology
    left = with_tcp_rates(topology, 0.01, Connections(2, 2))
    assert left.bandwidth_mbps("dc0", "dc1") == pytest.approx(3.0 * utilisation(3.0, 0.06, 0.01, 2))
    assert left.bandwidth_mbps("h0", "dc0") == topology.bandwidth_mbps("h0", "dc0")


def test_only_losses_ask_for_more_connections() -> None:
    lossless = Seen(10_000, 0, 0.06, 6.0)
    assert connections_by([lossless], 4) == 1
    assert connections_by([], 4) == 1
    assert connections_by([Seen(10_000, 20, 0.06, 3.0)], 4) == 1  # One connection carries 0.97 of it.
    assert connections_by([Seen(10_000, 20, 0.06, 6.0)], 4) == 2
    assert connections_by([Seen(5_000, 50, 0.06, 5.0), Seen(5_000, 50, 0.07, 6.0)], 4) == 4
    assert connections_by([Seen(10_000, 100, 0.001, 6.0)], 4) == 1  # A window is soon large enough again.


def test_the_kernel_reports_the_bytes_of_a_connection() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as ours:
        theirs, _ = server.accept()
        with theirs:
            ours.sendall(bytes(100_000))
            got = 0
            while got < 100_000:
                got += len(theirs.recv(65536))
            found = seen(ours)
    assert found is not None and found.segments > 1 and found.again <= found.segments
    assert 0 < found.rtt_seconds < 60 and found.mbps > 0


def test_messages_go_over_the_connection_that_does_not_stand() -> None:
    """One of two connections is not read: when it is full, the other one gets the rest."""
    count, values = 400, np.zeros(4096, np.float32)

    async def run() -> int:
        server = socket.socket()
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        server.bind(("127.0.0.1", 0))
        server.listen()
        server.setblocking(False)
        loop = asyncio.get_running_loop()
        hello = Header(Kind.HELLO, 1, 0, (0,)).pack()
        address = server.getsockname()
        peer = Peer(
            "h1",
            address,
            hello,
            connections=2,
            clock=float,
            on_lost=lambda reason: None,
            on_unreached=lambda reason: None,
            connector=PLAIN,
        )
        _silent, _ = await loop.sock_accept(server)
        reads, _ = await loop.sock_accept(server)
        reads.setblocking(False)
        for chunk in range(count):
            peer.send(0, Header(Kind.UP, 1, 1, (0, 1), 1, 0, chunk, len(values), 1), values)
        got = 0
        wanted = HEADER_BYTES + (count * 3 // 4) * (HEADER_BYTES + values.nbytes)
        async with asyncio.timeout(60):
            while got < wanted:
                got += len(await loop.sock_recv(reads, 1 << 20))
        peer.close()
        for each in (_silent, reads, server):
            each.close()
        return got

    assert asyncio.run(run()) > 0


@pytest.mark.parametrize(("again", "expected"), [(0, 1), (100, 3)], ids=["nothing lost", "1 % lost"])
def test_where_packets_are_lost_a_peer_gets_more_connections(
    monkeypatch: pytest.MonkeyPatch, again: int, expected: int
) -> None:
    monkeypatch.setattr("overlay.net.outbound.seen", lambda connection: Seen(10_000, again, 0.06, 6.0))
    lost: list[str] = []

    async def run() -> int:
        hellos: asyncio.Queue[bytes] = asyncio.Queue()

        async def met(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            hellos.put_nowait(await reader.readexactly(HEADER_BYTES))

        server = await asyncio.start_server(met, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        hello = Header(Kind.HELLO, 1, 0, (0,)).pack()
        peer = Peer(
            "h1",
            address,
            hello,
            connections=1,
            clock=float,
            on_lost=lost.append,
            on_unreached=lambda reason: None,
            connector=PLAIN,
        )
        assert await hellos.get() == hello
        for _ in range(2):  # The second time asks for nothing more.
            peer.adapt(3)
        for _ in range(expected - 1):
            assert await hellos.get() == hello
        peer.close()
        server.close()
        return peer.connections

    assert asyncio.run(asyncio.wait_for(run(), 60)) == expected
    assert not lost
