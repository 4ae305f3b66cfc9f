"""Measures the cost of a packet by each way that Linux has to carry it: through one veth pair, both ends' CPU.

    python -m evaluation.hosts.carriers [--packets 600000] [--payload 1048] [--json]

Needs root (network namespaces), a C compiler, and libxdp for AF_XDP (Debian: libxdp-dev). On veth AF_XDP copies. Part
of the receiver's work is done in the sender's call that delivers the packet, so the two columns belong together.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from evaluation.hosts.network import StarNetwork, run

SOURCE = Path(__file__).resolve().parent / "native" / "carriers.c"
WAYS = ("packet", "udp", "super", "xdp", "xdp-generic")
SECONDS = 60


@dataclass(frozen=True)
class Cost:
    """Microseconds of CPU per packet. lost: fraction of packets that did not arrive (nothing paces the sender)."""

    way: str
    send_us: float
    receive_us: float
    lost: float


def build(folder: Path) -> Path:
    """Compile the program and return its path. Raises OSError that says what is missing."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise OSError("no C compiler: apt-get install gcc libc6-dev")
    program = folder / "carriers"
    command = [compiler, "-O2", str(SOURCE), "-o", str(program), "-lxdp", "-lbpf"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        missing = "xdp/xsk.h" in done.stderr or "-lxdp" in done.stderr
        raise OSError("libxdp is missing: apt-get install libxdp-dev" if missing else done.stderr)
    return program


def measure(program: Path, way: str, packets: int, payload: int) -> Cost:
    """Measure one way. Raises OSError with the program's message if the kernel does not support it."""
    with StarNetwork("inart-c", ["sink"], ["10.9.0.2"]) as network:
        run("ip", "-n", network.middle, "address", "add", "10.9.0.1/16", "dev", "p-sink")
        ends = {}
        for role, namespace, interface in (
            ("receive", network.hosts["sink"], "data0"),
            ("send", network.middle, "p-sink"),
        ):
            command = ["ip", "netns", "exec", namespace, str(program), role, way, interface, str(packets), str(payload)]
            pipe = subprocess.PIPE
            ends[role] = subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True)
            if role == "receive":
                told = ends[role].stdout
                assert told is not None
                told.readline()  # "ready", or nothing and then an error below
        figures = {}
        for role, process in ends.items():
            try:
                output, errors = process.communicate(timeout=SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                raise OSError(f"{way}: {role} did not end in {SECONDS} s") from None
            if process.returncode:
                raise OSError(f"{way}: {errors.strip()}")
            count, seconds = output.split()[-2:]
            figures[role] = int(count), float(seconds)
    (sent, send), (got, receive) = figures["send"], figures["receive"]
    return Cost(way, 1e6 * send / sent, 1e6 * receive / max(got, 1), 1 - got / sent)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m evaluation.hosts.carriers", description=__doc__.partition("\n")[0])
    parser.add_argument("--packets", type=int, default=600_000, help="of each run (default: %(default)s)")
    parser.add_argument("--payload", type=int, default=1048, help="bytes in UDP (1048: 256 values)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)
    if os.geteuid():
        print("This needs root (network namespaces).", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder:
        try:
            program = build(Path(folder))
            costs = [measure(program, way, options.packets, options.payload) for way in WAYS]
        except OSError as error:
            print(f"evaluation.hosts.carriers: {error}", file=sys.stderr)
            return 1
    if options.json:
        print(json.dumps([asdict(cost) for cost in costs], indent=2))
        return 0
    print(f"{'CPU, µs a packet':18}{'send':>8}{'receive':>9}{'sum':>7}{'lost':>7}")
    for cost in costs:
        both = cost.send_us + cost.receive_us
        print(f"{cost.way:18}{cost.send_us:8.2f}{cost.receive_us:9.2f}{both:7.2f}{cost.lost:7.1%}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
