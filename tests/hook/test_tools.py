"""`python -m worker_agent allreduce`, the agent service, and the example run in namespaces with a switch that sums."""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from controlplane.common.rpc.client import fetch_status
from tests.hook.conftest import ROOT, Network
from tests.hook.processes import Rank
from tests.support.waiting import wait_until
from topologies.ports import free_port
from worker_agent.agent import connect, controller_address
from worker_agent.errors import AbortedError, AgentError, AllReduceError, NotReadyError
from worker_agent.local import LocalAgent
from worker_agent.service import AgentSettings, Service
from worker_agent.socket_protocol import VERSION, Connection, ConnectionLost
from worker_agent.trial import Trial, decode, encode, make_data, since


def serve(network: Network, node: str) -> str:
    path = f"{network.folder}/{node}.sock"
    network.run(node, "worker_agent", "serve", "--controller", network.address, "--socket", path)
    wait_until(lambda: Path(path).exists(), f"the agent of {node} listens")
    return f"unix:{path}"


@pytest.mark.namespaces
def test_allreduce_tool_reports_rate_and_error(network):
    server = network.run_server()
    options = ("--controller", network.address, "--bytes", "1M", "--repeat", "2", "--json")
    results = []
    for dtype, op, *more in (("float32", "sum"), ("bfloat16", "mean"), ("float32", "mean", "--bits", "8")):
        tools = [
            network.run(node, "worker_agent", "allreduce", *options, "--dtype", dtype, "--op", op, *more)
            for node in ("w0", "w1")
        ]
        found = []
        for tool in tools:
            out, err = tool.communicate(timeout=60)
            assert tool.returncode == 0, err
            found.append(json.loads(out))
        assert found[0]["digest"] == found[1]["digest"]
        for result in found:
            assert len(result["seconds"]) == 2
            assert 0 <= result["error"] <= result["error_bound"]
            assert result["planned_rate_mbps"] == 400
            assert result["measured_rate_mbps"] > 0
        results.append(found[0])
    # Every run is an epoch of its own; the server stays.
    assert results[1]["epoch"] > results[0]["epoch"]
    assert server.poll() is None


@pytest.mark.namespaces
def test_service_serves_one_trainer_after_the_other(network):
    network.run_server()
    addresses = [serve(network, node) for node in ("w0", "w1")]
    first = [LocalAgent(address, 30.0) for address in addresses]
    with pytest.raises(AgentError, match="in use by process"):
        LocalAgent(addresses[0], 5.0)
    tensors = [np.full(5000, value, np.float32) for value in (1.0, 2.0)]
    epoch = network.roster.epoch
    works = [agent.allreduce_async(tensor) for agent, tensor in zip(first, tensors, strict=True)]
    for work in works:
        work.wait(30)
    assert all((tensor == 3.0).all() for tensor in tensors)
    for agent in first:
        agent.close()
    with pytest.raises(AbortedError, match="closed"):
        first[0].allreduce_async(tensors[0])
    # Trainers that have said good-bye leave the job unchanged.
    second = [LocalAgent(address, 30.0) for address in addresses]
    works = [agent.allreduce_async(tensor, "mean") for agent, tensor in zip(second, tensors, strict=True)]
    for work in works:
        work.wait(30)
    assert all((tensor == 3.0).all() for tensor in tensors)
    assert network.roster.epoch == epoch
    for agent in second:
        agent.close()


@pytest.mark.namespaces
def test_trainer_that_dies_stops_the_others(network):
    network.run_server()
    addresses = [serve(network, node) for node in ("w0", "w1")]
    survivor = LocalAgent(addresses[0], 30.0)
    code = (
        "import sys, numpy as np\n"
        "from worker_agent.local import LocalAgent\n"
        "agent = LocalAgent(sys.argv[1], 30.0)\n"
        "agent.allreduce(np.ones(10, np.float32))\n"
        "print('done', flush=True)\n"
        "sys.stdin.read()\n"
    )
    trainer = subprocess.Popen(
        [sys.executable, "-c", code, addresses[1]], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        survivor.allreduce(np.ones(10, np.float32), timeout=30)
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == "done\n"
        waiting = survivor.allreduce_async(np.ones(1000, np.float32))
        trainer.send_signal(signal.SIGKILL)
        with pytest.raises(AbortedError, match="w1 is gone"):
            waiting.wait(30)
    finally:
        trainer.kill()
        trainer.communicate()
    epoch = network.roster.epoch
    again = LocalAgent(addresses[1], 30.0)
    wait_until(lambda: network.roster.epoch >= epoch and network.roster.running)

    def summed(agent: LocalAgent) -> np.ndarray:
        # An agent may hear of the new epoch a moment later, and operations that it began before are aborted.
        while True:
            result = np.ones(10, np.float32)
            with contextlib.suppress(AbortedError):
                agent.allreduce(result, timeout=30)
                return result

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(summed, (survivor, again)))
    assert (results[0] == 2.0).all()
    assert (results[1] == 2.0).all()
    survivor.close()
    again.close()


@pytest.mark.namespaces
def test_status_names_the_worker_that_everybody_waits_for(network):
    network.run_server()
    addresses = [serve(network, node) for node in ("w0", "w1")]
    first, second = (LocalAgent(address, 30.0) for address in addresses)
    arrays = [np.ones(5000, np.float32) for _ in range(2)]
    early = first.allreduce_async(arrays[0])

    def lacking() -> set[str]:
        return {name for tree in fetch_status(network.address).trees for name in tree.missing}

    # The switch holds w0's contribution until w0 resends; then the parameter server knows of it.
    wait_until(lambda: lacking() == {"w1"}, "the parameter server reports")
    late = second.allreduce_async(arrays[1])
    early.wait(30)
    late.wait(30)
    wait_until(lambda: not lacking(), "nothing is missing any more")
    first.close()
    second.close()


@pytest.mark.namespaces
def test_after_a_mismatch_everybody_has_an_error_and_can_go_on(network):
    network.run_server()
    agents = [LocalAgent(address, 30.0) for address in [serve(network, node) for node in ("w0", "w1")]]
    epoch = network.roster.epoch
    works = [agents[0].allreduce_async(np.ones(5000, np.float32)), agents[1].allreduce_async(np.ones(70, np.float32))]
    for work in works:
        with pytest.raises(AllReduceError):
            work.wait(30)
    arrays = [np.ones(5000, np.float32) for _ in agents]

    def retry(position: int) -> None:
        # Wait until the agent has heard of the new epoch and the other one has given up the old one too.
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            with contextlib.suppress(AbortedError):
                arrays[position][:] = 1.0
                agents[position].allreduce(arrays[position], timeout=30)
                return

    threads = [threading.Thread(target=retry, args=(position,)) for position in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all((array == 2.0).all() for array in arrays)
    assert network.roster.epoch > epoch
    for agent in agents:
        agent.close()


def hello(connection: Connection) -> None:
    connection.send({"type": "hello", "version": VERSION, "timeout": 30})
    assert connection.receive()[0]["type"] == "welcome"


def region(connection: Connection, size: int, seals: int) -> None:
    descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, mmap.PAGESIZE)
    if seals:
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    connection.send({"type": "region", "region": 1, "bytes": size}, [descriptor])
    os.close(descriptor)


@pytest.mark.namespaces
def test_hostile_trainers_are_refused_and_the_next_one_is_served(network):
    network.run_server()
    addresses = [serve(network, node) for node in ("w0", "w1")]
    wait_until(lambda: network.roster.running, "the job runs")
    path = addresses[0].removeprefix("unix:")
    sealed = fcntl.F_SEAL_SHRINK
    operation = {"type": "allreduce", "id": 1, "region": 1, "dtype": "float32", "op": "sum"}

    def attempts():
        yield lambda c: c.send({"type": "hello", "version": VERSION + 1}), "speaks version"
        yield lambda c: (hello(c), c.send({"type": "format"})), "unknown message"
        yield lambda c: (hello(c), region(c, mmap.PAGESIZE, 0)), "sealed against shrinking"
        yield lambda c: (hello(c), region(c, 1 << 40, sealed)), "is smaller than its"
        yield lambda c: (hello(c), c.send({**operation, "elements": 10})), "needs a region"
        yield lambda c: (hello(c), region(c, 4096, sealed), c.send({**operation, "elements": 1 << 40})), "more than"
        yield lambda c: (hello(c), region(c, 4096, sealed), c.send({**operation, "elements": -1})), "needs a region"
        yield lambda c: (hello(c), c.send({**operation, "elements": 1, "dtype": "complex64"})), "needs an id, a dtype"

    for attempt, message in attempts():
        raw = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        raw.settimeout(30)
        raw.connect(path)
        connection = Connection(raw)
        with contextlib.suppress(ConnectionLost):
            attempt(connection)
        answer = connection.receive()[0]
        assert answer["type"] == "refused", answer
        assert message in answer["message"]
        connection.close()
    garbage = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    garbage.connect(path)
    garbage.send(b"\xff\x00 not JSON")
    garbage.close()
    agent = LocalAgent(addresses[0], 30.0)
    assert agent.world_size == 2
    agent.close()


@pytest.mark.namespaces
def test_connect_names_the_missing_agents(network):
    with pytest.raises(NotReadyError, match="waiting for w1, s0 to join"):
        connect(network.address, "w0", 1.0, interface="lo")
    with pytest.raises(AgentError, match=r"w7 is not a node of any job \(star: w0, w1, s0\)"):
        connect(network.address, "w7", 10.0)
    with pytest.raises(AgentError, match=r"is not a node of any job"):
        connect(network.address, None, 10.0)


@pytest.mark.namespaces
def test_interface_that_is_not_there_is_refused_before_anybody_waits(network):
    with pytest.raises(AgentError, match=r"there is no interface 'nothing0' here \(there are: .*lo.*\)"):
        connect(network.address, "w0", 30.0, interface="nothing0")
    path = f"{network.folder}/w0.sock"
    with pytest.raises(AgentError, match="there is no interface 'nothing0'"):
        Service(network.address, path, node="w0", settings=AgentSettings(interface="nothing0"))
    assert not Path(path).exists()
    assert not network.joined("w0")
    command = [sys.executable, "-m", "ps_server", "--controller", "127.0.0.1:1", "--interface", "nothing0"]
    server = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (server.returncode, server.stderr.startswith("ps_server: there is no interface 'nothing0'")) == (1, True)


def test_an_interface_that_is_down_or_without_address_is_reported():
    script = 'ip link add a0 type veth peer name b0; ip link set b0 up; exec $0 -c "$1"'
    code = "from worker_agent.address import check_interface as c; print(c('a0'), c('b0'), sep='|')"
    command = ["unshare", "--net", "--map-root-user", "sh", "-c", script, sys.executable, code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if "unshare" in done.stderr:
        pytest.skip(f"no namespaces here: {done.stderr.strip()}")
    down = "the interface a0 is down (ip link set a0 up)"
    assert done.stdout.strip() == f"{down}|the interface b0 has no IPv4 address", done.stderr


@pytest.mark.namespaces
def test_an_agent_whose_interface_disappears_leaves_the_job(network, monkeypatch):
    # The interface existed when the agent began.
    monkeypatch.setattr("worker_agent.member.check_interfaces", lambda names: "")
    network.run_server()
    other = network.run("w1", "worker_agent", "serve", "--controller", network.address, "--socket",
                        f"{network.folder}/w1.sock")  # fmt: skip
    with pytest.raises(AgentError, match="w0 cannot run its configuration"):
        connect(network.address, "w0", 30.0, interface="nothing0")
    wait_until(lambda: not network.joined("w0"), "it left the job")
    assert other.poll() is None


@pytest.mark.namespaces
def test_example_trains_through_the_agents(network, tmp_path):
    network.run_server()
    addresses = [serve(network, node) for node in ("w0", "w1")]
    losses = {}
    for hook in ("inart", "gloo"):
        output = tmp_path / f"{hook}.json"
        port = free_port()
        ranks = []
        for rank, address in enumerate(addresses):
            arguments = ["--hook", hook, "--steps", "6", "--width", "8", "--output", str(output)]
            arguments += ["--agent", address] if hook == "inart" else []
            environment = {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            ranks.append(Rank("example", arguments=arguments, environment=environment))
        assert [rank.result() for rank in ranks] == [{"code": 0}, {"code": 0}]
        report = json.loads(output.read_text())
        assert report["in_network"] == (hook == "inart")
        losses[hook] = report["losses"]
    assert losses["inart"] == pytest.approx(losses["gloo"], rel=1e-5)
    assert losses["inart"][-1] != losses["inart"][0]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("op", ["sum", "mean"])
def test_generated_data_has_the_claimed_sum(dtype, op):
    trial = Trial(40_000, dtype=dtype, op=op, seed=5)
    parts = [make_data(trial, 3, index) for index in range(3)]
    total = sum(decode(data, dtype) for data, _, _ in parts)
    exact, bound = parts[0][1], parts[0][2]
    assert np.array_equal(total / (3 if op == "mean" else 1), exact)
    assert 0 < bound < np.abs(exact).max()
    assert len({data.tobytes() for data, _, _ in parts}) == 3


def test_bfloat16_round_trip():
    values = np.array([0.0, 1.5, -3.0, 0.0078125])
    assert np.array_equal(decode(encode(values, "bfloat16"), "bfloat16"), values)


def test_controller_address(monkeypatch):
    monkeypatch.delenv("INART_CONTROLLER", raising=False)
    with pytest.raises(AgentError, match="INART_CONTROLLER"):
        controller_address(None)
    monkeypatch.setenv("INART_CONTROLLER", "10.0.0.1:9600")
    assert controller_address(None) == "10.0.0.1:9600"
    with pytest.raises(AgentError, match="HOST:PORT"):
        controller_address("nonsense")


def test_local_agent_without_agent(tmp_path):
    with pytest.raises(AgentError, match="start `inart agent --socket"):
        LocalAgent(f"unix:{tmp_path}/none.sock", 1.0)
    with pytest.raises(AgentError, match="unix:/path"):
        LocalAgent("127.0.0.1:9", 1.0)


def test_counters_that_restart_with_a_new_plan_never_yield_negative_rates():
    assert since(3, 10) == 7
    assert since(3, 2) == 2, "`replan` in the middle of a trial: 2 since then"
