"""One agent per node for several trainer processes (without torch): which process is the agent, who is refused, and who
takes over.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import ClassVar

import pytest
import torch.distributed as dist

from controlplane.common.agentconfig import AgentConfig
from tests.hook.conftest import ROOT, Network
from tests.hook.test_training import start_agents
from tests.hook.test_unprivileged import ordinary_user
from tests.support.waiting import wait_until
from worker_agent import service
from worker_agent.errors import AgentError, ClaimedError, NotReadyError
from worker_agent.local import ForeignAgentError, LocalAgent, NoAgentError
from worker_agent.service import Permissions, Service
from worker_agent.shared import local_rank
from worker_agent.socket_protocol import ProtocolViolation, Seat, bind_claim, claim_name, holder
from worker_agent.torch.groups import make_group
from worker_agent.torch.places import Place, arrange

RANK = """
import os
import sys
import time
import numpy as np
from worker_agent.errors import AgentError
from worker_agent.shared import Options, node_for
controller, rank, size, take_over = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "take"
where = {"agent": controller.removeprefix("agent=")} if controller.startswith("agent=") else {"controller": controller}
node = node_for(Options(**where, operation_timeout=60.0, rank=rank, size=size, take_over=take_over))
reducer, other = None, None
for line in sys.stdin:
    try:
        if line == "join\\n":
            reducer = node.join(30.0)
            print("joined", reducer.world_size, reducer.epoch, flush=True)
        elif line.startswith("sum"):
            value = float(line.split()[1])
            arrays = [np.full(3000, value + i, np.float32) for i in range(3)]
            works = [reducer.allreduce_async(array) for array in arrays]
            for work in works:
                work.wait(60)
            print("sums", *(float(array[0]) for array in arrays), flush=True)
        elif line == "another\\n":  # user of the agent in this process, told of it by the environment
            os.environ["INART_CONTROLLER"] = controller
            other = node_for(Options(operation_timeout=30.0))
            first, second = np.full(3000, 1.0, np.float32), np.full(3000, 2.0, np.float32)
            works = [reducer.allreduce_async(first), other.join(30.0).allreduce_async(second)]
            for work in works:
                work.wait(60)
            print("sums", float(first[0]), float(second[0]), flush=True)
        elif line == "fork\\n":
            child = os.fork()
            if child == 0:
                time.sleep(300)
                os._exit(0)
            print("forked", child, flush=True)
        elif other is not None:
            other.close()
            other = None
            print("one closed", flush=True)
        else:
            node.close()
            print("closed", flush=True)
    except AgentError as error:
        print("error", error, flush=True)
"""


class Trainer:
    """A trainer process of a node."""

    def __init__(self, network: Network, node: str, *words: object, job: str = "first", agent: str = "") -> None:
        environment = {"LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": job, "PATH": "/usr/bin:/bin"}
        command = ["ip", "netns", "exec", network.namespaces.hosts[node], sys.executable, "-c", RANK]
        self.process = subprocess.Popen(
            [*command, agent or network.address, *map(str, words)],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        network.processes.append(self.process)

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@pytest.mark.namespaces
def test_a_forked_process_that_outlives_its_trainer_blocks_no_other(network):
    """A DataLoader's worker outlives its trainer, which is killed. The controller notices at once that the trainer is
    gone, and the next one gets the node's place while the forked process still exists.
    """
    network.run_server()
    dead, other = Trainer(network, "w0", 0, 1, "no"), Trainer(network, "w1", 0, 1, "no")
    assert tell([dead, other], "join") == [f"joined 2 {network.roster.epoch}"] * 2
    assert tell([dead, other], "sum 1", "sum 10") == ["sums 11.0 13.0 15.0"] * 2
    dead.say("fork")
    forked = int(dead.hear().removeprefix("forked "))
    try:
        assert tell([dead, other], "sum 1", "sum 10") == ["sums 11.0 13.0 15.0"] * 2
        epoch = network.roster.epoch
        dead.process.kill()
        dead.process.wait()
        assert "w0 is gone" in tell([other], "sum 10")[0]
        born = Trainer(network, "w0", 0, 1, "no")
        joined = tell([born, other], "join")
        assert joined == [f"joined 2 {network.roster.epoch}"] * 2
        assert network.roster.epoch > epoch, "the next one, or the seconds since 1970 where more have passed"
        assert tell([born, other], "sum 1", "sum 10") == ["sums 11.0 13.0 15.0"] * 2
        os.kill(forked, 0)  # The process has existed all the time.
    finally:
        os.kill(forked, signal.SIGKILL)


def tell(trainers: list[Trainer], *lines: str) -> list[str]:
    for trainer, line in zip(trainers, lines * len(trainers) if len(lines) == 1 else lines, strict=True):
        trainer.say(line)
    return [trainer.hear() for trainer in trainers]


@pytest.mark.namespaces
def test_the_first_rank_is_the_agent_and_ranks_take_turns(network):
    network.run_server()
    trainers = [Trainer(network, node, rank, 2, "no") for node in ("w0", "w1") for rank in (0, 1)]
    assert tell(trainers, "join") == [f"joined 2 {network.roster.epoch}"] * 4
    # Rank 0 of each node has 1 and 10, rank 1 has 100 and 1000: a part meets the corresponding part of the other node.
    sums = tell(trainers, "sum 1", "sum 100", "sum 10", "sum 1000")
    assert sums == ["sums 11.0 13.0 15.0", "sums 1100.0 1102.0 1104.0"] * 2
    epoch = network.roster.epoch
    another = Trainer(network, "w0", 0, 2, "no", job="second")
    (refused,) = tell([another], "join")
    assert "this node's agent is in use by process" in refused
    assert "take_over=True" in refused
    assert network.roster.epoch == epoch, "nobody was thrown out"
    assert tell(trainers, "sum 1", "sum 100", "sum 10", "sum 1000") == sums
    # The agent's own process closes first, and the others are still served.
    assert tell(trainers, "close") == ["closed"] * 4


@pytest.mark.namespaces
def test_one_agent_serves_all_users_of_a_process_however_they_name_its_controller(network):
    """The backend of a process's default group and a state for DDP's hook are such users. The second one was refused:
    the agent was in use by a process, which was its own.
    """
    network.run_server()
    trainers = [Trainer(network, node, 0, 1, "no") for node in ("w0", "w1")]
    assert tell(trainers, "join") == [f"joined 2 {network.roster.epoch}"] * 2
    assert tell(trainers, "another") == ["sums 2.0 4.0"] * 2
    assert tell(trainers, "close") == ["one closed"] * 2
    assert tell(trainers, "sum 1", "sum 10") == ["sums 11.0 13.0 15.0"] * 2, "the first one's place is its own still"
    assert tell(trainers, "close") == ["closed"] * 2


@pytest.mark.namespaces
def test_another_job_takes_over_when_it_says_so(network):
    network.run_server()
    first = [Trainer(network, node, 0, 1, "no") for node in ("w0", "w1")]
    assert tell(first, "join") == [f"joined 2 {network.roster.epoch}"] * 2
    assert tell(first, "sum 1", "sum 2") == ["sums 3.0 5.0 7.0"] * 2
    second = [Trainer(network, node, 0, 1, "take", job="second") for node in ("w0", "w1")]
    assert all(answer.startswith("joined 2") for answer in tell(second, "join"))
    for trainer in first:
        (answer,) = tell([trainer], "sum 1")
        assert answer.startswith("error"), answer

    def together() -> bool:
        """Each takeover began an epoch, of which the other node hears a moment later; the ranks of a state agree on it
        too.
        """
        return tell(second, "join") == [f"joined 2 {network.roster.epoch}"] * 2

    wait_until(together, "the second job is in one epoch")
    assert tell(second, "sum 1", "sum 2") == ["sums 3.0 5.0 7.0"] * 2


@pytest.mark.namespaces
def test_the_command_is_refused_on_a_node_that_is_taken_and_takes_over_when_it_says_so(network):
    network.run_server()
    start_agents(network)
    wait_until(lambda: network.roster.running, "the agents have joined")
    epoch = network.roster.epoch
    command = ("worker_agent", "allreduce", "--controller", network.address, "--bytes", "10K", "--repeat", "1")
    refused = network.run("w0", *command)
    _, said = refused.communicate(timeout=60)
    assert refused.returncode == 1
    assert "w0 has joined already, as process" in said
    assert "take its place (--take-over, take_over=True)" in said
    assert network.roster.epoch == epoch, "nobody was disturbed"
    agents = network.processes[1:3]
    agents[1].kill()
    wait_until(lambda: not network.joined("w1"), "w1 is gone")
    first = network.run("w0", *command, "--take-over")
    assert "has taken the place of w0; this one was told to stop" in agents[0].communicate(timeout=60)[1]
    for process in (first, network.run("w1", *command)):
        shown, said = process.communicate(timeout=60)
        assert process.returncode == 0, said
        assert "sum of 10000 bytes" in shown


@pytest.mark.namespaces
def test_ranks_that_are_killed_together_make_their_agent_join_anew_once(network):
    """Two new agents would throw each other out of the job, and one of them would be told to stop for good."""
    network.run_server()
    where = [f"agent={one['agent']}" for one in start_agents(network)]

    def start(job: str) -> list[Trainer]:
        made = [Trainer(network, f"w{i}", r, 2, "no", job=job, agent=where[i]) for i in (0, 1) for r in (0, 1)]
        assert all(answer.startswith("joined 2") for answer in tell(made, "join"))
        assert tell(made, "sum 1", "sum 100", "sum 10", "sum 1000")[0] == "sums 11.0 13.0 15.0"
        return made

    for round_ in range(2):
        for trainer in start(f"job {round_}"):
            trainer.process.kill()
        wait_until(lambda: network.joined("w0", "w1", "s0"), "the agents are back")
    start("the last")
    assert not any("replaced" in line or "refused" in line for line in network.log)


def test_a_claim_is_held_by_one_and_names_its_holder():
    name = claim_name("10.0.0.1:9600", "test-claim")
    assert name != claim_name("10.0.0.1:9600", "another")
    with bind_claim(name) as claim:
        with pytest.raises(ClaimedError, match="runs already, in process"):
            bind_claim(name)
        assert "process" in holder(name)
        claim.close()
    bind_claim(name).close()


def test_a_closed_agent_accepts_no_more_trainers():
    """A process that makes a state right after closing the last one must not meet the agent that is closing."""
    for number in range(5):
        service = Service("127.0.0.1:1", node="closing")
        thread = threading.Thread(target=service.run, args=(threading.Event(),), daemon=True)
        thread.start()
        name = claim_name("127.0.0.1:1", "closing")
        with pytest.raises(NotReadyError):
            LocalAgent(name, 0.0, Seat(f"job {number}"))  # The agent answers: it waits for its controller.
        service.close()
        with pytest.raises(NoAgentError):
            LocalAgent(name, 60.0, Seat(f"job {number}"))
        thread.join(60)
        assert not thread.is_alive()


def test_an_agent_that_goes_while_we_come_is_none():
    name = b"\0inart/test-goes-%d" % os.getpid()
    listener = bind_claim(name)

    def hang_up() -> None:
        listener.accept()[0].close()

    thread = threading.Thread(target=hang_up)
    thread.start()
    with listener, pytest.raises(NoAgentError, match="has just ended"):
        LocalAgent(name, 60.0, Seat("job"))
    thread.join()


def test_jobs_of_a_node_have_claims_of_their_own(monkeypatch):
    before = claim_name("c:1", "w0")
    monkeypatch.setenv("INART_JOB", "other")
    assert claim_name("c:1", "w0") != before


@pytest.mark.parametrize("words", [{"rank": 2, "ranks": 2}, {"rank": -1}, {"ranks": 0}, {"rank": "0"}, {"job": 3}])
def test_seats_that_make_no_sense_are_refused(words):
    with pytest.raises(ProtocolViolation, match="a rank below its ranks"):
        Seat.from_json({"type": "hello", **words})


def test_local_ranks_come_from_the_launcher(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("LOCAL_", "SLURM_"))]:
        monkeypatch.delenv(name)
    assert local_rank() == (0, 0)
    monkeypatch.setenv("SLURM_LOCALID", "3")
    monkeypatch.setenv("SLURM_NTASKS_PER_NODE", "4")
    assert local_rank() == (3, 4)
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", "1(x2),2")
    for node, place in (("1", (0, 1)), ("2", (1, 2))):
        monkeypatch.setenv("SLURM_NODEID", node)
        monkeypatch.setenv("SLURM_LOCALID", str(place[0]))
        assert local_rank() == place, "the step has fewer tasks per node than the job"
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert local_rank() == (1, 2)
    monkeypatch.setenv("LOCAL_RANK", "2")
    with pytest.raises(AgentError, match="makes no sense"):
        local_rank()


def test_nodes_are_found_and_uneven_ones_refused():
    def places(*spec: str) -> list[Place]:
        return [Place(text[0], int(text[1])) for text in spec]

    assert arrange(places("a0", "a1", "b0", "b1"), 2) == ([2, 3], 2)
    # Ranks are dealt out in turns, as Slurm may do it, and ordered by the rank on the node.
    assert arrange(places("a1", "b0", "a0", "b1"), 0) == ([2, 0], 2)
    assert arrange(places("a3", "b3", "c3"), 1) == ([1], 3)
    with pytest.raises(AgentError, match="the nodes have 1, 2 ranks"):
        arrange(places("a0", "a1", "b0"), 0)
    with pytest.raises(AgentError, match="different local ranks"):
        arrange(places("a0", "b1"), 0)


def test_an_error_of_gloo_names_a_host_name_of_a_loopback_address(monkeypatch):
    monkeypatch.delenv("GLOO_SOCKET_IFNAME", raising=False)
    monkeypatch.setattr("socket.gethostname", lambda: "node7")
    monkeypatch.setattr("socket.gethostbyname", lambda _: "127.0.1.1")

    def refused(*_, **__):
        raise RuntimeError("connectFullMesh failed: Connection refused")

    monkeypatch.setattr(dist, "ProcessGroupGloo", refused)
    with pytest.raises(RuntimeError, match=r"'node7' resolves to 127.0.1.1.*GLOO_SOCKET_IFNAME.*Connection refused"):
        make_group("any", dist.HashStore(), 0, 2)


STRANGER = """
import sys
from worker_agent.errors import AgentError
from worker_agent.local import LocalAgent
from worker_agent.socket_protocol import Seat
for line in sys.stdin:
    rank, size, take_over = line.split()
    try:
        LocalAgent(f"unix:{sys.argv[1]}", 5.0, Seat("first", int(rank), int(size), True, take_over == "take"))
        print("joined", flush=True)
    except AgentError as error:
        print(error, flush=True)
"""
SQUATTER = """
import socket, sys
squatted = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
squatted.bind(bytes.fromhex(sys.argv[1]))
squatted.listen()
print(flush=True)
sys.stdin.read()
"""


def another_user(code: str, *arguments: str) -> subprocess.Popen[str]:
    """Start Python code as another user, who reads its standard input."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    command = [*ordinary_user(), sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_another_user_of_the_socket_can_neither_join_a_job_nor_take_its_agent() -> None:
    """The other user knows the job's key, and asks for its free rank and for the whole agent."""
    folder = Path(tempfile.mkdtemp(prefix="inart-test-"))
    folder.chmod(0o755)
    path = folder / "agent.sock"
    try:
        with Service("127.0.0.1:1", str(path), node="owned", permissions=Permissions(mode=0o666)) as service:

            def own() -> None:
                with pytest.raises(AgentError):  # no controller answers
                    LocalAgent(f"unix:{path}", 60.0, Seat("first", 0, 2, True))

            threads = [threading.Thread(target=service.run, args=(threading.Event(),)), threading.Thread(target=own)]
            for thread in threads:
                thread.start()
            wait_until(lambda: service.trainers == 1, "the owner has its place")
            answers, _ = another_user(STRANGER, str(path)).communicate("1 2 no\n0 1 take\n", timeout=60)
            assert answers.count("only that user can take the agent over") == 2, answers
            assert service.trainers == 1
            service.close()
            for thread in threads:
                thread.join()
    finally:
        shutil.rmtree(folder)


def test_a_stranger_that_listens_on_an_agents_name_keeps_no_agent_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent listens on a name that other users cannot compute, and the user's trainers find it there."""
    monkeypatch.setenv("INART_CACHE", str(tmp_path))
    where = ("127.0.0.1:1", "squatted")
    usual = claim_name(*where)
    squatter = another_user(SQUATTER, usual.hex())
    try:
        assert squatter.stdout is not None and squatter.stdout.readline() == "\n"
        with pytest.raises(ForeignAgentError, match="of user 65534"):
            LocalAgent(usual, 60.0)
        with Service(where[0], node=where[1]):
            assert holder(claim_name(*where, private=True)) == f"process {os.getpid()} of user 0"
    finally:
        squatter.communicate()


class AgentStub:
    """An agent that is ready in job A at once. `made` has the arguments of all of them."""

    made: ClassVar[list[dict[str, object]]] = []
    refused: str = ""
    config = AgentConfig("A", 1, 1, "w0", "worker", 0, ("w0", "w1"), ("s",), 64)
    problem = ""

    def __init__(self, controller: str, node: str | None, **how: object) -> None:
        self.made.append(how)

    def wait_ready(self, timeout: float) -> AgentConfig:
        return self.config

    def wait_change(self, seconds: float) -> None:
        if self.refused:
            raise AgentError(self.refused)

    def on_stop(self, listener: object, remove: bool = False) -> None:
        """Return at once: this agent never stops."""

    def submit(self, *given: object) -> None:
        """Return nothing: this agent has no operations."""

    def stats(self) -> None:
        """Return nothing: this agent counts nothing."""

    def close(self, announce: bool = True) -> None:
        """Leave."""


def test_an_agent_that_joins_anew_names_the_job_of_its_trainers(monkeypatch):
    """A job that was added on this node meanwhile is not theirs."""
    monkeypatch.setattr(service, "Agent", AgentStub)
    monkeypatch.setattr(AgentStub, "made", [])
    with Service(f"127.0.0.1:{os.getpid()}") as serving:
        first, last = (serving.attach(Seat("trainers", rank, 2), 1.0) for rank in range(2))
        first.abort("gone")
        assert [made["job"] for made in AgentStub.made] == [None, "A"]
        monkeypatch.setattr(AgentStub, "config", None)  # The job is gone, too.
        last.close()
    assert [made["job"] for made in AgentStub.made] == [None, "A", None], "it no longer waits for that job"


def test_an_agent_service_outlives_its_job(monkeypatch):
    """Trainers of the next job may come at once, when a process that is started anew would not listen yet."""
    monkeypatch.setattr(service, "Agent", AgentStub)
    monkeypatch.setattr(AgentStub, "made", [])
    stop = threading.Event()
    with Service(f"127.0.0.1:{os.getpid()}") as serving:
        trainer = serving.attach(Seat("trainers"), 1.0)
        first = serving.agent
        thread = threading.Thread(target=serving.run, args=(stop,), kwargs={"stays": True})
        thread.start()
        first.refused = "job A was removed"
        wait_until(lambda: serving.agent is not first, "it waits for the next job")
        assert not trainer.ready
        trainer.close()
        assert serving.attach(Seat("next trainers"), 1.0).ready
        stop.set()
        thread.join()


@pytest.mark.parametrize("stays", [True, False])
def test_an_agent_that_was_refused_before_it_had_a_job_ends(monkeypatch, stays):
    monkeypatch.setattr(service, "Agent", AgentStub)
    monkeypatch.setattr(AgentStub, "made", [])
    monkeypatch.setattr(AgentStub, "refused", "who is this?")
    if stays:
        monkeypatch.setattr(AgentStub, "config", None)
    with Service(f"127.0.0.1:{os.getpid()}") as serving, pytest.raises(AgentError, match="who is this"):
        serving.run(threading.Event(), stays=stays)
