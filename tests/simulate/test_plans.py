"""Plans in the simulator, compared with times computed by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from controlplane.cli.simulate import main
from controlplane.planner.generators import parse_topology
from controlplane.planner.job import Job, parse_job
from controlplane.planner.plan import Plan
from controlplane.planner.simulate import SimulationError, Simulator, follow, outage
from controlplane.planner.simulate.plans import Flows, PlanNetwork, run_plan, synchronisation_seconds
from controlplane.planner.strategies import get_strategy
from controlplane.planner.topology import Topology

STEPS = {"a": 1.0, "b": 3.0}


def star() -> tuple[Topology, Plan]:
    """Return two workers at 8 Mbit/s and a parameter server at 100 Mbit/s on one switch that adds nothing, with a model
    of 8 Mbit.
    """
    nodes: dict[str, dict[str, object]] = {v: {"kind": "server"} for v in ("a", "b", "p")}
    nodes["s"] = {"kind": "switch", "aggregation_mbps": 0.0}
    links = []
    for server, mbps in (("a", 8.0), ("b", 8.0), ("p", 100.0)):
        links += [(server, "s", {"bandwidth_mbps": mbps}), ("s", server, {"bandwidth_mbps": mbps})]
    topology = Topology(nodes, links)
    return topology, get_strategy("lbmm")(topology, Job("job", ("a", "b"), ("p",), 1_000_000))


def test_a_fluid_round_starts_when_the_last_worker_is_ready() -> None:
    topology, plan = star()
    assert synchronisation_seconds(plan, topology) == pytest.approx(1.0)
    assert run_plan(plan, topology, rounds=3, compute=STEPS.__getitem__) == pytest.approx([4.0, 8.0, 12.0])


def test_stored_flows_start_one_by_one_and_results_go_hop_by_hop() -> None:
    """b is ready at 3 s, its gradient has arrived at 4 s, then the results take 0.08 s to the switch and 1 s to the
    workers.
    """
    topology, plan = star()
    ends = run_plan(plan, topology, rounds=2, compute=STEPS.__getitem__, flows=Flows(stored=True))
    assert ends == pytest.approx([5.08, 10.16])


def test_outages_of_nodes_and_links_and_bandwidths_that_change() -> None:
    topology, plan = star()

    def seconds(prepare) -> float:  # type: ignore[no-untyped-def]
        return run_plan(plan, topology, prepare=prepare)[0]

    def node(simulator: Simulator, network: PlanNetwork) -> None:
        outage(simulator, network.node("s"), 0.5, 2.0, network.capacities)

    def link(simulator: Simulator, network: PlanNetwork) -> None:
        follow(simulator, network.link("b", "s"), [(0.5, 2.0)])

    assert seconds(node) == pytest.approx(2.5)
    assert seconds(link) == pytest.approx(0.5 + 2.0)
    with pytest.raises(SimulationError, match="no bandwidth"):
        seconds(lambda simulator, network: follow(simulator, network.link("a", "s"), [(0.5, 0.0)]))
    with pytest.raises(SimulationError, match="x does not exist"):
        seconds(lambda simulator, network: network.node("x"))
    with pytest.raises(SimulationError, match="a -> b does not exist"):
        seconds(lambda simulator, network: network.link("a", "b"))
    with pytest.raises(SimulationError, match="at least one round"):
        run_plan(plan, topology, rounds=0)


def test_the_command_line_runs_a_plan_and_repeats_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    topology, plan = star()
    (tmp_path / "plan.json").write_text(json.dumps(plan.to_json()))
    (tmp_path / "topology.json").write_text(json.dumps(topology.to_json()))
    files = ["--topology", str(tmp_path / "topology.json"), "--plan", str(tmp_path / "plan.json")]
    assert main([*files, "--outage", "s:0.5-2", "--bandwidth", "s,a:3=4"]) == 0
    assert capsys.readouterr().out == "round 1: 2.5 s\n"
    drawn = []
    for seed in (1, 1, 2):
        assert main([*files, "--rounds", "2", "--compute", "0.1-0.4", "--seed", str(seed), "--json"]) == 0
        drawn.append(json.loads(capsys.readouterr().out)["ends_s"])
    assert drawn[0] == drawn[1] != drawn[2]
    assert main([*files, "--outage", "x:0-1"]) == 2
    assert "node x does not exist" in capsys.readouterr().err
    for wrong in (["--outage", "s"], ["--bandwidth", "s:1=2"], ["--compute", "2-1"]):
        with pytest.raises(SystemExit):
            main([*files, *wrong])


@pytest.mark.parametrize("results", [0, 1])
def test_the_time_of_a_plan_on_the_testbed_agrees_with_its_rate(results: int) -> None:
    """Trees keep their pace, and results load the links only where the topology counts them there."""
    topology = parse_topology(f"testbed:results={results}")
    for strategy in ("inart", "atp", "lbmm", "exact"):
        plan = get_strategy(strategy)(topology, parse_job("model=1M", topology))
        assert synchronisation_seconds(plan, topology) == pytest.approx(8 / plan.rate_mbps, rel=1e-6)
        assert synchronisation_seconds(plan, topology, paced=False) >= 8 / plan.rate_mbps * (1 - 1e-6)
