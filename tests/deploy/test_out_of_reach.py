"""The network between controller and agents is cut while the data network is intact: nothing is stopped for that."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

import pytest

from controlplane.common.agentconfig import AgentConfig
from controlplane.common.rpc import client
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.common.rpc.client import Identity, Membership
from controlplane.service.core import membership
from p4src.protocol import ENCODING
from tests.deploy.test_waiting_for_jobs import A, Agent

SOON = tuple((name, 300 if name.endswith("_ms") else value) for name, value in client.KEEPALIVE)


class Network:
    """Forwards connections to an address; nothing passes while it is `cut`, and no connection ends for that."""

    def __init__(self, address: str) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.server.getsockname()[1]}"
        host, _, port = address.rpartition(":")
        self._there = host, int(port)
        self.intact = threading.Event()
        self.intact.set()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near = self.server.accept()[0]
                self.intact.wait()
                far = socket.create_connection(self._there)
                for source, to in ((near, far), (far, near)):
                    threading.Thread(target=self._copy, args=(source, to), daemon=True).start()

    def _copy(self, source: socket.socket, to: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                self.intact.wait()
                to.sendall(data)
        self.intact.wait()
        to.close()


def test_agent_that_was_cut_off_goes_on_and_stops_no_other(rig, address, monkeypatch, until):
    """Its connection ends, or it joins over another one before the controller knows that the first one has ended."""
    monkeypatch.setattr(client, "KEEPALIVE", SOON)
    monkeypatch.setattr(membership, "OUT_OF_REACH_SECONDS", 0.1)
    job, network = rig.add(A), Network(address)
    roles = {node: config.role for node, config in job.roster.configs.items()}
    away = A.workers[0]
    agents = {node: Agent(network.address if node == away else address, node, role) for node, role in roles.items()}
    try:
        for agent in agents.values():
            agent.until("configuration")
        epoch = job.roster.epoch
        network.intact.clear()
        agents[away].until("unreachable")
        network.intact.set()
        agents[away].until("configuration")
        until(lambda: len(job.roster.members()) == len(agents), "it has joined again")
        assert job.roster.epoch == epoch and job.roster.running
        assert all(agent.heard.empty() for agent in agents.values()), "no other agent is told anything"
        assert not any("another process" in line for line in rig.log)
    finally:
        network.intact.set()
        for agent in agents.values():
            agent.membership.close()
        network.server.close()


def test_report_about_a_migration_that_was_not_delivered_is_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The controller waits without limit for the report that operations of the old plan have ended."""
    agent = Membership("127.0.0.1:1", Identity("w1", (), "worker", ENCODING), None)  # type: ignore[arg-type]
    agent._running = AgentConfig.__new__(AgentConfig)
    object.__setattr__(agent._running, "node", "w1")
    object.__setattr__(agent._running, "epoch", 7)
    sent: list[str] = []
    reachable = False

    def send(method: str, request: object, timeout: float) -> bool:
        sent.append(method)
        return reachable

    monkeypatch.setattr(agent, "_send", send)
    agent.report_update(pb.UpdateReport(epoch=7, stage=pb.UpdateReport.DRAINED))
    agent.report({})
    reachable = True
    agent.report({})
    agent.report({})
    assert sent == ["report_update", *2 * ["report_update", "report"], "report"]
