"""The examples as launchers start them: with torchrun's environment, and by the files for Slurm."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

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
                environment |= {"INART_TRACE": str(tmp_path / "traces" / how)}
                words = ["--how", how, "--steps", "8", "--width", "32", "--layers", "1", "--output", str(output)]
                words += ["--agent", where["agent"]] if how != "gloo" else []
                ranks.append(Rank("example", program="gpt", arguments=words, environment=environment))
        assert [rank.result() for rank in ranks] == [{"code": 0}] * 4
        report = json.loads(output.read_text())
        assert report["in_network"] == (how != "gloo")
        losses[how] = report["losses"]
    traces = [json.loads(path.read_text()) for path in (tmp_path / "traces" / "hook").iterdir()]
    assert len(traces) == 4, "each rank writes what its steps took"
    for trace in traces:
        buckets = [one for one in trace if one["name"].startswith("step 7 bucket")]
        assert buckets and all(one["args"]["way"] == "network" and one["dur"] > 0 for one in buckets)
    assert losses["gloo"][-1] < losses["gloo"][0]
    for how in ("hook", "fsdp2"):
        assert losses[how] == pytest.approx(losses["gloo"], rel=1e-4)


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
