"""Hosts and links of an emulation, made with Mininet.

    host namespace                         root namespace
    <host>-eth0  tbf at the link's rate --- inart<n>h<i>   a port of the access switch
    ctl0         not shaped             --- inart<n>c<i>   172.31.0.1: controller, agents' management

A host with several links has eth0, eth1, .. in the order of its ports, all with its address (/32) and MAC address. A
host has one address (/32), one default route to a gateway that does not exist, and a static neighbour entry for it:
the data network has no ARP, the switches route. Its /etc/hosts has the names of all hosts, and its /etc/resolv.conf is
empty: there is no name server, and libraries that look up a peer's name would wait for one.
"""

import os

from mininet.link import Intf, Link, TCIntf
from mininet.log import error
from mininet.net import Mininet
from mininet.node import Host, Node, Switch

from controlplane.planner.plan.framing import MTU
from controlplane.planner.topology import Topology
from controlplane.planner.topology_cables import access, beyond, port_back, ports_of
from p4src.protocol import PROTOCOL
from topologies.lifetime import MANAGEMENT_ROOT, Lifetime

GATEWAY = "169.254.1.1"
MANAGEMENT_INTERFACE = "ctl0"
# Mininet's own bucket of 15 KB keeps TCP far below the rate of the link (and would flatter our paced packets). Slower
# links get a smaller one, or short transfers would never meet the link's rate.
BURST_BYTES = 256 * 1024  # at BURST_MBPS and above
BURST_MBPS = 20.0
LEAST_BURST_BYTES = 4 * 1514
QUEUE_SECONDS = 0.1


class EmulationError(Exception):
    """The network could not be built or does not work; the message says what to do."""


def host_burst_bytes(mbps: float) -> int:
    """Return the bucket in bytes of a host's link of this rate."""
    return max(LEAST_BURST_BYTES, int(BURST_BYTES * min(1.0, mbps / BURST_MBPS)))


def shaping(mbps: float) -> str:
    """Return tbf's parameters for a link of this rate."""
    return f"rate {mbps:f}Mbit burst {host_burst_bytes(mbps)} latency {QUEUE_SECONDS * 1000:f}ms"


class ShapedIntf(TCIntf):
    """One end of a link, whose rate tbf limits. The switches add delay and loss, so this needs no netem."""

    def bwCmds(self, bw: float | None = None, **_: object) -> tuple[list[str], str]:
        if bw is None:
            return [], " root "
        if bw <= 0:
            raise EmulationError(f"{self.name}: a link of {bw} Mbit/s")
        return [f"%s qdisc add dev %s root handle 5: tbf {shaping(bw)}"], " parent 5:1 "

    @staticmethod
    def delayCmds(
        parent: str,
        delay: str | None = None,
        jitter: str | None = None,
        loss: float | None = None,
        max_queue_size: int | None = None,
    ) -> tuple[list[str], str]:
        if any(value is not None for value in (delay, jitter, loss, max_queue_size)):
            error("*** delay, jitter, loss and queue size are set on the switches: Emulation.shape(...)\n")
        return [], parent

    def config(self, **params: object) -> dict[str, object]:
        result = super().config(**params)
        for output in result.get("tcoutputs", []):
            if output:
                raise EmulationError(f"tc on {self.name}: {output.strip()}. Is the tbf queue in this kernel?")
        return result


class PlainIntf(ShapedIntf):
    """An interface for switches that read frames as they are on the wire, with offloads off.

    Then no segment is larger than the MTU, and no checksum is left to a network card.
    """

    def config(self, **params: object) -> dict[str, object]:
        result = super().config(txo=False, rxo=False, **params)
        self.cmd("ethtool -K", self.name, "tso off gso off sg off")
        return result


class RootIntf(Intf):
    """The end of a link in the root namespace: up, without IPv6 packets and without an address."""

    def config(self, **params: object) -> dict[str, object]:
        _quiet_ipv6(self.node, self.name)
        return super().config(**params)


class MemoryIntf(Intf):
    """The end of a link that exists only inside the switch process; Mininet lists it."""

    def config(self, **_: object) -> dict[str, object]:
        return {}

    def ifconfig(self, *_: object) -> str:
        return f"{self.name} is a link in the memory of the switch process"

    def isUp(self, setUp: bool = False) -> bool:
        return True

    def delete(self) -> None:
        self.node.delIntf(self)


class MemoryLink(Link):
    """A link between two switches of one process: Mininet lists it, the process carries and shapes its frames."""

    def __init__(self, node1: Node, node2: Node, **params: object) -> None:
        super().__init__(node1, node2, **(params | {"intf": MemoryIntf}))

    @classmethod
    def makeIntfPair(cls, *_: object, **__: object) -> None:
        """Make nothing: the switch process makes the link."""


class P4Switch(Switch):
    """A switch as Mininet shows it. `topologies.switches` runs the process behind it."""

    def start(self, controllers: object) -> None:
        """Start nothing: one process may be many switches."""


def build(topology: Topology, lifetime: Lifetime, veth_fabric: bool, offloads: bool, mtu: int = MTU) -> Mininet:
    """Make all hosts and links. Raise EmulationError where the kernel or a tool refuses something.

    Args:
        topology: the network.
        lifetime: the emulation's number and reaper.
        veth_fabric: whether links between switches are veth pairs; otherwise they are only listed.
        offloads: whether hosts leave segmentation and checksums to the switches, which must support that.
        mtu: largest IP packet in bytes on the hosts' links.
    """
    # Otherwise Mininet changes host-wide kernel settings for good (fixLimits), which nothing here needs.
    Mininet.inited = True
    network = Mininet(topo=None, build=False, controller=None, host=Host, switch=P4Switch, link=Link)
    names = lifetime.directory / "hosts"
    names.write_text("127.0.0.1 localhost\n" + "".join(f"{topology.address(s)} {s}\n" for s in topology.servers))
    try:
        for number, switch in enumerate(topology.devices, 1):
            network.addSwitch(switch, dpid=f"{number:x}")
        for server in topology.servers:
            _add_host(network, topology, lifetime, server, ShapedIntf if offloads else PlainIntf)
            _set_mtu(network, topology, lifetime, server, mtu)
        add_fabric(network, topology, lifetime, veth_fabric)
    except EmulationError:
        raise
    except Exception as error:  # Mininet raises bare Exception.
        raise EmulationError(f"the network could not be built: {error}") from error
    network.built = True
    return network


def data_interface(server: str, link: int = 0) -> str:
    """Return the name of a host's interface to the data network (Linux allows 15 characters); `link` says which, where
    a host has several links.
    """
    name = f"{server}-eth{link}"
    return name if len(name) <= 15 else f"eth{link}"


def host_links(topology: Topology, lifetime: Lifetime) -> dict[tuple[str, str], str]:
    """Return the root namespace's end of every host's links, by the host and the topology's node next to it there."""
    return {
        (server, near): lifetime.interface("h", index, "abcdefgh"[link] if link else "")
        for index, server in enumerate(topology.servers)
        for link, near in enumerate(ports_of(topology, server))
    }


def _add_host(
    network: Mininet, topology: Topology, lifetime: Lifetime, server: str, interface: type[ShapedIntf]
) -> None:
    index = topology.servers.index(server)
    host = network.addHost(server, ip=None, mac=None)
    _run(host, "sysctl -q -w net.ipv6.conf.all.disable_ipv6=1 net.ipv6.conf.default.disable_ipv6=1", may_fail=True)
    _run(
        host,
        # This is in the host's own mount namespace, so the following mounts are seen only there.
        "mount --make-rprivate /",
        f"mount --bind {lifetime.directory / 'hosts'} /etc/hosts",
        "{ [ ! -e /etc/resolv.conf ] || mount --bind /dev/null /etc/resolv.conf; }",
    )
    ends = host_links(topology, lifetime)
    for link, near in enumerate(ports_of(topology, server)):
        switch, port = access(topology, server, near)
        network.addLink(
            host,
            network[switch],
            port1=link,
            port2=port,
            intfName1=data_interface(server, link),
            intfName2=ends[server, near],
            addr1=topology.mac(server),
            cls1=interface,
            cls2=RootIntf,
            params1={"bw": topology.bandwidth_mbps(server, near)},
        )
    own, root = lifetime.management_address(index), lifetime.interface("c", index)
    address = topology.address(server)
    _run(
        host,
        "ip link set lo up",
        f"ip link add name {MANAGEMENT_INTERFACE} type veth peer name {root} netns {os.getpid()}",
        f"ip address add {own}/32 dev {MANAGEMENT_INTERFACE}",
        f"ip link set {MANAGEMENT_INTERFACE} up",
        f"ip route add {MANAGEMENT_ROOT}/32 dev {MANAGEMENT_INTERFACE} src {own}",
        *(command for link in host.intfs for command in _addressed(topology, server, link)),
    )
    for data in host.intfs.values():
        data.ip, data.prefixLen = address, 32
    anywhere = network[topology.devices[0]]  # Any switch serves as a shell of the root namespace.
    _quiet_ipv6(anywhere, root)
    _run(
        anywhere,
        f"ip address add {MANAGEMENT_ROOT}/32 dev {root}",
        f"ip link set {root} up",
        f"ip route add {own}/32 dev {root} src {MANAGEMENT_ROOT}",
    )


def _addressed(topology: Topology, server: str, link: int = 0) -> tuple[str, ...]:
    """Return commands that give a host's data interface its address and a default route.

    The interfaces of several links have the same address, as those of a bond; a later one's route is used when there is
    no earlier one.
    """
    data, address = data_interface(server, link), topology.address(server)
    return (
        f"ip address add {address}/32 dev {data}",
        f"ip neighbour replace {GATEWAY} lladdr {PROTOCOL.gateway_mac.hex(':')} dev {data} nud permanent",
        f"ip route add default via {GATEWAY} dev {data} onlink src {address} metric {link}",
    )


def remake_host_link(
    network: Mininet, topology: Topology, lifetime: Lifetime, server: str, *, offloads: bool, mtu: int
) -> None:
    """Delete a host's data interface, and with it the switch's end, and make both again.

    They get the same names and addresses, but other interface indices. Raise EmulationError where the kernel or a tool
    refuses something.
    """
    host, switch = network[server], network[topology.access_switch(server)]
    data, end = data_interface(server), lifetime.interface("h", topology.servers.index(server))
    bandwidth = topology.bandwidth_mbps(server, topology.access_switch(server))
    _run(
        host,
        f"ip link delete {data}",
        f"ip link add name {data} type veth peer name {end} netns {os.getpid()}",
        f"ip link set {data} address {topology.mac(server)} mtu {mtu}",
        f"tc qdisc add dev {data} root handle 5: tbf {shaping(bandwidth)}",
    )
    if not offloads:
        _run(host, f"ethtool -K {data} tx off rx off tso off gso off sg off", may_fail=True)
    _quiet_ipv6(switch, end)
    _run(switch, f"ip link set {end} mtu {mtu} up")
    _run(host, f"ip link set {data} up", *_addressed(topology, server))


def _set_mtu(network: Mininet, topology: Topology, lifetime: Lifetime, server: str, mtu: int) -> None:
    """Set the MTU of both ends of a host's links: the switch's end drops frames that are larger than its own."""
    ends = host_links(topology, lifetime)
    for link, near in enumerate(ports_of(topology, server)):
        _run(network[server], f"ip link set {data_interface(server, link)} mtu {mtu}")
        _run(network[access(topology, server, near)[0]], f"ip link set {ends[server, near]} mtu {mtu}")


def add_fabric(network: Mininet, topology: Topology, lifetime: Lifetime, veth: bool) -> None:
    pairs = [
        (u, near, v)
        for u in topology.devices
        for near in topology.neighbours(u)
        if topology.kind(v := beyond(topology, u, near)) == "switch" and u < v
    ]
    if veth and topology.cables:
        raise EmulationError("several cables between two switches: use SWITCH=softswitch")
    for index, (u, near, v) in enumerate(pairs):
        ports = {"port1": topology.port(u, near), "port2": port_back(topology, u, near)}
        if not veth:
            network.addLink(
                network[u],
                network[v],
                cls=MemoryLink,
                **ports,
                intfName1=f"{u}:{ports['port1']}",
                intfName2=f"{v}:{ports['port2']}",
            )
            continue
        network.addLink(
            network[u],
            network[v],
            **ports,
            intfName1=lifetime.interface("l", index, "a"),
            intfName2=lifetime.interface("l", index, "b"),
            intf=PlainIntf,
            params1={"bw": topology.bandwidth_mbps(u, v)},
            params2={"bw": topology.bandwidth_mbps(v, u)},
        )


def _quiet_ipv6(node: Node, interface: str) -> None:
    _run(node, f"echo 1 >/proc/sys/net/ipv6/conf/{interface}/disable_ipv6", may_fail=True)


def _run(node: Node, *commands: str, may_fail: bool = False) -> None:
    output = node.cmd(" && ".join(commands)).strip()
    if output and not may_fail:
        raise EmulationError(f"on {node.name}: {output}")
