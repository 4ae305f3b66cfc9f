"""The control socket, over a fabric that only records calls."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from softswitch import Crc
from softswitch.__main__ import main
from softswitch.app import config, control, switches
from softswitch.bmv2json.model import Register
from softswitch.dataplane.ports import PortStats
from softswitch.tests.p4runtime.client import Client, exact_entry, insert
from softswitch.tests.p4runtime.fake import PROGRAM_JSON, FakeDevice, FakeProgram


class FakeFabric:
    """Fake devices with ports, and a record of the calls."""

    last: FakeFabric

    def __init__(self, threads: int = 1, seed: int = 0) -> None:
        FakeFabric.last = self
        self.devices: dict[int, Any] = {}
        self.links: list[tuple] = []
        self.shapes: dict[tuple[int, int], dict] = {}
        self.running = False

    def add_device(self, device_id: int, cpu_port: int | None = None, priority_queues: int = 1) -> FakeDevice:
        device: Any = FakeDevice(device_id, cpu_port)
        device.interfaces = {}
        device.add_port = lambda port, interface, offload: device.interfaces.update({port: interface})
        device.remove_port = device.interfaces.pop
        device.port_stats = lambda: {1: PortStats(3, 300, 2, 200, {"queue": 1})}
        device.drop_stats = lambda: {"parser": 4}
        self.devices[device_id] = device
        return device

    def connect(self, a: tuple[int, int], b: tuple[int, int]) -> None:
        self.links.append((a, b))

    def shape(self, device_id: int, port: int, **shape: float) -> None:
        self.shapes[device_id, port] = shape

    def start(self) -> None:
        self.running = True

    def close(self) -> None:
        self.running = False


class Running:
    def __init__(self, folder: Path, program: bool) -> None:
        description: dict = {
            "grpc": "127.0.0.1:0",
            "control": "control.sock",
            "devices": [
                {
                    "id": 1,
                    "name": "s1",
                    "cpu_port": 255,
                    "ports": [
                        {"port": 0, "interface": "veth0"},
                        {"port": 1, "peer": {"device": 2, "port": 1}, "shape": {"rate_mbps": 20, "loss": 0.5}},
                    ],
                },
                {"id": 2, "name": "s2", "ports": [{"port": 1, "peer": {"device": "s1", "port": 1}}]},
            ],
        }
        if program:
            (folder / "prog.json").write_bytes(PROGRAM_JSON)
            (folder / "demo.p4info.txtpb").write_bytes((Path(__file__).parent / "demo.p4info.txtpb").read_bytes())
            description["devices"][0] |= {"program": "prog.json", "p4info": "demo.p4info.txtpb"}
        fabric = config.parse(description, folder)
        self.switches = switches.Switches(fabric)
        assert fabric.control is not None
        self.path = fabric.control
        self.control = control.ControlServer(self.path, self.switches)
        self.fabric = FakeFabric.last
        self.switches.start()

    def client(self, **more: Any) -> Client:
        return Client(self.switches.addresses[0], **more)

    def stop(self) -> None:
        self.control.stop()
        self.switches.stop()


@pytest.fixture(params=[False, True], ids=["empty", "with program"])
def running(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    monkeypatch.setattr(switches, "Fabric", FakeFabric)
    monkeypatch.setattr(switches, "Program", FakeProgram)
    one = Running(tmp_path, request.param)
    try:
        yield one
    finally:
        one.stop()
        assert not Path(one.path).exists()
        assert not one.fabric.running


def test_the_fabric_is_built_as_described(running: Running) -> None:
    fabric = running.fabric
    assert fabric.running
    assert fabric.links == [((1, 1), (2, 1))]
    assert fabric.devices[1].interfaces == {0: "veth0"}
    assert fabric.shapes == {(1, 1): {"rate_mbps": 20.0, "loss": 0.5}}
    assert fabric.devices[1].cpu_port == 255


def test_stats(running: Running) -> None:
    everything = control.call(running.path, "stats")["devices"]
    assert set(everything) == {"1", "2"}
    one = control.call(running.path, "stats", device="s1")["devices"]["1"]
    assert one["name"] == "s1"
    assert one["ports"]["1"] == {
        "rx_packets": 3,
        "rx_bytes": 300,
        "tx_packets": 2,
        "tx_bytes": 200,
        "drops": {"queue": 1},
        "rx_superframes": 0,
        "tx_superframes": 0,
        "corrupted": 0,
        "queued_packets": 0,
        "queued_bytes": 0,
        "marked": 0,
    }
    assert one["drops"] == {"parser": 4}
    assert one["shape"] == {"0": {}, "1": {"rate_mbps": 20.0, "loss": 0.5}}
    assert one["p4runtime"]["up"] is True


def test_shape_changes_only_given_fields(running: Running) -> None:
    shape = control.call(running.path, "shape", device="s1", port=1, shape={"loss": 0.1, "delay_ms": 5})
    assert shape == {"rate_mbps": 20.0, "loss": 0.1, "delay_ms": 5.0}
    assert running.fabric.shapes[1, 1] == shape
    control.call(running.path, "shape", device=1, port=1, shape={"rate_mbps": None})
    assert running.fabric.shapes[1, 1]["rate_mbps"] is None
    bad: list[tuple[dict[str, Any], str]] = [
        ({"device": 1, "port": 9, "shape": {}}, "device 1 port 9 does not exist"),
        ({"device": "s9", "port": 1, "shape": {}}, "no device 's9'"),
        ({"device": 1, "port": 1, "shape": {"loss": 2}}, "loss"),
        ({"device": 1, "port": 1, "shape": {"color": 2}}, "color"),
        ({"device": 1, "shape": {}}, "'port' is missing"),
        ({"device": 1, "port": "x", "shape": {}}, "'port'"),
    ]
    for arguments, text in bad:
        with pytest.raises(control.ControlError) as caught:
            control.call(running.path, "shape", **arguments)
        assert text in str(caught.value)


def test_ports_come_and_go(running: Running) -> None:
    control.call(running.path, "port_add", device="s1", port=7, interface="veth7")
    assert running.fabric.devices[1].interfaces == {0: "veth0", 7: "veth7"}
    control.call(running.path, "shape", device="s1", port=7, shape={"loss": 0.5})
    control.call(running.path, "port_remove", device=1, port=7)
    assert running.fabric.devices[1].interfaces == {0: "veth0"}
    control.call(running.path, "port_add", device="s1", port=7, interface="veth7")
    assert running.fabric.shapes[1, 7] == {}, "a new port is not shaped"
    for command, arguments, text in (
        ("port_add", {"device": 2, "port": 3, "interface": "veth7"}, "interface veth7 is used by device 1 port 7"),
        ("port_add", {"device": 1, "port": 7, "interface": "veth8"}, "device 1 port 7 is there already"),
        ("port_add", {"device": 1, "port": 511, "interface": "veth8"}, "0..510"),
        ("port_add", {"device": 1, "port": 255, "interface": "veth8"}, "the CPU port"),
        ("port_add", {"device": 1, "port": 8}, "'interface' is missing"),
        ("port_remove", {"device": 1, "port": 1}, "the end of a link in memory"),
        ("port_remove", {"device": 1, "port": 9}, "device 1 port 9 does not exist"),
    ):
        with pytest.raises(control.ControlError, match=text):
            control.call(running.path, command, **arguments)


def test_reboot_wipes_the_device_and_cuts_off_its_clients(running: Running) -> None:
    client, other = running.client(election_id=7), running.client(device_id=2)
    try:
        stream, neighbour = client.become_primary(), other.become_primary()
        client.set_pipeline(PROGRAM_JSON)
        client.write(insert(exact_entry()))
        control.call(running.path, "reboot", device="s1")
        assert stream.ended() == grpc.StatusCode.UNAVAILABLE
        client.election_id = 1  # lower than before: election ids are forgotten, too
        client.become_primary()
        started_with_program = running.switches.config.devices[0].program is not None
        assert client.get_pipeline().HasField("config") == started_with_program
        client.set_pipeline(PROGRAM_JSON)
        client.write(insert(exact_entry()))
        neighbour.arbitrate(1)
        assert neighbour.status() == (0, 1)
    finally:
        client.close()
        other.close()


def test_reboot_with_time_off(running: Running) -> None:
    client = running.client()
    try:
        stream = client.become_primary()
        thread = threading.Thread(
            target=control.call, args=(running.path, "reboot", 30), kwargs={"device": 1, "down_s": 1}
        )
        thread.start()
        assert stream.ended() == grpc.StatusCode.UNAVAILABLE
        assert control.call(running.path, "stats", device=1)["devices"]["1"]["p4runtime"]["up"] is False
        with pytest.raises(grpc.RpcError) as caught:
            client.get_pipeline()
        assert caught.value.code() == grpc.StatusCode.UNAVAILABLE
        thread.join(30)
        client.become_primary()
    finally:
        client.close()


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense",
        b"[]",
        b"{}",
        b'{"command": "fly"}',
        b'{"command": "stats", "color": 1}',
        b'{"command": "reboot"}',
        b'{"command": "reboot", "device": 1, "down_s": -1}',
        b'{"command": "reboot", "device": true}',
        b"\xff\xfe",
    ],
)
def test_bad_requests_get_an_error_and_the_next_is_answered(running: Running, line: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(running.path)
        answers = connection.makefile("rb")
        connection.sendall(line + b"\n")
        answer = json.loads(answers.readline())
        assert answer["ok"] is False and answer["error"]
        connection.sendall(b'{"command": "stats"}\n')
        assert json.loads(answers.readline())["ok"] is True


def test_endless_line(running: Running) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(10)
        connection.connect(running.path)
        connection.sendall(b"x" * control.MAX_LINE)
        assert json.loads(connection.makefile("rb").readline())["ok"] is False


def test_socket_in_use_and_stale_socket(running: Running, tmp_path: Path) -> None:
    with pytest.raises(OSError, match="cannot listen"):
        control.ControlServer(running.path, running.switches)
    assert control.call(running.path, "stats")
    stale = tmp_path / "stale.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(stale))
    control.ControlServer(str(stale), running.switches).stop()


def test_a_custom_check_is_chosen(running: Running) -> None:
    device = running.fabric.devices[1]
    chosen: list[object] = []
    device.set_crc = lambda *what: chosen.append(what)
    words = ["ctl", running.path, "crc", "s1", "calc_6", "polynomial=0x1021", "initial=65535", "reflect_data=1"]
    assert main(words) == 0
    assert chosen == [("calc_6", Crc(0x1021, 0xFFFF, reflect_data=True))]
    for parameters, why in (({"initial": 1}, "give the polynomial"), ({"polynomial": 0.5}, "whole numbers")):
        with pytest.raises(control.ControlError, match=why):
            control.call(running.path, "crc", device="s1", calculation="calc_6", parameters=parameters)
    assert len(chosen) == 1


def test_flips_hit_the_named_registers_and_are_reported(running: Running) -> None:
    device = running.fabric.devices[1]
    device.program = SimpleNamespace(
        registers={name: Register(name, 16, 32) for name in ("values.sum_0", "values.sum_1", "owner")}
    )
    flipped: list[tuple[str, int, int]] = []
    device.register_flip = lambda name, index, bit: flipped.append((name, index, bit))
    said = control.call(running.path, "flip", device="s1", register="values.", count=40, most_index=3)
    assert [(each["register"], each["index"], each["bit"]) for each in said] == flipped
    assert {name for name, _, _ in flipped} == {"values.sum_0", "values.sum_1"}
    assert all(0 <= index <= 3 and 0 <= bit < 32 for _, index, bit in flipped) and len(set(flipped)) > 20
    bad: list[tuple[dict[str, Any], str]] = [
        ({"device": 1, "register": "x"}, "no register whose name begins with 'x'"),
        ({"device": 1, "register": "", "count": 0}, "count must be in 1..10000"),
        ({"device": 1, "register": "", "most_index": -1}, r"most_index must be in 0\.\.4294967296"),
        ({"device": 1}, "'register' is missing"),
    ]
    for arguments, text in bad:
        with pytest.raises(control.ControlError, match=text):
            control.call(running.path, "flip", **arguments)
