"""Hosts and links of an emulation have the properties that the topology states."""

import json
import re
import subprocess
import time
from pathlib import Path

import pytest

from controlplane.planner.topology import Topology
from p4src.protocol import PROTOCOL
from tests.emulation.rig import Rig, paper_testbed
from topologies import Emulation, EmulationError, network
from topologies.deployment import Fabric
from topologies.network import ShapedIntf
from topologies.zygote import HostFailure, Zygote

LONG = "a-host-with-a-long-name"


def small() -> Topology:
    nodes = {"s1": {"kind": "switch"}, "h1": {"kind": "server", "ip": "10.7.0.1"}, LONG: {"kind": "server"}}
    links = [(a, b, {"bandwidth_mbps": 40.0}) for a, b in (("h1", "s1"), ("s1", "h1"), (LONG, "s1"), ("s1", LONG))]
    return Topology(nodes, links, "small")


def test_interfaces_addresses_and_routes() -> None:
    topology = small()
    resolver = Path("/etc/resolv.conf").read_text()
    with Emulation(topology, "softswitch") as emulation:
        for host in topology.servers:
            name = emulation.interface(host)
            found = {i["ifname"]: i for i in json.loads(emulation.run(host, ["ip", "-j", "address"]).stdout)}
            assert set(found) == {"lo", name, "ctl0"}
            assert found[name]["address"] == topology.mac(host)
            assert [a["local"] for a in found[name]["addr_info"]] == [topology.address(host)]
            assert found[name]["mtu"] == 1500
            assert "UP" in found["lo"]["flags"]
            assert [a["local"].split(".")[:2] for a in found["ctl0"]["addr_info"]] == [["172", "31"]]
            neighbours = json.loads(emulation.run(host, ["ip", "-j", "neighbour"]).stdout)
            gateway = [n for n in neighbours if n["dev"] == name]
            assert [(n["lladdr"], n["state"]) for n in gateway] == [(PROTOCOL.gateway_mac.hex(":"), ["PERMANENT"])]
            queue = emulation.run(host, ["tc", "qdisc", "show", "dev", name]).stdout
            assert "tbf" in queue
            assert "rate 40Mbit" in queue
            assert "burst 256Kb" in queue
            found_name = emulation.run(host, ["getent", "hosts", "h1"]).stdout.split()
            assert found_name == [topology.address("h1"), "h1"]
            assert emulation.run(host, ["cat", "/etc/resolv.conf"]).stdout == ""
        assert Path("/etc/resolv.conf").read_text() == resolver, "only the hosts' own view may change"
        assert emulation.interface("h1") == "h1-eth0"
        assert len(emulation.interface(LONG)) <= 15


def test_only_switches_that_can_finish_frames_are_left_offloads(kind: str) -> None:
    """softswitch segments super-frames and completes checksums; bmv2 reads frames as they are on the wire."""
    with Emulation(small(), kind) as emulation:
        offloads = emulation.run("h1", ["ethtool", "-k", emulation.interface("h1")]).stdout
    for feature in ("tx-checksumming", "tcp-segmentation-offload", "generic-segmentation-offload",
                    "tx-udp-segmentation"):  # fmt: skip
        found = re.search(rf"^\s*{feature}: (on|off)", offloads, re.MULTILINE)
        assert found, feature
        assert found[1] == ("on" if kind == "softswitch" else "off"), feature
    assert kind == "softswitch" or "generic-receive-offload: off" in offloads


def test_a_hosts_counters_count_every_packet_of_a_super_frame() -> None:
    topology = paper_testbed(40.0)
    with Rig("softswitch", topology) as rig:
        sink = rig.zygote.spawn("W2", "topologies.hosts:tcp_sink", {"address": topology.address("W2")})
        assert sink.receive(60) == "listening"
        before = rig.emulation.counters("W1"), rig.emulation.counters("W2")
        source = rig.zygote.spawn(
            "W1", "topologies.hosts:tcp_source", {"address": topology.address("W2"), "seconds": 0.5}
        )
        sent = source.receive(60)
        sink.receive(60)
        up, down = (rig.emulation.counters(host) - then for host, then in zip(("W1", "W2"), before, strict=True))
        # 1,448 bytes of a TCP segment make a frame of 1,514 bytes; some segments are sent again.
        assert up.tx_packets >= sent / 1448
        assert up.tx_bytes >= sent + 66 * (sent // 1448)
        assert down.rx_bytes >= sent + 66 * (sent // 1448)


def test_every_pair_pings_and_a_dead_switch_is_noticed(kind: str) -> None:
    topology = paper_testbed(20.0)
    with Emulation(topology, kind) as emulation, Fabric(emulation) as fabric:
        assert emulation.ping([("W1", "W2")]) == [("W1", "W2")], "without routes nothing arrives"
        fabric.install_routes()
        assert emulation.ping() == []
        emulation.reboot("V2")
        assert ("W1", "W5") in emulation.ping([("W1", "W5"), ("W1", "W2")])


def test_links_keep_their_rate(kind: str) -> None:
    """The bytes that a host receives over a link of r Mbit/s are never more than r and one burst allow."""
    rate = 4.0
    topology = paper_testbed(rate)
    with Rig(kind, topology) as rig:
        sink = rig.zygote.spawn("W6", "topologies.hosts:tcp_sink", {"address": topology.address("W6")})
        assert sink.receive(60) == "listening"
        before, start = rig.emulation.counters("W6"), time.monotonic()
        source = rig.zygote.spawn(
            "W1", "topologies.hosts:tcp_source", {"address": topology.address("W6"), "seconds": 2.0}
        )
        source.receive(60)
        mbps = sink.receive(60)
        got, seconds = rig.emulation.counters("W6") - before, time.monotonic() - start
        # There are at most two token buckets on the path (the host's, and with bmv2 that of the link between the
        # switches).
        assert got.rx_bytes * 8 <= rate * 1e6 * seconds + 2 * 8 * 256 * 1024 * rate / 20 + 8 * 1500
        assert mbps > 0.3 * rate, "TCP gets a fair part of an idle link"


def test_mininet_gets_no_delay_and_loss_since_switches_apply_them(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(network, "error", said.append)
    commands, _ = ShapedIntf.delayCmds(" root ", delay="1ms", loss=1.0)
    assert commands == []
    assert "Emulation.shape" in said[0]


def test_unsupported_features_of_bmv2_and_hosts_are_reported() -> None:
    with Emulation(paper_testbed(10.0), "softswitch") as emulation:
        with pytest.raises(EmulationError, match="shape V1 -> W1 instead"):
            emulation.shape("W1", "V1", loss=0.1)
        with pytest.raises(EmulationError, match="loss must be in"):
            emulation.shape("V1", "W1", loss=2.0)


def test_processes_in_hosts_report_their_end() -> None:
    with Emulation(small(), "softswitch") as emulation, Zygote(emulation) as zygote:
        bad = zygote.spawn("h1", "tests.emulation.functions:fail", {"word": "elephant"})
        with pytest.raises(HostFailure, match=r"h1: ValueError: elephant"):
            bad.receive(30)
        gone = zygote.spawn("h1", "tests.emulation.functions:die", {})
        with pytest.raises(HostFailure, match=r"(?s)has ended.*last words"):
            gone.receive(30)
        echo = zygote.spawn(LONG, "tests.emulation.functions:echo", {})
        echo.send([1, "two"])
        assert echo.receive(30) == [1, "two"]
        assert emulation.topology.address(LONG) in echo.receive(30)
        stuck = zygote.spawn("h1", "tests.emulation.functions:hang", {})
        stuck.end(timeout=0.2)
        with pytest.raises(HostFailure):
            stuck.receive(30)


def test_ending_a_process_that_has_ended_harms_no_other_that_has_its_id_now() -> None:
    last = Path("/proc/sys/kernel/ns_last_pid")
    if not last.exists():
        pytest.skip("this kernel cannot be told which process id comes next (CONFIG_CHECKPOINT_RESTORE)")
    with Emulation(small(), "softswitch") as emulation, Zygote(emulation) as zygote:
        gone = zygote.spawn("h1", "tests.emulation.functions:die", {})
        with pytest.raises(HostFailure, match="has ended"):
            gone.receive(30)
        echo = zygote.spawn(LONG, "tests.emulation.functions:echo", {})  # Ended processes are reaped before this.
        echo.send("here")
        assert echo.receive(30) == "here"
        for _ in range(1000):  # Other processes on the machine fork, too.
            last.write_text(str(gone.pid - 1))
            other = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            if other.pid == gone.pid:
                break
            other.communicate()
        else:
            pytest.skip(f"process id {gone.pid} was not to be had")
        try:
            gone.kill()
            gone.end()
            said, _ = other.communicate(b"alive")
            assert said == b"alive"
        finally:
            other.kill()
            other.wait()
