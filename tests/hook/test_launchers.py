"""The examples as launchers start them: with torchrun's environment, and by the files for Slurm and Kubernetes."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from examples.train_gpt import HOW, make_parser
from tests.hook.conftest import ROOT
from tests.hook.processes import Rank
from tests.hook.test_training import start_agents
from topologies.ports import free_port

LAUNCH = ROOT / "examples" / "launch"


@pytest.mark.namespaces
def test_gpt_trains_in_the_network_as_over_gloo(network, tmp_path):
    """Two nodes of two ranks train: DDP with the hook, and FSDP2 with its reduction between nodes in the network."""
    network.run_server()
    agents = start_agents(network)
    losses = {}
    for how in ("gloo", "hook", "fsdp2"):
        output = tmp_path / f"{how}.json"
        port = str(free_port())
        ranks = []
        for number, where in enumerate(agents):
            for local in range(2):
                environment = {"RANK": str(2 * number + local), "WORLD_SIZE": "4", "LOCAL_RANK": str(local)}
                environment |= {"LOCAL_WORLD_SIZE": "2", "GROUP_RANK": str(number)}
                environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
                words = ["--how", how, "--steps", "8", "--width", "32", "--layers", "1", "--output", str(output)]
                words += ["--agent", where["agent"]] if how != "gloo" else []
                ranks.append(Rank("example", program="gpt", arguments=words, environment=environment))
        assert [rank.result() for rank in ranks] == [{"code": 0}] * 4
        report = json.loads(output.read_text())
        assert report["in_network"] == (how != "gloo")
        losses[how] = report["losses"]
    assert losses["gloo"][-1] < losses["gloo"][0]
    for how in ("hook", "fsdp2"):
        assert losses[how] == pytest.approx(losses["gloo"], rel=1e-4)


def command(words: list[str]) -> list[str]:
    """Return the arguments of the example in a launcher's command line."""
    start = next(position for position, word in enumerate(words) if word.endswith("train_gpt.py"))
    return words[start + 1 :]


def test_the_pytorchjob_fits_the_operators_schema():
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    job = yaml.safe_load((LAUNCH / "pytorchjob.yaml").read_text())
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert set(replicas) == {"Master", "Worker"}
    assert replicas["Master"]["replicas"] == 1
    for replica in replicas.values():
        assert replica["restartPolicy"] in ("Always", "OnFailure", "Never", "ExitCode")
        (container,) = replica["template"]["spec"]["containers"]
        assert container["name"] == "pytorch", "the operator sets torchrun's environment in the container of this name"
        assert make_parser().parse_args(command(container["command"])).how in HOW
        assert {"name": "INART_CONTROLLER", "value": "10.1.0.1:9600"} in container["env"]


@pytest.mark.parametrize("name", ["torchrun.sh", "slurm.sbatch"])
def test_scripts_are_shell_and_name_the_example(name: str):
    script = LAUNCH / name
    shell = shutil.which("bash")
    assert shell is not None
    subprocess.run([shell, "-n", script], check=True)
    text = script.read_text()
    assert "train_gpt.py" in text
    assert "INART_CONTROLLER:?" in text, "a missing controller is named before anything starts"
    if script.suffix == ".sh":
        missing = subprocess.run([shell, script], capture_output=True, text=True, check=False, env={})
        assert "how many nodes" in missing.stderr


def test_every_file_is_named_in_the_docs():
    docs = (ROOT / "docs" / "training.md").read_text()
    for path in (*LAUNCH.iterdir(), Path("train_gpt.py")):
        assert path.name in docs
