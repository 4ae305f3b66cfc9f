"""Stands in for tofino-model and bf_switchd of one switch: our BRI server, and our model of the program on interfaces.

    ip netns exec inart-V1 python -m tests.tofino.standin FOLDER/V1/ports.json

What `python -m topologies.tofino_model` lays out is tried with it where there is no P4 Studio: deploy, agents and
frames are real, the switch is not. It prints its address, and its verdicts when its standard input ends.
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
from pathlib import Path

from controlplane.frontpanel import FrontPanelPort
from controlplane.targets.bri.schema import local
from p4src.artifacts import find
from tests.model.packet import decode, ours
from tests.tofino.dataplane import Switch
from tests.tofino.switch import TofinoSwitch
from tests.tofino.wire import bri_wire_pb2 as pb
from topologies.tofino_model import BRI_PORT, device_port

ALL_PROTOCOLS = 3
OUTGOING = 4
"""Packet sockets also see what the machine itself sends."""


class Standin:
    """One switch. ports: interface by device port; a port works once it has been made over BRI."""

    def __init__(self, ports: dict[int, str]) -> None:
        artifact = find("tna")
        self.values = artifact.manifest.values_per_packet
        self.server = TofinoSwitch(
            artifact.program,
            host="0.0.0.0",
            port=BRI_PORT,
            devices=lambda connector, channel: device_port(FrontPanelPort(connector, channel, "100G")),
        )
        self.plane = Switch({}, {})
        self.sockets: dict[int, socket.socket] = {}
        for device, name in ports.items():
            self.sockets[device] = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
            self.sockets[device].bind((name, 0))
        self.open: set[int] = set()
        self._seen = -1

    def run(self) -> None:
        """Until standard input ends."""
        with selectors.DefaultSelector() as selector:
            selector.register(sys.stdin, selectors.EVENT_READ)
            for device, interface in self.sockets.items():
                selector.register(interface, selectors.EVENT_READ, device)
            while True:
                for key, _ in selector.select():
                    if key.data is None:
                        return
                    self._receive(key.data)

    def _receive(self, device: int) -> None:
        frame, (_, _, kind, *_) = self.sockets[device].recvfrom(2048)
        if kind == OUTGOING or not ours(frame):
            return
        if self._seen != self.server.updates:
            self._take_over()
        packet = decode(frame, self.values)
        if device not in self.open or packet is None:
            return
        for out, leaving in self.plane.process(device, packet):
            if out in self.open:
                self.sockets[out].send(leaving.encode())

    def _take_over(self) -> None:
        """The tables as they are now; the registers stay."""
        self._seen, there = self.server.updates, self.server.snapshot()
        schema = self.server.schema
        label_table = schema.table("label_table")
        actions = {action.id: action for action in label_table.actions.values()}
        labels = {}
        for key, (action_id, values) in there.get(label_table.name, {}).items():
            action = actions[action_id]
            data = {name: _number(values[field.id]) for name, field in action.fields.items()}
            labels[_key(key)] = local(action.name), data
        members = {_key(key)[0]: values for key, (_, values) in there.get("$pre.node", {}).items()}
        nodes, groups = schema.tables["$pre.node"], schema.tables["$pre.mgid"]
        self.plane.labels = labels  # type: ignore[assignment]
        self.plane.groups = {
            _key(key)[0]: members[values[groups.data["$MULTICAST_NODE_ID"].id][0]][nodes.data["$DEV_PORT"].id]  # type: ignore[index, misc]
            for key, (_, values) in there.get("$pre.mgid", {}).items()
        }
        self.open = {_key(key)[0] for key in there.get("$PORT", {})}


def _key(key: bytes) -> tuple[int, ...]:
    """The numbers of an entry's key, in the order of the fields."""
    return tuple(int.from_bytes(field.exact.value, "big") for field in pb.TableKey.FromString(key).fields)


def _number(value: object) -> int:
    assert isinstance(value, bytes)
    return int.from_bytes(value, "big")


def main() -> None:
    mapping = json.loads(Path(sys.argv[1]).read_text())["PortToIf"]
    switch = Standin({one["device_port"]: one["if"] for one in mapping})
    print(f"BRI on port {switch.server.port}", flush=True)
    switch.run()
    counted = {verdict.name.lower(): count for verdict, count in sorted(switch.plane.verdicts.items())}
    print(json.dumps({**counted, "went round": switch.plane.round}), flush=True)
    switch.server.stop()


if __name__ == "__main__":
    main()
