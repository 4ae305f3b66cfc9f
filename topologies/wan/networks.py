"""The named wide-area networks, scaled to what the machine can emulate, and their emulation."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import networkx as nx
import numpy as np

from controlplane.planner.plan.framing import MTU
from controlplane.planner.routing import ways
from controlplane.planner.topology import Topology
from controlplane.planner.wan_networks import aws, by_distance, netstorm_draw
from overlay.core.framing import segment_bytes
from overlay.net.replication import Replication, p4runtime
from topologies.deployment import Fabric
from topologies.emulation import Emulation

NETWORKS: dict[str, Callable[[int], nx.DiGraph]] = {
    "b4": lambda seed: by_distance("b4", seed=seed or None),
    "internet2": lambda seed: by_distance("internet2", seed=seed or None),
    "aws": lambda seed: aws(),
    "netstorm": lambda seed: netstorm_draw(np.random.default_rng(seed)),
}


def network_named(name: str, seed: int) -> nx.DiGraph:
    """Return the network of NETWORKS with this name, or that of a file.

    The file is {"links": [["paris", "tokyo", 800, 600], ..]}, with Mbit/s there and (where it differs) back. Sites get
    numbers in the order in which they come. Raise ValueError for a file of another kind.
    """
    if name in NETWORKS:
        return NETWORKS[name](seed)
    try:
        links = [(str(u), str(v), float(there), float(back[0] if back else there))
                 for u, v, there, *back in json.loads(Path(name).read_text())["links"]]  # fmt: skip
    except (OSError, ValueError, TypeError, KeyError) as error:
        known = ", ".join(NETWORKS)
        raise ValueError(
            f'{name} is neither one of {known} nor a file {{"links": [[from, to, Mbit/s, Mbit/s back], ..]}}: {error!r}'
        ) from None
    numbers = {site: k for k, site in enumerate(dict.fromkeys(site for u, v, *_ in links for site in (u, v)))}
    graph = nx.DiGraph(name=Path(name).stem)
    graph.add_nodes_from(numbers.values())
    for u, v, there, back in links:
        graph.add_edge(numbers[u], numbers[v], mbps=there)
        graph.add_edge(numbers[v], numbers[u], mbps=back)
    if len(graph) < 2 or not nx.is_strongly_connected(graph) or min(d["mbps"] for *_, d in graph.edges(data=True)) <= 0:
        raise ValueError(f"{name}: a network has two sites or more, all joined by links of more than 0 Mbit/s")
    return graph


TOTAL_MBPS = 400.0  # sum over all links, which two cores forward and add with time to spare
HOST_MBPS = 1000.0
WINDOW_SEGMENTS = 4
ACKNOWLEDGEMENT_BYTES = 90
"""Largest acknowledgement in bytes, with its report of frames that came out of order, or packet that opens a
connection.

Such packets overtake those that wait for a link: rates are scaled down some 600 times, so a data frame takes 10 ms, in
which the real link sends hundreds, and its acknowledgements wait microseconds.
"""


def scaled(graph: nx.DiGraph, total_mbps: float) -> tuple[nx.DiGraph, float]:
    """Return the network with all rates times a factor (at most 1), so that they sum to total_mbps, and the factor."""
    factor = min(1.0, total_mbps / sum(data["mbps"] for _, _, data in graph.edges(data=True)))
    result = graph.copy()
    for _, _, data in result.edges(data=True):
        data["mbps"] *= factor
    return result, factor


def redrawn(graph: nx.DiGraph, factor: float, seed: int, k: int) -> dict[tuple[Any, Any], float]:
    """Return new rates of all links in Mbit/s, drawn for the k-th time.

    NetStorm's network gets the rates of its paper, 20 to 155 Mbit/s (times the factor); other networks get 0.3 to 1
    times the link's rate in the (scaled) graph.
    """
    rng = np.random.default_rng([seed, k])
    if graph.graph.get("name") == "netstorm":
        return {(u, v): factor * data["mbps"] for u, v, data in netstorm_draw(rng).edges(data=True)}
    return {(u, v): data["mbps"] * float(rng.uniform(0.3, 1.0)) for u, v, data in graph.edges(data=True)}


def emulated(graph: nx.DiGraph, delay_ms: float) -> Topology:
    """Return a topology with a switch (dc0, ..) and one host (h0, ..) per site; `delay_ms` is one way, on each link
    between sites.
    """
    nodes: dict[str, dict[str, str]] = {}
    links: list[tuple[str, str, dict[str, float]]] = []
    for node in graph.nodes:
        nodes |= {f"dc{node}": {"kind": "switch"}, f"h{node}": {"kind": "server"}}
        links += [
            (f"dc{node}", f"h{node}", {"bandwidth_mbps": HOST_MBPS}),
            (f"h{node}", f"dc{node}", {"bandwidth_mbps": HOST_MBPS}),
        ]
    for u, v, data in graph.edges(data=True):
        links.append((f"dc{u}", f"dc{v}", {"bandwidth_mbps": data["mbps"], "delay_ms": delay_ms}))
    return Topology(nodes, links, str(graph.graph.get("name", "")))


def window_bytes(topology: Topology, mtu: int, loss: float) -> int:
    """Return the TCP window in bytes of a connection between any two hosts.

    It is the largest bandwidth-delay product of the routes, plus WINDOW_SEGMENTS segments that wait for a link and for
    their acknowledgement. Larger windows would stand in queues, share links by their round trips, and give a connection
    over several links less than its fair part. The window is doubled where links lose packets: the frames after a lost
    one wait for it, while the sender goes on.
    """
    most = 0.0
    for route in ways(topology).values():
        links = list(pairwise(route))
        there_and_back = 2e-3 * sum(topology.delay_ms(u, v) for u, v in links)
        most = max(most, there_and_back * min(topology.bandwidth_mbps(u, v) for u, v in links) * 1e6 / 8)
    return (2 if loss else 1) * (int(most) + WINDOW_SEGMENTS * segment_bytes(mtu))


class Wan:
    """An emulated wide-area network with its routes."""

    def __init__(self, topology: Topology, loss: float, seed: int, *, mtu: int = MTU) -> None:
        self.topology, self.loss, self.mtu = topology, loss, mtu
        self.emulation = Emulation(topology, "softswitch", seed=seed, mtu=mtu)
        self._fabric: Fabric | None = None

    def __enter__(self) -> Self:
        self.emulation.start()
        try:
            self._fabric = Fabric(self.emulation).__enter__()
            self._fabric.install_routes()
            for host in self.topology.servers:
                self._share_alike(host)
            for u, v in self.topology.links:
                if self.topology.kind(u) == self.topology.kind(v) == "switch":
                    # A token bucket's credit, small in a fabric, is as large as a chunk on these slow links.
                    self.emulation.shape(u, v, burst_bytes=0, loss=self.loss, ahead_bytes=ACKNOWLEDGEMENT_BYTES)
        except BaseException:
            self.__exit__()
            raise
        return self

    def replication(self) -> Replication:
        """Return the means by which the switches copy multicasts, for one coordinator."""
        return p4runtime(self.topology, list(self.emulation.switch_addresses.values()))

    def _share_alike(self, host: str) -> None:
        """Make TCP connections share links as the simulator assumes.

        All connections have the same window, which fills any route, so that a connection's rate does not depend on how
        long it has been sending; and acknowledgements overtake data (RFC 3449, ACKs-first scheduling), so that the rate
        does not depend on traffic in the other direction. Without these two, when a frame takes 10 ms, BBR keeps ten
        and more frames in a queue, acknowledgements wait behind the data of the other direction, and the connection
        with the smaller window gets 0.6 of its rate. Where no packets are lost, no timer needs to detect losses: it is
        1 s as in RFC 6298, so that a growing queue does not trigger it.
        """
        # Half of a receive buffer is the kernel's overhead beside the data.
        window = 2 * window_bytes(self.topology, self.mtu, self.loss)
        settings = (
            "tcp_congestion_control=reno", "tcp_slow_start_after_idle=0", "tcp_no_metrics_save=1",
            f"tcp_rmem=4096 {window} {window}",
        )  # fmt: skip
        self.emulation.run(host, ["sysctl", "-q", "-w", *(f"net.ipv4.{setting}" for setting in settings)])
        if not self.loss:
            route = self.emulation.run(host, ["ip", "route", "show", "default"]).stdout.split()
            self.emulation.run(host, ["ip", "route", "change", *route, "rto_min", "1s"])

    def __exit__(self, *_: object) -> None:
        if self._fabric is not None:
            self._fabric.__exit__()
        self.emulation.stop()
