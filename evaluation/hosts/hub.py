"""The label switch of benchmarks and tests (native/hub.c) and the configurations of a star around it."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from controlplane.agentconfig import AgentConfig, RootFlow, RootTree, WorkerTree
from controlplane.native_build import load
from p4src.protocol import VERDICTS, udp_port
from worker_agent.native_engine import NATIVE

_FORWARD, _REPLICATE, _AGGREGATE = range(3)


class _Action(ctypes.Structure):
    _fields_ = [
        ("kind", ctypes.c_int32),
        ("port", ctypes.c_uint32),
        ("ports", ctypes.c_uint64),
        ("slot_base", ctypes.c_uint32),
        ("slot_mask", ctypes.c_uint32),
        ("contributor", ctypes.c_uint64),
        ("expected", ctypes.c_uint64),
        ("next_label", ctypes.c_uint32),
    ]


class _Faults(ctypes.Structure):
    _fields_ = [(name, ctypes.c_double) for name in ("loss", "duplicate", "reorder", "delay_seconds", "hold_seconds")]


@dataclass(frozen=True)
class Faults:
    """What every port does to packets: probabilities (loss at ingress and again at egress), delay of all packets and
    how long a reordered one is held back at most, in seconds."""

    loss: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    delay_seconds: float = 0.0
    hold_seconds: float = 0.0


class Hub:
    """A label switch over Linux interfaces (port i = interfaces[i]). Fill the table, then start(); close() ends it."""

    def __init__(self, interfaces: Sequence[str], values_per_packet: int, slots: int = 65536, seed: int = 1) -> None:
        self._library = load(Path(__file__).resolve().parent / "native" / "hub.c", include=[NATIVE])
        self._library.hub_create.restype = ctypes.c_void_p
        error = ctypes.create_string_buffer(512)
        names = (ctypes.c_char_p * len(interfaces))(*(name.encode() for name in interfaces))
        self._handle = ctypes.c_void_p(
            self._library.hub_create(
                names,
                len(interfaces),
                values_per_packet,
                slots,
                ctypes.c_uint64(seed),
                error,
                ctypes.c_size_t(len(error)),
            )
        )
        if not self._handle:
            raise OSError(error.value.decode())
        self._started = False

    def _label(self, ingress: int, label: int, action: _Action) -> None:
        if self._library.hub_label(self._handle, ingress, label, ctypes.byref(action)):
            raise ValueError(f"port {ingress} does not exist, or the table is full")

    def forward(self, ingress: int, label: int, port: int) -> None:
        """label_table: forward(port)."""
        self._label(ingress, label, _Action(kind=_FORWARD, port=port))

    def replicate(self, ingress: int, label: int, ports: Sequence[int]) -> None:
        """label_table: replicate(a group of these ports)."""
        self._label(ingress, label, _Action(kind=_REPLICATE, ports=sum(1 << port for port in ports)))

    def aggregate(
        self,
        ingress: int,
        label: int,
        *,
        slot_base: int,
        slot_mask: int,
        contributor: int,
        expected: int,
        next_label: int,
        port: int,
    ) -> None:
        """label_table: aggregate(...)."""
        self._label(
            ingress,
            label,
            _Action(
                kind=_AGGREGATE,
                port=port,
                slot_base=slot_base,
                slot_mask=slot_mask,
                contributor=contributor,
                expected=expected,
                next_label=next_label,
            ),
        )

    def faults(self, faults: Faults) -> None:
        """From now on."""
        self._library.hub_faults(
            self._handle,
            ctypes.byref(
                _Faults(faults.loss, faults.duplicate, faults.reorder, faults.delay_seconds, faults.hold_seconds)
            ),
        )

    def start(self) -> None:
        """Starts forwarding."""
        if self._library.hub_start(self._handle):
            raise OSError("cannot start the hub's thread")
        self._started = True

    def reboot(self) -> None:
        """Forgets all slots."""
        self._library.hub_reboot(self._handle)

    def verdicts(self) -> dict[str, int]:
        """Packets by what happened to them."""
        counts = (ctypes.c_uint64 * len(VERDICTS))()
        self._library.hub_verdicts(self._handle, counts)
        return dict(zip(VERDICTS, counts, strict=True))

    def close(self) -> None:
        """Ends the thread and frees the sockets. Again: nothing happens."""
        if self._handle:
            self._library.hub_destroy(self._handle, int(self._started))
            self._handle = ctypes.c_void_p()


@dataclass(frozen=True)
class TreeShape:
    """One tree of a star: which PS is its root, its share, and if the hub aggregates it (else its flows are direct)."""

    root: int = 0
    share: float = 1.0
    aggregated: bool = False


@dataclass(frozen=True)
class Star:
    """A job around one hub: configurations of its workers (ports 0 .. W - 1) and PSs (ports W ..), the hub's table."""

    workers: tuple[AgentConfig, ...]
    servers: tuple[AgentConfig, ...]
    trees: tuple[TreeShape, ...]

    def program(self, hub: Hub) -> None:
        """Fills the table of a hub whose ports are the workers' and then the PSs' interfaces."""
        count = len(self.workers)
        for server, config in enumerate(self.servers):
            port = count + server
            for tree in config.root_trees:
                hub.replicate(port, tree.return_label, range(count))
                for worker, label in enumerate(tree.answer_labels):
                    hub.forward(port, label, worker)
                partial = next((flow for flow in tree.flows if flow.partial), None)
                for worker, worker_config in enumerate(self.workers):
                    up = worker_config.worker_trees[tree.tree].up_label
                    if partial is None:
                        hub.forward(worker, up, port)
                    else:
                        hub.aggregate(
                            worker,
                            up,
                            slot_base=tree.tree * tree.slots,
                            slot_mask=tree.slots - 1,
                            contributor=1 << worker,
                            expected=tree.expected,
                            next_label=partial.label,
                            port=port,
                        )


def star(
    workers: int,
    servers: int = 1,
    trees: Sequence[TreeShape] = (TreeShape(),),
    *,
    values_per_packet: int = 256,
    slots: int = 512,
    rate_mbps: float = 0.0,
    epoch: int = 1,
    job_id: int = 7,
) -> Star:
    """Configurations of a star; rate_mbps: wire bits a worker sends in all (0: not paced)."""
    worker_names = tuple(f"w{index}" for index in range(workers))
    server_names = tuple(f"s{index}" for index in range(servers))
    labels = iter(range(1, 1 << 31))
    expected = (1 << workers) - 1
    of_worker: list[list[WorkerTree]] = [[] for _ in worker_names]
    of_server: list[list[RootTree]] = [[] for _ in server_names]
    for number, tree in enumerate(trees):
        port = udp_port(job_id, number)
        up = [next(labels) for _ in worker_names]
        answers = [next(labels) for _ in worker_names]
        back, partial = next(labels), next(labels)
        for worker in range(workers):
            of_worker[worker].append(
                WorkerTree(
                    number,
                    server_names[tree.root],
                    tree.share,
                    up[worker],
                    back,
                    answers[worker],
                    slots,
                    rate_mbps * tree.share,
                    port,
                )
            )
        flows = (
            (RootFlow(partial, expected, True),)
            if tree.aggregated
            else tuple(RootFlow(label, 1 << worker, False) for worker, label in enumerate(up))
        )
        of_server[tree.root].append(RootTree(number, expected, flows, back, tuple(answers), slots, port))

    def config(node: str, index: int, address: str, **rest: Any) -> AgentConfig:
        return AgentConfig(
            job="star",
            job_id=job_id,
            epoch=epoch,
            node=node,
            index=index,
            workers=worker_names,
            parameter_servers=server_names,
            values_per_packet=values_per_packet,
            address=address,
            **rest,
        )

    return Star(
        tuple(
            config(name, index, f"10.9.0.{index + 1}", role="worker", worker_trees=tuple(of_worker[index]))
            for index, name in enumerate(worker_names)
        ),
        tuple(
            config(name, index, f"10.9.1.{index + 1}", role="parameter_server", root_trees=tuple(of_server[index]))
            for index, name in enumerate(server_names)
        ),
        tuple(trees),
    )
