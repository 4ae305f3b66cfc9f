"""p4testgen's tests (p4c) of our Tofino program, on our model of it and on Intel's model of the chip.

    python -m tests.outside.testgen_tofino [--values 4] [--seconds 600] [--on model chip] [--json] [--write]

p4testgen makes as few tests of the program (p4src/tofino, for Tofino 1, so many values in a packet) as cover what it
can reach, in the words of the test harness of Intel's model: table entries, a packet, and what has to leave. Each runs
on a switch of its own, and nothing else may leave. Our model (tests/model/tofino.py) is in all other tests in the
chip's place. For the chip the program is compiled: $P4C_TOFINO is the folder in which p4c was built with its Tofino
back end, $INART_TOFINO_MODEL what drives the chip (tests/tofino/chip.py). Needs p4testgen on PATH, made with the Tofino
back end; --include names the folders of its core.p4 and tna.p4. --write puts the tests where CI finds them. The status
is 1 when a test differs.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from p4src import artifacts, tofino_toolchain
from p4src.protocol import DIRECTORY
from tests.model.switch import Aggregate, Bridge, Forward, Replicate
from tests.model.tofino import LOOPBACK, Contribution, ReadOut, TofinoSwitch
from tests.outside.testgen import COMMAND, COVERING, SECONDS, Generated, Report, generate, without_trace
from tests.p4 import before
from tests.tofino.chip import Chip, ChipError

TARGET = ("--target", "tofino", "--arch", "tna")
SIZES = (1024, 1024, 256)
"""Slots, entries of the label table, entries of the route table: small ones, which compile sooner."""
NOWHERE = 0x1FF
"""The port to which the chip sends nothing."""

FILE = Path(before.__file__).with_name("generated") / "tna-4.stf"

Frames = list[tuple[int, bytes]]


@dataclass(frozen=True)
class Added:
    """An entry of a test: its table and action by the last part of their names, keys as they are written, arguments."""

    table: str
    keys: dict[str, str]
    action: str
    arguments: dict[str, int]

    @classmethod
    def read(cls, line: str) -> Added:
        """Read a line `add TABLE [PRIORITY] KEY:VALUE ... ACTION(NAME:VALUE,...)`."""
        found = re.fullmatch(r"add (\S+) (?:\d+ )?(.*?) ?(\S+)\((.*)\)\s*", line)
        if found is None:
            raise ValueError(f"not an entry: {line}")
        keys = dict(key.rsplit(":", 1) for key in found[2].split())
        arguments = dict(one.strip().rsplit(":", 1) for one in found[4].split(",") if one.strip())
        return cls(
            found[1].rpartition(".")[2],
            {name.rpartition(".")[2]: value for name, value in keys.items()},
            found[3].rpartition(".")[2],
            {name: int(value, 0) for name, value in arguments.items()},
        )

    def ternary(self, key: str) -> tuple[int, int]:
        """Return value and mask of a key, of which a bit that may be anything is written as a star."""
        digits = self.keys[key].removeprefix("0b")
        return int(digits.replace("*", "0"), 2), int(re.sub("[01]", "1", digits).replace("*", "0"), 2)


class GivenSwitch(TofinoSwitch):
    """Our model with the entries of a test, which may be others than the control plane would make."""

    def __init__(self, values: int, added: list[Added]) -> None:
        super().__init__(values, SIZES[0], delayed=True)
        self.loopback = LOOPBACK
        self.slots_entries: dict[tuple[int, int], tuple[Contribution | ReadOut, Aggregate]] = {}
        for entry in added:
            add = {"label_table": self.add_label, "ipv4_table": self.add_route, "bridge_table": self.add_bridge}
            add[entry.table](entry)

    def add_label(self, entry: Added) -> None:
        given, key = entry.arguments, (int(entry.keys["ingress_port"], 0), int(entry.keys["label"], 0))
        if entry.action == "forward":
            self.labels[key] = Forward(given["port"])
        elif entry.action == "replicate":
            self.labels[key] = Replicate(given["group"])
        elif entry.action == "read_out":
            rule = Aggregate(given["slot_base"], given["slot_mask"], 0, 0, 0, 0, given["port"])
            self.slots_entries[key] = ReadOut(rule.port), rule
        else:
            self.loopback = given.pop("loopback", LOOPBACK)
            rule = Aggregate(**given)
            made = Contribution(rule.flow, rule.everyone, rule.next_label, rule.partial_label, rule.port)
            self.slots_entries[key] = made, rule

    def add_route(self, entry: Added) -> None:
        address, mask = entry.ternary("destination")
        mac = entry.arguments["destination_mac"].to_bytes(6, "big")
        self.routes[address, mask.bit_count()] = mac, entry.arguments["port"]

    def add_bridge(self, entry: Added) -> None:
        (port, port_mask), (address, mask) = entry.ternary("ingress_port"), entry.ternary("destination")
        action: Forward | Replicate | None = None
        if entry.action == "bridge":
            action = Forward(entry.arguments["port"])
        elif entry.action == "flood":
            action = Replicate(entry.arguments["group"])
        ports = [one for one in range(NOWHERE) if one & port_mask == port]
        self.bridge = (*self.bridge, *(Bridge(one, address, mask, action) for one in ports))

    def entries(self) -> dict[tuple[int, int], tuple[Contribution | ReadOut, Aggregate]]:
        return self.slots_entries

    def process(self, port: int, frame: bytes) -> Frames:
        found = [(self.loopback if out == LOOPBACK else out, left) for out, left in super().process(port, frame)]
        return [(out, left) for out, left in found if out != NOWHERE]


def on_model(values: int) -> Callable[[list[str], Frames], Frames]:
    """Return what runs a test's entries and packets on our model, and returns what leaves."""

    def run(entries: list[str], packets: Frames) -> Frames:
        switch = GivenSwitch(values, [Added.read(line) for line in entries])
        return [found for port, frame in packets for found in switch.process(port, frame)]

    return run


def on_chip(values: int, folder: Path) -> Callable[[list[str], Frames], Frames]:
    """Compile the program, and return what runs a test's entries and packets on the chip."""
    tofino_toolchain.compile_program(tofino_toolchain.Toolchain.find(), values, SIZES, folder)
    artifact = artifacts.load(folder)

    def run(entries: list[str], packets: Frames) -> Frames:
        with Chip(artifact) as chip:
            chip.tell(*entries)
            chip.answer()
            return [found for left in chip.process_all(packets) for found in left]

    return run


def differences(text: str, run: Callable[[list[str], Frames], Frames]) -> list[str]:
    """Run a test; returns in words what leaves otherwise than it expects."""
    entries, packets, expected = [], [], []
    for line in without_trace(text).splitlines():
        word, _, rest = line.partition(" ")
        port, _, octets = rest.partition(" ")
        if word == "packet":
            packets.append((int(port), bytes.fromhex(octets)))
        elif word == "expect":
            expected.append((int(port), octets.strip().rstrip("$").lower()))
        else:
            entries.append(line)
    left, problems = run(entries, packets), []
    for number, octets in expected:
        pattern = octets.replace("*", ".")
        found = next((one for one in left if one[0] == number and re.fullmatch(pattern, one[1].hex())), None)
        if found is None:
            problems.append(f"nothing left port {number} as {octets}")
        else:
            left.remove(found)
    return problems + [f"port {number}: {frame.hex()} left" for number, frame in left]


def make(values: int, seconds: float, includes: list[Path], folder: Path) -> Generated:
    """Let p4testgen make the tests of the program with so many values in a packet."""
    macros = tofino_toolchain.options((values,), values, *SIZES) | {"__TARGET_TOFINO__": 1}
    options = [word for name, value in macros.items() for word in ("-D", f"{name}={value}")]
    options += [word for include in includes for word in ("-I", str(include))]
    return generate(DIRECTORY / "tofino" / "inart.p4", folder, [*options, *COVERING], seconds, TARGET)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.outside.testgen_tofino", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--values", type=int, default=4, help="values in a packet (4)")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"p4testgen's time ({SECONDS})")
    parser.add_argument(
        "--include", type=Path, nargs="+", default=[], metavar="FOLDER", help="folders of core.p4, tna.p4"
    )
    parser.add_argument("--on", nargs="+", choices=("model", "chip"), default=["model"], help="what runs them (model)")
    parser.add_argument("--json", action="store_true", help="a line of JSON")
    parser.add_argument("--write", action="store_true", help=f"keep the tests in {FILE.name} (4 values)")
    options = parser.parse_args()
    if shutil.which(COMMAND) is None:
        print(f"{COMMAND} is not on PATH: it is made with p4c (ENABLE_TEST_TOOLS, ENABLE_TOFINO)", file=sys.stderr)
        return 2
    report = Report(f"p4src/tofino, {options.values} values")
    with tempfile.TemporaryDirectory(prefix="inart-testgen-") as work:
        made = make(options.values, options.seconds, options.include, Path(work, "tests"))
        report.statements, report.covered, report.tests = made.statements, made.covered, len(made.tests)
        report.note = "; ".join([*made.missing, *filter(None, [made.ended])])
        if options.write:
            texts = (f"# {path.stem}\n{without_trace(path.read_text())}" for path in made.tests)
            FILE.write_text("\n".join(texts))
        for target in options.on:
            run = on_model(options.values) if target == "model" else on_chip(options.values, Path(work, "compiled"))
            for path in made.tests:
                try:
                    problems = differences(path.read_text(), run)
                except (ChipError, ValueError) as error:
                    problems = [f"{type(error).__name__}: {error}"]
                if problems:
                    report.different.setdefault(target, []).append(f"{path.stem}: {'; '.join(problems)}")
                else:
                    report.passed[target] = report.passed.get(target, 0) + 1
    print(json.dumps(asdict(report)) if options.json else report.line())
    return int(bool(report.different))


if __name__ == "__main__":
    raise SystemExit(main())
