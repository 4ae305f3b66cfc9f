"""Networks by rule from a few numbers (ring, dumbbell, Clos), and the classes that describe a rule: a function and its
options.

`controlplane.planner.generators.shapes` has all rules by name: `ring:switches=6,servers=2` and `python -m topologies
generate ring --switches 6 --servers 2` are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from controlplane.common.inputs import unknown_name
from controlplane.planner.topology import Topology, TopologyError

MOST_NODES = 200_000
MOST_LINKS = 4_000_000


def refuse_size(what: str, nodes: int, links: int) -> None:
    """Check that a network is small enough, as a slip of the finger must not take all of the machine's memory; raise
    TopologyError otherwise.
    """
    if nodes > MOST_NODES or links > MOST_LINKS:
        raise TopologyError(f"{what} is too large: at most {MOST_NODES} nodes and {MOST_LINKS} links are made by rule")


@dataclass(frozen=True)
class Rates:
    """The capacities that every rule has; the defaults are those of the InArt paper, section 5.3.1.

    Attributes:
        bandwidth_mbps: Bandwidth of each server's link, in Mbit/s.
        aggregation_mbps: Input rate that a switch can add, in Mbit/s; None for no limit.
        ingress_mbps: Input rate that a parameter server can take, in Mbit/s; None for no limit but its link.
        delay_ms: Delay of every link, in ms.
    """

    bandwidth_mbps: float = 20.0
    aggregation_mbps: float | None = 9.0
    ingress_mbps: float | None = 20.0
    delay_ms: float = 0.0


DEFAULT_RATES = Rates()


class Network:
    """Collects nodes and links with their capacities, as a rule adds them."""

    def __init__(self, rates: Rates) -> None:
        self.nodes: dict[str, dict[str, Any]] = {}
        self.links: list[tuple[str, str, dict[str, Any]]] = []
        self._adds = {} if rates.aggregation_mbps is None else {"aggregation_mbps": rates.aggregation_mbps}
        self._takes = {} if rates.ingress_mbps is None else {"ingress_mbps": rates.ingress_mbps}
        self._delay = {"delay_ms": rates.delay_ms} if rates.delay_ms else {}
        self._mbps = rates.bandwidth_mbps
        self._servers = 0

    def switch(self, name: str) -> str:
        self.nodes[name] = {"kind": "switch", **self._adds}
        refuse_size("this topology", len(self.nodes), len(self.links))
        return name

    def servers(self, switch: str, count: int) -> None:
        """Add `count` servers that hang on a switch; servers are numbered h1, h2, ... over all of the network."""
        for _ in range(count):
            self._servers += 1
            self.nodes[f"h{self._servers}"] = {"kind": "server", **self._takes}
            self.link(switch, f"h{self._servers}")

    def link(self, u: str, v: str, mbps: float | None = None) -> None:
        """Add a link of `mbps` Mbit/s in each direction (None: as the servers' links)."""
        attributes = {"bandwidth_mbps": self._mbps if mbps is None else mbps, **self._delay}
        self.links += [(u, v, attributes), (v, u, attributes)]
        refuse_size("this topology", len(self.nodes), len(self.links))


def ring(
    switches: int = 4, servers: int = 2, rates: Rates = DEFAULT_RATES, *, trunk_mbps: float | None = None
) -> Topology:
    """Return switches s1.. in a ring, each with `servers` servers (h1..). Each link of the ring has `trunk_mbps` Mbit/s
    (None: as the servers' links).
    """
    if switches < 3 or servers < 1:
        raise TopologyError(f"a ring needs 3 switches and a server on each, got {switches} and {servers}")
    made = Network(rates)
    names = [made.switch(f"s{i + 1}") for i in range(switches)]
    for one, after in zip(names, names[1:] + names[:1], strict=True):
        made.link(one, after, trunk_mbps)
    for name in names:
        made.servers(name, servers)
    return Topology(made.nodes, made.links, f"ring-{switches}-{servers}")


def dumbbell(
    left: int = 4, right: int = 4, rates: Rates = DEFAULT_RATES, *, trunk_mbps: float | None = None
) -> Topology:
    """Return two switches s1, s2 with one link between them; the first `left` servers (h1..) are on s1, the others on
    s2. The link between the switches has `trunk_mbps` Mbit/s (None: as the servers' links).
    """
    if left < 1 or right < 1:
        raise TopologyError(f"a dumbbell needs servers on both sides, got {left} and {right}")
    made = Network(rates)
    made.link(made.switch("s1"), made.switch("s2"), trunk_mbps)
    made.servers("s1", left)
    made.servers("s2", right)
    return Topology(made.nodes, made.links, f"dumbbell-{left}-{right}")


def clos(
    pods: int = 2,
    leaves: int = 2,
    spines: int = 2,
    cores: int = 2,
    *,
    servers: int = 4,
    rates: Rates = DEFAULT_RATES,
    oversubscription: float = 1.0,
) -> Topology:
    """Return a folded Clos of three tiers: pods of `leaves` leaves (e1..) and `spines` spines (a1..), each leaf with
    `servers` servers (h1..); the i-th spine of every pod has a link to each of the `cores` core switches (c1..) of the
    i-th plane.

    `oversubscription` is the ratio of the bandwidth from below to the bandwidth upwards, at leaves and at spines; it
    sets the links' rates.
    """
    if min(pods, leaves, spines, cores, servers) < 1:
        raise TopologyError(
            f"a Clos needs pods, leaves, spines, cores and servers, got {pods}, {leaves}, {spines}, {cores}, {servers}"
        )
    if oversubscription <= 0:
        raise TopologyError(f"oversubscription must be above 0, got {oversubscription}")
    uplink = servers * rates.bandwidth_mbps / spines / oversubscription
    core_link = leaves * uplink / cores / oversubscription
    made = Network(rates)
    planes = [[made.switch(f"c{plane * cores + i + 1}") for i in range(cores)] for plane in range(spines)]
    for pod in range(pods):
        ups = [made.switch(f"a{pod * spines + i + 1}") for i in range(spines)]
        for up, plane in zip(ups, planes, strict=True):
            for core in plane:
                made.link(core, up, core_link)
        for i in range(leaves):
            leaf = made.switch(f"e{pod * leaves + i + 1}")
            for up in ups:
                made.link(up, leaf, uplink)
            made.servers(leaf, servers)
    return Topology(made.nodes, made.links, f"clos-{pods}-{leaves}-{spines}-{cores}-{servers}")


@dataclass(frozen=True)
class Option:
    """Option of a rule: a number (a whole one where `whole`). Without a default (None), the rule says what happens."""

    help: str
    default: float | None
    whole: bool = False


@dataclass(frozen=True)
class Shape:
    """A rule for topologies: the function `make`, and its options.

    `make` gets the options by their names in ARGUMENTS (else by their own); those that are fields of Rates it gets
    together as `rates`.
    """

    help: str
    make: Callable[..., Topology]
    options: Mapping[str, Option]

    def build(self, given: Mapping[str, str], what: str) -> Topology:
        """Return the topology with these options, given as text. Raise TopologyError, whose message begins with `what`,
        where they are wrong.
        """
        if unknown := unknown_name(given, tuple(self.options)):
            raise TopologyError(f"{what}: {unknown.replace('attribute', 'option')}")
        values: dict[str, float] = {}
        for name, option in self.options.items():
            if name in given:
                values[ARGUMENTS.get(name, name)] = _number(given[name], f"{what}: {name}", option.whole)
            elif option.default is not None:
                values[ARGUMENTS.get(name, name)] = int(option.default) if option.whole else option.default
        rates = {field.name: values.pop(field.name) for field in fields(Rates) if field.name in values}
        return self.make(**values, rates=Rates(**rates))


ARGUMENTS = {
    "bandwidth": "bandwidth_mbps",
    "uplink": "uplink_mbps",
    "trunk": "trunk_mbps",
    "aggregation": "aggregation_mbps",
    "ingress": "ingress_mbps",
    "delay": "delay_ms",
}
"""Parameters of the rules' functions by those options that have a shorter name on a command line."""


def _number(text: str, what: str, whole: bool) -> float:
    if whole:
        return whole_number(text, what)
    try:
        return float(text)
    except ValueError:
        raise TopologyError(f"{what} must be a number, got {text!r}") from None


def whole_number(text: str, what: str) -> int:
    """Return a text as a whole number of at least 0; raise TopologyError, whose message begins with `what`, for
    anything else.
    """
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise TopologyError(f"{what} must be a whole number, got {text!r}")
    return int(text)
