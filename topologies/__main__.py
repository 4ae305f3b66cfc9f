"""Build an emulated network, try it, and give it to Mininet's command line; or run jobs on it.

inart emulate run --topology T --job J ...        network, controller, agents, work, failures: run --help
inart emulate run --wan netstorm --system wan     the same across data centres: run --wan --help
inart emulate generate ring --switches 6          a topology by rule, as JSON: generate --help
inart emulate --topology fattree:k=4              builds it, pings every pair, takes it down
inart emulate --topology testbed --cli            ... and opens Mininet's CLI: h1 ping h2, links, net, exit
inart emulate --topology fattree:k=4 --hold       ... and waits, e.g. for inart serve
"""

import argparse
import importlib
import json
import sys
import threading
import time
from collections.abc import Sequence

from mininet.cli import CLI
from mininet.log import setLogLevel

from controlplane.common import command_line
from controlplane.planner.generators import parse_topology
from controlplane.planner.topology import TopologyError
from controlplane.targets.base import TargetError
from topologies.choice import KINDS
from topologies.command import guarded
from topologies.deployment import Fabric
from topologies.emulation import Emulation
from topologies.network import EmulationError
from topologies.switches import switches_file


def main(argv: Sequence[str] | None = None) -> int:
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] in (["run"], ["generate"]):
        # `build` is imported only here, because `generate` needs no Mininet.
        wan = words[0] == "run" and any(word.split("=")[0] == "--wan" for word in words)
        module = importlib.import_module("topologies.wan.run" if wan else f"topologies.{words[0]}")
        return int(module.main(words[1:]))
    return build(words)


def build(argv: Sequence[str]) -> int:
    """Run the command without a verb: build a network and try it."""
    parser = command_line.make("emulate", __doc__)
    parser.add_argument(
        "--topology", default="testbed", metavar="T", help="fattree:k=4,bandwidth=20, testbed, or a file"
    )
    parser.add_argument("--switch", choices=KINDS, help="default: $SWITCH, else bmv2 if it is installed")
    parser.add_argument(
        "--switches", type=command_line.new_file, metavar="FILE", help="write each switch's P4Runtime address here"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--cli", action="store_true", help="open Mininet's command line")
    what.add_argument("--hold", action="store_true", help="leave it running until Ctrl-C")
    arguments = parser.parse_args(argv)
    refusals = EmulationError, TopologyError, TargetError, ValueError
    return guarded("topologies", lambda: run(arguments), *refusals)


def run(arguments: argparse.Namespace) -> int:
    """Build the network, install routes, ping every pair, and keep the network if the arguments ask for it."""
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # others may wait for a line
    topology = parse_topology(arguments.topology)
    started = time.monotonic()
    with Emulation(topology, arguments.switch) as emulation:
        print(
            f"{len(topology.switches)} switches ({emulation.kind}), {len(topology.servers)} hosts: "
            f"up after {time.monotonic() - started:.1f} s"
        )
        with Fabric(emulation) as fabric:
            fabric.install_routes()
        lost = emulation.ping()
        pairs = len(topology.servers) * (len(topology.servers) - 1)
        print(
            f"pings: {pairs - len(lost)} of {pairs} answered" + "".join(f"\n  {a} -> {b}: none" for a, b in lost[:10])
        )
        if arguments.switches:
            arguments.switches.write_text(json.dumps(switches_file(emulation.switch_addresses), indent=1) + "\n")
            print(f"switches file: {arguments.switches}")
        if arguments.cli:
            setLogLevel("info")
            CLI(emulation.net)
        elif arguments.hold:
            print(f"agents reach a controller that listens on {emulation.controller_host}; Ctrl-C takes it all down")
            threading.Event().wait()
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
