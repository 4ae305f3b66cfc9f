"""Reads the PTF scripts that p4testgen writes for Tofino: what each test installs, sends and expects.

A script is Python that talks to a switch through the Barefoot Runtime's client. It is run here with modules in the
client's place that only keep what they are asked for; nothing of P4 Studio is needed.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Added:
    """A table entry: table and action by the last part of their names, each key with its value and its mask (None: all
    of its bits) or prefix length, and the action's arguments.
    """

    table: str
    keys: dict[str, tuple[int, int | None]]
    action: str
    arguments: dict[str, int]


@dataclass(frozen=True)
class Expected:
    """A frame that has to leave by a port; of each of its bytes the bits that are set in ``mask`` count."""

    port: int
    frame: bytes
    mask: bytes

    def fits(self, port: int, frame: bytes) -> bool:
        """Return whether a frame that left is this one."""
        alike = all(
            (ours ^ theirs) & bits == 0 for ours, theirs, bits in zip(self.frame, frame, self.mask, strict=False)
        )
        return (port, len(frame)) == (self.port, len(self.frame)) and alike


@dataclass
class Script:
    """A test that p4testgen has made. registers: values before it, by the register's name and the index: one, or one by
    field. packets: the port and bytes of each that is sent. expected: what has to leave."""

    name: str
    added: list[Added] = field(default_factory=list)
    registers: dict[tuple[str, int], int | dict[str, int]] = field(default_factory=dict)
    packets: list[tuple[int, bytes]] = field(default_factory=list)
    expected: list[Expected] = field(default_factory=list)


class _Mask:
    """ptf's Mask: an expected frame, and the bits of it that may be anything."""

    def __init__(self, frame: bytes) -> None:
        self.frame, self.mask = frame, bytearray(b"\xff" * len(frame))

    def set_do_not_care(self, offset: int, bits: int) -> None:
        for bit in range(offset, offset + bits):
            self.mask[bit // 8] &= ~(0x80 >> bit % 8)


def _key(name: str, value: int = 0, mask: int | None = None, prefix_len: int | None = None) -> tuple[str, Any]:
    return name.rpartition(".")[2], (value, prefix_len if mask is None else mask)


def _last(name: str) -> str:
    return name.rpartition(".")[2]


def _send(test: Any, port: int, frame: bytes) -> None:
    test.script.packets.append((port, frame))


def _verify(test: Any, expected: _Mask, port: int) -> None:
    test.script.expected.append(Expected(port, expected.frame, bytes(expected.mask)))


def _insert(test: Any, table: str, keys: list[Any], action: str, arguments: list[Any]) -> None:
    test.script.added.append(Added(_last(table), dict(keys), _last(action), dict(arguments)))


def _register(test: Any, name: str, value: Any, index: int) -> None:
    given = {_last(part): number for part, number in value} if isinstance(value, list) else value
    test.script.registers[name, index] = given


@contextmanager
def _modules() -> Iterator[None]:
    """Put the modules that a script imports in place, and take them away."""
    client = {"KeyTuple": _key, "DataTuple": lambda name, value: (name, value)}
    made: dict[str, dict[str, Any]] = {
        "bfruntime_client_base_tests": {"BfRuntimeTest": object},
        "ptf": {},
        "ptf.mask": {"Mask": _Mask},
        "ptf.testutils": {"send_packet": _send, "verify_packet": _verify, "verify_no_other_packets": lambda *_: None},
        "bfrt_grpc": {},
        "bfrt_grpc.bfruntime_pb2": {},
        "bfrt_grpc.client": client,
    }
    before = {name: sys.modules.get(name) for name in made}
    for name, content in made.items():
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(content)
        package, _, last = name.rpartition(".")
        if package:
            setattr(sys.modules[package], last, sys.modules[name])
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def read(text: str) -> list[Script]:
    """Return the tests of a script, in their order. The script is run: give only what p4testgen wrote here."""
    scripts = []
    with _modules():
        content: dict[str, Any] = {"__name__": "script"}
        exec(compile(text, "p4testgen's script", "exec"), content)
        base = content["AbstractTest"]
        base.insertTableEntry, base.setRegisterValue = _insert, _register
        for name, kind in content.items():
            if isinstance(kind, type) and issubclass(kind, base) and kind is not base:
                test: Any = kind()
                test.script = Script(name)
                test.setupCtrlPlane()
                test.sendPacket()
                test.verifyPackets()
                scripts.append(test.script)
    return scripts


def as_json(scripts: list[Script]) -> list[dict[str, Any]]:
    """Return tests as what json.dumps takes."""
    return [
        {
            "name": script.name,
            "added": [asdict(entry) for entry in script.added],
            "registers": [[name, index, value] for (name, index), value in script.registers.items()],
            "packets": [[port, frame.hex()] for port, frame in script.packets],
            "expected": [[one.port, one.frame.hex(), one.mask.hex()] for one in script.expected],
        }
        for script in scripts
    ]


def from_json(tests: list[dict[str, Any]]) -> list[Script]:
    """Return the tests of what :func:`as_json` has made."""
    return [
        Script(
            one["name"],
            [
                Added(**entry | {"keys": {key: (value, mask) for key, (value, mask) in entry["keys"].items()}})
                for entry in one["added"]
            ],
            {(name, index): value for name, index, value in one["registers"]},
            [(port, bytes.fromhex(frame)) for port, frame in one["packets"]],
            [Expected(port, bytes.fromhex(frame), bytes.fromhex(mask)) for port, frame, mask in one["expected"]],
        )
        for one in tests
    ]
