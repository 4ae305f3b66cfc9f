"""Sites to which others cannot connect: which side opens the connections is found by trial, plans have no impossible
links, and errors say at which address a site was tried and what helps.
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest

from controlplane.planner.strategies.wan.policy import Ready, Reject
from controlplane.planner.strategies.wan.site_rounds import NoLink, SiteRounds
from overlay.core.errors import Late, OverlayError
from overlay.core.reachability import Reachability
from overlay.core.site_network import SiteNetwork
from overlay.sites import SiteGroup, init
from tests.overlay.live_sites import Wire
from tests.overlay.test_agents import until
from tests.overlay.test_sites import coordinating
from tests.overlay.test_sites_elastic import averaged, state

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def closed() -> Iterator[list[str]]:
    """Yield addresses at which connections are refused, as at that of a host whose ports nothing passes on."""
    with ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(2)]
        for each in held:
            each.bind(("127.0.0.1", 0))
        yield ["{}:{}".format(*each.getsockname()) for each in held]


@contextmanager
def joined(coordinator, advertised: dict[str, str | None], timeout: float = 60.0) -> Iterator[dict[str, SiteGroup]]:
    """Yield sites that others are told these addresses of, once all of them have the first state."""
    where = f"127.0.0.1:{coordinator.address[1]}"
    groups = {
        name: init(where, name, listen="127.0.0.1:0", advertise=told, timeout=timeout)
        for name, told in advertised.items()
    }
    try:
        yield groups
    finally:
        for group in groups.values():
            group.agent.close()


def agreed(groups: dict[str, SiteGroup]) -> None:
    with ThreadPoolExecutor(len(groups)) as pool:
        list(pool.map(lambda group: group.agree(state(1), 0), groups.values()))


def submit(groups: dict[str, SiteGroup]) -> list[BaseException | None]:
    """Have each site submit a round; return what each raises."""
    with ThreadPoolExecutor(len(groups)) as pool:
        rounds = [pool.submit(group.average, np.ones(100, np.float32), round=0) for group in groups.values()]
        return [each.exception(60) for each in rounds]


def test_a_site_that_others_cannot_connect_to_opens_all_connections(closed, monkeypatch):
    monkeypatch.setattr("overlay.net.transport.TRIAL_SECONDS", 0.5)
    with (
        coordinating(3, probe_seconds=0.1) as (coordinator, lines),
        joined(coordinator, {"a": None, "b": closed[0], "c": None}) as groups,
    ):
        agreed(groups)
        for number in range(2):
            assert averaged(groups, number)["a"][1].sites == ("a", "b", "c")
        assert any("measured 6 of 6 pairs" in line for line in lines), lines
        assert all(mbps > 0 for mbps in coordinator.desk.network.links("abc").values())
        assert any(f"a cannot connect to b at {closed[0]}: " in line for line in lines)


def test_a_site_that_others_cannot_connect_to_is_no_deputy(closed, monkeypatch):
    """The first site in the alphabet would take the coordinator's place, but others cannot join it."""
    monkeypatch.setattr("overlay.net.transport.TRIAL_SECONDS", 0.5)
    with (
        coordinating(3, probe_seconds=0.1) as (coordinator, _),
        joined(coordinator, {"a": closed[0], "b": None, "c": None}) as groups,
    ):
        agreed(groups)
        averaged(groups, 0)
        coordinator.close()
        assert averaged(groups, 1)["a"][1].sites == ("a", "b", "c")


def test_two_sites_behind_address_translation_use_the_third_one(closed, monkeypatch, caplog):
    monkeypatch.setattr("overlay.net.transport.TRIAL_SECONDS", 0.5)
    with (
        coordinating(3, probe_seconds=0.1) as (coordinator, lines),
        joined(coordinator, {"a": closed[0], "b": closed[1], "c": None}, timeout=20.0) as groups,
    ):
        agreed(groups)
        assert averaged(groups, 0)["a"][1].sites == ("a", "b", "c")
        assert any("measured 4 of 6 pairs" in line for line in lines), lines
        assert ("a", "b") not in coordinator.desk.network.links("abc")
        assert groups["a"].agent.statistics()["bytes_sent"].keys() == {"c"}
        groups.pop("c").agent.close()
        until(lambda: len(coordinator.members) == 2)
        monkeypatch.setattr(groups["a"], "timeout", 3.0)
        monkeypatch.setattr(groups["b"], "timeout", 3.0)
        with pytest.raises(Late) as raised:
            averaged(groups, 1)
    for words in (str(raised.value), caplog.text):
        assert f"a cannot connect to b at {closed[1]}: " in words and f"b cannot connect to a at {closed[0]}: " in words
        assert "--listen HOST:PORT --advertise HOST:PORT" in words
    assert {record.levelno for record in caplog.records if "no link to" in record.message} == {logging.WARNING}


def test_two_sites_reached_at_no_port_are_told_so_at_once():
    with (
        coordinating(2, probe_seconds=0.1) as (coordinator, _),
        joined(coordinator, {"a": "none", "b": "none"}) as groups,
    ):
        agreed(groups)
        for error in submit(groups):
            assert isinstance(error, OverlayError) and not isinstance(error, Late)
            for words in ("a is reached at no port", "b is reached at no port", "--advertise HOST:PORT"):
                assert words in str(error)


def test_a_link_that_becomes_possible_is_used(closed, monkeypatch):
    monkeypatch.setattr("overlay.net.transport.TRIAL_SECONDS", 0.3)
    monkeypatch.setattr("overlay.net.neighbours.RETRIAL_SECONDS", 0.2)
    with coordinating(2, probe_seconds=0) as (coordinator, _), socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        with joined(coordinator, {"a": closed[0], "b": "{}:{}".format(*held.getsockname())}) as groups:
            agreed(groups)
            network = coordinator.desk.network
            until(lambda: not network.linked("a", "b"))
            with ThreadPoolExecutor(1) as pool:
                rounds = pool.submit(averaged, groups, 0)
                held.listen()  # from now on the port of b is passed on
                forward = Wire(("127.0.0.1", groups["b"].agent.listen[1]), server=held)
                assert rounds.result(60)["a"][1].sites == ("a", "b")
                assert network.linked("a", "b")
                forward.close()


# --- plans ---


def full(sites: str, mbps: float) -> dict[tuple[str, str], float]:
    return {(a, b): mbps for a in sites for b in sites if a != b}


def test_plans_have_no_link_that_no_side_can_open():
    network = SiteNetwork(64)
    network.surveyed({pair: 100.0 for pair in full("abc", 1.0) if set(pair) != {"a", "b"}}, {}, {})
    refused = {("a", "b"): "10.0.0.2:9701: no answer", ("b", "a"): "10.0.0.1:9701: no answer"}
    for unreached, hidden in ((refused, frozenset()), ({}, frozenset("ab"))):
        network.reached(Reachability(hidden, unreached))
        assert network.links("abc") == {pair: 100.0 for pair in full("abc", 1.0) if set(pair) != {"a", "b"}}
        assert network.plan("abc")[0].rate_mbps > 0
        with pytest.raises(NoLink, match="no link leads from") as raised:
            network.plan("ab")
        assert raised.value.lasting == bool(hidden)
        # A site of which nothing is known gets the links that are possible, and no others.
        assert ("a", "d") in network.links("abcd") and ("a", "b") not in network.links("abcd")
    network.reached(Reachability(frozenset(), {("a", "b"): "10.0.0.2:9701: no answer"}))
    assert ("a", "b") in network.links("ab"), "b opens the connection"


def test_a_link_that_broke_before_it_was_measured_is_not_given_the_rate_of_others():
    network = SiteNetwork(64)
    network.surveyed(full("ab", 100.0), {}, {})
    assert network.links("abc")["a", "c"] == 100.0
    network.broken("a", "c")
    assert network.links("abc")["a", "c"] < 0.01 < network.links("abc")["b", "c"] == 100.0
    refused = {("a", "c"): "10.0.0.3:1: no answer", ("c", "a"): "10.0.0.1:1: no answer"}
    for unreached in (refused, {}):
        network.reached(Reachability(frozenset(), unreached))
    assert network.links("abc")["a", "c"] == 100.0, "a trial has succeeded since"


@pytest.mark.parametrize("lasting", [True, False])
def test_sites_without_a_link_submit_again_unless_it_is_declared(lasting):
    network = SiteNetwork(64)
    refused = {("a", "b"): "10.0.0.2:1: no answer", ("b", "a"): "10.0.0.1:1: no answer"}
    network.reached(Reachability(frozenset("ab") if lasting else frozenset(), {} if lasting else refused))
    policy = SiteRounds(network, sites=2)
    for name in "ab":
        policy.admit(name)
        policy.activate(name)
    policy.begin_at(0)
    (order,) = [order for name in "ab" for order in policy.handle(Ready(name, 128, 1, 0, "sum"), 0.0)]
    assert isinstance(order, Reject) and order.again is not lasting and order.nodes == ("a", "b")


# --- real address translation ---

OUTSIDE = "10.80.0.1"


class Translated:
    """A namespace "out" for hosts that all reach, and hosts behind a gateway each, which translates their address.

    Names: the number k of a host is in its addresses. It has 10.80.1k.2 inside, and others see 10.80.2k.1.
    """

    def __init__(self, stack: ExitStack, hosts: int) -> None:
        self._stack, self._prefix = stack, f"inart-nat-{os.getpid()}-"
        names = ["out", *(f"{kind}{k}" for k in range(hosts) for kind in ("gate", "in"))]
        for name in names:
            _run("ip", "netns", "add", self._prefix + name)
            stack.callback(_run, "ip", "netns", "delete", self._prefix + name)
            self.ip(name, "link set lo up")
        self.ip("out", f"address add {OUTSIDE}/32 dev lo")
        for k in range(hosts):
            gate = f"gate{k}"
            self._cable(("out", f"o{k}", f"10.80.3{k}.1/24"), (gate, "out", f"10.80.3{k}.2/24"))
            self._cable((gate, "in", f"10.80.1{k}.1/24"), (f"in{k}", "eth0", f"10.80.1{k}.2/24"))
            self.ip(f"in{k}", f"route add default via 10.80.1{k}.1")
            self.ip("out", f"route add 10.80.2{k}.1/32 via 10.80.3{k}.2")
            self.begin(gate, "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv4.conf.all.rp_filter=0").wait()
            translating = self.begin(gate, sys.executable, "-m", "tests.support.nat", "nat0", f"10.80.2{k}.1")
            assert translating.stdout is not None and translating.stdout.readline() == "ready\n"
            self.ip(gate, "link set nat0 up")
            self.ip(gate, f"route add {OUTSIDE}/32 via 10.80.3{k}.1")
            self.ip(gate, f"route add 10.80.2{k}.1/32 dev nat0")
            self.ip(gate, "rule add iif in lookup 100")
            self.ip(gate, "route add default dev nat0 table 100")
            self.ip(gate, f"route add 10.80.0.0/16 via 10.80.3{k}.1")

    def _cable(self, one: tuple[str, str, str], other: tuple[str, str, str]) -> None:
        """Join two namespaces; each end is (namespace, interface, address)."""
        self.ip(one[0], f"link add {one[1]} type veth peer name {other[1]} netns {self._prefix}{other[0]}")
        for name, interface, address in (one, other):
            self.ip(name, f"address add {address} dev {interface}")
            self.ip(name, f"link set {interface} up")

    def ip(self, name: str, words: str) -> None:
        _run("ip", "-n", self._prefix + name, *words.split())

    def begin(self, name: str, *command: str) -> subprocess.Popen[str]:
        """Run a command in a namespace until the test ends."""
        words = ["ip", "netns", "exec", self._prefix + name, *command]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def site(self, name: str, where: str, *more: str) -> subprocess.Popen[str]:
        """Start `inart site agent`, which averages random values."""
        own = ["--coordinator", f"{OUTSIDE}:9700", "--site", name, "--values", "2000", *more]
        return self.begin(where, sys.executable, "-m", "inart", "site", "agent", *own)


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True)


@contextmanager
def translated(hosts: int) -> Iterator[Translated]:
    """Yield a network with so many hosts behind gateways, and a coordinator of two sites outside."""
    if os.geteuid() != 0 or not Path("/dev/net/tun").exists() or not shutil.which("ip"):
        pytest.skip("namespaces with address translation take root, iproute2 and /dev/net/tun")
    with ExitStack() as stack:
        net = Translated(stack, hosts)
        coordinator = net.begin("out", sys.executable, "-m", "inart", "site", "coordinator", "--sites", "2",
                                "--listen", f"{OUTSIDE}:9700", "--insecure")  # fmt: skip
        assert coordinator.stdout is not None and "waiting" in coordinator.stdout.readline()
        yield net


@pytest.mark.namespaces
def test_a_site_behind_a_gateway_trains_with_no_option_given():
    with translated(1) as net:
        sites = [net.site("inside", "in0"), net.site("outside", "out")]
        said = [site.communicate(timeout=200)[0] for site in sites]
    for site, lines in zip(sites, said, strict=True):
        assert site.returncode == 0, lines
        assert lines.count('"sites": ["inside", "outside"]') == 3, lines
    assert "outside cannot connect to this agent at 10.80.20.1:" in said[0], said


@pytest.mark.namespaces
def test_two_sites_behind_gateways_say_which_addresses_do_not_answer_and_what_helps():
    with translated(2) as net:
        sites = [net.site(f"site{k}", f"in{k}", "--timeout", "15") for k in range(2)]
        said = [site.communicate(timeout=200)[0] for site in sites]
    for site, lines in zip(sites, said, strict=True):
        assert site.returncode == 1 and "Traceback" not in lines, lines
        error = lines[lines.rindex("inart site: ") :]
        for words in ("10.80.20.1:", "10.80.21.1:", "no answer", "--listen HOST:PORT --advertise HOST:PORT"):
            assert words in error, lines
