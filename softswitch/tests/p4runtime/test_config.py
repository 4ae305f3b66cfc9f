"""Fabric files: their meaning, and the messages about wrong ones."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from softswitch.app.config import ConfigError, check_shape, load, parse

GOOD: dict = {
    "grpc": ["127.0.0.1:0", "unix:/tmp/x"],
    "control": "control.sock",
    "threads": 2,
    "seed": 7,
    "devices": [
        {
            "id": 1,
            "name": "s1",
            "cpu_port": 255,
            "program": "prog.json",
            "p4info": "prog.p4info.txt",
            "ports": [
                {"port": 0, "interface": "veth0", "shape": {"rate_mbps": 20, "queue_packets": 64}},
                {"port": 1, "peer": {"device": "s2", "port": 3}, "shape": {"loss": 0.01}},
            ],
        },
        {"id": 2, "name": "s2", "ports": [{"port": 3, "peer": {"device": 1, "port": 1}}]},
    ],
}


def changed(path: str, value: object) -> dict:
    """Return GOOD with one member set, or removed for ``...``."""
    description = copy.deepcopy(GOOD)
    *steps, last = [int(step) if step.isdecimal() else step for step in path.split(".")]
    place: object = description
    for step in steps:
        place = place[step]  # type: ignore[index]
    if value is ...:
        del place[last]  # type: ignore[attr-defined]
    else:
        place[last] = value  # type: ignore[index]
    return description


def test_file(tmp_path: Path) -> None:
    (tmp_path / "fabric.json").write_text(json.dumps(GOOD))
    fabric = load(tmp_path / "fabric.json")
    assert (fabric.grpc, fabric.threads, fabric.seed) == (("127.0.0.1:0", "unix:/tmp/x"), 2, 7)
    assert fabric.control == str(tmp_path / "control.sock")
    first = fabric.devices[0]
    assert (first.program, first.p4info) == (tmp_path / "prog.json", tmp_path / "prog.p4info.txt")
    assert first.ports[0].shape == {"rate_mbps": 20.0, "queue_packets": 64}
    assert fabric.links() == [((1, 1), (2, 3))]
    assert fabric.find("s2") is fabric.find(2) is fabric.devices[1]


def test_least_file() -> None:
    fabric = parse({"devices": [{"id": 5}]})
    assert (fabric.grpc, fabric.control, fabric.devices[0].name) == (("127.0.0.1:9559",), None, "5")


@pytest.mark.parametrize(
    ("path", "value", "text"),
    [
        ("devices", [], "no devices"),
        ("devices", ..., "'devices' is missing"),
        ("color", 1, "unknown member 'color'"),
        ("grpc", [], "grpc"),
        ("grpc", 9559, "'grpc' must be str or list"),
        ("threads", 0, "threads"),
        ("threads", True, "threads"),
        ("devices.0.id", ..., "device s1: 'id' is missing"),
        ("devices.0.id", -1, "device s1: the id"),
        ("devices.1.id", 1, "two devices have the id 1"),
        ("devices.1.name", "s1", "two devices are called s1"),
        ("devices.0", 3, "must be a JSON object"),
        ("devices.0.cpu_port", 511, "cpu_port must be in 1..510"),
        ("devices.0.cpu_port", 1, "device s1 port 1: this is the CPU port"),
        ("devices.0.program", ..., "p4info without program"),
        ("devices.0.ports.0.port", 1, "device s1 port 1 is given twice"),
        ("devices.0.ports.0.port", 511, "0..510"),
        ("devices.0.ports.0.interface", ..., "either interface or peer"),
        ("devices.0.ports.1.interface", "veth1", "either interface or peer"),
        ("devices.1.ports.0", {"port": 3, "interface": "veth0"}, "interface veth0 is used by device s1 port 0"),
        ("devices.0.ports.1.peer.device", "s9", "there is no device s9"),
        ("devices.0.ports.1.peer.device", 9, "device 9, which does not exist"),
        ("devices.0.ports.1.peer.port", 4, "must name it as peer in turn"),
        ("devices.1.ports", [], "must name it as peer in turn"),
        ("devices.0.ports.1.shape.loss", 1.5, "loss must be in 0..1, not 1.5"),
        ("devices.0.ports.1.shape.loss", "high", "loss must be a number"),
        ("devices.0.ports.1.shape.lost", 0.1, "unknown shaping 'lost'"),
        ("devices.0.ports.0.shape.queue_packets", 1.5, "whole number"),
        ("devices.0.ports.0.shape.rate_mbps", 0, "rate_mbps must be in"),
    ],
)
def test_mistakes_are_named(path: str, value: object, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(changed(path, value))
    assert text in str(caught.value)


def test_shape_null_rate_is_no_limit() -> None:
    assert check_shape({"rate_mbps": None}, "x") == {"rate_mbps": None}
    with pytest.raises(ConfigError):
        check_shape({"loss": None}, "x")
    with pytest.raises(ConfigError):
        check_shape({"loss": float("nan")}, "x")


def test_not_json(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(ConfigError, match="not JSON"):
        load(tmp_path / "bad.json")
