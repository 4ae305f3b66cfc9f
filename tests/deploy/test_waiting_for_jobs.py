"""Agents that come before their job wait for it; orders without a job's name are refused; names of jobs are words."""

from __future__ import annotations

import json
import queue
import socket
import threading
from dataclasses import replace

import pytest

from controlplane.common.rpc import client
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.common.rpc.channels import open_channel
from controlplane.common.rpc.client import ControllerError, Identity, Membership, ask
from controlplane.common.rpc.stubs import ControllerStub
from controlplane.planner.job import LONGEST_NAME, Job, JobError, is_job_name
from controlplane.service.controller import Controller
from p4src.protocol import ENCODING
from tests.deploy.memory_network import RACKS

A = Job("A", ("h1", "h4"), ("h2",), 1_000_000)
SECONDS = 30.0


class Agent:
    """Records the events that an agent hears, in order."""

    def __init__(self, controller: str, node: str, role: str, job: str = "", address: str = "") -> None:
        self.heard: queue.Queue[tuple[str, str]] = queue.Queue()
        addresses = (address,) if address else ()
        identity = Identity(node, addresses, role, ENCODING, job=job)  # type: ignore[arg-type]
        self.membership = Membership(controller, identity, self)  # type: ignore[arg-type]
        self.membership.start()

    def on_waiting(self, missing: tuple[str, ...], reason: str) -> None:
        self.heard.put(("waiting", reason or ", ".join(missing)))

    def on_configuration(self, config) -> None:  # type: ignore[no-untyped-def]
        self.heard.put(("configuration", config.job))

    def on_refused(self, reason: str) -> None:
        self.heard.put(("refused", reason))

    def on_unreachable(self, reason: str) -> None:
        self.heard.put(("unreachable", reason))

    def on_abort(self, reason: str, nodes: tuple[str, ...]) -> None:
        self.heard.put(("abort", reason))

    def next(self) -> tuple[str, str]:
        return self.heard.get(timeout=SECONDS)

    def until(self, kind: str) -> str:
        while (found := self.next())[0] != kind:
            assert found[0] != "refused", found
        return found[1]

    def until_refused(self) -> str:
        while (found := self.next())[0] != "refused":
            assert found[0] != "configuration", found
        return found[1]


@pytest.mark.parametrize("named", [True, False])
def test_agents_that_come_before_their_job_are_taken_in_when_it_is_added(rig, address, named):
    job = "A" if named else ""
    agents = [Agent(address, node, "worker", job) for node in A.workers]
    agents.append(Agent(address, "", "parameter_server", job, RACKS.address("h2")))
    try:
        for agent in agents:
            kind, words = agent.next()
            assert kind == "waiting"
            assert ("there is no job 'A'" if named else "not a node of any job") in words
        rig.add(A)
        assert [agent.until("configuration") for agent in agents] == ["A"] * 3
    finally:
        for agent in agents:
            agent.membership.close()


def test_an_agent_without_a_job_name_never_moves_into_another_job(rig, address):
    """While it has lost the controller its job is removed, and another one is added on its node."""
    agents = [Agent(address, node, "worker") for node in A.workers]
    agents.append(Agent(address, "h2", "parameter_server"))
    try:
        rig.add(A)
        assert [agent.until("configuration") for agent in agents] == ["A"] * 3
        rig.controllers[0].stop()
        rig.network.remove("A")
        rig.add(replace(A, name="B"))
        rig.controllers.append(Controller(rig.network, log=rig.logger))
        rig.controllers[-1].start(address)
        assert [agent.until_refused() for agent in agents] == ["its job A was removed, and B has its node now"] * 3
    finally:
        for agent in agents:
            agent.membership.close()


def test_agent_that_waits_for_a_job_and_goes_is_forgotten(rig, address, until):
    before = threading.active_count()
    agents = [Agent(address, "h1", "worker", "B") for _ in range(5)]
    for agent in agents:
        assert agent.next()[0] == "waiting"
    for agent in agents:
        agent.membership.close()
    until(lambda: threading.active_count() <= before, "nobody waits for it any more", SECONDS)


def test_agent_that_no_controller_answers_leaves_without_waiting_for_one(monkeypatch, silent, until):
    """`inart ps` took seconds to end where something accepts connections and says nothing."""
    monkeypatch.setattr(client, "LEAVE_SECONDS", 600.0)
    agent = Agent(silent, "h1", "worker")
    until(lambda: agent.membership._call is not None, "it has asked", SECONDS)
    closing = threading.Thread(target=agent.membership.close, daemon=True)
    closing.start()
    closing.join(SECONDS)
    assert not closing.is_alive()


def test_node_that_the_network_does_not_have_is_refused_at_once(rig, address):
    rig.add(A)
    agent = Agent(address, "nobody", "worker")
    assert agent.next()[0] == "refused"
    agent.membership.close()


@pytest.mark.parametrize("jobs", [0, 1, 2])
def test_order_to_remove_a_job_without_its_name_removes_none(rig, address, jobs):
    added = [A, Job("C", ("h3", "h5"), ("h6",), 1_000_000)][:jobs]
    for job in added:
        rig.add(job)
    with pytest.raises(ControllerError, match="say which job"):
        ask(address, "remove_job", pb.RemoveJobRequest())
    assert [job.name for job in rig.network.jobs] == [job.name for job in added]


@pytest.mark.parametrize("name", ["", " ", "a b", "a\n", "\t", "x" * (LONGEST_NAME + 1), "x" * 5000, "a\u200b"])
def test_an_invalid_name_is_refused_with_a_short_message(rig, address, name):
    assert not is_job_name(name)
    with pytest.raises(JobError, match="a job's name is a word of 1 to 64 letters") as refused:
        Job(name, A.workers, A.parameter_servers, 1_000_000)
    assert len(str(refused.value)) < 600
    with open_channel(address) as channel:
        job = {"name": name, "workers": ["h1"], "parameter_servers": ["h2"], "model_bytes": 1}
        request = pb.AddJobRequest(job=json.dumps(job))
        with pytest.raises(Exception, match="a job's name is a word"):
            ControllerStub(channel).add_job(request, timeout=SECONDS)
    assert not len(rig.network.jobs)


@pytest.mark.parametrize("name", ["a", "mine", "Job-7.b_2", "größe", "x" * LONGEST_NAME])
def test_a_word_is_a_valid_name(name):
    assert Job(name, A.workers, A.parameter_servers, 1_000_000).name == name


def test_a_silent_controller_is_reported_once_and_not_at_every_try(monkeypatch, until):
    tries = []
    open_one = client.open_channel
    monkeypatch.setattr(client, "open_channel", lambda *given: tries.append(given) or open_one(*given))
    monkeypatch.setattr(client, "LAST_PAUSE_SECONDS", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    agent = Agent(f"127.0.0.1:{port}", "h1", "worker")
    until(lambda: len(tries) >= 10, "it is tried again and again", SECONDS)
    agent.membership.close()
    kind, words = agent.next()
    assert kind == "unreachable" and len(words) < 220
    assert agent.heard.empty()
