"""`inart slurm`, as Slurm calls it, with a real controller; Slurm itself is the environment and two commands of a line.

tests/emulation/test_slurm.py does it with a real Slurm.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from controlplane.common.rpc import inart_pb2 as pb
from controlplane.common.rpc.client import ask
from controlplane.planner.terms import Quota
from worker_agent.launch import adding, holder, slurm
from worker_agent.launch.slurm import Refused, Wish, main, wished

SCRIPTS = Path(__file__).resolve().parents[2] / "examples" / "slurm"


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """Put a command first on the path that prints something, and writes down what it was called with."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)

    def make(name: str, prints: str = "") -> Path:
        calls = tmp_path / f"{name}.calls"
        (folder / name).write_text(f"#!/bin/sh\necho \"$@\" >> {calls}\ncat <<'END'\n{prints}\nEND\n")
        (folder / name).chmod(0o755)
        return calls

    return make


@pytest.fixture
def job(address: str, monkeypatch: pytest.MonkeyPatch, commands: Callable[[str, str], Path]):
    """Call the verb as for job 7 of Slurm."""
    monkeypatch.setenv("INART_CONTROLLER", address)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    calls = commands("scontrol", "")

    def call(what: str, comment: str = "inart", nodes: str = "h[1,4]") -> int:
        monkeypatch.setenv("SLURM_JOB_COMMENT", comment)
        monkeypatch.setenv("SLURM_JOB_NODELIST", nodes)
        return main([what])

    call.remarks = lambda: calls.read_text() if calls.exists() else ""  # type: ignore[attr-defined]
    return call


def test_a_job_with_the_comment_is_in_the_network_from_its_prolog_to_its_epilog(job, rig, capsys):
    """Its nodes are the workers, and the parameter servers; its tasks are told; Slurm shows what it gets."""
    assert job("prolog") == 0
    (running,) = rig.network.jobs
    assert running.name == "slurm-7"
    assert running.plan.job.workers == running.plan.job.parameter_servers == ("h1", "h4")
    assert "update JobId=7 AdminComment=inart: job slurm-7:" in job.remarks() and "Mbit/s" in job.remarks()
    capsys.readouterr()
    assert job("task") == 0
    said = capsys.readouterr().out.splitlines()
    assert f"export INART_CONTROLLER={os.environ['INART_CONTROLLER']}" in said
    assert {"export INART_JOB=slurm-7", "export INART_SLURM_JOB=7"} <= set(said)
    assert any(line.startswith("print inart: job slurm-7 is in the network") for line in said)
    assert job("epilog") == 0 and not list(rig.network.jobs) and rig.as_wanted()
    assert job("epilog") == 0, "also when somebody else has removed it"


@pytest.mark.parametrize("remarked", ["taken", "refused", "unknown"])
def test_tasks_get_the_socket_of_the_nodes_agent_and_no_credentials(job, commands, monkeypatch, capsys, remarked):
    """They run as the user, who could join as the node with the node's credentials. No controller is asked."""
    assert job("prolog", comment="inart:ps=9" if remarked == "refused" else "inart") == 0
    words = job.remarks().rpartition("JobId=7 ")[2].strip() if remarked != "unknown" else ""
    commands("scontrol", f"JobId=7 {words} Comment=inart StdErr=/x")
    monkeypatch.setenv("INART_AGENT", "unix:/run/inart/agent.sock")
    monkeypatch.setenv("INART_CREDENTIALS", "/etc/inart/node")
    monkeypatch.delenv("INART_CONTROLLER")
    capsys.readouterr()
    assert job("task") == 0
    said = capsys.readouterr().out.splitlines()
    assert ("export INART_AGENT=unix:/run/inart/agent.sock" in said) == (remarked != "refused")
    assert not any("CREDENTIALS" in line or "INART_CONTROLLER" in line for line in said)


def test_a_step_on_some_of_the_jobs_nodes_is_told_at_once(job, monkeypatch, capsys):
    assert job("prolog") == 0
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "4")
    for nodes, carried in (("2", False), ("4", True)):
        monkeypatch.setenv("SLURM_STEP_NUM_NODES", nodes)
        capsys.readouterr()
        assert job("task") == 0
        said = capsys.readouterr().out
        assert ("export INART_JOB" in said) == carried
        assert carried or "print inart: this step has 2 nodes and the Slurm job 4" in said


def test_no_task_gets_credentials(job, tmp_path, monkeypatch, capsys):
    assert job("prolog") == 0
    (tmp_path / "token").write_text("0123456789abcdef")
    monkeypatch.setenv("INART_CREDENTIALS", str(tmp_path))
    capsys.readouterr()
    assert job("task") == 0
    assert "CREDENTIALS" not in capsys.readouterr().out


def test_the_settings_give_tasks_the_agent_of_the_service(tmp_path):
    """The socket in the settings is that of the unit, and the nodes' part names no credentials."""
    words = [f". {SCRIPTS / 'settings'}; env"]
    said = subprocess.run(["sh", "-c", *words], env={}, capture_output=True, text=True, check=True).stdout
    (socket,) = [line.partition("=unix:")[2] for line in said.splitlines() if line.startswith("INART_AGENT=")]
    unit = (SCRIPTS.parent / "services" / "inart-agent.service").read_text()
    assert f"--socket {socket}" in unit and "INART_CREDENTIALS" not in said


def test_a_job_counts_for_the_quota_of_its_account(job, rig, monkeypatch):
    rig.network.tenants.quota = lambda tenant: Quota(jobs=0) if tenant == "poor" else Quota()
    monkeypatch.setenv("SLURM_JOB_ACCOUNT", "poor")
    assert job("prolog") == 0 and not list(rig.network.jobs)
    assert "tenant poor: it has 0 jobs and may have 0 at a time" in job.remarks()
    for account, tenant in (("rich", "rich"), ("(null)", "")):
        monkeypatch.setenv("SLURM_JOB_ACCOUNT", account)
        assert job("prolog") == 0
        (running,) = rig.network.jobs
        assert running.terms.tenant == tenant


def test_jobs_without_the_comment_are_left_alone(job, rig):
    assert [job("prolog", comment=comment) for comment in ("", "for the paper", "inarticulate")] == [0, 0, 0]
    assert not list(rig.network.jobs) and not job.remarks()


@pytest.mark.parametrize(
    "case",
    [
        ("inart:ps=9", "h[1,4]", "needs 9 parameter servers"),
        ("inart", "h1", "one node has nothing to send"),
        ("inart", "h[1,99]", "'h99' is no node of the topology"),
        ("inart:name=x", "h[1,4]", "name= in the comment"),
        ("inart:strategy=fast", "h[1,4]", "strategy 'fast'"),
        ("inart:else=panic", "h[1,4]", "it is one of gloo, wait"),
    ],
)
def test_what_is_refused_runs_over_gloo_and_its_user_reads_why(job, rig, commands, capsys, case):
    comment, nodes, reason = case
    assert job("prolog", comment, nodes) == 0
    assert not list(rig.network.jobs)
    written = job.remarks()
    assert "not in the network, it runs over torch.distributed" in written and reason in written
    commands("scontrol", f"JobId=7 JobName=x {written.partition('JobId=7 ')[2].strip()} Comment={comment} StdErr=/x")
    capsys.readouterr()
    assert job("task", comment, nodes) == 0
    said = capsys.readouterr().out
    assert "print inart: not in the network" in said and reason in said and "StdErr" not in said
    assert "INART_JOB=" not in said and "INART_CONTROLLER=" not in said


def test_a_job_may_rather_wait_for_the_network(job, rig):
    """Slurm puts a batch job back into its queue when its prolog fails."""
    assert job("prolog", comment="inart:ps=9,else=wait") == 1
    assert "waits for room in the network: the job needs 9" in job.remarks()
    assert job("prolog", comment="inart:else=wait") == 0 and len(list(rig.network.jobs)) == 1


def test_a_job_that_begins_again_on_other_nodes_has_these(job, rig):
    """Slurm calls the prolog again after a restart of slurmctld, and for a job that was put back into the queue."""
    assert job("prolog") == 0 and job("prolog", nodes="h[2,5]") == 0
    (running,) = rig.network.jobs
    assert running.plan.job.workers == ("h2", "h5") and rig.as_wanted()


def test_what_jobs_have_left_that_are_gone_is_taken_off(job, rig, commands):
    for number, nodes in (("7", "h[1,4]"), ("8", "h[2,5]")):
        os.environ["SLURM_JOB_ID"] = number
        assert job("prolog", nodes=nodes) == 0
    hosts = [pb.Host(name=node) for node in ("h3", "h6")]
    ask(os.environ["INART_CONTROLLER"], "add_job", pb.AddJobRequest(job="name=slurm-lab", hosts=hosts))
    commands("squeue", "8\n9")
    assert job("sweep") == 0
    assert sorted(running.name for running in rig.network.jobs) == ["slurm-8", "slurm-lab"]
    commands("squeue", "")
    (Path(os.environ["PATH"].split(os.pathsep)[0]) / "squeue").write_text("#!/bin/sh\nexit 1\n")
    assert job("sweep") == 1 and len(list(rig.network.jobs)) == 2, "Slurm that does not answer has no say"


def test_a_job_that_starts_during_the_sweep_stays(job, rig, commands, monkeypatch):
    """Slurm's list is from before the start of the job, which is in the network a moment later."""
    commands("squeue", "8")
    run = subprocess.run

    def lists(command, **how):
        listed = run(command, **how)
        if command[0] == "squeue":
            assert job("prolog") == 0
        return listed

    monkeypatch.setattr(slurm.subprocess, "run", lists)
    assert job("sweep") == 0
    assert [running.name for running in rig.network.jobs] == ["slurm-7"]


def test_a_controller_that_is_away_costs_no_job_its_start(job, rig, monkeypatch, capsys):
    monkeypatch.setattr(adding, "ANSWER_SECONDS", 0.0)
    monkeypatch.setattr(holder, "REMOVE_SECONDS", 0.0)
    rig.controllers[0].stop()
    assert job("prolog") == 0 and "runs over torch.distributed" in job.remarks()
    assert job("prolog", comment="inart:else=wait") == 1
    capsys.readouterr()
    assert job("task") == 0
    said = capsys.readouterr().out
    assert "export INART_JOB=slurm-7" in said and "goes into the network if it answers in time" in said
    assert job("epilog") == 1 and "inart job remove slurm-7" in capsys.readouterr().err


def test_an_operator_says_how_long_a_job_waits_for_a_controller(job, rig, monkeypatch, capsys):
    monkeypatch.setattr(adding, "ANSWER_SECONDS", 3600.0)
    monkeypatch.setenv("INART_ANSWER_SECONDS", "0.1")
    rig.controllers[0].stop()
    assert job("prolog") == 0 and "runs over torch.distributed" in job.remarks()
    monkeypatch.setenv("INART_ANSWER_SECONDS", "long")
    with pytest.raises(SystemExit):
        job("prolog")
    assert "INART_ANSWER_SECONDS is a number of seconds, got 'long'" in capsys.readouterr().err


def test_what_the_prolog_has_found_holds_while_nobody_answers(job, rig, commands, capsys):
    """A task that asks while another controller takes over would else wait for a job that was refused."""
    assert job("prolog", comment="inart:ps=9") == 0
    refused = job.remarks().partition("JobId=7 ")[2].strip()
    assert job("prolog") == 0
    taken = job.remarks().rpartition("JobId=7 ")[2].strip()
    rig.controllers[0].stop()
    commands("scontrol", f"JobId=7 {refused} Comment=inart:ps=9 StdErr=/x")
    capsys.readouterr()
    assert job("task") == 0
    said = capsys.readouterr().out
    assert "INART_JOB=" not in said and "print inart: not in the network" in said
    commands("scontrol", f"JobId=7 {taken} Comment=inart StdErr=/x")
    assert job("task") == 0
    assert "export INART_JOB=slurm-7" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("comment", "wish"),
    [
        ("", None),
        ("inarts", None),
        ("inart", Wish()),
        ("for alice; inart", Wish()),
        ("inart:ps=workers", Wish()),
        ("inart:ps=2,model=100M,share", Wish("ps=2,model=100M", share=True)),
        ("inart:strategy=atp,else=wait other=x", Wish(strategy="atp", waits=True)),
        ("inart:else=gloo", Wish()),
    ],
)
def test_comments_are_read(comment: str, wish: Wish | None):
    assert wished(comment) == wish


def test_a_comment_that_is_wrong_is_said():
    for comment in ("inart:else=no", "inart:name=x", "inart:workers=3"):
        with pytest.raises(Refused):
            wished(comment)


def test_slurms_job_number_is_wanted(monkeypatch, capsys):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    with pytest.raises(SystemExit):
        main(["epilog", "--controller", "127.0.0.1:1"])
    assert "Slurm calls this" in capsys.readouterr().err


def test_the_shell_files_call_the_verb_only_where_the_comment_says_so(tmp_path, commands):
    """Python is not started for jobs of others, and asked once for a job and not for each of its steps."""
    calls = commands("inart", "")
    commands("scontrol", "JobId=7 Comment=inart StdErr=/x")
    for name in ("prolog", "epilog", "task"):
        (tmp_path / name).write_text((SCRIPTS / name).read_text())
    (tmp_path / "settings").write_text(f"export PATH={os.environ['PATH']}\n")

    def call(name: str, **more: str) -> str:
        done = subprocess.run(
            ["sh", str(tmp_path / name)], env={"SLURM_JOB_ID": "7", **more}, check=True, capture_output=True, text=True
        )
        return done.stdout

    for name in ("prolog", "epilog"):
        call(name, SLURM_JOB_COMMENT="a paper")
        call(name)
    call("task", INART_SLURM_JOB="7")
    assert not calls.exists()
    for name in ("prolog", "epilog"):
        call(name, SLURM_JOB_COMMENT="alice inart:ps=2")
    call("task", INART_SLURM_JOB="6")
    assert calls.read_text().splitlines() == ["slurm prolog", "slurm epilog", "slurm task"]
    commands("scontrol", "JobId=7 JobName=x")
    assert call("task") == "export INART_SLURM_JOB=7\n"
    assert all(os.access(SCRIPTS / name, os.X_OK) for name in ("prolog", "epilog", "task"))
    assert "INART_CONTROLLER" in (SCRIPTS / "settings").read_text()
