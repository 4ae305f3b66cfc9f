"""The command `inart topology import`: another project's topology file becomes one of ours."""

from __future__ import annotations

import argparse
import json
import sys

from controlplane.common import command_line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the file, and the options for data that it lacks."""
    parser.add_argument(
        "file",
        metavar="FILE[:servers=S,bandwidth=MBPS]",
        help="the file (of LLDP: the folder with NAME.json of each node), and behind it what it lacks: the servers to "
        "put at each switch (1), or names of those that exist ('host*'); Mbit/s of links without a bandwidth",
    )
    parser.add_argument("--unit", default="", metavar="U", help="unit of its bandwidths: Mbit/s (default), Gbit/s, ...")
    parser.add_argument(
        "--adding", default="", metavar="NAMES", help="the switches that add, like 'leaf*|spine*' (default: none)"
    )
    parser.add_argument(
        "--output", type=command_line.new_file, metavar="FILE", help="write the topology there (default: print it)"
    )


def run(arguments: argparse.Namespace) -> None:
    """Run the command: write the topology, and notes on standard error. Raise TopologyError or OSError if it fails."""
    # Imported here, as an agent's machine has no networkx.
    from controlplane.planner import importers

    topology, notes = importers.import_file(arguments.file, unit=arguments.unit, adding=arguments.adding)
    text = json.dumps(topology.to_json(), indent=1) + "\n"
    if arguments.output is None:
        print(text, end="")
    else:
        arguments.output.write_text(text)
    for note in notes:
        print(f"note: {note}", file=sys.stderr)
    links = sum(1 if topology.has_link(v, u) and u < v else not topology.has_link(v, u) for u, v in topology.links)
    counts = f"{len(topology.devices)} switches, {len(topology.servers)} servers, {links} links"
    print(f"{arguments.output or arguments.file}: {counts}", file=sys.stderr)
