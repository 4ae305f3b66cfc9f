"""p4testgen's tests (p4c) of our Tofino program, on our model of it and on Intel's model of the chip.

    python -m tests.outside.testgen_tofino [--on model chip] [--compiled FOLDER] [--json]      # those that are kept
    python -m tests.outside.testgen_tofino --include .../p4include .../bf-p4c/p4include [--seconds 600] [--write] [...]

p4testgen makes as few tests of the program (p4src/tofino, for Tofino 1, 4 values in a packet) as cover what it can
reach, and as few in which a packet leaves: table entries, registers, a packet, and what has to leave (ptf_scripts.py).
Each runs on a switch of its own, and nothing else may leave. Our model (tests/model/tofino.py) is in all other tests in
the chip's place. For the chip the program is compiled, into --compiled where that is given, and not again when it is
there: $P4C_TOFINO is the folder in which p4c was built with its Tofino back end, $INART_TOFINO_MODEL what drives the
chip (tests/tofino/chip.py). --include, the folders of core.p4 and tna.p4, makes the tests anew and needs p4testgen on
PATH, made with the Tofino back end; --write keeps them where CI finds them. The status is 1 when a test differs.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from p4src import artifacts, tofino_toolchain
from p4src.protocol import DIRECTORY
from tests.model.switch import Aggregate, Bridge, Forward, Replicate
from tests.model.tofino import LOOPBACK, Cell, Contribution, ReadOut, TofinoSwitch
from tests.outside.ptf_scripts import Added, Script, as_json, from_json, read
from tests.outside.testgen import COMMAND, COVERING, SECONDS, Report, generate
from tests.p4 import before
from tests.tofino.chip import Chip, ChipError

TARGET = ("--target", "tofino", "--arch", "tna", "--test-backend", "PTF")
SMALL = ("--port-ranges", "0:63", "--packet-size-range", "0:2000")
"""Ports that the chip has, and packets of at most 250 bytes, since the tests are kept."""
VALUES = 4
SIZES = (1024, 1024, 256)
"""Slots, entries of the label table, entries of the route table: small ones, which compile sooner."""
WIDTHS = {"ingress_port": 9, "destination": 48}
"""Bits of the ternary keys."""
NOWHERE = 0x1FF
"""The port to which the chip sends nothing."""

FILE = Path(before.__file__).with_name("generated") / f"tna-{VALUES}.json"

SETS: dict[str, tuple[str, ...]] = {"covering": (), "leaving": ("--output-packet-only",)}
"""The sets of tests, and p4testgen's options for them: as few as cover the program, and of those of which a packet
leaves, as few as cover what is left."""
PROGRAM = f"p4src/tofino, {VALUES} values"

Frames = list[tuple[int, bytes]]


class GivenSwitch(TofinoSwitch):
    """Our model with the entries and registers of a test, which may be others than the control plane would make."""

    def __init__(self, script: Script) -> None:
        super().__init__(VALUES, SIZES[0], delayed=True)
        self.loopback = LOOPBACK
        self.slots_entries: dict[tuple[int, int], tuple[Contribution | ReadOut, Aggregate]] = {}
        for entry in script.added:
            add = {"label_table": self.add_label, "ipv4_table": self.add_route, "bridge_table": self.add_bridge}
            add[entry.table](entry)
        for (name, index), value in script.registers.items():
            self.cells[index] = filled(self.cells.get(index, Cell()), name, value)

    def add_label(self, entry: Added) -> None:
        given, key = dict(entry.arguments), (entry.keys["ingress_port"][0], entry.keys["label"][0])
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
        address, length = entry.keys["destination"]
        assert length is not None
        mac = entry.arguments["destination_mac"].to_bytes(6, "big")
        self.routes[address >> 32 - length << 32 - length, length] = mac, entry.arguments["port"]

    def add_bridge(self, entry: Added) -> None:
        (port, port_mask), (address, mask) = entry.keys["ingress_port"], entry.keys["destination"]
        assert port_mask is not None and mask is not None
        action: Forward | Replicate | None = None
        if entry.action == "bridge":
            action = Forward(entry.arguments["port"])
        elif entry.action == "flood":
            action = Replicate(entry.arguments["group"])
        ports = [one for one in range(NOWHERE) if (one ^ port) & port_mask == 0]
        self.bridge = (*self.bridge, *(Bridge(one, address & mask, mask, action) for one in ports))

    def entries(self) -> dict[tuple[int, int], tuple[Contribution | ReadOut, Aggregate]]:
        return self.slots_entries

    def process(self, port: int, frame: bytes) -> Frames:
        found = [(self.loopback if out == LOOPBACK else out, left) for out, left in super().process(port, frame)]
        return [(out, left) for out, left in found if out != NOWHERE]


def filled(cell: Cell, name: str, value: int | dict[str, int]) -> Cell:
    """Return a slot's registers after one of them, by its name in P4, is given a value."""
    if name.endswith("slot_sequence"):
        assert isinstance(value, int)
        return cell._replace(sequence=value)
    assert isinstance(value, dict)
    if name.endswith("slot_epoch"):
        return cell._replace(epoch=(value["epoch"], value["generation"]))
    if name.endswith("slot_flows"):
        return cell._replace(flows=(value["sequence"], value["flows"]))
    found = re.search(r"sum_(\d+)", name)
    if found is None:
        raise ValueError(f"no register of the model: {name}")
    sums = list(cell.sums or [(0, 0)] * (VALUES // 2))
    sums[int(found[1])] = value["first"], value["second"]
    return cell._replace(sums=tuple(sums))


def on_model() -> Callable[[Script], Frames]:
    """Return what runs a test on our model, and returns what leaves."""

    def run(script: Script) -> Frames:
        switch = GivenSwitch(script)
        return [found for port, frame in script.packets for found in switch.process(port, frame)]

    return run


def on_chip(folder: Path) -> Callable[[Script], Frames]:
    """Return what runs a test on the chip. The program is compiled into a folder, unless it has been already."""
    if not (folder / artifacts.MANIFEST).exists():
        tofino_toolchain.compile_program(tofino_toolchain.Toolchain.find(), VALUES, SIZES, folder)
    artifact = artifacts.load(folder)

    def run(script: Script) -> Frames:
        with Chip(artifact) as chip:
            for (name, index), value in script.registers.items():
                chip.fill(name, index, value.values() if isinstance(value, dict) else (value,))
            chip.tell(*(_command(entry) for entry in script.added))
            chip.answer()
            return [found for left in chip.process_all(script.packets) for found in left]

    return run


def _command(entry: Added) -> str:
    """Return an entry in the words of the harness of Intel's model."""
    words = [f"add {entry.table}"]
    if entry.table != "label_table":
        words.append("1")
    for name, (value, mask) in entry.keys.items():
        if mask is None:
            words.append(f"{name}:{value:#x}")
            continue
        width = WIDTHS[name] if entry.table == "bridge_table" else 32
        bits = mask if entry.table == "bridge_table" else (1 << mask) - 1 << width - mask
        digits = (str(value >> bit & 1) if bits >> bit & 1 else "*" for bit in range(width - 1, -1, -1))
        words.append(f"{name}:0b{''.join(digits)}")
    given = ", ".join(f"{name}:{value:#x}" for name, value in entry.arguments.items())
    return f"{' '.join(words)} {entry.action}({given})"


def differences(script: Script, run: Callable[[Script], Frames]) -> list[str]:
    """Run a test; returns in words what leaves otherwise than it expects."""
    left, problems = run(script), []
    for expected in script.expected:
        found = next((one for one in left if expected.fits(*one)), None)
        if found is None:
            problems.append(f"nothing left port {expected.port} as {expected.frame.hex()}")
        else:
            left.remove(found)
    return problems + [f"port {number}: {frame.hex()} left" for number, frame in left]


def make(seconds: float, includes: list[Path]) -> tuple[Report, list[Script]]:
    """Let p4testgen make both sets of tests of the program; returns how much the first covers, and all tests."""
    macros = tofino_toolchain.options((VALUES,), VALUES, *SIZES) | {"__TARGET_TOFINO__": 1}
    options = [word for name, value in macros.items() for word in ("-D", f"{name}={value}")]
    options += [word for include in includes for word in ("-I", str(include))]
    report, scripts = Report(PROGRAM), []
    for kind, more in SETS.items():
        with tempfile.TemporaryDirectory(prefix="inart-testgen-") as work:
            program = DIRECTORY / "tofino" / "inart.p4"
            made = generate(program, Path(work), [*options, *more, *SMALL, *COVERING], seconds, TARGET)
            texts = [path.read_text() for path in sorted(Path(work).glob("*.py"))]
        found = [replace(script, name=f"{kind} {script.name}") for text in texts for script in read(text)]
        if not scripts:
            report.statements, report.covered = made.statements, made.covered
            report.note = "; ".join([*made.missing, *([] if found else [made.ended])])
        scripts += found
    report.tests = len(scripts)
    return report, scripts


def keep(report: Report, scripts: list[Script]) -> None:
    """Write tests, and how much they cover, to where CI finds them."""
    tests = ",\n".join(json.dumps(test) for test in as_json(scripts))
    FILE.write_text(f'{{"statements": {report.statements}, "covered": {report.covered}, "tests": [\n{tests}\n]}}\n')


def kept() -> tuple[Report, list[Script]]:
    """Return what :func:`keep` has written."""
    content = json.loads(FILE.read_text())
    scripts = from_json(content["tests"])
    return Report(PROGRAM, content["statements"], content["covered"], len(scripts)), scripts


def judge(report: Report, scripts: list[Script], target: str, run: Callable[[Script], Frames]) -> None:
    """Run tests and enter the outcomes in the report."""
    for script in scripts:
        try:
            problems = differences(script, run)
        except ChipError as error:
            problems = [str(error)]
        if problems:
            report.different.setdefault(target, []).append(f"{script.name}: {'; '.join(problems)}")
        else:
            report.passed[target] = report.passed.get(target, 0) + 1


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.outside.testgen_tofino", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--include", type=Path, nargs="+", metavar="FOLDER", help="folders of core.p4 and tna.p4")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"p4testgen's time ({SECONDS})")
    parser.add_argument("--on", nargs="+", choices=("model", "chip"), default=["model"], help="what runs them (model)")
    parser.add_argument("--compiled", type=Path, metavar="FOLDER", help="of the compiled program, to be kept")
    parser.add_argument("--json", action="store_true", help="a line of JSON")
    parser.add_argument("--write", action="store_true", help="keep the tests in tests/p4/generated")
    options = parser.parse_args()
    if options.include is None:
        report, scripts = kept()
    elif shutil.which(COMMAND) is None:
        print(f"{COMMAND} is not on PATH: it is made with p4c (ENABLE_TEST_TOOLS, ENABLE_TOFINO)", file=sys.stderr)
        return 2
    else:
        report, scripts = make(options.seconds, options.include)
    if options.write:
        keep(report, scripts)
    with tempfile.TemporaryDirectory(prefix="inart-compiled-") as work:
        for target in options.on:
            run = on_model() if target == "model" else on_chip(options.compiled or Path(work))
            judge(report, scripts, target, run)
    print(json.dumps(asdict(report)) if options.json else report.line())
    return int(bool(report.different))


if __name__ == "__main__":
    raise SystemExit(main())
