"""The switches that the tests run the program on, behind one small interface."""

from __future__ import annotations

from abc import ABC, abstractmethod

from p4src.artifacts import Artifact
from p4src.protocol import Verdict
from tests.model.switch import Aggregate, Bridge, Forward, Replicate, Switch

Frames = list[tuple[int, bytes]]


class Target(ABC):
    """A switch that runs a compiled program and has the tables of a :class:`tests.model.switch.Switch`."""

    @abstractmethod
    def process(self, port: int, frame: bytes) -> Frames:
        """Return all that leaves because ``frame`` arrives on ``port``, in any order."""

    @abstractmethod
    def verdicts(self) -> dict[Verdict, int]:
        """Return packets per verdict since the start, for every verdict."""

    @abstractmethod
    def label_counters(self) -> dict[tuple[int, int], tuple[int, int]]:
        """Return (packets, bytes) of each entry of the label table, by (ingress port, label)."""

    def other_bytes(self) -> tuple[dict[int, int], dict[int, int]] | None:
        """Return the bytes received and sent, by port, of what is not aggregation; None: they are not counted."""
        return None

    @abstractmethod
    def restart(self) -> None:
        """Forget everything and install the tables again."""

    @abstractmethod
    def close(self) -> None:
        """Release all that the switch holds."""


def parameters(action: Forward | Replicate | Aggregate) -> tuple[str, list[tuple[str, int]]]:
    """Return an entry's action as name and (parameter name, value), in the order of the P4 program."""
    if isinstance(action, Forward):
        return "forward", [("port", action.port)]
    if isinstance(action, Replicate):
        return "replicate", [("group", action.group)]
    names = ("slot_base", "slot_mask", "flow", "everyone", "next_label", "partial_label", "port")
    return "aggregate", [(name, getattr(action, name)) for name in names]


PORT_MASK = 0x1FF


def bridging(entry: Bridge) -> tuple[str, list[int]]:
    """Return a bridge entry's action and its parameters."""
    if entry.action is None:
        return "discard", []
    if isinstance(entry.action, Forward):
        return "bridge", [entry.action.port]
    return "flood", [entry.action.group]


def priority(configuration: Switch, place: int) -> int:
    """Return the priority of an entry; the first entry's is the highest."""
    return len(configuration.bridge) - place


class SoftswitchTarget(Target):
    """softswitch in this process, frame by frame, without its queues. With two ``threads`` or more packets run as if
    others ran at the same time.
    """

    def __init__(self, artifact: Artifact, configuration: Switch, threads: int = 1) -> None:
        from softswitch import Fabric, Program

        self.configuration = configuration
        self.program = Program.load(artifact.program.read_bytes())
        self.fabric = Fabric(threads)
        self.device = self.fabric.add_device(1)
        self.restart()

    def restart(self) -> None:
        from softswitch import Match

        self.device.load(self.program)
        for group, ports in self.configuration.groups.items():
            self.device.multicast_set(group, [(port, index + 1) for index, port in enumerate(ports)])
        for (port, label), action in self.configuration.labels.items():
            name, values = parameters(action)
            match = (Match("exact", port), Match("exact", label))
            self.device.insert("label_table", match, name, [value for _, value in values])
        for (address, length), (mac, port) in self.configuration.routes.items():
            prefix = (Match("lpm", address, prefix_len=length),)
            self.device.insert("ipv4_table", prefix, "route", [int.from_bytes(mac, "big"), port])
        for place, entry in enumerate(self.configuration.bridge):
            port = Match("ternary", entry.port or 0, 0 if entry.port is None else PORT_MASK)
            keys = (port, Match("ternary", entry.address & entry.mask, entry.mask))
            name, numbers = bridging(entry)
            self.device.insert("bridge_table", keys, name, numbers, priority=priority(self.configuration, place))

    def process(self, port: int, frame: bytes) -> Frames:
        return self.device.process(port, frame)

    def verdicts(self) -> dict[Verdict, int]:
        counts = self.device.counter_read_all("verdict_counter")
        return {verdict: counts[verdict][0] for verdict in Verdict}

    def label_counters(self) -> dict[tuple[int, int], tuple[int, int]]:
        from softswitch import Match

        return {
            (port, label): self.device.direct_counter_read("label_table", (Match("exact", port), Match("exact", label)))
            for port, label in self.configuration.labels
        }

    def other_bytes(self) -> tuple[dict[int, int], dict[int, int]] | None:
        received, sent = (self.device.counter_read_all(f"other_{way}") for way in ("received", "sent"))
        return ({port: count[1] for port, count in enumerate(received)}, {p: c[1] for p, c in enumerate(sent)})

    def close(self) -> None:
        self.device.unload()
