"""What an agent needs to know to take part in a job: plain data with a JSON round trip."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

REFUSED = "refused_by_the_check"
"""Of agents' statistics: sums and packets that were not what the workers have sent; with " of NAME": whose."""
SUSPECT = "suspect"
Role = Literal["worker", "parameter_server"]


def suspect_key(tree: int, label: int = 0, worker: str = "") -> str:
    """The name of a statistic: how many packets of a tree the check has refused. label: that they had (0: results, at
    a worker). worker: the one whose contribution each of them was; empty: sums of several."""
    return f"{SUSPECT} {tree} {label} {worker}".rstrip()


def read_suspect_key(name: str) -> tuple[int, int, str] | None:
    """Tree, label and worker of `suspect_key`; None: it is another statistic."""
    word, *rest = name.split(" ", 3)
    if word != SUSPECT or len(rest) < 2 or not (rest[0].isdecimal() and rest[1].isdecimal()):
        return None
    return int(rest[0]), int(rest[1]), rest[2] if len(rest) > 2 else ""


@dataclass(frozen=True)
class WorkerTree:
    """A worker's part of one tree. slots: window in chunks, a power of two. rate_mbps: wire bits this tree may send.

    port: UDP destination port of all packets of the tree, up and down (protocol.json says which are ours).
    others_labels: the chunks of a gather that others own come back under these, by who owns them; empty: under the
    return label. gather_speed: so many times rate_mbps its chunks may go then.
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


@dataclass(frozen=True)
class RootFlow:
    """A flow that ends at the root. parts: workers by index in the job, divided like the flows of the aggregation point
    it comes from. partial True: bit i of a packet's bitmap says whether parts[i] are in it; False: all are."""

    label: int
    parts: tuple[tuple[int, ...], ...]
    partial: bool

    @property
    def contributors(self) -> frozenset[int]:
        """All workers whose gradients may be in its packets."""
        return frozenset(worker for part in self.parts for worker in part)


@dataclass(frozen=True)
class RootTree:
    """A root's part of one tree. answer_labels, others_labels: to a worker, and to all but it, by its index (without
    the latter all get what one sends to all). port: the tree's. rate_mbps: of its results, as planned, in wire bits:
    what is sent once more stays within it; 0: it is not known."""

    tree: int
    flows: tuple[RootFlow, ...]
    return_label: int
    answer_labels: tuple[int, ...]
    slots: int
    port: int
    others_labels: tuple[int, ...] = ()
    rate_mbps: float = 0.0


@dataclass(frozen=True)
class RepairedTree:
    """A tree that was led around something that failed, as one agent knows it. label: a worker's up_label, a root's
    return_label. rate_mbps: of a worker from now on; 0: as before. contributions, results: those under way may be
    lost, and are sent once more."""

    label: int
    rate_mbps: float
    contributions: bool
    results: bool


@dataclass(frozen=True)
class AgentConfig:
    """One agent's configuration for one epoch.

    index: position in `workers` or in `parameter_servers`. address: IPv4 of its data interface. repeats: the job can go
    on without an agent that is lost: a worker keeps what is under way, to start it again. shrinks: also without a
    worker: it keeps results, too, for those who have not got them.

    key: of the epoch, 32 hexadecimal digits, with which all sums are checked: a secret of the controller and the job's
    agents; empty: all zeros (rigs without a controller). sources: addresses that packets may come from: a worker's are
    the parameter servers', theirs the workers'; empty: any.
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

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def dumps(self) -> str:
        return json.dumps(self.to_json(), sort_keys=True)

    @property
    def digest(self) -> str:
        """Of all but the epoch and its key: equal means that a running engine can stay."""
        return hashlib.sha256(replace(self, epoch=0, key="").dumps().encode()).hexdigest()[:16]

    @classmethod
    def from_json(cls, source: Mapping[str, Any] | str) -> AgentConfig:
        """From the object or its text. Raises ValueError, naming a missing or unknown field."""
        data: Mapping[str, Any] = json.loads(source) if isinstance(source, str) else source
        try:
            return cls(
                **{
                    **data,
                    "workers": tuple(data["workers"]),
                    "parameter_servers": tuple(data["parameter_servers"]),
                    "sources": tuple(data.get("sources", ())),
                    "worker_trees": tuple(
                        WorkerTree(**{**tree, "others_labels": tuple(tree.get("others_labels", ()))})
                        for tree in data.get("worker_trees", ())
                    ),
                    "root_trees": tuple(
                        RootTree(
                            **{
                                **tree,
                                "flows": tuple(
                                    RootFlow(flow["label"], tuple(map(tuple, flow["parts"])), flow["partial"])
                                    for flow in tree["flows"]
                                ),
                                "answer_labels": tuple(tree["answer_labels"]),
                                "others_labels": tuple(tree.get("others_labels", ())),
                            }
                        )
                        for tree in data.get("root_trees", ())
                    ),
                }
            )
        except (KeyError, TypeError) as error:
            raise ValueError(f"agent configuration: {error}") from None
