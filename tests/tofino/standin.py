"""Stands in for tofino-model and bf_switchd of one switch: our BRI server, and a model of the program on interfaces.

    ip netns exec inart-V1 python -m tests.tofino.standin FOLDER/V1/ports.json [--tofino 2] [--artifacts t2na-128]
        [--chip] [--loss 0.01]

What `python -m topologies.tofino_model` lays out is tried with it where there is no P4 Studio: deploy, agents and
frames are real, the switch is not. --chip: Intel's model of the chip with our compiled program (chip.py), else our own
model. It prints its address, and its verdicts at each line of its standard input and when that ends.
"""

from __future__ import annotations

import argparse
import json
import random
import selectors
import socket
import sys
from pathlib import Path

from controlplane.planner.frontpanel import FrontPanelPort
from controlplane.targets.bri.entries import Entry, KeyValue, Masked, Prefix
from controlplane.targets.bri.program import Program
from controlplane.targets.bri.schema import local
from p4src.artifacts import ARTIFACTS, Artifact, find, load
from p4src.protocol import Verdict
from p4src.tofino_install import GENERATIONS
from tests.model.packet import decode, ours
from tests.tofino.chip import Chip, missing
from tests.tofino.dataplane import PLANES
from tests.tofino.switch import TofinoSwitch
from tests.tofino.wire import bri_wire_pb2 as pb
from topologies.tofino_model import BRI_PORT, device_port

ALL_PROTOCOLS = 3
OUTGOING = 4
"""The packet type of frames that the machine itself sends, which packet sockets also receive."""
QUEUE = 64
"""The most frames that wait in front of a chip; further ones are lost, as on a switch whose queue is full."""
LABELS, ROUTES, BRIDGE, GROUPS, NODES = "label_table", "ipv4_table", "bridge_table", "$pre.mgid", "$pre.node"
PORTS = "$PORT"


class Standin:
    """One switch. ports: interface by device port; a port works once it has been configured over BRI.

    ``loss``: this share of the frames that come in, and of those that go out, is dropped.
    """

    def __init__(
        self,
        ports: dict[int, str],
        artifact: Artifact,
        *,
        tofino: str = "1",
        chip: bool = False,
        loss: float = 0.0,
        seed: int = 0,
    ) -> None:
        self.artifact = artifact
        self.values = self.artifact.manifest.values_per_packet
        self.chip = Chip(self.artifact) if chip else None
        self.loss, self.random = loss, random.Random(seed)
        self.lost = 0
        self.server = TofinoSwitch(
            self.artifact.program,
            host="0.0.0.0",
            port=BRI_PORT,
            devices=lambda connector, channel: device_port(FrontPanelPort(connector, channel, "100G"), tofino),
        )
        kind = Program.load(self.artifact.program).chip
        loops = {128 * (device // 128) + port for device in ports for port in kind.recirculation}
        self.plane = PLANES[kind]({}, {}, loops)
        self.sockets: dict[int, socket.socket] = {}
        for device, name in ports.items():
            self.sockets[device] = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
            self.sockets[device].bind((name, ALL_PROTOCOLS))
        self.open: set[int] = set()
        self._seen = -1
        self._filled = False
        self._selector = selectors.DefaultSelector()

    def run(self) -> None:
        """Serve until standard input ends; print the verdicts so far at each of its lines."""
        self._selector.register(sys.stdin, selectors.EVENT_READ)
        for device, interface in self.sockets.items():
            self._selector.register(interface, selectors.EVENT_READ, lambda device=device: self._receive(device))
        if self.chip is not None:
            self._selector.register(self.chip.output, selectors.EVENT_READ, self._came_out)
        while True:
            for key, _ in self._selector.select():
                if key.data is not None:
                    key.data()
                elif sys.stdin.readline():
                    print(json.dumps(self.counted()), flush=True)
                else:
                    return

    def counted(self) -> dict[str, int]:
        """Return packets by verdict, recirculated packets (our model only), and frames lost."""
        if self.chip is None:
            verdicts: dict[Verdict, int] = dict(self.plane.verdicts)
            round_ = {"went round": self.plane.round}
        else:
            pipes = {device // 128 for device in self.sockets}
            verdicts = {
                verdict: sum(self.chip.counter("verdict_counter", verdict, pipe)[0] for pipe in pipes)
                for verdict in Verdict
            }
            round_ = {}
        named = {verdict.name.lower(): count for verdict, count in sorted(verdicts.items()) if count}
        return {**named, **round_, "lost": self.lost}

    def close(self) -> None:
        self.server.stop()
        if self.chip is not None:
            self.chip.close()

    def _receive(self, device: int) -> None:
        frame, (_, _, kind, *_) = self.sockets[device].recvfrom(2048)
        if kind == OUTGOING or not ours(frame):
            return
        if self._seen != self.server.updates:
            self._take_over()
        if device not in self.open or self._lose():
            return
        if self.chip is not None:
            if self.chip.under_way < QUEUE:
                self.chip.send(device, frame)
            else:
                self.lost += 1
            return
        packet = decode(frame, self.values)
        if packet is None:
            return
        for out, leaving in self.plane.process(device, packet):
            self._send(out, leaving.encode())

    def _came_out(self) -> None:
        assert self.chip is not None
        for out, frame in self.chip.left():
            self._send(out, frame)

    def _send(self, out: int, frame: bytes) -> None:
        if out in self.open and not self._lose():
            self.sockets[out].send(frame)

    def _lose(self) -> bool:
        lost = self.random.random() < self.loss
        self.lost += lost
        return lost

    def _take_over(self) -> None:
        """Take over the current tables; the registers stay.

        A chip takes entries only once, so a new chip is started when they change.
        """
        self._seen, entries = self.server.updates, self._entries()
        self.open = {_port(entry) for entry in entries if entry.table == PORTS}
        if self.chip is not None:
            if self._filled:
                self._selector.unregister(self.chip.output)
                self.chip.close()
                self.chip = Chip(self.artifact)
                self._selector.register(self.chip.output, selectors.EVENT_READ, self._came_out)
            self._filled = True
            self.chip.install(entries)
            return
        members = {entry.key[0][1]: dict(entry.data)["$DEV_PORT"] for entry in entries if entry.table == NODES}
        self.plane.groups = {
            entry.key[0][1]: members[dict(entry.data)["$MULTICAST_NODE_ID"][0]]  # type: ignore[index, misc]
            for entry in entries
            if entry.table == GROUPS
        }
        self.plane.labels = {
            (entry.key[0][1], entry.key[1][1]): (local(entry.action or ""), dict(entry.data))  # type: ignore[misc]
            for entry in entries
            if local(entry.table) == LABELS
        }

    def _entries(self) -> list[Entry]:
        """Return what the server has been told as entries of the control plane."""
        schema = self.server.schema
        made = []
        for name, there in self.server.snapshot().items():
            table = schema.tables[name]
            if local(name) not in (LABELS, ROUTES, BRIDGE, *(local(fixed) for fixed in (GROUPS, NODES, PORTS))):
                continue
            names = {field.id: field.name for field in table.keys.values()}
            actions = {action.id: action for action in table.actions.values()}
            for key, (action_id, values) in there.items():
                action = actions.get(action_id)
                fields = {field.id: field.name for field in table.fields(action.name if action else None).values()}
                data = tuple((fields[number], _value(value)) for number, value in values.items())
                made.append(Entry(name, tuple(_key(key, names)), action.name if action else None, data))  # type: ignore[arg-type]
        return made


def _port(entry: Entry) -> int:
    (device,) = dict(entry.key).values()
    assert isinstance(device, int)
    return device


def _key(key: bytes, names: dict[int, str]) -> list[tuple[str, KeyValue]]:
    """Return the key's fields in order."""
    made: list[tuple[str, KeyValue]] = []
    for field in pb.TableKey.FromString(key).fields:
        kind = field.WhichOneof("match_type")
        if kind == "lpm":
            value: KeyValue = Prefix(int.from_bytes(field.lpm.value, "big"), field.lpm.prefix_len)
        elif kind == "ternary":
            value = Masked(int.from_bytes(field.ternary.value, "big"), int.from_bytes(field.ternary.mask, "big"))
        else:
            value = int.from_bytes(field.exact.value, "big")
        made.append((names[field.field_id], value))
    return made


def _value(value: object) -> object:
    return int.from_bytes(value, "big") if isinstance(value, bytes) else value


def add_program(parser: argparse.ArgumentParser) -> None:
    """Add the option that :func:`program_of` reads, beside --tofino."""
    parser.add_argument("--artifacts", metavar="NAME", help="which program, as t2na-128 (default: 64 values)")


def program_of(options: argparse.Namespace) -> Artifact:
    """Return the program that the options name."""
    return load(ARTIFACTS / options.artifacts) if options.artifacts else find(GENERATIONS[options.tofino])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.tofino.standin")
    parser.add_argument("ports", type=Path, help="ports.json")
    parser.add_argument("--chip", action="store_true", help="Intel's model of the chip, with the compiled program")
    parser.add_argument("--tofino", choices=sorted(GENERATIONS), default="1", help="generation (default: %(default)s)")
    add_program(parser)
    parser.add_argument("--loss", type=float, default=0.0, help="share of frames lost at each port")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    artifact = program_of(options)
    reason = missing(artifact) if options.chip else None
    if reason:
        parser.error(reason)
    mapping = json.loads(options.ports.read_text())["PortToIf"]
    ports = {one["device_port"]: one["if"] for one in mapping}
    switch = Standin(ports, artifact, tofino=options.tofino, chip=options.chip, loss=options.loss, seed=options.seed)
    print(f"BRI on port {switch.server.port}", flush=True)
    switch.run()
    print(json.dumps(switch.counted()), flush=True)
    switch.close()


if __name__ == "__main__":
    main()
