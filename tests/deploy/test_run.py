"""`inart run`: a job is in the network for as long as a command runs, whatever ends it."""

from __future__ import annotations

import json
import os
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from controlplane.common.access import Access, Caller
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.common.rpc.client import ControllerError, ask, fetch_status
from tests.deploy.memory_network import RACKS
from worker_agent.launch.machines import MachinesError, expand, find_machines

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60.0
NAMES = "INART_CONTROLLER", "INART_JOB"


@pytest.fixture
def launch(address: str) -> Iterator[Callable[..., subprocess.Popen]]:
    """Start `inart run` on a node, as a process."""
    started: list[subprocess.Popen] = []

    def start(node: str, *words: str, nodes: str = "h1,h4") -> subprocess.Popen:
        before = [sys.executable, "-m", "inart", "run", "--controller", address, "--node", node, "--nodes", nodes]
        process = subprocess.Popen(
            [*before, *words], cwd=ROOT, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def python(code: str) -> list[str]:
    return ["--", sys.executable, "-c", code]


def line(process: subprocess.Popen) -> str:
    """Return the next line that the command prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


SAYS_ITS_JOB = f"import os, sys; print(*(os.environ[name] for name in {NAMES}), flush=True); "
WAITS = SAYS_ITS_JOB + "sys.stdin.close(); import signal; signal.sigwait([signal.SIGUSR1])"


def test_a_job_is_there_while_the_command_runs_and_the_other_node_waits_for_it(launch, rig, address, until):
    """Both commands know controller and job; both nodes are workers and parameter servers; the status is passed on."""
    second = launch("h4", *python(SAYS_ITS_JOB + "sys.exit(7)"))
    first = launch("h1", *python(WAITS))
    assert line(first) == line(second) == f"{address} run-h1"
    assert second.wait(SECONDS) == 7
    (job,) = rig.network.jobs
    assert job.plan.job.workers == job.plan.job.parameter_servers == ("h1", "h4")
    first.send_signal(signal.SIGTERM)
    assert first.wait(SECONDS) == 128 + signal.SIGTERM
    assert not list(rig.network.jobs) and rig.as_wanted()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1, signal.SIGKILL])
def test_the_job_goes_however_the_launcher_ends(launch, rig, until, number):
    """A signal reaches the command. When the launcher is killed, its command ends, too, and the job is removed."""
    code = "import os; " + SAYS_ITS_JOB + "print(os.getpid(), flush=True); import time; time.sleep(600)"
    process = launch("h1", *python(code))
    line(process)
    command = int(line(process))
    process.send_signal(number)
    assert process.wait(SECONDS) == (-number if number == signal.SIGKILL else 128 + number)
    until(lambda: not list(rig.network.jobs), "the job is removed", SECONDS)
    until(lambda: not alive(command), "the command has ended", SECONDS)


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z"


def test_a_command_that_fails_or_is_not_there_takes_its_job_off(launch, rig):
    assert launch("h1", *python("import sys; sys.exit(3)")).wait(SECONDS) == 3
    process = launch("h1", "--", "no-such-command")
    assert process.wait(SECONDS) == 127
    assert "no-such-command: No such file" in process.communicate()[1]
    assert not list(rig.network.jobs)
    assert sum("added" in said for said in rig.log) == 2


def test_words_of_a_job_that_are_not_well_formed_are_named(launch):
    refused = launch("h1", "--job", "model=1M, name=x", *python("print('ran')"))
    out, err = refused.communicate(timeout=SECONDS)
    assert (refused.returncode, out) == (1, "")
    assert "unknown part ' name=x'" in err and "Traceback" not in err


def test_what_cannot_be_admitted_is_said_and_the_command_is_not_run_unless_it_may_run_without(launch, rig):
    refused = launch("h1", *python("print('ran')"), nodes="h1,nobody.invalid")
    out, err = refused.communicate(timeout=SECONDS)
    assert (refused.returncode, out) == (1, "")
    assert "machine 'nobody.invalid' is no node of the topology" in err and "--or-gloo" in err
    runs = launch("h1", "--or-gloo", *python("print('ran')"), nodes="h1,nobody.invalid")
    out, err = runs.communicate(timeout=SECONDS)
    assert (runs.returncode, out) == (0, "ran\n")
    assert "runs without the network" in err
    late = launch("h4", "--wait", "0", *python("print('ran')"))
    assert late.wait(SECONDS) == 1
    assert "there is no job run-h1 after 0 s" in late.communicate()[1]


def test_a_job_that_is_there_already_is_used_and_stays(launch, rig, address):
    job = json.dumps({"name": "mine", "workers": ["h1", "h4"], "parameter_servers": ["h2"], "model_bytes": "any"})
    ask(address, "add_job", pb.AddJobRequest(job=job))
    process = launch("h1", "--job", "name=mine", *python(SAYS_ITS_JOB))
    assert line(process) == f"{address} mine"
    assert process.wait(SECONDS) == 0
    assert [job.name for job in rig.network.jobs] == ["mine"]
    stranger = launch("h5", "--job", "name=mine", *python(SAYS_ITS_JOB), nodes="h5,h6")
    assert stranger.wait(SECONDS) == 1
    assert "h5 is none of its nodes (h1, h4, h2)" in stranger.communicate()[1]


def test_a_machine_is_found_by_its_addresses_and_parameter_servers_may_be_of_their_own(rig, address):
    where = pb.StatusRequest(addresses=["127.0.0.1", RACKS.address("h5")])
    assert ask(address, "status", where).node == "h5"
    assert fetch_status(address).node == ""
    hosts = [pb.Host(name="gpu1", addresses=[RACKS.address("h1")]), pb.Host(name="h4")]
    reply = ask(address, "add_job", pb.AddJobRequest(job="name=mine,ps=2", hosts=hosts))
    assert (list(reply.workers), list(reply.parameter_servers)) == (["h1", "h4"], ["h2", "h3"])
    for words, problem in (("workers=3", "workers are given"), ("ps=3", "2 servers are free"), ("ps=x", "ps= is a")):
        with pytest.raises(ControllerError, match=problem):
            ask(address, "add_job", pb.AddJobRequest(job=words, hosts=hosts))
    with pytest.raises(ControllerError, match="h4 twice"):
        ask(address, "add_job", pb.AddJobRequest(hosts=[pb.Host(name="h4"), pb.Host(name="h4")]))


def test_a_request_of_an_earlier_command_for_a_later_time_adds_no_job_now(rig, address):
    at = bytes([12 << 3 | 1]) + struct.pack("<d", time.time() + 3600)  # field 12, a double: `start` of a reservation
    request = pb.AddJobRequest.FromString(pb.AddJobRequest(job="workers=2,name=night").SerializeToString() + at)
    with pytest.raises(ControllerError, match="does not support reservations: run `inart job add` when the job begins"):
        ask(address, "add_job", request)
    assert list(rig.network.jobs) == []


def test_the_job_is_added_by_an_operator_and_the_command_runs_as_the_node(rig, tmp_path):
    """A node's credentials are not enough to add a job; the command gets these, and not the operator's."""
    tokens = {"node-h1-" * 4: Caller("node", "h1"), "operator-alice-" * 2: Caller("operator", "alice")}
    address = rig.serve(access=Access(tokens))
    for token, caller in tokens.items():
        (tmp_path / caller.name).mkdir()
        (tmp_path / caller.name / "token").write_text(token)
    words = [sys.executable, "-m", "inart", "run", "--controller", address, "--node", "h1", "--nodes", "h1,h4"]
    words += ["--credentials", str(tmp_path / "h1")]
    code = ["--", sys.executable, "-c", "import os; print(os.environ['INART_CREDENTIALS'])"]
    said = []
    for operator in ([], ["--operator", str(tmp_path / "alice")]):
        done = subprocess.run(
            [*words, *operator, *code], cwd=ROOT, capture_output=True, text=True, check=False, timeout=SECONDS
        )
        said.append((done.returncode, done.stdout.strip()))
        assert operator or "node h1 may not add a job" in done.stderr
    assert said == [(1, ""), (0, str(tmp_path / "h1"))]
    assert not list(rig.network.jobs)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a,b", "a b"),
        ("gpu[01-03,07],login1", "gpu01 gpu02 gpu03 gpu07 login1"),
        ("r[1-2]n[8-9]", "r1n8 r1n9 r2n8 r2n9"),
        ("n[9-11]-ib", "n9-ib n10-ib n11-ib"),
    ],
)
def test_lists_of_machines_are_as_slurm_writes_them(text: str, names: str):
    assert expand(text) == names.split()


@pytest.mark.parametrize("text", ["", "a,,b", "a,a", "n[1-", "n[2-1]", "n[a]", "n[1-200000]", "n[1-999][1-999]"])
def test_what_is_no_list_of_machines_is_refused(text: str):
    with pytest.raises(MachinesError):
        expand(text)


def test_under_slurm_machines_and_name_come_from_the_environment():
    slurm = {"SLURM_JOB_NODELIST": "n[1-3]", "SLURM_JOB_ID": "42", "SLURM_NODEID": "1"}
    found = find_machines(None, slurm, "whatever", [])
    assert (found.names, found.position, found.first, found.job) == (("n1", "n2", "n3"), 1, False, "slurm-42")
    assert find_machines(None, slurm | {"SLURM_NODEID": "0"}, "", []).first
    assert find_machines(None, slurm | {"SLURM_STEP_NODELIST": "n1,n[2-3]"}, "", []).position == 1
    with pytest.raises(MachinesError, match=r"this step runs on n\[1-2\], and the Slurm job has n\[1-3\]"):
        find_machines(None, slurm | {"SLURM_STEP_NODELIST": "n[1-2]"}, "", [])
    assert find_machines("W1,W2", slurm, "W2", []).names == ("W1", "W2"), "what is given counts"
    with pytest.raises(MachinesError, match="which machines"):
        find_machines(None, {}, "W1", [])
    with pytest.raises(MachinesError, match="none of --nodes"):
        find_machines("W1,W2", {}, "W3", [])
    assert find_machines("192.0.2.7,192.0.2.8", {}, "W3", ["127.0.0.1", "192.0.2.8"]).position == 1
