"""Makes the wiring around tofino-models: a network namespace per switch and host of a topology, and veth pairs.

    python -m topologies.tofino_model --topology topologies/data/testbed_tofino.json --folder /tmp/tofino-model
    python -m topologies.tofino_model --topology topologies/data/testbed_tofino.json --folder /tmp/tofino-model --remove
    python -m topologies.tofino_model --tofino 2 --topology topologies/data/testbed_tofino2.json --folder ...

    namespace inart-V1                                   namespace inart-W1
    tofino-model: p1-0 (front-panel port 1/0) ---------- eth0, 10.0.0.3
                  p6-0 ---------------------------------------------------- p6-0 in inart-V2
                  p7-0 (loopback) -- reflector
    bf_switchd:   mgmt, 172.30.1.2 --------------------- root namespace, 172.30.1.1: inart serve

A model and its driver talk over TCP ports that are the same for every switch, hence the namespaces. Nothing of P4
Studio is started here. The folder gets the files for the model (the interface of each device port) and for `deploy`
(addresses, and the topology with rates that a model can carry), and the commands to type are printed. docs/tofino.md
says how to use it, and that it was tried without a tofino-model only.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from controlplane.planner.frontpanel import FrontPanelPort
from controlplane.planner.generators import parse_topology
from controlplane.planner.topology import Topology, TopologyError
from p4src.protocol import PROTOCOL

GATEWAY = "169.254.1.1"
BRI_PORT = 50052
MODEL_MBPS = 1.0
"""The rate in Mbit/s of the model's links, which is low because the model simulates every stage for every packet."""
CONNECTORS = {"1": 64, "2": 32}
"""Connectors of the front panel, by the chip's generation."""


class ModelError(Exception):
    """The wiring could not be made; the message says why."""


def device_port(port: FrontPanelPort, tofino: str = "1") -> int:
    """Return the device port of a front-panel port of a model with four pipes, tofino-model's default.

    bf_switchd numbers them so; `pm show` in its shell prints both (columns PORT and D_P). For Tofino 2 this is an
    assumption: eight lanes per connector, in order, after a pipe's first eight ports. Raise ModelError for a port that
    does not exist.
    """
    connector = port.connector
    if connector > CONNECTORS[tofino]:
        raise ModelError(f"the model has no front-panel port {port.name}: connectors are 1 to {CONNECTORS[tofino]}")
    if tofino == "2":
        at, place = divmod(connector - 1, 8)
        return 128 * at + 8 + 8 * place + port.channel
    # There are rows of sixteen; the first and the third are counted backwards.
    row, place = divmod(connector - 1, 16)
    mac = 16 * row + (15 - place if row % 2 == 0 else place)
    return mac // 16 * 128 + mac % 16 * 4 + port.channel


def interface(port: FrontPanelPort) -> str:
    """Return the interface of a front-panel port in its switch's namespace."""
    return f"p{port.connector}-{port.channel}"


def port_file(topology: Topology, switch: str, tofino: str = "1") -> dict[str, list[dict[str, int | str]]]:
    """Return the content of the file for tofino-model's option -f: the interface of each device port."""
    ports = [*topology.front_panel(switch).values(), *topology.loopback_ports(switch)]
    return {"PortToIf": [{"device_port": device_port(port, tofino), "if": interface(port)} for port in sorted(ports)]}


def slow(topology: Topology, mbps: float) -> Topology:
    """Return the topology with links of `mbps`."""
    links = {link: {"bandwidth_mbps": mbps} for link in topology.links}
    return topology.replace(links=links)


@dataclass(frozen=True)
class Wiring:
    """The namespaces and links of a topology.

    Args:
        topology: the network.
        folder: folder for files that the model, the driver and `deploy` read.
        prefix: prefix of the namespaces' names, and of the interfaces in the root namespace.
        management: first two bytes of the addresses between the root namespace and the switches.
        tofino: the chips' generation.
    """

    topology: Topology
    folder: Path
    prefix: str = "inart-"
    management: str = "172.30"
    tofino: str = "1"

    def make(self, mbps: float = MODEL_MBPS) -> None:
        """Make namespaces, links and files. Raise ModelError where that fails; then nothing is left."""
        files = {switch: port_file(self.topology, switch, self.tofino) for switch in self.topology.switches}
        there = [node for node in self.topology.nodes if self._exists(node)]
        if there:
            raise ModelError(f"there is a namespace {self.prefix}{there[0]} already: --remove takes all of them away")
        try:
            for command in self.commands():
                run(command)
        except ModelError:
            self.remove()
            raise
        self.folder.mkdir(parents=True, exist_ok=True)
        addresses = {}
        for number, switch in enumerate(self.topology.switches, 1):
            addresses[switch] = {"address": f"{self._address(number, 2)}:{BRI_PORT}", "device_id": 0}
            (self.folder / switch).mkdir(exist_ok=True)
            _write(self.folder / switch / "ports.json", files[switch])
        _write(self.folder / "switches.json", addresses)
        _write(self.folder / "topology.json", slow(self.topology, mbps).to_json())

    def remove(self) -> None:
        """Remove the namespaces, and with them the links."""
        for node in self.topology.nodes:
            if self._exists(node):
                run(f"ip netns del {self.prefix}{node}")

    def commands(self) -> Iterator[str]:
        """Yield the commands that make the wiring, in order."""
        for node in self.topology.nodes:
            yield f"ip netns add {self.prefix}{node}"
            yield f"{self._ip(node)} link set lo up"
            for scope in ("all", "default"):
                yield f"{self.enter(node)} sysctl -qw net.ipv6.conf.{scope}.disable_ipv6=1"
        for u, v in self.topology.links:
            if (v, u) in self.topology.links and v < u:
                continue
            first, second = self._end(u, v), self._end(v, u)
            yield (f"ip link add {first} netns {self.prefix}{u} type veth peer name {second} netns {self.prefix}{v}")
            yield from self._raise(u, first)
            yield from self._raise(v, second)
        for number, switch in enumerate(self.topology.switches, 1):
            for port in self.topology.loopback_ports(switch):
                yield from self._loopback(switch, interface(port))
            yield from self._manage(number, switch)
        for server in self.topology.servers:
            yield from host_commands(self.topology, server, "eth0", self._ip(server))

    def enter(self, node: str) -> str:
        """Return the words before a command that run it in the node's namespace."""
        return f"ip netns exec {self.prefix}{node}"

    def what_to_type(self) -> Iterator[str]:
        """Yield the commands for the user's terminals."""
        yield "as root, with $SDE and $SDE_INSTALL set, each in a terminal of its own:"
        arch = {"1": "tofino", "2": "tofino2"}[self.tofino]
        for switch in self.topology.switches:
            begin = f"cd {self.folder}/{switch} && {self.enter(switch)}"
            yield f"  {switch}: {begin} $SDE/run_tofino_model.sh -p inart --arch {arch} -f $PWD/ports.json -q"
            yield f"  {switch}: {begin} $SDE/run_switchd.sh -p inart --arch {arch} --skip-port-add"
        yield (
            f"  controller: .venv/bin/inart serve --no-state --tofino {self.tofino} --job name=job --topology "
            f"{self.folder}/topology.json --switches {self.folder}/switches.json --listen unix:{self.folder}/controller"
        )
        for server in self.topology.servers:
            agent = "ps_server" if self.topology.role(server) == "parameter_server" else "worker_agent allreduce"
            size = "" if agent == "ps_server" else " --bytes 64K"
            controller = f"--controller unix:{self.folder}/controller"
            yield f"  {server}: {self.enter(server)} .venv/bin/python -m {agent}{size} {controller}"

    def _exists(self, node: str) -> bool:
        return Path(f"/run/netns/{self.prefix}{node}").exists()

    def _ip(self, node: str) -> str:
        return f"ip -n {self.prefix}{node}"

    def _end(self, node: str, other: str) -> str:
        if self.topology.kind(node) == "server":
            return "eth0"
        return interface(self.topology.front_panel(node)[self.topology.port(node, other)])

    def _raise(self, node: str, name: str) -> Iterator[str]:
        # The model reads frames as they are on the wire: whole, and with their checksums.
        yield f"{self.enter(node)} ethtool -K {name} tx off rx off tso off gso off gro off sg off"
        yield f"{self._ip(node)} link set {name} up"

    def _loopback(self, switch: str, name: str) -> Iterator[str]:
        """Yield commands that send frames back which leave by a loopback port, also for models that do not simulate a
        port's loopback.
        """
        mirror = f"{name}r"
        there = f"netns {self.prefix}{switch}"
        yield f"ip link add {name} {there} type veth peer name {mirror} {there}"
        yield from self._raise(switch, name)
        yield from self._raise(switch, mirror)
        yield f"tc -n {self.prefix}{switch} qdisc add dev {mirror} ingress"
        match = "parent ffff: protocol all u32 match u8 0 0"
        yield (
            f"tc -n {self.prefix}{switch} filter add dev {mirror} {match} action mirred egress redirect dev {mirror}"
        )

    def _manage(self, number: int, switch: str) -> Iterator[str]:
        root = f"{self.prefix}m{number}"
        yield f"ip link add {root} type veth peer name mgmt netns {self.prefix}{switch}"
        yield f"ip address add {self._address(number, 1)}/30 dev {root}"
        yield f"ip link set {root} up"
        yield f"{self._ip(switch)} address add {self._address(number, 2)}/30 dev mgmt"
        yield f"{self._ip(switch)} link set mgmt up"

    def _address(self, number: int, end: int) -> str:
        return f"{self.management}.{number}.{end}"


def host_commands(topology: Topology, server: str, name: str, ip: str = "ip") -> Iterator[str]:
    """Yield commands that give a host its address on the data network, which has no ARP: the switches route."""
    yield f"{ip} link set {name} address {topology.mac(server)}"
    yield f"{ip} address add {topology.address(server)}/32 dev {name}"
    yield f"{ip} neighbour replace {GATEWAY} lladdr {PROTOCOL.gateway_mac.hex(':')} dev {name} nud permanent"
    yield f"{ip} route add default via {GATEWAY} dev {name} onlink src {topology.address(server)}"


def _write(file: Path, content: object) -> None:
    file.write_text(json.dumps(content, indent=1) + "\n")


def run(command: str) -> None:
    try:
        done = subprocess.run(command.split(), capture_output=True, text=True, timeout=30, check=False)
    except FileNotFoundError as error:
        raise ModelError(f"{error.filename} is missing: apt-get install iproute2 ethtool") from None
    if done.returncode:
        raise ModelError(f"{command}: {(done.stderr or done.stdout).strip()}")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m topologies.tofino_model",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--topology", required=True, metavar="FILE", help="topology file with front-panel ports")
    parser.add_argument("--folder", type=Path, required=True, help="for ports.json, switches.json, topology.json")
    parser.add_argument("--mbps", type=float, default=MODEL_MBPS, help="rate of every link (default: %(default)s)")
    parser.add_argument("--tofino", choices=sorted(CONNECTORS), default="1", help="generation (default: %(default)s)")
    parser.add_argument("--remove", action="store_true", help="take the namespaces away again")
    arguments = parser.parse_args(argv)
    try:
        topology = parse_topology(arguments.topology)
        if os.geteuid():
            raise ModelError("making network namespaces needs root")
        folder = arguments.folder.resolve()
        wiring = Wiring(topology, folder, tofino=arguments.tofino)
        if arguments.remove:
            wiring.remove()
        else:
            wiring.make(arguments.mbps)
            print("\n".join(wiring.what_to_type()))
    except (ModelError, TopologyError, OSError) as error:
        print(f"tofino_model: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
