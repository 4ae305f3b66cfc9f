"""The benchmark of the hosts: its JSON output and the picture of a sweep."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import pytest

from evaluation.hosts import check_cost
from evaluation.hosts import network as network_module
from evaluation.hosts.__main__ import main
from evaluation.hosts.measure import Result, Setting, measure
from evaluation.hosts.network import StarNetwork
from evaluation.hosts.plot import draw
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: makes network namespaces")
SMALL = ["--bytes", "100K", "--mbps", "40", "--repeat", "1", "--no-gloo", "--json"]


def test_a_setting_is_one_object_with_the_keys_that_others_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--workers", "2", *SMALL]) == 0
    result = json.loads(capsys.readouterr().out)
    assert tuple(result) == tuple(field.name for field in fields(Result))
    assert (result["workers"], result["mbps"], result["bytes"], result["values_per_packet"]) == (2, 40, 100_000, 256)
    assert result["gloo_seconds"] is None
    assert result["bound_seconds"] == pytest.approx(8 * 1090 * 99 / 40e6)
    assert result["network_seconds"] > 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_namespaces_go_however_the_command_ends(number: signal.Signals) -> None:
    """After SIGKILL the next start removes what was left."""
    command = [
        sys.executable,
        "-m",
        "evaluation.hosts",
        "--workers",
        "2",
        "--bytes",
        "100K",
        "--mbps",
        "10",
        "--no-gloo",
    ]
    with subprocess.Popen([*command, "--repeat", "1000"], cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        wait_until(lambda: len(namespaces(process.pid)) == 4, "the network is there")
        process.send_signal(number)
        process.wait(60)
        assert process.returncode == (143 if number == signal.SIGTERM else -number)
        if number == signal.SIGKILL:
            assert namespaces(process.pid)
            StarNetwork("inart-e", [], []).close()
        assert namespaces(process.pid) == []


def namespaces(process: int) -> list[Path]:
    return list(Path("/run/netns").glob(f"inart-e-{process}-*"))


def test_a_sweep_ends_at_its_limit_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--workers", "1,2", "--limit", "1e-9", "--duration", "0.01", *SMALL]) == 0
    said = capsys.readouterr()
    result = json.loads(said.out)
    assert result["workers"] == 1
    assert result["bytes"] == 49_152, "0.01 s at 40 Mbit/s, in whole packets"
    assert "stopped before 2 workers at 40 Mbit/s" in said.err


def test_trees_share_threads_and_the_picture_names_the_bottleneck(tmp_path: Path) -> None:
    result = measure(Setting(2, 40.0, 100_000, repeat=1, gloo=False, trees=2))
    assert result.threads == 1
    draw([result, replace(result, mbps=80.0, gave_out="switch", gloo_seconds=1.0)], tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")


def test_the_cost_of_the_check_is_that_of_turns_side_by_side() -> None:
    """Also where the machine is slower in one turn than in the other."""

    def measured(worker: float) -> check_cost.Costs:
        return check_cost.Costs(worker, worker / 2)

    turns = [(measured(slow * 0.5), measured(slow * 0.51)) for slow in (1.0, 3.0, 1.1)]
    found = check_cost.cost(turns, 256)
    assert found.worker.part == pytest.approx(0.02) and found.root.part == pytest.approx(0.02)
    assert (found.worker.without, found.worker.checked) == (0.55, pytest.approx(0.561)) and found.turns == 3
    assert found.byte_part == 4 / 1090


def test_the_cost_of_the_check_comes_with_the_range_that_has_the_true_median() -> None:
    """Of 100 turns 40 to 60 are above the true median, with 95 % confidence."""
    found = check_cost.part([(1.0, 1 + number / 1000) for number in range(100)])
    assert (found.least, found.most) == (pytest.approx(0.040), pytest.approx(0.059))
    assert found.least < found.part < found.most
    one = check_cost.part([(1.0, 1.02)])
    assert one.least == one.part == one.most == pytest.approx(0.02), "one turn says nothing of others"


def test_engines_without_the_check_are_measured_beside_those_with_it(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--bytes", "1M", "--mbps", "200", "--workers", "2", "--turns", "1", "--json"]
    monkeypatch.setenv("INART_CFLAGS", "-O0")  # compiled in a moment, since nobody reads how fast they are
    monkeypatch.setattr(sys, "argv", ["check_cost", *words])
    assert check_cost.main() in (0, 1), "how much it is, so small a tensor does not say"
    found = json.loads(capsys.readouterr().out)
    assert all(found[who][how] > 0 for who in ("worker", "root") for how in ("without", "checked"))
    assert found["turns"] == 1


MEASUREMENT = """
import signal, sys
from evaluation.hosts.switch import Switch

with Switch(sys.argv[1], [], 64) as switch:
    print(switch._process.pid, flush=True)
    signal.pause()
"""


def test_the_switch_of_a_measurement_that_is_killed_ends(network: StarNetwork) -> None:
    command = [sys.executable, "-c", MEASUREMENT, network.middle]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as measurement:
        assert measurement.stdout is not None
        switch = Path("/proc", measurement.stdout.readline().strip())
        assert b"softswitch" in (switch / "cmdline").read_bytes()
        measurement.kill()
    wait_until(lambda: not switch.exists() or ") Z " in (switch / "stat").read_text(), "the switch has ended")


def test_a_namespace_is_removed_though_a_signal_comes_right_after_it_was_made(monkeypatch: pytest.MonkeyPatch) -> None:
    run = network_module.run

    def interrupted(*command: str) -> str:
        said = run(*command)
        if command[:3] == ("ip", "netns", "add"):
            raise SystemExit(143)
        return said

    monkeypatch.setattr(network_module, "run", interrupted)
    with pytest.raises(SystemExit):
        StarNetwork("inart-e", [], [])
    assert namespaces(os.getpid()) == []
