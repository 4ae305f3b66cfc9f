"""The doctor: its findings on this machine, and its messages where something is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from controlplane.cli import doctor
from controlplane.common import probe
from controlplane.common.data_interface import describe_link
from controlplane.planner.job import Job
from tests.deploy.fake_switch import FakeSwitch
from topologies.choice import choose
from topologies.network import EmulationError


def test_json_names_every_finding(capsys):
    code = doctor.main(["--json"])
    report = json.loads(capsys.readouterr().out)
    failed = [check for check in report["checks"] if check["required"] and not check["ok"]]
    assert report["ok"] == (not failed) == (code == 0)
    assert all(check["fix"] for check in failed)
    assert {"python", "programs", "abilities", "machine"} <= {check["group"] for check in report["checks"]}


def test_missing_programs_come_with_their_package(monkeypatch):
    monkeypatch.setattr(doctor.shutil, "which", lambda name, path=None: None)
    checks = {check.name: check for check in doctor.check_programs()}
    assert not checks["mnexec"].ok
    assert checks["mnexec"].fix == "apt-get install mininet"
    assert checks["mnexec"].required
    assert not checks["simple_switch_grpc"].required


def test_missing_and_other_packages(tmp_path):
    (tmp_path / "requirements.txt").write_text("numpy==0.1\nno-such-package-at-all==1.0\n# comment\n")
    checks = {check.name: check for check in doctor.check_packages(tmp_path / "requirements.txt")}
    assert not checks["no-such-package-at-all"].ok
    assert checks["no-such-package-at-all"].fix == "make setup"
    assert "tested with 0.1" in checks["numpy"].detail


def test_a_missing_softswitch_is_reported_with_the_command_that_installs_it(monkeypatch):
    """`pip install inart[emulation]` does not install it: it is a distribution of its own."""
    assert doctor.check_softswitch().ok
    find = doctor.importlib.util.find_spec
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda name: None if name == "softswitch" else find(name))
    missing = doctor.check_softswitch()
    assert not missing.ok and "pip install ./softswitch" in missing.fix
    with pytest.raises(EmulationError, match=r"pip install \./softswitch"):
        choose("softswitch")


def test_a_host_name_of_a_loopback_address_is_named_with_the_variable_for_gloo(monkeypatch):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr("socket.gethostname", lambda: "node7")
    for address, ok in (("127.0.1.1", False), ("10.0.0.7", True)):
        monkeypatch.setattr("socket.gethostbyname", lambda _, found=address: found)
        check = doctor.check_host_name()
        assert check.ok == ok and not check.required
        assert ok or ("'node7' resolves to 127.0.1.1" in check.detail and "set GLOO_SOCKET_IFNAME" in check.fix)
    monkeypatch.setattr("socket.gethostbyname", lambda _: "127.0.1.1")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0")
    assert doctor.check_host_name().ok, "gloo does not use the name"


def test_failing_check_fails_the_doctor(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "check_abilities", lambda: [doctor.Check("abilities", "x", False, True, "no", "do y")])
    assert doctor.main([]) == 1
    text = capsys.readouterr().out
    assert "NO  x: no" in text
    assert "-> do y" in text
    assert "missing: " in text.splitlines()[-1]


def test_tofino_is_optional_and_what_is_missing_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("SDE_INSTALL", str(tmp_path))
    monkeypatch.setenv("P4C_TOFINO", str(tmp_path))
    studio, compiler = doctor.check_tofino()
    assert not studio.ok and not studio.required
    assert f"$SDE_INSTALL is {tmp_path}, which has no BRI client" in studio.detail
    assert not compiler.ok and not compiler.required
    assert "p4c-barefoot is missing" in compiler.detail


def test_a_probe_without_namespaces_stops(monkeypatch):
    def refuse():
        raise probe.Unable("not allowed here")

    def must_not_run():
        raise AssertionError("tried in the machine's own namespace")

    monkeypatch.setattr(probe, "enter_namespace", refuse)
    monkeypatch.setattr(probe, "ABILITIES", {"network namespaces": refuse, "veth pairs": must_not_run})
    monkeypatch.setattr(probe, "enter_namespace", refuse)
    assert probe.probe() == {"network namespaces": "not allowed here", "veth pairs": "no network namespace"}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces")
def test_probe_leaves_nothing_behind():
    def interfaces():
        return subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout.count("doctor0")

    checks = {check.name: check for check in doctor.check_abilities()}
    for name in ("raw sockets (AF_PACKET)", "super-frames over UDP"):
        assert checks[name].ok, checks[name].detail
    assert interfaces() == 0


def test_switches_that_answer_and_that_do_not(tmp_path):
    switch = FakeSwitch()
    file = tmp_path / "switches.json"
    entries = {
        "good": {"address": switch.address, "device_id": 1},
        "wrong": {"address": switch.address, "device_id": 9},
        "dead": {"address": "127.0.0.1:1", "device_id": 1},
    }
    file.write_text(json.dumps(entries))
    try:
        checks = {check.name: check for check in doctor.check_switches(file)}
    finally:
        switch.stop()
    assert checks["good"].ok
    assert "is the device id right" in checks["wrong"].detail
    assert "start the switch at 127.0.0.1:1" in checks["dead"].fix


def test_missing_agents_of_several_jobs_are_found(rig, address):
    """All was ok, as the status of a network with several jobs has no agents."""
    servers = rig.topology.servers
    rig.add(Job("one", servers[:2], servers[2:3], 10**6), together=True)
    rig.add(Job("two", servers[3:5], servers[5:6], 10**6), together=True)
    checks = {check.name: check for check in doctor.check_controller(address)}
    assert checks[address].detail == "2 jobs"
    assert not checks["two"].ok and checks["two"].detail == "0 of 3 agents have joined"
    assert checks["two"].fix == f"start the agents of {', '.join(sorted(servers[3:6]))}"


def test_controller_and_its_missing_agents(tmp_path):
    from tests.deploy.test_controller import Job as Running

    job = Running(tmp_path)
    job.start()
    try:
        checks = {check.name: check for check in doctor.check_controller(job.address)}
    finally:
        job.close()
    assert checks[job.address].ok
    assert not checks["w1"].ok
    assert checks["ps1"].fix == f"on ps1: inart ps ... --controller {job.address}"
    absent = list(doctor.check_controller("127.0.0.1:1"))
    assert not absent[0].ok
    (nobody,) = doctor.check_controller(job.address, tmp_path)
    assert not nobody.ok and "`inart certificates` makes them" in nobody.detail


@pytest.mark.parametrize(
    ("link", "ok", "what", "fix"),
    [
        ({"ifname": "eth0"}, True, "a network card", ""),
        ({"ifname": "v0", "linkinfo": {"info_kind": "veth"}}, True, "veth", ""),
        (
            {"ifname": "eth0.7", "link": "eth0", "linkinfo": {"info_kind": "vlan", "info_data": {"id": 7}}},
            False,
            "tag 7",
            "eth0 itself",
        ),
        ({"ifname": "bond0", "linkinfo": {"info_kind": "bond"}}, False, "one port or another", "one of its ports"),
        (
            {"ifname": "br0", "linkinfo": {"info_kind": "bridge", "info_data": {"mcast_snooping": 1}}},
            False,
            "IGMP snooping",
            "ip link set br0 type bridge mcast_snooping 0",
        ),
        ({"ifname": "br0", "linkinfo": {"info_kind": "bridge", "info_data": {"mcast_snooping": 0}}}, True, "", ""),
        ({"ifname": "wg0", "linkinfo": {"info_kind": "wireguard"}}, False, "tunnel (wireguard)", "wired"),
        (
            {"ifname": "eth1", "master": "bond0", "linkinfo": {"info_slave_kind": "bond"}},
            False,
            "a port of bond0",
            "ip link set eth1 nomaster",
        ),
    ],
    ids=["card", "veth", "vlan", "bond", "snooping", "bridge", "tunnel", "port of a bond"],
)
def test_interfaces_that_change_packets_on_their_way_are_named(link, ok, what, fix):
    found, says, advice = describe_link(link)
    assert found == ok and what in says and fix in advice
    assert bool(advice) != ok


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces")
def test_an_interface_that_drops_packets_is_recognised():
    name = f"inart-doctor-{os.getpid()}"
    code = "import dataclasses, json; from controlplane.common import data_interface as d\n"
    code += "print(json.dumps([dataclasses.asdict(f) for f in d.check('data0')]))"

    def run(*command):
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    def findings():
        found = json.loads(run("ip", "netns", "exec", name, sys.executable, "-c", code))
        return {finding["name"]: finding for finding in found}

    run("ip", "netns", "add", name)
    try:
        run("ip", "-n", name, "link", "add", "data0", "type", "veth", "peer", "name", "data1")
        for command in (("address", "add", "10.9.0.1/24", "dev", "data0"), ("link", "set", "data0", "up")):
            run("ip", "-n", name, *command)
        run("ip", "netns", "exec", name, "sysctl", "-q", "-w", "net.ipv4.conf.data0.rp_filter=0")
        good = findings()
        assert all(good[part]["ok"] for part in ("MTU", "multicast", "super-frames", "rp_filter")), good
        assert good["kind"]["ok"] and "veth" in good["kind"]["detail"], good
        run("ip", "-n", name, "link", "add", "bridge0", "type", "bridge", "mcast_snooping", "1")
        bridge = json.loads(run("ip", "netns", "exec", name, sys.executable, "-c", code.replace("data0", "bridge0")))
        assert any("mcast_snooping 0" in finding["fix"] for finding in bridge), bridge
        assert not good["link"]["ok"] and "no carrier" in good["link"]["detail"], "the other end is down"
        run("ip", "-n", name, "link", "set", "data0", "mtu", "1000")
        run("ip", "netns", "exec", name, "sysctl", "-q", "-w", "net.ipv4.conf.data0.rp_filter=1")
        bad = findings()
        assert "ip link set data0 mtu 1076" in bad["MTU"]["fix"]
        assert "rp_filter=0" in bad["rp_filter"]["fix"]
        assert good["kernel drops"]["ok"]
        # The sender is one that this namespace has no route to, as the other end of the wire would send.
        run("ip", "-n", name, "link", "set", "data1", "up")
        # This is a sender that it has a route to: a truncated frame.
        send = "from scapy.all import IP, UDP, Ether, get_if_hwaddr, sendp\n"
        send += "to = Ether(dst=get_if_hwaddr('data0'))\n"
        send += "lost = to / IP(src='192.0.2.1', dst='10.9.0.1') / UDP(dport=0x5000)\n"
        send += "short = bytes(to / IP(src='10.9.0.2', dst='10.9.0.1') / UDP(dport=0x5000) / bytes(100))[:60]\n"
        send += "sendp([lost, short], iface='data1', verbose=False)"
        run("ip", "netns", "exec", name, sys.executable, "-c", send)
        assert findings()["link"]["ok"]
        dropped = findings()["kernel drops"]["detail"]
        assert "rp_filter" in dropped and "more than the frame's" in dropped, dropped
        run("ip", "-n", name, "link", "set", "data0", "down")
        down = findings()["link"]
        assert down["required"] and not down["ok"] and down["fix"] == "ip link set data0 up"
    finally:
        run("ip", "netns", "delete", name)
