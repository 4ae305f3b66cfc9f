"""The experiment's settings, tables, files and figures, without a network."""

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.planner.strategies import get_strategy
from evaluation.bmv2_fattree import plots
from evaluation.bmv2_fattree.experiment import rate_bytes, with_one_plan
from evaluation.bmv2_fattree.results import Checked, Load, Report, StrategyResult, Training
from evaluation.bmv2_fattree.settings import MODEL_BYTES, Settings, parse
from p4src.protocol import frame_bytes
from tests.support.examples import examples
from topologies import hosts
from topologies.load import cpu_times
from topologies.scale import PACKETS_PER_SECOND, switched_packets

QUIET = Load(idle=0.6, drops={})


def result(name: str = "atp", planned: float = 5.0, measured: float = 4.9, load: Load = QUIET) -> StrategyResult:
    return StrategyResult(
        name=name,
        planned_rate_mbps=planned,
        measured_rate_mbps=measured,
        communication_seconds=2.7,
        ps_ingress_bytes=13_580_000,
        model_seconds={"LSTM": 2.7, "VGG19": 0.9, "ResNet-50": 0.17},
        bottleneck="h11",
        load=load,
        packets_resent=0,
        bit_identical=True,
        largest_error=1e-7,
        error_bound=1e-6,
    )


def training(difference: float = 1e-7, steps: int = 30) -> Training:
    gloo = [2.3 * 0.97**step for step in range(steps)]
    return Training(
        loss_gloo=gloo,
        loss_inart=[loss * (1 + difference) for loss in gloo],
        seconds_gloo=8.0,
        seconds_inart=4.0,
        strategy="atp",
        workers=8,
        dataset="handwritten digits (scikit-learn)",
        parameters=49_265,
        test_accuracy_gloo=0.9,
        test_accuracy_inart=0.9,
        sums=Checked(buckets=60, largest=0.4),
    )


def report(*results: StrategyResult, train: Training | None = None) -> Report:
    gloo = {"LSTM": 1.7, "VGG19": 0.6, "ResNet-50": 0.1} if train else {}
    return Report("softswitch", "fat-tree k=4", Settings().to_json(), list(results), gloo, train)


def test_summary_has_the_keys_that_others_read(tmp_path: Path) -> None:
    report(result("lbmm"), result("atp"), train=training()).write(tmp_path)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["switch"] == "softswitch"
    assert [s["name"] for s in summary["strategies"]] == ["lbmm", "atp"]
    for key, value in (("planned_rate_mbps", 5.0), ("measured_rate_mbps", 4.9), ("communication_seconds", 2.7),
                       ("ps_ingress_bytes", 13_580_000)):  # fmt: skip
        assert all(s[key] == value for s in summary["strategies"])
    assert len(summary["training"]["loss_gloo"]) == len(summary["training"]["loss_inart"]) == 30
    rows = list(csv.DictReader((tmp_path / "strategies.csv").open()))
    assert [row["strategy"] for row in rows] == ["lbmm", "atp"]
    assert float(rows[0]["planned_rate_mbps"]) == 5.0
    losses = list(csv.DictReader((tmp_path / "losses.csv").open()))
    assert [int(row["step"]) for row in losses] == list(range(1, 31))


def test_without_training_there_are_no_losses(tmp_path: Path) -> None:
    paths = report(result()).write(tmp_path)
    assert json.loads(paths[0].read_text())["training"] is None
    assert not (tmp_path / "losses.csv").exists()


def test_table_shows_every_number_aligned() -> None:
    lines = report(result("lbmm", 5.0, 4.97), result("inart", 20.0, 19.4), train=training()).table().splitlines()
    assert re.match(r"strategy +planned +measured +ratio +LSTM +VGG19 +ResNet-50 +PS ingress", lines[0])
    assert re.match(r"lbmm +5 +4.97 +0.994 +2.70 +0.90 +0.17 +13.58 +60% +h11", lines[2])
    assert re.match(r"gloo", lines[4])
    assert "30 steps" in "\n".join(lines)
    assert {line.index("Mbit/s") for line in lines[1:2]} == {lines[0].index("planned") + 1}


def test_remarks_report_deviations() -> None:
    def remarks(*results: StrategyResult, train: Training | None = None) -> str:
        return "\n".join(report(*results, train=train).remarks())

    good = remarks(result(), train=training())
    assert "network was the limit" in good
    assert "agree" in good
    assert "WRONG" not in good
    busy = remarks(result(load=Load(0.02, {})))
    assert "CPU was busy (2% idle)" in busy
    assert "The network was the limit" not in busy
    slow = remarks(result(measured=4.0))
    assert "measured 0.80 of the planned rate" in slow
    assert "The network was the limit" not in slow
    assert "3 (queue_full)" in remarks(result(load=Load(0.5, {"queue_full": 3})))
    assert "different results" in remarks(replace(result(), bit_identical=False))
    assert "above the bound" in remarks(replace(result(), largest_error=1e-5))
    assert "DO NOT AGREE" in remarks(result(), train=training(difference=0.1))
    assert "60 all-reduces through the switches was within its bound" in good
    wrong = replace(training(), sums=Checked(60, 0, 1, ["all-reduce 7: 1 of 100 values"], 9.0))
    assert "WRONG: 1 of 60 all-reduces: all-reduce 7" in remarks(result(), train=wrong)
    assert "WERE NOT CHECKED" in remarks(result(), train=replace(training(), sums=Checked()))
    drifted = replace(training(difference=1.8e-3), loss_rounded=training(difference=1.2e-3).loss_inart)
    assert "with fixed point's rounding errors they differ by 1.2e-03" in remarks(result(), train=drifted)
    assert "DO NOT AGREE" not in remarks(result(), train=drifted)


def test_a_rate_far_below_the_plan_is_no_success() -> None:
    slow = replace(result(), measured_rate_mbps=0.4 * result().planned_rate_mbps)
    assert report(result()).carried
    assert not report(result(), slow).carried


def test_a_wrong_sum_is_not_sound() -> None:
    assert report(result()).sound
    assert not report(result(), replace(result(), bit_identical=False)).sound
    assert not report(replace(result(), largest_error=1.0)).sound


def test_figures_are_pictures(tmp_path: Path) -> None:
    chosen = Settings()
    topology = chosen.topology()
    full = report(result("lbmm"), result("inart", 20, 19), train=training())
    paths = plots.write(full, topology, chosen.job(topology), tmp_path)
    assert {path.name for path in paths} == {"rates.png", "communication.png", "fabric.png", "losses.png"}
    for path in paths:
        pixels = matplotlib.image.imread(path)
        assert pixels.shape[0] > 300
        assert pixels[..., :3].std() > 0.01, "blank"


@settings(max_examples=examples(30), deadline=None)
@given(st.lists(st.integers(0, 10**9), min_size=10, max_size=10))
def test_cpu_times_count_every_tick_once(ticks: list[int]) -> None:
    idle, total = cpu_times("cpu  " + " ".join(map(str, ticks)) + "\ncpu0 1 1 1 1\n")
    assert total == sum(ticks[:8]), "guest time is in user time already"
    assert idle == ticks[1] + ticks[3] + ticks[4]
    assert 0 <= idle <= total


def test_gradients_differ_by_worker_and_repeat_by_seed() -> None:
    one, again, other = hosts.gradient(3, 0, 4000), hosts.gradient(3, 0, 4000), hosts.gradient(3, 1, 4000)
    assert one.dtype == np.float32
    assert one.nbytes == 4000
    np.testing.assert_array_equal(one, again)
    assert not np.array_equal(one, other)
    assert np.isfinite(one).all()


def test_command_line_defaults_and_refusals(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse([], "softswitch") == Settings(bandwidth=100.0, strategies=parse([], "softswitch").strategies)
    assert parse([], "bmv2").bandwidth == parse(["--workers", "50", "--k", "6"], "softswitch").bandwidth == 20.0
    assert parse(["--strategies", "lbmm, atp"], "bmv2").strategies == ("lbmm", "atp")
    assert parse(["--switch", "softswitch"], "bmv2").switch == "softswitch"
    for argv, word in (
        (["--strategies", "fastest"], "unknown strategies: fastest"),
        (["--workers", "16"], "do not fit the 16 hosts"),
        (["--k", "3"], "must be even"),
        (["--bandwidth", "0"], "above 0"),
        (["--cifar100", "/nowhere"], "not a folder"),
        (["--sizes", "64Q"], "--sizes"),
    ):
        with pytest.raises(SystemExit):
            parse(argv, "softswitch")
        assert word in capsys.readouterr().err


def test_each_size_is_planned_as_a_job_of_its_own() -> None:
    chosen = parse(["--sizes", "4K, 2M", "--strategies", "inart"], "softswitch")
    assert chosen.model_bytes == {"4K": 4_000, "2M": 2_000_000} and chosen.largest == "2M"
    small, large = chosen.plan("inart", "4K"), chosen.plan("inart")
    assert small.job.sizes == (4_000,) and large.job.sizes == (2_000_000,)
    fewer = replace(small, trees=small.trees[:1])
    assert with_one_plan({"4K": fewer, "1M": large, "2M": large}) == [["4K"], ["1M", "2M"]]


@pytest.mark.parametrize("k, workers, servers", [(4, 8, 2), (6, 50, 4)])
@pytest.mark.parametrize("switch", ["softswitch", "bmv2"])
def test_scale_keeps_every_plan_within_what_the_switches_carry(k: int, workers: int, servers: int, switch: str) -> None:
    chosen = Settings(k=k, workers=workers, parameter_servers=servers, switch=switch).scaled()
    topology = chosen.topology()
    job = chosen.job(topology)
    for name in chosen.strategies:
        plan = get_strategy(name)(topology, job, seed=0)
        assert switched_packets(plan, topology) <= PACKETS_PER_SECOND[switch] * 1.001
    assert chosen.model_bytes["LSTM"] == int(MODEL_BYTES["LSTM"] * chosen.scale) // 4 * 4


def test_the_rate_is_measured_over_many_packets_of_each_tree() -> None:
    """A plan of 120 slow trees takes a tenth of a second for each packet of them: of 3 s much is start and end."""
    few, many = Settings(), Settings(k=6, workers=50, parameter_servers=None)
    for chosen, seconds in ((few, 3.0), (many, 120 * 100 * frame_bytes(256) * 8e-6 / 14.25)):
        topology = chosen.topology()
        plan = get_strategy("inart")(topology, chosen.job(topology))
        assert rate_bytes(plan, 256) * 8e-6 / plan.rate_mbps == pytest.approx(seconds, rel=0.05)


def test_heterogeneous_links_are_drawn_with_the_seed() -> None:
    def bandwidths(seed: int) -> list[float]:
        topology = Settings(heterogeneous=True, seed=seed).topology()
        return [topology.bandwidth_mbps(u, v) for u, v in topology.links]

    assert bandwidths(1) == bandwidths(1) != bandwidths(2)
    assert all(10 <= bandwidth <= 30 for bandwidth in bandwidths(1))
    assert len(set(bandwidths(1))) > 10
