"""The controller over real gRPC: agents in threads and as processes that are lost or killed, and TLS."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from controlplane.cli import controller as command
from controlplane.cli.controller import format_status, main
from controlplane.common.agentconfig import AgentConfig
from controlplane.common.log_lines import calling
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.common.rpc.client import ControllerError, Identity, Membership, fetch_status
from controlplane.common.rpc.tls import Tls
from controlplane.service.controller import Controller
from controlplane.service.epochs import EpochStore
from controlplane.service.network import Settings
from controlplane.service.pair.store import StoreError
from controlplane.service.roster import Roster
from p4src.protocol import ENCODING
from tests.deploy.certificates import make_certificates
from tests.deploy.job import configs
from tests.support.served import serve
from topologies.ports import free_port
from worker_agent.agent import controller_address
from worker_agent.errors import AgentError

ROOT = Path(__file__).resolve().parents[2]


class Listener:
    """Records the events of an agent."""

    def __init__(self) -> None:
        self.config: AgentConfig | None = None
        self.prepared: AgentConfig | None = None
        self.retired = 0
        self.missing: tuple[str, ...] = ()
        self.aborts: list[tuple[str, tuple[str, ...]]] = []
        self.refused = ""
        self.unreachable: list[str] = []
        self.configurations = 0

    def on_waiting(self, missing: tuple[str, ...], reason: str) -> None:
        self.missing = missing

    def on_configuration(self, config: AgentConfig) -> None:
        self.config = config
        self.configurations += 1

    def on_abort(self, reason: str, nodes: tuple[str, ...]) -> None:
        self.config = None
        self.aborts.append((reason, nodes))

    def on_prepare(self, config: AgentConfig, again: bool) -> None:
        self.prepared = config

    def on_switch_over(self, epoch: int, first_operation: int, given: Mapping[int, int]) -> None:
        self.config = self.prepared

    def on_withdraw(self, epoch: int, reason: str) -> None:
        self.prepared = None

    def on_retire(self, epoch: int) -> None:
        self.retired = epoch

    def on_refused(self, reason: str) -> None:
        self.refused = reason

    def on_unreachable(self, reason: str) -> None:
        self.unreachable.append(reason)


class Job:
    """A controller, and agents that tests start."""

    def __init__(self, folder: Path, address: str = "") -> None:
        self.folder = folder
        self.configs = configs(address)
        self.log: list[str] = []
        self.memberships: list[Membership] = []
        self.tls: Tls | None = None
        self.controller: Controller | None = None
        self.port = 0

    def start(self, port: int = 0, tls: Tls | None = None) -> None:
        self.network = serve(self.configs, self.folder, calling(self.log.append), Settings(grace=0.2))
        self.controller = Controller(self.network, log=calling(self.log.append))
        self.port = self.controller.start(f"127.0.0.1:{port}", tls)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def join(self, node: str, tls: Tls | None = None) -> tuple[Membership, Listener]:
        listener = Listener()
        role = self.configs[node].role if node in self.configs else "worker"
        membership = Membership(self.address, Identity(node, (), role, ENCODING), listener, tls)
        membership.start()
        self.memberships.append(membership)
        return membership, listener

    def stop(self) -> None:
        if self.controller is not None:
            self.controller.stop()
            self.controller = None

    def close(self) -> None:
        for membership in self.memberships:
            membership.close(announce=False)
        self.stop()


@pytest.fixture
def job(tmp_path) -> Iterator[Job]:
    made = Job(tmp_path)
    made.start()
    yield made
    made.close()


def test_missing_nodes_are_named_and_everybody_starts_together(job, until):
    _, first = job.join("w1")
    until(lambda: first.missing == ("w2", "ps1"), "w1 hears who is missing")
    others = [job.join(node)[1] for node in ("w2", "ps1")]
    until(lambda: all(one.config for one in (first, *others)), "everybody gets a configuration")
    assert len({one.config.epoch for one in (first, *others)}) == 1
    assert first.config.worker_trees == job.configs["w1"].worker_trees


def test_an_agent_tries_again_when_the_store_does_not_answer(job, until, monkeypatch):
    """An etcd that is slow for a moment must not end a job's agent."""
    begin, asked = EpochStore.next, []

    def slow_once(store: EpochStore) -> int:
        asked.append(store)
        if len(asked) == 1:
            raise StoreError("etcd does not answer")
        return begin(store)

    monkeypatch.setattr(EpochStore, "next", slow_once)
    listeners = [job.join(node)[1] for node in job.configs]
    until(lambda: all(one.config for one in listeners), "everybody gets a configuration")
    assert not any(one.refused for one in listeners) and len(asked) > 1
    assert any("etcd does not answer" in reason for one in listeners for reason in one.unreachable)


def test_lost_agent_is_named_and_back_in_a_new_epoch(job, until):
    joined = {node: job.join(node) for node in job.configs}
    until(lambda: all(listener.config for _, listener in joined.values()), "the job runs")
    before = joined["w1"][1].config.epoch
    joined["ps1"][0].close(announce=False)
    until(lambda: joined["w1"][1].aborts and joined["w2"][1].aborts, "the others are told")
    reason, nodes = joined["w1"][1].aborts[0]
    assert nodes == ("ps1",)
    assert "ps1 is gone" in reason
    job.join("ps1")
    until(lambda: joined["w1"][1].config, "the job runs again")
    assert joined["w1"][1].config.epoch > before


def test_agent_that_leaves_in_order_does_not_stop_the_others_at_once(job, until):
    joined = {node: job.join(node) for node in job.configs}
    until(lambda: all(listener.config for _, listener in joined.values()), "the job runs")
    joined["w1"][0].close()
    until(lambda: any("w1 has left" in line for line in job.log), "the controller notices")
    assert not joined["w2"][1].aborts
    until(lambda: joined["w2"][1].aborts, "the grace ends")
    assert joined["w2"][1].aborts[0][0] == "w1 has left the job"


def test_controller_that_restarts_does_not_disturb_the_job(job, until):
    joined = {node: job.join(node) for node in job.configs}
    until(lambda: all(listener.config for _, listener in joined.values()), "the job runs")
    epoch, port = joined["w1"][1].config.epoch, job.port
    job.stop()
    until(lambda: all(listener.unreachable for _, listener in joined.values()), "the agents notice")
    job.start(port)
    until(lambda: all(listener.configurations == 2 for _, listener in joined.values()), "the agents are back")
    assert {listener.config.epoch for _, listener in joined.values()} == {epoch}
    assert not any(listener.aborts for _, listener in joined.values())


def test_process_ends_with_agents_joined_and_streams_cut_at_any_moment(tmp_path):
    """A thread of the server's pool that waits for ever would keep the server from ending."""
    script = """
import sys, time
from pathlib import Path
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.common.rpc.channels import open_channel
from controlplane.common.rpc.stubs import ControllerStub
from p4src.protocol import ENCODING
from tests.deploy.test_controller import Job
job = Job(Path(sys.argv[1]))
job.start()
request = pb.JoinRequest(node="w1", role="worker", version=ENCODING, agent="a")
for number in range(50):
    channel = open_channel(job.address)
    call = ControllerStub(channel).join(request)
    time.sleep(number % 5 * 0.0005)
    call.cancel()
joined = ControllerStub(open_channel(job.address)).join(request)
next(joined)
"""
    subprocess.run([sys.executable, "-c", script, tmp_path], cwd=ROOT, check=True, timeout=60)


def test_refusal_reaches_the_agent_and_ends_its_tries(job, until):
    membership, listener = job.join("w9")
    until(lambda: listener.refused, "the agent is refused")
    assert "w9 is not a node of any job (test: w1, w2, ps1)" in listener.refused
    until(lambda: membership.ended, "it stops trying")


def test_an_agent_that_comes_while_its_controller_is_ending_looks_for_another_one(job, until, monkeypatch):
    closed, go_on = threading.Event(), threading.Event()
    close = Roster.close

    def close_and_wait(roster: Roster, refusal: str = "") -> None:
        close(roster, refusal)
        closed.set()
        assert go_on.wait(60)

    monkeypatch.setattr(Roster, "close", close_and_wait)
    ending = threading.Thread(target=job.stop)
    ending.start()
    try:
        assert closed.wait(60)
        _, listener = job.join("w1")
        until(lambda: listener.unreachable or listener.refused, "the agent gets an answer")
        assert not listener.refused and "UNAVAILABLE" in listener.unreachable[0]
    finally:
        go_on.set()
        ending.join(60)


def test_absent_controller_is_tried_until_it_is_there(tmp_path, until):
    job = Job(tmp_path)
    job.port = free_port()
    joined = {node: job.join(node) for node in job.configs}
    until(lambda: joined["w1"][1].unreachable, "the agent says so")
    assert "UNAVAILABLE" in joined["w1"][1].unreachable[0]
    job.start(job.port)
    until(lambda: all(listener.config for _, listener in joined.values()), "the job runs")
    job.close()


def test_reports_and_status(job, until, capsys):
    joined = {node: job.join(node) for node in job.configs}
    until(lambda: all(listener.config for _, listener in joined.values()), "the job runs")
    assert joined["w1"][0].report({"packets_sent": 12.0})
    trees = [pb.TreeReport(tree=0, oldest_chunk=3, missing=["w2"], waiting_seconds=4.0)]
    assert joined["ps1"][0].report({"ingress_bytes": 1000.0}, trees)
    status = fetch_status(job.address)
    assert status.state == "running"
    assert "tree 0 (root ps1): oldest chunk 3 has lacked w2 for 4.0 s" in format_status(status)
    assert main(["status", "--controller", job.address, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["agents"][0]["statistics"] == {"packets_sent": 12.0}
    assert printed["trees"][0]["missing"] == ["w2"]
    joined["w2"][0].close(announce=False)
    until(lambda: fetch_status(job.address).state == "waiting", "w2 is gone")
    assert "waiting for w2" in format_status(fetch_status(job.address))


def test_status_without_a_controller_says_what_to_check(capsys):
    assert main(["status", "--controller", "127.0.0.1:1"]) == 1
    words = capsys.readouterr().err
    assert "does `inart serve` run there" in words and "Connection refused" in words
    assert len(words) < 220


@pytest.mark.parametrize("address", ["10.0.0.1", "10.0.0.1:99999", ":9600", "10.0.0.1:x", ""])
def test_an_invalid_address_is_reported(address, capsys):
    """gRPC would connect to 10.0.0.1:443, and to 10.0.0.1:34463."""
    with pytest.raises(SystemExit) as ended:
        main(["status", "--controller", address])
    assert ended.value.code == 2
    words = capsys.readouterr().err
    assert ("a controller's address is HOST:PORT or unix:PATH" if address else "Give --controller HOST:PORT") in words
    if address:
        with pytest.raises(AgentError, match="HOST:PORT or unix:PATH"):
            controller_address(address)


def test_a_watching_client_continues_while_the_controller_restarts(job, capsys, monkeypatch):
    answers = iter([None, ControllerError("away"), None])

    def fetch(*_: object, **__: object) -> pb.StatusReply:
        answer = next(answers, KeyboardInterrupt())
        if answer is not None:
            raise answer
        return fetch_status(job.address)

    monkeypatch.setattr(command, "fetch_status", fetch)
    monkeypatch.setattr(command, "WATCH_SECONDS", 0.0)
    assert main(["status", "--controller", job.address, "--watch"]) == 0
    out, err = capsys.readouterr()
    assert out.count("planned rate") == 2
    assert err == "away\n"
    answers = iter([ControllerError("never there")])
    assert main(["status", "--controller", job.address, "--watch"]) == 1


def test_files_that_an_order_needs_are_looked_at_before_it_is_given(job, tmp_path, capsys):
    assert main(["job", "add", "--controller", job.address, "--job", "nosuch.json"]) == 1
    assert "cannot read job file nosuch.json: No such file" in capsys.readouterr().err
    missing = str(tmp_path / "missing" / "plan.json")
    with pytest.raises(SystemExit) as end:
        main(["replan", "--controller", job.address, "--output", missing])
    assert end.value.code == 2
    assert f"there is no folder {tmp_path / 'missing'}" in capsys.readouterr().err


def test_parameter_server_that_is_refused_says_so_once(job):
    words = [sys.executable, "-m", "ps_server", "--controller", job.address, "--node", "w1"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    refusals = [line for line in done.stderr.splitlines() if "w1 is a worker of this job" in line]
    assert len(refusals) == 1, done.stderr


def test_taken_port_is_reported(job):
    second = Controller(job.network)
    with pytest.raises(ControllerError, match="is the port free"):
        second.start(job.address)


def test_mutual_tls(tmp_path, until):
    try:
        files = make_certificates(tmp_path)
    except FileNotFoundError:
        pytest.skip("needs openssl to make certificates")
    job = Job(tmp_path)
    job.start(tls=Tls(files["server.pem"], files["server.key"], files["ca.pem"]))
    try:
        client = Tls(files["client.pem"], files["client.key"], files["ca.pem"])
        _, listener = job.join("w1", client)
        until(lambda: listener.missing, "the agent joins over TLS")
        _, plain = job.join("w2")
        until(lambda: plain.unreachable, "plaintext is not let in")
        _, anonymous = job.join("w2", Tls(authority=files["ca.pem"]))
        until(lambda: anonymous.unreachable, "nobody without a certificate is let in")
        assert fetch_status(job.address, client).state == "waiting"
    finally:
        job.close()


def test_tls_files_are_checked(tmp_path):
    with pytest.raises(ValueError, match="a certificate needs its key"):
        Tls(certificate=tmp_path / "a.pem")
    with pytest.raises(ValueError, match="does not exist"):
        Tls(authority=tmp_path / "a.pem")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: the parameter server opens a raw socket")
def test_processes_join_die_and_come_back(tmp_path, until):
    job = Job(tmp_path)
    job.start()
    command = [sys.executable, "-m", "ps_server", "--controller", job.address, "--node", "ps1", "--interface", "lo"]
    server = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        workers = [job.join(node)[1] for node in ("w1", "w2")]
        until(lambda: all(worker.config for worker in workers), "the server process joins", 60)
        until(lambda: fetch_status(job.address).agents[2].reported_seconds >= 0, "it reports")
        server.send_signal(signal.SIGKILL)
        until(lambda: all(worker.aborts for worker in workers), "its death is noticed")
        assert workers[0].aborts[0][1] == ("ps1",)
        server.wait()
        server.stderr.close()
        epoch = job.controller.jobs.get().roster.epoch
        server = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        until(lambda: all(worker.config for worker in workers), "it is back", 60)
        assert workers[0].config.epoch > epoch
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 0
    finally:
        server.kill()
        server.wait()
        server.stderr.close()
        job.close()


def test_a_waiting_process_reports_which_agents_it_waits_for(tmp_path):
    job = Job(tmp_path)
    job.start()
    try:
        command = [sys.executable, "-m", "ps_server", "--controller", job.address, "--node", "ps1"]
        with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as server:
            assert server.stderr is not None
            try:
                assert any("waiting for w1, w2 to join the controller" in line for line in server.stderr)
            finally:
                server.terminate()
    finally:
        job.close()
