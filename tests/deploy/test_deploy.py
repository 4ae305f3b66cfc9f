"""`python -m controlplane.deploy` as users call it."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from controlplane.cli.deploy import main
from controlplane.cli.serve import main as serve
from controlplane.common.rpc.client import fetch_status
from controlplane.targets.registry import open_artifact
from controlplane.targets.switches_file import SwitchesFileError, load_switches
from p4src.artifacts import ArtifactError
from tests.deploy.fake_switch import FakeSwitch
from tests.support.config import config

ROOT = Path(__file__).resolve().parents[2]
PLAN = ["--topology", "testbed", "--job", "workers=4,ps=2", "--strategy", "atp"]


@pytest.fixture
def testbed(tmp_path):
    """Return two fake switches and the file with their addresses."""
    switches = {name: FakeSwitch(number) for number, name in enumerate(("V1", "V2"), 1)}
    file = tmp_path / "switches.json"
    entries = {name: {"address": switch.address, "device_id": switch.device_id} for name, switch in switches.items()}
    file.write_text(json.dumps(entries))
    yield switches, file
    for switch in switches.values():
        switch.stop()


def test_dry_run_prints_every_entry_and_touches_nothing(capsys):
    assert main([*PLAN, "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert main([*PLAN, "--dry-run", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert set(data["switches"]) == {"V1", "V2"}
    for name, rules in data["switches"].items():
        assert f"switch {name}: {len(rules['labels'])} labels" in text
        for entry in rules["labels"]:
            assert f"port {entry['ingress_port']}, label {entry['label']} -> {entry['action']}(" in text
        for route in rules["routes"]:
            assert f"{route['address']}/32 -> route(mac={route['mac']}, port={route['port']})" in text
    assert len(re.findall("label_table:", text)) == sum(len(s["labels"]) for s in data["switches"].values())
    assert {agent["role"] for agent in data["agents"].values()} == {"worker", "parameter_server"}


def test_a_dry_run_describes_the_traffic_of_each_label(capsys):
    main(["--topology", "testbed", "--job", "workers=6,ps=1", "--strategy", "equal", "--dry-run"])
    text = capsys.readouterr().out
    assert re.search(r"aggregate\(.*# tree 0: from W1", text)
    assert re.search(r"# tree 0: partial sums of V[12]", text)
    assert re.search(r"replicate\(.*# tree 0: results to all", text)
    assert "# partial sums\n" not in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--switches", "nosuch.json"], "cannot read switches file nosuch.json"),
        ([], "--switches FILE is missing"),
        (["nosuch"], "not a compiled program (there are: v1model-256, v1model-4,"),
        (["v1model-9"], "python -m p4src.build --values 9 does it (there are: v1model-256, v1model-4,"),
        (["tna-64"], "needs a program for v1model (v1model-256, v1model-4, v1model-64)"),
    ],
)
def test_errors_are_reported_before_planning(testbed, words, said, monkeypatch, capsys):
    if len(words) == 1:
        words = config(testbed[1].parent, switches={"artifacts": words[0]})
    monkeypatch.setattr("controlplane.cli.deploy.make_plan", lambda *_: pytest.fail("planned"))
    assert main([*PLAN, "--bmv2", *(str(testbed[1]) if word == "FILE" else word for word in words)]) != 0
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--listen", "10.0.0.1:9600"], "10.0.0.1:9600 leaves this machine"),
        (["--listen", "127.0.0.1:0", "--credentials", "nosuch"], "nosuch"),
        (["--listen", "::1:9600"], "an IPv6 address goes in brackets"),
        (["--listen", "localhost:99999"], "needs HOST:PORT or unix:PATH, got 'localhost:99999'"),
        (["--listen", "9600"], "needs HOST:PORT or unix:PATH, got '9600'"),
        (["--listen", "127.0.0.1:0", "--state", "state"], "--no-state goes with neither --state nor a store"),
    ],
)
def test_serve_reports_errors_before_it_plans(testbed, words, said, monkeypatch, capsys):
    monkeypatch.setattr("controlplane.service.network.Network.launch", lambda *_, **__: pytest.fail("planned"))
    assert serve([*PLAN, "--bmv2", "--switches", str(testbed[1]), "--no-state", *words]) in (1, 2)
    assert said in capsys.readouterr().err


def test_install_again_and_remove(testbed, capsys):
    switches, file = testbed
    command = [*PLAN, "--bmv2", "--switches", str(file)]
    assert main(command) == 0
    assert re.search(r"installed: \d+ changes on 2 switches", capsys.readouterr().err)
    installed = {name: switch.snapshot() for name, switch in switches.items()}
    assert all(installed.values())
    assert main(command) == 0
    assert "everything was there already" in capsys.readouterr().err
    assert {name: switch.snapshot() for name, switch in switches.items()} == installed
    assert main(["remove", "7", "--bmv2", "--switches", str(file)]) == 2
    assert "none of job 7" in capsys.readouterr().err
    assert main(["remove", "seven", "--bmv2", "--switches", str(file)]) == 2
    assert "remove takes a job's number, or all; got 'seven'" in capsys.readouterr().err
    assert main(["remove", "--bmv2", "--switches", str(file)]) == 0
    assert not any(switch.entities for switch in switches.values())


def test_one_job_is_removed_only_with_the_secret_of_its_labels(testbed, tmp_path, capsys):
    switches, file = testbed
    where = ["--bmv2", "--switches", str(file)]
    assert main([*PLAN, *where, "--state", str(tmp_path / "there")]) == 0
    for which in ([], ["1"]):
        assert main(["remove", *which, *where, "--state", str(tmp_path / "elsewhere")]) == 2
        assert "elsewhere has no secret, so the labels on the switches cannot be read" in capsys.readouterr().err
    assert not (tmp_path / "elsewhere").exists() and all(switch.entities for switch in switches.values())
    assert main(["remove", "1", *where, "--state", str(tmp_path / "there")]) == 0
    assert re.search(r"removed \d+ entries of job 1", capsys.readouterr().err)
    assert main([*PLAN, *where, "--state", str(tmp_path / "there")]) == 0
    assert main(["remove", "all", *where, "--state", str(tmp_path / "elsewhere")]) == 0
    assert not any(switch.entities for switch in switches.values())


def test_a_command_takes_no_options_of_others(capsys):
    for words in (["remove", "--job", "j"], ["remove", "--dry-run"], ["cabling", "--job-id", "1"], ["--serve", "x:1"]):
        with pytest.raises(SystemExit) as end:
            main(words)
        assert end.value.code == 2
        assert "unrecognized arguments" in capsys.readouterr().err


def test_remove_deletes_another_builds_entries_only_when_that_build_is_named(testbed, capsys):
    switches, file = testbed
    other = config(file.parent, switches={"artifacts": "v1model-64"})
    assert main([*PLAN, "--bmv2", "--switches", str(file), *other]) == 0
    installed = {name: switch.snapshot() for name, switch in switches.items()}
    assert main(["remove", "--bmv2", "--switches", str(file)]) == 0
    assert (
        "switch V1 does not run this program" in (said := capsys.readouterr().err) and "`artifacts` of --config" in said
    )
    assert {name: switch.snapshot() for name, switch in switches.items()} == installed
    assert main(["remove", "--bmv2", "--switches", str(file), *other]) == 0
    assert not any(switch.entities for switch in switches.values())


def test_failure_is_reported_and_nothing_is_left(testbed, capsys):
    switches, file = testbed
    switches["V2"].faults.fail_updates = {4}
    assert main([*PLAN, "--bmv2", "--switches", str(file)]) == 1
    message = capsys.readouterr().err
    assert "switch V2 refused 1 of" in message
    assert "all switches are as they were before" in message
    assert not any(switch.entities for switch in switches.values())


def test_plan_file_is_deployed_when_it_fits(testbed, tmp_path, capsys):
    _, file = testbed
    main([*PLAN, "--dry-run", "--json"])
    plan = json.loads(capsys.readouterr().out)["plan"]
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    command = ["--topology", "testbed", "--plan", str(tmp_path / "plan.json"), "--bmv2", "--switches", str(file)]
    assert main(command) == 0
    plan["rate_mbps"] *= 3
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    capsys.readouterr()
    assert main(command) == 2
    assert "plan again for this topology" in capsys.readouterr().err


def test_without_an_sde_tofino_reports_at_once_what_is_missing(capsys, monkeypatch):
    monkeypatch.delenv("SDE_INSTALL", raising=False)
    assert main([*PLAN, "--tofino"]) == 1
    message = capsys.readouterr().err
    assert "$SDE_INSTALL is not set" in message
    assert "--dry-run" in message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*PLAN], "say which kind of switches: --bmv2|--tofino, or --dry-run"),
        ([*PLAN, "--bmv2"], "--switches FILE is missing"),
        (["--bmv2", "--switches", "x"], "--topology is missing"),
        (["--topology", "fattree:k=4", "--dry-run"], "--job is missing"),
        (["remove", "--switches", "x"], "say which kind of switches: --bmv2|--tofino\n"),
        (["cabling", "--bmv2", "--switches", "x"], "--topology is missing"),
        ([*PLAN, "--dry-run", "--job-id", "65536"], "must be in 0..65535"),
        ([*PLAN[:-1], "magic", "--dry-run"], "unknown strategy 'magic'; known: "),
        (["--topology", "nowhere.json", "--job", "ps=1", "--dry-run"], "nowhere.json"),
    ],
)
def test_mistakes_are_explained(arguments, message, capsys):
    assert main(arguments) in (1, 2)
    captured = capsys.readouterr()
    assert message in captured.err
    assert not captured.out


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("nonsense", "it begins with 'nonsense'"),
        ("[]", "must be an object"),
        ('{"V1": {"device_id": 1}}', "V1 needs an address host:port, got None"),
        ('{"V1": {"address": "::1:9559", "device_id": 1}}', "an IPv6 address goes in brackets"),
        ('{"V1": {"address": "h:99999", "device_id": 1}}', "V1: an address is host:port, got 'h:99999'"),
        ('{"V1": {"address": "h:1", "device_id": "x"}}', "V1 needs a device_id"),
        ('{"V1": {"address": "h:1", "device_id": 1, "tls": {"x": "y"}}}', "tls of V1 must be an object with authority"),
        ('{"V1": {"address": "h:1", "device_id": 1, "tls": {"key": "y"}}}', "a certificate needs its key"),
        ('{"a": {"address": "h:1", "device_id": 1}, "b": {"address": "h:1", "device_id": 1}}', "are both device 1"),
    ],
)
def test_switches_files_are_checked(tmp_path, content, message):
    (tmp_path / "switches.json").write_text(content)
    with pytest.raises(SwitchesFileError, match=message):
        load_switches(tmp_path / "switches.json")


def test_switch_of_the_topology_without_address_is_named(testbed, tmp_path, capsys):
    _, file = testbed
    entries = json.loads(file.read_text())
    del entries["V2"]
    file.write_text(json.dumps(entries))
    assert main([*PLAN, "--bmv2", "--switches", str(file)]) == 2
    assert "lacks V2 of the topology" in capsys.readouterr().err


def test_artifacts_by_name_and_folder():
    assert open_artifact("v1model-64").manifest.values_per_packet == 64
    assert open_artifact(str(ROOT / "p4src" / "artifacts" / "v1model-64")).manifest.values_per_packet == 64
    with pytest.raises(ArtifactError):
        open_artifact("/nowhere/at-all")


def test_a_controller_without_state_serves_until_told_to_stop_and_a_second_one_begins_anew(
    testbed, tmp_path, monkeypatch, until
):
    switches, file = testbed
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    command = [sys.executable, "-m", "inart", "serve", *PLAN, "--bmv2", "--switches", str(file), "--no-state"]
    command += ["--listen", "127.0.0.1:0"]

    def started() -> subprocess.Popen[str]:
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    process = started()
    try:
        assert process.stdout is not None
        address = process.stdout.readline().removeprefix("controller serves on ").strip()
        status = fetch_status(address)
        assert [(job.name, job.job_id) for job in status.jobs] == [("job", 1)]
        assert {agent.node for agent in status.agents if agent.joined} == set()
        assert {switch.name: switch.state for switch in status.switches} == {"V1": "connected", "V2": "connected"}
        installed = switches["V1"].snapshot()
        port = switches["V1"].port
        switches["V1"].stop()
        switches["V1"] = FakeSwitch(1, port)
        until(lambda: switches["V1"].snapshot() == installed, "the restarted switch is filled again", 20)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert switches["V1"].snapshot() == installed
        assert not [*tmp_path.rglob("jobs.json")]
        # As a second trial, of other workers: it removes what the first one has left of its job.
        command[command.index("workers=4,ps=2")] = "workers=3,ps=1"
        process = started()
        assert process.stdout is not None
        address = process.stdout.readline().removeprefix("controller serves on ").strip()
        assert [(job.name, job.job_id) for job in fetch_status(address).jobs] == [("job", 1)]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        assert main(["remove", "--bmv2", "--switches", str(file)]) == 0, "there is one job"
        assert not any(switch.entities for switch in switches.values())
    finally:
        process.kill()
        process.communicate()
