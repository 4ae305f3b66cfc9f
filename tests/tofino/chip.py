"""Intel's model of the chip, with our program and entries in it, driven by lines of text.

The model is not ours and not in the repository. What drives it here is any program that reads commands and writes
lines, as the model's own test harness does, named by $INART_TOFINO_MODEL (Tofino 1) or $INART_TOFINO2_MODEL (Tofino 2):

    -l FILE                                          load a binary, or its context.json
    add TABLE [PRIORITY] KEY:VALUE ... ACTION(NAME:VALUE, ...)
    multicast GROUP RID:PORT ...                     the members of a group
    wire PORT -> PORT                                what leaves by the one comes in by the other
    stream on                                        from now on what leaves is a line: out PORT HEX
    packet PORT HEX    wait    echo TEXT             one in; until nothing is under way; a line
    set_register REGISTER(INDEX) VALUE [VALUE]       a cell of a register, and of one with pairs both values
    PIPE:check_counter TABLE(INDEX)                  a line with packets=N and bytes=N

It is slow (a few milliseconds a packet) and forgets nothing: entries cannot be taken out again.
"""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

from controlplane.targets.bri.chip import CHIPS as CHIP
from controlplane.targets.bri.entries import Entry, Masked, Prefix
from controlplane.targets.bri.ports import NO_LOOPBACK
from controlplane.targets.bri.program import BRIDGE_TABLE, FIRST_PRIORITY, PRIORITY
from controlplane.targets.bri.schema import local
from p4src.artifacts import SWITCH, Artifact
from p4src.tofino_toolchain import CHIPS

PROGRAMS = ("tna-64", "t2na-64", "t2na-128")
"""The artifacts that tests run on a model of their chip."""
VARIABLES = {"tna": "INART_TOFINO_MODEL", "t2na": "INART_TOFINO2_MODEL"}
"""Maps a target to the environment variable with the program that drives a model of its chip."""
THROUGH = "through"
KEY_BITS = {"ingress_port": 9, "destination": 48}
"""The widths in bits of the bridge table's key fields."""
SECONDS = 300.0
"""The most seconds to wait for one answer; on a busy machine the model is slow, and the first answer comes after the
binary is loaded.
"""


class ChipError(Exception):
    """The model reported an error or no longer answers."""


def missing(artifact: Artifact) -> str | None:
    """Return in words why the program cannot run on a model here, or None when it can."""
    target = artifact.manifest.target
    program = os.environ.get(VARIABLES[target])
    if not program:
        return f"no model of the chip here: ${VARIABLES[target]} names none"
    if not Path(program).is_file():
        return f"${VARIABLES[target]}: there is no {program}"
    if not (artifact.directory / SWITCH / CHIPS[target].files[0]).is_file():
        return f"{CHIPS[target].files[0]} is not built here: make p4-tofino needs p4c's Tofino back end"
    return None


class Chip:
    """A chip with a program, all registers 0 and no entries but the program's own.

    Must be closed, or used with ``with``.
    """

    def __init__(self, artifact: Artifact) -> None:
        self.target = target = artifact.manifest.target
        built = (artifact.directory / SWITCH).resolve()
        self._scratch = tempfile.TemporaryDirectory(prefix="inart-chip-")
        self._said: IO[str] = (Path(self._scratch.name) / "said").open("w+")
        program = os.environ[VARIABLES[target]]
        self._process = subprocess.Popen(
            [program, "-l", str(built / "context.json"), "-l", str(built / CHIPS[target].files[0]), "-"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            cwd=self._scratch.name,
        )
        self._buffer = b""
        self.under_way = 0
        """The number of frames sent that are not processed yet."""
        self._asked = 0
        self.tell("stream on", *static_ternary_entries(json.loads((built / "context.json").read_text())))
        self.answer()

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._said.close()
        self._scratch.cleanup()

    def __enter__(self) -> Chip:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def tell(self, *commands: str) -> None:
        """Send commands that print nothing when they succeed."""
        assert self._process.stdin is not None
        self._process.stdin.write("".join(f"{command}\n" for command in commands).encode())
        self._process.stdin.flush()

    def answer(self) -> list[str]:
        """Return the output of all commands until now. Raises ChipError, also for errors of those commands."""
        self._asked += 1
        end = f"answered {self._asked}"
        self.tell(f"echo {end}")
        lines: list[str] = []
        while (line := self._line()) != end:
            lines.append(line)
        self._said.seek(0)
        errors = [line for line in self._said if line.startswith("<stdin>:")]
        if errors:
            raise ChipError("".join(errors))
        return lines

    def install(self, entries: Iterable[Entry], loopback: Iterable[int] = (), *, wired: bool = True) -> None:
        """Install entries as the control plane makes them for a switch, with device ports.

        ``loopback``: ports whose packets come back in, besides those that ``entries`` configure so. wired: when False,
        packets that recirculate leave by such a port, and the caller brings them back.
        """
        looping = set(loopback)
        there = list(entries)
        members: dict[object, Iterable[int]] = {}
        routes = []
        for entry in there:
            key, data = dict(entry.key), dict(entry.data)
            if local(entry.table) == "label_table":
                self.tell(self._entry(entry))
            elif local(entry.table) == "ipv4_table":
                routes.append(entry)
            elif local(entry.table) == BRIDGE_TABLE:
                self.tell(self._entry(entry, f" {FIRST_PRIORITY - int(str(key.pop(PRIORITY)))}"))
            elif entry.table == "$pre.node":
                members[key["$MULTICAST_NODE_ID"]] = data["$DEV_PORT"]  # type: ignore[assignment]
            elif entry.table == "$PORT" and data.get("$LOOPBACK_MODE", NO_LOOPBACK) != NO_LOOPBACK:
                looping.add(int(str(key["$DEV_PORT"])))
        for entry in there:
            if entry.table == "$pre.mgid":
                nodes = dict(entry.data)["$MULTICAST_NODE_ID"]
                assert isinstance(nodes, tuple)
                self.multicast(int(str(dict(entry.key)["$MGID"])), members[nodes[0]])
        for priority, entry in enumerate(sorted(routes, key=_prefix_length)):
            self.tell(self._entry(entry, f" {priority}"))
        for port in looping | self._recirculating(there) if wired else ():
            self.tell(f"wire {port} -> {port}")
        self.answer()

    def _recirculating(self, entries: list[Entry]) -> set[int]:
        """Return the ports inside the chip that bring back what these entries send there."""
        chip = CHIP[self.target]
        ports = [value for entry in entries for name, value in entry.data if name in ("port", "loopback")]
        return {port for port in ports if isinstance(port, int) and chip.recirculates(port)}

    @staticmethod
    def _entry(entry: Entry, priority: str = "") -> str:
        matches = []
        for name, value in entry.key:
            if name == PRIORITY:
                continue
            if isinstance(value, Masked):
                assert isinstance(value.value, int)
                matches.append(f"{name}:{_digits(value.value, value.mask, KEY_BITS[name])}")
            elif isinstance(value, Prefix):
                matches.append(f"{name}:0b{value.value:032b}"[: len(name) + 3 + value.length])
                matches[-1] += "*" * (32 - value.length)
            else:
                matches.append(f"{name}:{value}")
        data = ", ".join(f"{name}:{value:#x}" for name, value in entry.data)
        return f"add {local(entry.table)}{priority} {' '.join(matches)} {entry.action}({data})"

    def multicast(self, group: int, ports: Iterable[int]) -> None:
        self.tell(f"multicast {group} " + " ".join(f"0:{port}" for port in ports))

    def fill(self, register: str, index: int, values: Iterable[int]) -> None:
        """Give a register's cell its value, or both of its values in their order in P4, in all pipes."""
        self.tell(f"set_register {register}({index}) " + " ".join(map(hex, values)))

    def process(self, port: int, frame: bytes) -> list[tuple[int, bytes]]:
        """Send ``frame`` to ``port`` and return (device port, frame) of all that leaves because of it."""
        (out,) = self.process_all([(port, frame)])
        return out

    def process_all(self, arrivals: Iterable[tuple[int, bytes]]) -> list[list[tuple[int, bytes]]]:
        """Process arrivals one after the other; returns what leaves because of each."""
        commands = []
        for port, frame in arrivals:
            commands += [f"packet {port} {frame.hex()}", "wait", "wait", "echo next"]
        self.tell(*commands)
        left: list[list[tuple[int, bytes]]] = [[]]
        for line in self.answer():
            if line == "next":
                left.append([])
            else:
                left[-1] += _frames([line])
        rest = left.pop()
        if rest:
            raise ChipError(f"late: {rest}")
        return left

    @property
    def output(self) -> int:
        """Return a file descriptor that is readable when frames have left; then call :meth:`left`."""
        assert self._process.stdout is not None
        return self._process.stdout.fileno()

    def send(self, port: int, frame: bytes) -> None:
        """Send one frame in, without waiting for what leaves: :meth:`left` returns that."""
        self.under_way += 1
        self.tell(f"packet {port} {frame.hex()}", "wait", f"echo {THROUGH}")

    def left(self) -> list[tuple[int, bytes]]:
        """Return the frames that have left by now because of what was sent. Waits for at least one line."""
        self._read()
        whole, _, self._buffer = self._buffer.rpartition(b"\n")
        lines = whole.decode(errors="replace").split("\n")
        self.under_way -= lines.count(THROUGH)
        return _frames(lines)

    def counter(self, name: str, index: int, pipe: int = 0) -> tuple[int, int]:
        """Return (packets, bytes)."""
        self.tell(f"check_counter {pipe}:{name}({index})")
        counted = (0, 0)
        for line in self.answer():
            found = re.search(r"packets=(\d+)", line), re.search(r"bytes=(\d+)", line)
            if "physical" in line and found[0] and found[1]:
                counted = int(found[0].group(1)), int(found[1].group(1))
        return counted

    def _line(self) -> str:
        while b"\n" not in self._buffer:
            self._read()
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line.decode(errors="replace")

    def _read(self) -> None:
        ready, _, _ = select.select([self.output], [], [], SECONDS)
        read = os.read(self.output, 1 << 20) if ready else b""
        if not read:
            self._said.seek(0)
            raise ChipError(f"no answer any more; it said: {self._said.read()[-2000:]}")
        self._buffer += read


def _frames(lines: Iterable[str]) -> list[tuple[int, bytes]]:
    words = [line.split(" ") for line in lines if line.startswith("out ")]
    return [(int(port), bytes.fromhex(octets)) for _, port, octets in words]


def _prefix_length(entry: Entry) -> int:
    (destination,) = dict(entry.key).values()
    assert isinstance(destination, Prefix)
    return destination.length


def _digits(value: int, mask: int, width: int) -> str:
    """Return a ternary key bit by bit."""
    bits = range(width - 1, -1, -1)
    return "0b" + "".join(str(value >> bit & 1) if mask >> bit & 1 else "*" for bit in bits)


def static_ternary_entries(context: dict[str, Any]) -> list[str]:
    """Return commands for the entries that the program itself puts into its ternary tables.

    The model's harness installs them too, but gets masks of more than 8 bits wrong, so all of them are written again.
    """
    commands = []
    for table in context["tables"]:
        stages = table.get("match_attributes", {}).get("stage_tables", ())
        if not table.get("static_entries") or not any(stage["stage_table_type"] == "ternary_match" for stage in stages):
            continue
        widths = {field["name"]: field["bit_width"] for field in table["match_key_fields"]}
        names = {action["handle"]: action["name"] for action in table["actions"]}
        last = sum(stage["size"] for stage in stages) - 1
        for entry in table["static_entries"]:
            matches = []
            for field in entry["match_key_fields_values"]:
                value, mask = int(field["value"], 16), int(field.get("mask", "-1"), 16)
                matches.append(f"{field['field_name']}:{_digits(value, mask, widths[field['field_name']])}")
            data = ", ".join(f"{one['parameter_name']}:{one['value']}" for one in entry["action_parameters_values"])
            action = names[entry["action_handle"]]
            commands.append(f"add {table['name']} {last - entry['priority']} {' '.join(matches)} {action}({data})")
    return commands
