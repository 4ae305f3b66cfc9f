"""Failures in the middle of rounds across a WAN (sites, links, the controller): work goes on, and results are right."""

import json

import pytest

from tests.support.examples import nightly
from topologies.__main__ import main
from topologies.wan.processes import CoordinatorProcess
from topologies.wan.run import main as run

pytestmark = pytest.mark.namespaces


@pytest.mark.parametrize(
    ("system", "faults"),
    [
        ("crew", ["controller at 1s for 3s", "dc0-dc1 at 2s", "h3 at 1.5s for 3s"]),
        nightly("wan", ["controller at 1s for 1s", "dc0-dc1 at 3s for 2s", "h5 at 4s for 1s"]),
    ],
)
def test_rounds_go_on_and_are_right(system, faults, tmp_path):
    report = tmp_path / "report.json"
    options = ["--system", system, "--values", "6k", "--seconds", "8", "--output", str(report)]
    redraw = ["--redraw", "2"] if system == "wan" else []
    words = [word for fault in faults for word in ("--fail", fault)]
    assert main(["run", "--wan", "netstorm", *options, *redraw, *words]) == 0
    found = json.loads(report.read_text())
    assert len(found["agents"]) == 9 and found["tasks_after_the_last_failure"] > 0
    assert all(agent["wrong"] == 0 and agent["peak_mb"] < 400 for agent in found["agents"])
    said = " ".join(line for _, line in found["events"])
    assert "controller fails" in said and "dc0-dc1 fails" in said and "is back" in said
    assert ("all links have other rates (1)" in said) == (system == "wan")


def test_a_controller_may_log_before_it_reports_its_address(tmp_path, monkeypatch):
    program = tmp_path / "controller"
    program.write_text("""#!/bin/sh\necho '{"log": "it begins"}'\necho '{"address": ["10.0.0.1", 9700]}'\n""")
    program.chmod(0o755)
    monkeypatch.setattr("topologies.wan.processes.sys.executable", str(program))
    said: list[str] = []
    controller = CoordinatorProcess("10.0.0.1", {}, said.append)
    controller.start()
    controller.close()
    assert controller.address == ("10.0.0.1", 9700)
    assert said == ["controller: it begins"]


def test_failures_of_unknown_nodes_are_refused(capsys):
    assert run(["--wan", "b4", "--fail", "dc0-dc99 at 1s"]) == 2
    assert "cannot fail" in capsys.readouterr().err


@pytest.mark.parametrize("system", [nightly("selmcast-bsp-l3"), "selmcast-l3"])
def test_switches_copy_multicasts_and_lost_packets_are_resent(system, tmp_path):
    """SelMcast multicasts in layer 3 over links that lose packets: every receiver gets every value that was sent to it.
    With stale synchronisation and sealed packets, a site dies meanwhile, and the others continue.
    """
    report = tmp_path / "report.json"
    options = ["--system", system, "--values", "30k", "--chunk", "1024", "--seconds", "4", "--loss", "0.02"]
    more = ["--tls", "--fail", "h3 at 2s"] if system == "selmcast-l3" else []
    assert main(["run", "--wan", "netstorm", *options, *more, "--output", str(report)]) == 0
    agents = json.loads(report.read_text())["agents"]
    assert len(agents) == (8 if more else 9) and not any(agent.get("forged") for agent in agents)
    assert all(agent["wrong"] == 0 and (more or agent["rounds"] > 0) for agent in agents)
    assert sum(agent.get("missing", 0) for agent in agents) > 0  # Some were lost, and requested again.
    copied = sum(sum(agent["bytes_copied"].values()) for agent in agents)
    own = sum(agent["bytes_copied"].get(f"{agent['node']}->dc{agent['node'][1:]}", 0) for agent in agents)
    assert copied > 2 * own > 0  # Each packet left once and was copied by switches.
    assert sum(sum(agent["bytes_sent"].values()) for agent in agents) < copied  # Only lost packets go over TCP.
