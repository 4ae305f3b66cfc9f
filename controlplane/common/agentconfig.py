"""The configuration that an agent gets to take part in a job: plain data that converts to JSON and back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

REFUSED = "refused_by_the_check"
"""Name of a statistic of agents: sums and packets whose check word was wrong. With " of NAME" behind it, it counts
those of worker NAME."""
SUSPECT = "suspect"
ROOT_ADDS, SWITCH_ADDS = "adds_mbps", "switch_adds_mbps"
NUMBERS_USED = "numbers_used"
"""A worker's statistic: the fraction of the epoch's sequence numbers that are used."""
"""Names of statistics of agents: what the agent's host adds, Mbit/s, as a parameter server (while its engine was busy),
and as the switch of a host that adds inside of trees (worker_agent/adding.py)."""
LANE_MBPS = 10_000.0
"""Rate that one thread of an agent, and so one lane of a tree, carries with room to spare (docs/hosts.md, "Lanes")."""
MOST_LINKS = 8
"""Most interfaces to the data network that an agent uses (INART_MOST_LINKS in worker_agent/native/io.h)."""
Role = Literal["worker", "parameter_server"]


def interfaces_in(text: str) -> list[str]:
    """Return the names of interfaces that were given as "eth0,eth1"."""
    return text.split(",")


def link_key(link: int) -> str:
    """Return the name of the statistic that says whether one of a node's several links, by its place, is up (1) or down
    (0)."""
    return f"link {link} up"


def suspect_key(tree: int, label: int = 0, worker: str = "") -> str:
    """Return the name of the statistic that counts a tree's packets with a wrong check word.

    `label` is that of the packets, or 0 for results that arrive at a worker. `worker` is the only one whose gradient
    was in the packets, or "" where they were sums of several workers.
    """
    return f"{SUSPECT} {tree} {label} {worker}".rstrip()


def read_suspect_key(name: str) -> tuple[int, int, str] | None:
    """Return (tree, label, worker) of a name that `suspect_key` made; None for another statistic's name."""
    word, *rest = name.split(" ", 3)
    if word != SUSPECT or len(rest) < 2 or not (rest[0].isdecimal() and rest[1].isdecimal()):
        return None
    return int(rest[0]), int(rest[1]), rest[2] if len(rest) > 2 else ""


@dataclass(frozen=True)
class WorkerTree:
    """A worker's part of one tree.

    Attributes:
        share: the tree's part of the gradient, 0 to 1.
        slots: the window in chunks, a power of two.
        rate_mbps: the wire rate at which the worker may send on this tree.
        port: the UDP destination port of all packets of the tree, up and down (protocol.json lists the ports).
        others_labels: in a gather, the labels under which the chunks of other owners come back, by owner; empty where
            they come under return_label.
        gather_speed: the factor on rate_mbps for the worker's own chunks of a gather.
        directions: 2 where gathers have every second slot and a window of their own, so that they run beside reductions
            (native/direction.h); otherwise 1.
        lanes: the number of windows among which its chunks are divided, each with a port and so a thread of its own
            (worker_agent/tree_lanes.py): 1, 2, 4, 8 or 16.
        link: the one of its node's links (`AgentConfig.links`) over which it is sent, from 0; results come over any
            link.
    """

    tree: int
    root: str
    share: float
    up_label: int
    return_label: int
    answer_label: int
    slots: int
    rate_mbps: float
    port: int
    others_labels: tuple[int, ...] = ()
    gather_speed: float = 1.0
    directions: int = 1
    lanes: int = 1
    link: int = 0


@dataclass(frozen=True)
class RootFlow:
    """A flow that ends at the parameter server.

    Attributes:
        parts: workers, by index in the job, grouped like the flows into the aggregation point from which the flow
            comes.
        partial: whether bit i of a packet's bitmap says that the workers in parts[i] are in the packet; otherwise all
            workers always are.
    """

    label: int
    parts: tuple[tuple[int, ...], ...]
    partial: bool

    @property
    def contributors(self) -> frozenset[int]:
        """All workers whose gradients may be in the flow's packets."""
        return frozenset(worker for part in self.parts for worker in part)


@dataclass(frozen=True)
class RootTree:
    """A parameter server's part of one tree.

    Attributes:
        answer_labels: by worker index, the label of packets to that worker alone.
        others_labels: by worker index, the label of packets to all workers but that one; empty where these packets go
            to all workers.
        rate_mbps: the planned wire rate of its results, within which retransmissions stay; 0 where it is unknown.
        directions, lanes: those of `WorkerTree`.
        link: the one of its node's links over which its results are sent; sums come over any link.
    """

    tree: int
    flows: tuple[RootFlow, ...]
    return_label: int
    answer_labels: tuple[int, ...]
    slots: int
    port: int
    others_labels: tuple[int, ...] = ()
    rate_mbps: float = 0.0
    directions: int = 1
    lanes: int = 1
    link: int = 0


@dataclass(frozen=True)
class ReroutedTree:
    """A tree that was rerouted around a failure, as one agent sees it.

    Attributes:
        label: a worker's up_label, or a parameter server's return_label.
        rate_mbps: a worker's rate from now on; 0 where it stays.
        contributions, results: whether those under way may be lost, so that the agent sends them again.
        link: the one of its node's links over which it is sent from now on, from 1; 0 where it stays.
    """

    label: int
    rate_mbps: float
    contributions: bool
    results: bool
    link: int = 0


@dataclass(frozen=True)
class AgentConfig:
    """One agent's configuration for one epoch.

    Attributes:
        index: the position in `workers` or in `parameter_servers`. A node of both roles has a worker's role and index,
            and also the trees of which it is the root.
        address: the IPv4 address of its data interface.
        repeats: the job can go on without a lost agent, so workers keep the input of operations under way, to repeat
            them.
        shrinks: the job can also go on without a worker, so workers keep results, too, for those that lack them.
        key: the secret of the epoch, 32 hexadecimal digits, shared by the controller and the job's agents, with which
            all sums are checked; "" stands for all zeros (test rigs without a controller).
        sources: addresses from which packets may come: the parameter servers' for a worker, the workers' for a
            parameter server; empty for any.
        link_mbps: what the link of a node of both roles carries outwards, which its two engines share
            (native/uplink.h); 0 where it is unknown, or the node has one role.
        ring_mbps: what a ring among the job's workers, without switches that add, would reach over the same links
            (worker_agent/ways.py); 0 where it is unknown.
        ring_hops: the number of links that a message of that ring crosses on average.
        links: where a node has several links to the data network, the switches that they lead to, by the node's ports
            from 1 ("" for a link that leads to none now); empty where it has one link, at port 1.
        adds: a switch on the node's own host adds inside of trees, and the agent is to report how much
            (worker_agent/adding.py).
    """

    job: str
    job_id: int
    epoch: int
    node: str
    role: Role
    index: int
    workers: tuple[str, ...]
    parameter_servers: tuple[str, ...]
    values_per_packet: int
    worker_trees: tuple[WorkerTree, ...] = ()
    root_trees: tuple[RootTree, ...] = ()
    address: str = ""
    repeats: bool = False
    shrinks: bool = False
    key: str = field(default="", repr=False)
    sources: tuple[str, ...] = ()
    link_mbps: float = 0.0
    ring_mbps: float = 0.0
    ring_hops: float = 0.0
    links: tuple[str, ...] = ()
    adds: bool = False

    @property
    def both_roles(self) -> bool:
        """Whether the node is worker and parameter server at once: its one agent has trees of both kinds."""
        return self.node in self.workers and self.node in self.parameter_servers

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def dumps(self) -> str:
        return json.dumps(self.to_json(), sort_keys=True)

    @property
    def digest(self) -> str:
        """Hash of everything but the epoch and its key. A running engine can stay where it is equal."""
        return hashlib.sha256(replace(self, epoch=0, key="").dumps().encode()).hexdigest()[:16]

    @classmethod
    def from_json(cls, source: Mapping[str, Any] | str) -> AgentConfig:
        """Make a configuration from a JSON object or its text. Raise ValueError, which names the field, where one is
        missing or unknown."""
        data: Mapping[str, Any] = json.loads(source) if isinstance(source, str) else source
        try:
            workers = tuple(WorkerTree(**_tuples(tree)) for tree in data.get("worker_trees", ()))
            roots = tuple(RootTree(**_tuples(tree, flows=_flows(tree))) for tree in data.get("root_trees", ()))
            return cls(**_tuples(data, worker_trees=workers, root_trees=roots))
        except (KeyError, TypeError) as error:
            raise ValueError(f"agent configuration: {error}") from None


def _tuples(data: Mapping[str, Any], **made: object) -> dict[str, Any]:
    """Return the fields of an object of JSON, with tuples in the place of its lists, and those that were `made`."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()} | made


def _flows(tree: Mapping[str, Any]) -> tuple[RootFlow, ...]:
    return tuple(RootFlow(one["label"], tuple(map(tuple, one["parts"])), one["partial"]) for one in tree["flows"])
