"""Measures MPI's collectives through the switches beside Open MPI's own, in turns on the same links.

    python -m evaluation.mpi [--ranks 4] [--mbps 200] [--bytes 64K,1M,8M] [--repeat 5] [--json]

An MPI program under `mpirun`, a rank on each host of an emulated network of two switches, in a job of its own whose
hosts are its parameter servers, too. The program calls each operation by its MPI_ name, which `inart mpi` takes, and by
its PMPI_ name, which is Open MPI's over TCP through the same switches, one after the other; the times are medians, each
that of the rank that takes longest. Bytes are those of all parts together.

Needs root, and Open MPI (Debian: openmpi-bin libopenmpi-dev).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from controlplane.common.inputs import parse_bytes
from controlplane.planner.generators import parse_topology
from evaluation import commands
from evaluation.mpi.network import MpiNetwork, compiled, missing

PROGRAM = Path(__file__).with_name("collectives.c")
SECONDS = 1200.0


def measure(ranks: int, mbps: float, sizes: Sequence[int], repeat: int) -> list[dict[str, Any]]:
    """Return the program's results for each operation and size. Raise RuntimeError when it fails, or when an operation
    did not go through the network.
    """
    left = (ranks + 1) // 2
    rates = f"bandwidth={mbps:g},aggregation={ranks * mbps:g},ingress={mbps:g}"
    topology = parse_topology(f"dumbbell:left={left},right={ranks - left},{rates}")
    with MpiNetwork(topology, ranks) as network:
        program = [str(compiled(PROGRAM, network.folder)), str(repeat), *map(str, sizes)]
        done = network.run(network.command(program), SECONDS, {"INART_MPI_SMALLEST": "1"})
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    wanted = len(found) * (repeat + 1)
    if done.returncode or not found or f"inart: {wanted} collectives went through" not in done.stderr:
        raise RuntimeError(f"exit status {done.returncode}: {done.stderr[-4000:]}")
    return found


def line(result: dict[str, Any]) -> str:
    """Return a result as text."""
    own, other = result["seconds"], result["mpi_seconds"]
    return (
        f"{result['op']:15}{result['bytes']:11}{1e3 * own:11.2f}{1e3 * other:13.2f}{other / own:10.2f}"
        f"{result['error']:12.1e}"
    )


def main(arguments: list[str] | None = None) -> int:
    """Run the command, and return the exit status."""
    parser = commands.parser("mpi", __doc__)
    parser.add_argument("--ranks", type=int, default=4, help="hosts (%(default)s)")
    parser.add_argument("--mbps", type=float, default=200.0, help="rate of every link (%(default)g)")
    parser.add_argument("--bytes", default="64K,1M,8M", help="sizes (%(default)s)")
    parser.add_argument("--repeat", type=int, default=5, help="turns of each (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print a list of objects")
    options = parser.parse_args(arguments)
    if why := ("needs root: network namespaces" if os.geteuid() else missing()):
        print(why, file=sys.stderr)
        return 1
    sizes = [int(parse_bytes(size)) for size in options.bytes.split(",")]
    results = measure(options.ranks, options.mbps, sizes, options.repeat)
    if options.json:
        print(json.dumps(results, indent=2))
        return 0
    print(f"{'operation':15}{'bytes':>11}{'InArt, ms':>11}{'Open MPI, ms':>13}{'MPI/own':>10}{'error':>12}")
    print("\n".join(map(line, results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
