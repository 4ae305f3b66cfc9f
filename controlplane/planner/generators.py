"""Topologies made by rule (fat-tree, leaf-spine, the InArt paper's testbed of Fig. 1, random ones), and
`parse_topology`, which reads a rule or a file.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from controlplane.planner import importers
from controlplane.planner.shapes import Network, Option, Rates, Shape, clos, dumbbell, refuse_size, ring, whole_number
from controlplane.planner.topology import Topology, TopologyError

WANS = ("b4", "internet2", "aws", "netstorm")
FATTREE_OPTIONS = ("k", "bandwidth", "aggregation", "ingress", "seed", "oversubscription", "delay")


def fattree(
    k: int,
    bandwidth_mbps: float = 20.0,
    *,
    aggregation_mbps: float | None = 9.0,
    ingress_mbps: float | None = 20.0,
    heterogeneous: tuple[float, float] | None = None,
    seed: int = 0,
    oversubscription: float = 1.0,
    delay_ms: float = 0.0,
) -> Topology:
    """Return the classical fat-tree of k pods (Al-Fares et al., 2008); defaults are those of the InArt paper, section
    5.3.1.

    It has (k/2)^2 core switches c1.., k^2/2 aggregation switches a1.., k^2/2 edge switches e1.. and k^3/4 hosts h1...
    Where `heterogeneous` is (low, high), each link's bandwidth is drawn uniformly from there (by `seed`) instead of
    `bandwidth_mbps`. `oversubscription` divides the bandwidth of links between switches.
    """
    if k < 2 or k % 2:
        raise TopologyError(f"a fat-tree's k must be even and at least 2, got {k}")
    if oversubscription <= 0:
        raise TopologyError(f"oversubscription must be above 0, got {oversubscription}")
    if heterogeneous is not None and not 0 <= heterogeneous[0] <= heterogeneous[1]:
        raise TopologyError(f"a bandwidth range must be low-high with 0 <= low <= high, got {heterogeneous}")
    half = k // 2
    refuse_size(f"a fat-tree with k={k}", (k + 5) * half * half, 6 * k * half * half)
    generator = random.Random(seed)
    nodes: dict[str, dict[str, Any]] = {}
    links: list[tuple[str, str, dict[str, Any]]] = []

    def add(kind: str, name: str) -> str:
        key, value = ("aggregation_mbps", aggregation_mbps) if kind == "switch" else ("ingress_mbps", ingress_mbps)
        nodes[name] = {"kind": kind} if value is None else {"kind": kind, key: value}
        return name

    def connect(u: str, v: str) -> None:
        bandwidth = bandwidth_mbps if heterogeneous is None else generator.uniform(*heterogeneous)
        if nodes[u]["kind"] == nodes[v]["kind"]:
            bandwidth /= oversubscription
        attributes = {"bandwidth_mbps": bandwidth, **({"delay_ms": delay_ms} if delay_ms else {})}
        links.extend([(u, v, attributes), (v, u, attributes)])

    cores = [add("switch", f"c{i + 1}") for i in range(half * half)]
    for pod in range(k):
        aggregations = [add("switch", f"a{pod * half + i + 1}") for i in range(half)]
        edges = [add("switch", f"e{pod * half + i + 1}") for i in range(half)]
        for i, aggregation in enumerate(aggregations):
            for j in range(half):
                connect(cores[i * half + j], aggregation)
            for edge in edges:
                connect(aggregation, edge)
        for i, edge in enumerate(edges):
            for j in range(half):
                connect(edge, add("server", f"h{(pod * half + i) * half + j + 1}"))
    return Topology(nodes, links, f"fattree-k{k}")


def leaf_spine(
    leaves: int,
    spines: int,
    servers: int,
    bandwidth_mbps: float = 20.0,
    *,
    uplink_mbps: float | None = None,
    aggregation_mbps: float | None = 9.0,
    ingress_mbps: float | None = 20.0,
    delay_ms: float = 0.0,
) -> Topology:
    """Return leaf switches e1.., each with `servers` servers (h1..) and a link to every spine switch (s1..).

    Defaults are those of `fattree`. Each link between leaf and spine has `uplink_mbps` Mbit/s (None: as the servers'
    links).
    """
    if min(leaves, spines, servers) < 1:
        raise TopologyError(f"a leaf-spine needs leaves, spines and servers, got {leaves}, {spines}, {servers}")
    what = f"a leaf-spine of {leaves} leaves and {spines} spines"
    refuse_size(what, leaves * (servers + 1) + spines, 2 * leaves * (spines + servers))
    network = Network(Rates(bandwidth_mbps, aggregation_mbps, ingress_mbps, delay_ms))
    roofs = [network.switch(f"s{i + 1}") for i in range(spines)]
    for i in range(leaves):
        leaf = network.switch(f"e{i + 1}")
        for spine in roofs:
            network.link(spine, leaf, uplink_mbps)
        network.servers(leaf, servers)
    return Topology(network.nodes, network.links, f"leafspine-{leaves}-{spines}-{servers}")


def testbed(
    switch_mbps: float | None = 6.0,
    server_mbps: float | None = 4.0,
    link_mbps: float = 6.0,
    *,
    results_on_links: bool = False,
) -> Topology:
    """Return the network of the InArt paper's Fig. 1: W1-W4 and S1 on V1, W5, W6 and S2 on V2, one link V1-V2. Without
    `results_on_links`, as in the paper, results on their way back are not counted on the links.
    """
    nodes: dict[str, dict[str, Any]] = {v: {"kind": "switch", "aggregation_mbps": switch_mbps} for v in ("V1", "V2")}
    pairs = [("V1", "V2")]
    for server in ("W1", "W2", "W3", "W4", "W5", "W6", "S1", "S2"):
        is_root = server.startswith("S")
        nodes[server] = {
            "kind": "server",
            "role": "parameter_server" if is_root else "worker",
            **({"ingress_mbps": server_mbps} if is_root else {}),
        }
        pairs.append((server, "V2" if server in ("W5", "W6", "S2") else "V1"))
    links = [(a, b, {"bandwidth_mbps": link_mbps}) for u, v in pairs for a, b in ((u, v), (v, u))]
    return Topology(nodes, links, "testbed", results_on_links=results_on_links)


testbed.__test__ = False  # type: ignore[attr-defined]  # pytest would collect it by its name


def random_topology(
    switches: int,
    servers: int,
    extra_links: int = 0,
    seed: int = 0,
    *,
    bandwidth_mbps: tuple[float, float] = (5.0, 40.0),
    aggregation_mbps: tuple[float, float] = (0.0, 40.0),
    ingress_mbps: tuple[float, float] = (5.0, 40.0),
) -> Topology:
    """Return a random tree of switches v1.. with `extra_links` more links among them; servers h1.. hang on random
    switches.
    """
    if switches < 1:
        raise TopologyError(f"a random topology needs at least one switch, got {switches}")
    refuse_size(f"a random topology of {switches} switches", switches + servers, switches**2)
    generator = random.Random(seed)
    nodes: dict[str, dict[str, Any]] = {}
    pairs: list[tuple[str, str]] = []
    for i in range(switches):
        nodes[f"v{i + 1}"] = {"kind": "switch", "aggregation_mbps": round(generator.uniform(*aggregation_mbps), 1)}
        if i:
            pairs.append((f"v{generator.randint(1, i)}", f"v{i + 1}"))
    missing = [
        (f"v{i}", f"v{j}")
        for i in range(1, switches + 1)
        for j in range(i + 1, switches + 1)
        if (f"v{i}", f"v{j}") not in pairs
    ]
    pairs += generator.sample(missing, min(extra_links, len(missing)))
    for i in range(servers):
        nodes[f"h{i + 1}"] = {"kind": "server", "ingress_mbps": round(generator.uniform(*ingress_mbps), 1)}
        pairs.append((f"v{generator.randint(1, switches)}", f"h{i + 1}"))
    links = []
    for u, v in pairs:
        attributes = {"bandwidth_mbps": round(generator.uniform(*bandwidth_mbps), 1)}
        links += [(u, v, attributes), (v, u, attributes)]
    return Topology(nodes, links, f"random-{switches}-{servers}-{seed}")


_RATES = {
    "bandwidth": Option("Mbit/s of each server's link", 20.0),
    "aggregation": Option("Mbit/s that a switch can add", 9.0),
    "ingress": Option("Mbit/s that a parameter server can take", 20.0),
    "delay": Option("ms on each link", 0.0),
}


def _by_rates(make: Callable[..., Topology]) -> Callable[..., Topology]:
    """Return the function that a Shape calls, for a function `make` that takes each rate by its name."""
    return lambda rates, **options: make(**options, **vars(rates))


def shapes() -> dict[str, Shape]:
    """Return all rules for topologies by name."""
    trunk = Option("Mbit/s of a link between switches (default: as the servers')", None)
    over = Option("what comes from below over what goes up", 1.0)
    return {
        "fattree": Shape(
            "a fat-tree of k pods: k^3/4 servers, 5k^2/4 switches",
            _by_rates(fattree),
            {"k": Option("ports of a switch, even", 4, True), **_RATES, "oversubscription": over},
        ),
        "leafspine": Shape(
            "leaf switches, each with a link to every spine switch",
            _by_rates(leaf_spine),
            {
                "leaves": Option("how many", 4, True),
                "spines": Option("how many", 2, True),
                "servers": Option("on each leaf", 4, True),
                **_RATES,
                "uplink": Option("Mbit/s of each link between leaf and spine (default: as the servers')", None),
            },
        ),
        "ring": Shape(
            "switches in a ring",
            ring,
            {
                "switches": Option("how many, at least 3", 4, True),
                "servers": Option("on each switch", 2, True),
                **_RATES,
                "trunk": trunk,
            },
        ),
        "dumbbell": Shape(
            "two switches with one link between them",
            dumbbell,
            {
                "left": Option("servers on the first switch", 4, True),
                "right": Option("servers on the second switch", 4, True),
                **_RATES,
                "trunk": trunk,
            },
        ),
        "clos": Shape(
            "a folded Clos of three tiers, with oversubscription",
            clos,
            {
                "pods": Option("how many", 2, True),
                "leaves": Option("in each pod", 2, True),
                "spines": Option("in each pod", 2, True),
                "cores": Option("in each plane; a spine has a link to each of its plane", 2, True),
                "servers": Option("on each leaf", 4, True),
                **_RATES,
                "oversubscription": over,
            },
        ),
    }


def _parts(spec: str, text: str) -> dict[str, str]:
    parts: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        key, _, value = part.partition("=")
        if key in parts:
            raise TopologyError(f"topology {spec!r}: {key}= is given twice")
        parts[key] = value
    return parts


def _options(spec: str, text: str, known: tuple[str, ...]) -> dict[str, str]:
    for part in filter(None, text.split(",")):
        key, equals, _ = part.partition("=")
        if not equals or key not in known:
            raise TopologyError(f"topology {spec!r}: unknown part {part!r}; known: {', '.join(known)}")
    return _parts(spec, text)


def _value(spec: str, options: dict[str, str], key: str, default: float) -> float:
    try:
        return float(options[key]) if key in options else default
    except ValueError:
        raise TopologyError(f"topology {spec!r}: {key} must be a number, got {options[key]!r}") from None


def _whole(spec: str, options: dict[str, str], key: str, default: int) -> int:
    """Return an option that counts something, or is a seed, as a whole number. Raise TopologyError for anything else,
    also for one below 0.
    """
    return whole_number(options[key], f"topology {spec!r}: {key}") if key in options else default


def _wan(spec: str, kind: str, text: str) -> Topology:
    """Return one of the networks of controlplane/planner/wan_networks.py, each site with a worker and a parameter
    server.
    """
    import numpy as np

    from controlplane.planner import wan_networks as networks  # imported here, as other topologies do without numpy

    options = _options(spec, text, {"aws": (), "netstorm": ("seed",)}.get(kind, ("seed", "least", "most", "law")))
    seed = _whole(spec, options, "seed", 0)
    if kind == "aws":
        return networks.overlay(networks.aws())
    if kind == "netstorm":
        return networks.overlay(networks.netstorm_draw(np.random.default_rng(seed)))
    law = options.get("law", "linear")
    least, most = _value(spec, options, "least", 500.0), _value(spec, options, "most", 5000.0)
    if law not in networks.LAWS:
        raise TopologyError(f"topology {spec!r}: unknown law {law!r}; known: {', '.join(networks.LAWS)}")
    if not 0 < least <= most:
        raise TopologyError(f"topology {spec!r}: needs 0 < least <= most, got {least} and {most}")
    return networks.overlay(networks.by_distance(kind, seed=seed or None, least=least, most=most, law=law))


def _fattree(spec: str, text: str) -> Topology:
    options = _options(spec, text, FATTREE_OPTIONS)
    low, dash, high = options.get("bandwidth", "20").partition("-")
    try:
        heterogeneous = (float(low), float(high)) if dash else None
    except ValueError:
        raise TopologyError(f"topology {spec!r}: bandwidth must be a number or low-high") from None
    if not dash:
        options["bandwidth"] = low
    return fattree(
        _whole(spec, options, "k", 4),
        20.0 if dash else _value(spec, options, "bandwidth", 20.0),
        aggregation_mbps=_value(spec, options, "aggregation", 9.0),
        ingress_mbps=_value(spec, options, "ingress", 20.0),
        heterogeneous=heterogeneous,
        seed=_whole(spec, options, "seed", 0),
        oversubscription=_value(spec, options, "oversubscription", 1.0),
        delay_ms=_value(spec, options, "delay", 0.0),
    )


def parse_topology(spec: str) -> Topology:
    """Return a topology from a file, or by one of these rules with their options (all optional). Raise TopologyError
    for anything else.

    A file is ours (networkx node-link JSON) or another project's (controlplane/planner/importers/), which may be
    followed by data that it lacks, such as lab.clab.yml:bandwidth=10000,servers=client*,adding=leaf*

        fattree:k=4,bandwidth=20            also aggregation=, ingress=, delay=, oversubscription=;
                                            bandwidth=10-30 with seed= draws each link's
        leafspine:leaves=8,spines=2,servers=6
                                            also bandwidth=, uplink=, aggregation=, ingress=, delay=
        ring:switches=6,servers=2
        dumbbell:left=4,right=4,trunk=10
        clos:pods=2,leaves=2,spines=2,cores=2,servers=4,oversubscription=3
        testbed                             with switch=, server=, link=, results=1
        random:switches=5,servers=8,links=3,seed=1

    Wide-area networks have a worker and a parameter server at each site: b4 and internet2 (with least=, most=, law=,
    seed=), aws (measured), netstorm (seed=).
    """
    kind, _, text = spec.partition(":")
    if kind == "fattree":
        return _fattree(spec, text)
    if kind in ("leafspine", "ring", "dumbbell", "clos"):
        return shapes()[kind].build(_parts(spec, text), f"topology {spec!r}")
    if kind == "testbed":
        options = _options(spec, text, ("switch", "server", "link", "results"))
        return testbed(
            _value(spec, options, "switch", 6.0),
            _value(spec, options, "server", 4.0),
            _value(spec, options, "link", 6.0),
            results_on_links=bool(_value(spec, options, "results", 0)),
        )
    if kind == "random":
        options = _options(spec, text, ("switches", "servers", "links", "seed"))
        return random_topology(
            _whole(spec, options, "switches", 4),
            _whole(spec, options, "servers", 8),
            _whole(spec, options, "links", 2),
            _whole(spec, options, "seed", 0),
        )
    if kind in WANS:
        return _wan(spec, kind, text)
    if not importers.split(spec)[0].exists():
        known = f"fattree:k=4, leafspine:leaves=4, ring, dumbbell, clos, testbed, random:switches=4, {', '.join(WANS)}"
        raise TopologyError(f"topology {spec!r} is no file and none of {known}")
    return importers.load(spec)
