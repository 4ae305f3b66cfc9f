"""A WAN in namespaces: real agents in hosts, links with rates and delays, and right sums."""

import json

import pytest

from evaluation.wan.emulated import main
from evaluation.wan.train import main as train
from topologies.wan.networks import network_named
from topologies.wan.run import main as run

pytestmark = pytest.mark.namespaces


def test_systems_across_an_emulated_wan(capsys, tmp_path):
    picture = tmp_path / "wan.png"
    options = ["--values", "100k", "--rounds", "2", "--delay-ms", "1", "--plot", str(picture)]
    assert main(["--network", "netstorm", "--strategies", "netstorm", "wan", *options]) == 0
    output = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in output[1:]] == [["netstorm", "netstorm"], ["netstorm", "wan"]]
    assert picture.stat().st_size > 10_000


def test_rounds_in_large_frames_as_json(capsys):
    options = ["--values", "200k", "--rounds", "2", "--chunk", "4096", "--delay-ms", "1", "--mtu", "9000", "--json"]
    assert main(["--strategies", "wan", "--total-mbps", "50", *options]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["strategy"] == "wan" and len(row["per_round_s"]) == 2
    # Headers take 5 % of frames of 1,500 bytes, of which the measured time is at least so much longer than the bound.
    assert row["error"] < 1e-3 and row["measured_s"] > row["bound_s"]


def test_sites_train_across_an_emulated_wan(capsys):
    options = ["--seconds", "3", "--redraw", "1", "--width", "4", "--compute", "0.1", "--delay-ms", "1", "--json"]
    assert train("wan", ["--systems", "wan", *options]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["system"] == "wan" and row["rounds"] >= 1 and row["simulated_rounds"] >= 1
    assert 0 < row["final_accuracy"] <= 1 and sum(row["bytes"].values()) > 0 and row["per_round_s"]


def test_a_network_of_ones_own_with_netstorm_as_published(tmp_path):
    links = tmp_path / "net.json"
    links.write_text('{"links": [["paris", "tokyo", 30, 20], ["tokyo", "austin", 40], ["austin", "paris", 25]]}')
    report = tmp_path / "report.json"
    words = ["--wan", str(links), "--system", "netstorm-pro", "--values", "20k", "--chunk", "512"]
    assert run([*words, "--seconds", "3", "--output", str(report)]) == 0
    found = json.loads(report.read_text())
    assert found["wrong"] == 0 and found["tasks"] > 0 and len(found["agents"]) == 3


def test_a_file_that_is_no_network_is_refused(tmp_path):
    links = tmp_path / "net.json"
    links.write_text('{"links": [["paris", "tokyo", 30], ["austin", "rome", 40]]}')
    with pytest.raises(ValueError, match="all joined by links"):
        network_named(str(links), 0)
    with pytest.raises(ValueError, match=r"neither one of b4, .* nor a file"):
        network_named("b5", 0)
