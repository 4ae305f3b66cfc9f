"""Which peers may talk to each other: certificates name agents and the coordinator."""

import shutil
import socket
from pathlib import Path

import numpy as np
import pytest

from controlplane.cli.certificates import Wanted, make
from controlplane.common.rpc.tls import Tls, credentials
from controlplane.planner.plan.task import Edge, SumTree, Task
from controlplane.planner.strategies.wan.policy import Rounds
from overlay import Agent, Coordinator, OverlayError, PeerLost
from overlay.__main__ import main
from overlay.net import agent as agents_module
from overlay.net import coordinator as coordinators
from overlay.net import front
from overlay.net.tls import Security
from tests.overlay.test_agents import until
from tests.overlay.test_connections import met

SECONDS = 60.0
NODES = ("a", "b")


class One(Rounds):
    def task(self, number: int, values: int, now: float) -> Task:
        tree = SumTree("a", 0, values, (Edge("b", "a"),), (Edge("a", "b"),), NODES, NODES)
        return Task(number, values, (tree,), chunk_values=1000)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    where = tmp_path_factory.mktemp("certificates")
    make(where, Wanted(nodes=(*NODES, "x")))
    return where


def security(folder: Path, who: str) -> Security:
    found = Security.of(credentials(folder / who))
    assert found is not None
    return found


def agent(coordinator: Coordinator, node: str, secure: Security | None) -> Agent:
    return Agent(coordinator.address, node, listen=("127.0.0.1", 0), security=secure)


def test_sums_over_tls(folder):
    with Coordinator(One(NODES), security=security(folder, "controller")) as coordinator:
        agents = [agent(coordinator, node, security(folder, f"nodes/{node}")) for node in NODES]
        until(lambda: met(dict(zip(NODES, agents, strict=True))))  # The handshakes are over before there is a task.
        given = [np.full(100_000, k, np.float32) for k in (3.0, 5.0)]
        for future in [each.synchronise_async(values) for each, values in zip(agents, given, strict=True)]:
            future.result(SECONDS)
        for each, values in zip(agents, given, strict=True):
            np.testing.assert_array_equal(values, np.float32(4.0))
            each.close()


def test_new_files_hold_for_new_connections(tmp_path):
    """Certificates of a new authority are read, too: a running process needs no restart."""
    for one in ("old", "new"):
        make(tmp_path / one, Wanted(nodes=NODES))
    now = shutil.copytree(tmp_path / "old", tmp_path / "now")
    with Coordinator(One(NODES), security=security(now, "controller")) as coordinator:
        a = agent(coordinator, "a", security(now, "nodes/a"))
        until(lambda: "a" in coordinator.members)
        shutil.copytree(tmp_path / "new", now, dirs_exist_ok=True)
        b = agent(coordinator, "b", security(tmp_path / "new", "nodes/b"))
        agents = {"a": a, "b": b}
        until(lambda: met(agents))
        for future in [each.synchronise_async(np.full(1000, 3.0, np.float32)) for each in agents.values()]:
            future.result(SECONDS)
        for each in agents.values():
            each.close()


def test_no_agent_joins_under_another_name(folder):
    with Coordinator(One(NODES), security=security(folder, "controller")) as coordinator:
        liar = agent(coordinator, "a", security(folder, "nodes/x"))
        with pytest.raises(OverlayError, match="certificate at the other end is inart://node/x's, not node a's"):
            liar.wait_joined()
        liar.close()


def test_an_agent_does_not_take_a_node_for_the_coordinator(folder):
    said: list[str] = []
    with Coordinator(One(NODES), security=security(folder, "nodes/x")) as coordinator:
        wary = Agent(
            coordinator.address,
            "a",
            listen=("127.0.0.1", 0),
            security=security(folder, "nodes/a"),
            log=said.append,
        )
        with pytest.raises(OverlayError, match="did not answer"):
            wary.wait_joined(2.0)
        wary.close()
    assert any("inart://node/x's, not a controller's" in line for line in said)


def test_a_neighbour_with_a_wrong_certificate_gets_no_values(folder):
    with Coordinator(One(NODES), security=security(folder, "controller")) as coordinator:
        agents = [agent(coordinator, node, security(folder, f"nodes/{node}")) for node in NODES]
        agents[1].wait_joined()
        # It joined as b, and shows others another certificate.
        agents[1].neighbours.connector.security = security(folder, "nodes/x")
        agents[1].loop.call_soon_threadsafe(lambda: agents[1].neighbours.peers.pop("a").close())
        futures = [each.synchronise_async(np.ones(2000, np.float32)) for each in agents]
        for future in futures:
            with pytest.raises(PeerLost):
                future.result(SECONDS)
        assert agents[0].counters["malformed"]
        for each in agents:
            each.close()


def test_missing_certificates_are_reported(folder, capsys):
    with pytest.raises(ValueError, match="agents and coordinators need a certificate"):
        Security.of(Tls(authority=folder / "controller" / "authority.pem"))
    common = ["coordinator", "--topology", "netstorm:seed=1", "--job", "model=1M", "--listen", "0.0.0.0:0"]
    assert main(common) == 1
    assert "leaves this machine: give --credentials DIR" in capsys.readouterr().err


@pytest.mark.parametrize("secure", [True, False])
def test_silent_connections_are_closed(folder, monkeypatch, secure):
    """They would hold descriptors for ever; nothing is known of their other end."""
    for module in (front, coordinators, agents_module):
        monkeypatch.setattr(module, "HANDSHAKE_SECONDS", 0.3)
    monkeypatch.setattr(coordinators, "IDLE_SECONDS", 0.3)

    def tls(who: str) -> Security | None:
        return security(folder, who) if secure else None

    with Coordinator(One(NODES), security=tls("controller")) as coordinator:
        a = agent(coordinator, "a", tls("nodes/a"))
        until(lambda: "a" in coordinator.members)
        for address in (coordinator.address, a.listen):
            with socket.create_connection(address, SECONDS) as stranger:
                assert stranger.recv(100) == b""
        assert "a" in coordinator.members
        a.close()
