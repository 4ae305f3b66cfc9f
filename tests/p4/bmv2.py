"""bmv2's ``simple_switch_grpc`` with veth ports in a network namespace of its own."""

from __future__ import annotations

import select
import tempfile
import time
from pathlib import Path

from p4src.artifacts import Artifact
from p4src.protocol import Verdict
from softswitch.tests.support import switches
from softswitch.tests.support.switches import Cables
from tests.model.packet import Packet, decode, ours
from tests.model.switch import Switch
from tests.p4.p4runtime import Client
from tests.p4.targets import PORT_MASK, Frames, Target, bridging, parameters, priority

SENTINEL_LABEL = 0xFFFF0001
SENTINEL_GROUP = 4000
SENTINEL_JOB = 0xBEEF
DEADLINE = 20.0
"""Seconds in which a switch must answer."""


class Bmv2Target(Target):
    """One ``simple_switch_grpc`` process with the ports of the configuration.

    The output for a frame is complete when a second frame, sent behind it on the same port and replicated to all ports,
    has arrived on each of them: ingress takes packets in turn, and so does every egress port.
    """

    def __init__(self, artifact: Artifact, configuration: Switch, ports: tuple[int, ...]) -> None:
        self.artifact, self.configuration, self.ports = artifact, configuration, ports
        self.sentinels = 0
        self.client: Client | None = None
        self.directory = tempfile.TemporaryDirectory(prefix="inart-t-")
        self.cables = Cables(ports)
        self.sockets = self.cables.sockets
        self.switch = switches.Switch("bmv2", Path(self.directory.name), cables=self.cables)
        try:
            self.switch.start()
            self.client = Client(self.switch.address, self.artifact)
            self.restart()
        except BaseException:
            self.close()
            raise

    def restart(self) -> None:
        client = self.client
        assert client is not None
        client.load()
        self.sentinels = 0
        groups = {**self.configuration.groups, SENTINEL_GROUP: self.ports}
        client.insert([client.group(group, ports) for group, ports in groups.items()])
        entries = []
        for (port, label), action in self.configuration.labels.items():
            name, values = parameters(action)
            entries.append(client.entry("label_table", (port, label), name, [value for _, value in values]))
        for port in self.ports:
            entries.append(client.entry("label_table", (port, SENTINEL_LABEL), "replicate", [SENTINEL_GROUP]))
        for (address, length), (mac, port) in self.configuration.routes.items():
            values_ = [int.from_bytes(mac, "big"), port]
            entries.append(client.entry("ipv4_table", [(address, length)], "route", values_))
        for place, one in enumerate(self.configuration.bridge):
            keys = [(one.port or 0, 0 if one.port is None else PORT_MASK), (one.address, one.mask)]
            name, numbers = bridging(one)
            entries.append(client.entry("bridge_table", keys, name, numbers, priority(self.configuration, place)))
        client.insert(entries)
        # The new program takes effect at some packet: frames that are lost before that are sent again.
        end = time.monotonic() + DEADLINE
        while not self._try_sentinel(self.ports[0], wait=0.2):
            if time.monotonic() > end:
                raise TimeoutError(f"bmv2 forwards nothing {DEADLINE} s after it got its program")
        self.base = self._verdicts()

    def _try_sentinel(self, port: int, wait: float) -> bool:
        try:
            self._behind(port, wait)
        except TimeoutError:
            return False
        return True

    def process(self, port: int, frame: bytes) -> Frames:
        self.sockets[port].send(frame)
        return self.settle(port)

    def settle(self, port: int) -> Frames:
        """Return all frames that are still on their way because of frames sent on ``port``."""
        return self._behind(port, DEADLINE)

    def _behind(self, port: int, wait: float) -> Frames:
        """Send a sentinel on ``port``; returns what arrives anywhere before it."""
        values = (0,) * self.artifact.manifest.values_per_packet
        self.sentinels += 1
        sentinel = Packet(SENTINEL_LABEL, 0, self.sentinels, 0, values, job=SENTINEL_JOB).encode()
        self.sockets[port].send(sentinel)
        pending = {raw: number for number, raw in self.sockets.items()}
        frames: Frames = []
        end = time.monotonic() + wait
        while pending:
            ready, _, _ = select.select(list(pending), [], [], max(0.0, end - time.monotonic()))
            if not ready:
                raise TimeoutError(f"no answer on ports {sorted(pending.values())} after {wait} s")
            for raw in ready:
                frame = switches.receive(raw)
                if frame == sentinel:
                    del pending[raw]
                elif not self._is_sentinel(frame):
                    frames.append((pending[raw], frame))
        return frames

    def _is_sentinel(self, frame: bytes) -> bool:
        """Return whether a frame is an earlier sentinel, from before the switch had its program."""
        if not ours(frame):
            return False
        packet = decode(frame, self.artifact.manifest.values_per_packet)
        return packet is not None and (packet.label, packet.job) == (SENTINEL_LABEL, SENTINEL_JOB)

    def _verdicts(self) -> dict[Verdict, int]:
        assert self.client is not None
        counts = self.client.counter("verdict_counter")
        found = {verdict: counts.get(int(verdict), 0) for verdict in Verdict}
        found[Verdict.REPLICATED] -= self.sentinels
        return found

    def verdicts(self) -> dict[Verdict, int]:
        return {verdict: count - self.base[verdict] for verdict, count in self._verdicts().items()}

    def label_counters(self) -> dict[tuple[int, int], tuple[int, int]]:
        assert self.client is not None
        counters = self.client.direct_counters("label_table")
        return {(port, label): counters[port, label] for port, label in self.configuration.labels}

    def other_bytes(self) -> tuple[dict[int, int], dict[int, int]] | None:
        assert self.client is not None
        return self.client.counter_bytes("other_received"), self.client.counter_bytes("other_sent")

    def close(self) -> None:
        if self.client is not None:
            self.client.close()
        self.switch.close()
        self.cables.close()
        self.directory.cleanup()
