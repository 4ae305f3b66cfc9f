"""The best ring over emulated links, beside all rings there are."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest

from evaluation.sites import with_pccl
from evaluation.sites.__main__ import Emulated
from evaluation.sites.rings import Rings
from topologies.wan.networks import emulated, network_named, scaled
from topologies.zygote import HostFailure


def test_the_best_ring_of_few_sites_is_the_best_of_all() -> None:
    part = network_named("netstorm", 0).subgraph(range(7)).copy()
    rings = Rings(emulated(scaled(part, 50)[0], 5.0), 137_000)
    first, *rest = rings.best()
    least = min(rings.seconds([first, *others]) for others in permutations(rest))
    assert rings.seconds([first, *rest]) == pytest.approx(least)
    assert least < rings.usual(), "a random ring leads several hops over one link"


def test_a_ring_takes_what_its_slowest_hop_takes_in_all_steps() -> None:
    graph = network_named("aws", 0).subgraph(range(3)).copy()
    for *_, data in graph.edges(data=True):
        data["mbps"] = 8.0
    graph.edges[0, 1]["mbps"] = 4.0
    topology = emulated(graph, 10.0)
    assert Rings(topology, 3e6).seconds(["h0", "h1", "h2"]) == pytest.approx(4 * 2.0), "1 MB a step at 4 Mbit/s"
    assert Rings(topology, 3e6).seconds(["h0", "h2", "h1"]) == pytest.approx(4 * 1.01), "and its delay"
    assert Rings(topology, 3e6).best() in (["h0", "h2", "h1"], ["h2", "h1", "h0"], ["h1", "h0", "h2"])


def test_connections_of_a_host_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "tcp"
    table.write_text(
        "  sl  local_address rem_address   st tx_queue rx_queue\n"
        "   0: 0100000A:BC14 00000000:0000 0A 00000000:00000000\n"
        "   1: 0100000A:BC14 0200000A:1F90 01 00000000:00000000\n"
        "   2: 0100000A:BC14 0300000A:1F90 06 00000000:00000000\n"
    )
    monkeypatch.setattr(with_pccl, "CONNECTIONS", table)
    assert with_pccl.connected() == ["10.0.0.2"], "only connections that are open"


class Said:
    """A process of a site that says these things."""

    def __init__(self, *said: object) -> None:
        self.said, self.told = list(said), 0

    def send(self, message: object) -> None:
        self.told += 1

    def receive(self, timeout: float) -> object:
        return self.said.pop(0)


def test_a_pccl_whose_ring_has_another_order_is_refused() -> None:
    part = network_named("netstorm", 0).subgraph(range(4)).copy()
    topology = emulated(scaled(part, 50)[0], 5.0)
    hosts = topology.servers
    emulation = Emulated.__new__(Emulated)
    emulation.topology = topology

    def told(skipped: str) -> dict[str, Said]:
        all_of = {a: [topology.address(b) for b in hosts if b not in (a, skipped)] for a in hosts}
        return {host: Said("joined", {"peers": all_of[host]}) for host in hosts}

    processes = told("")
    emulation.joined(processes, hosts, in_order=True)
    assert all(process.told == 1 for process in processes.values())
    emulation.joined(told(hosts[1]), hosts, in_order=False)
    with pytest.raises(HostFailure, match=f"{hosts[0]} has no connection to {hosts[1]}"):
        emulation.joined(told(hosts[1]), hosts, in_order=True)
