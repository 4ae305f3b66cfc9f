"""SelMcast as a strategy: its plans of multicasts are feasible, have all that an agent needs, and can be simulated."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.cli.plan.command import main
from controlplane.planner.entries import Replicate
from controlplane.planner.evaluate import evaluate
from controlplane.planner.generators import fattree
from controlplane.planner.job import Job, place_job
from controlplane.planner.plan import Multicast, Plan, PlanError
from controlplane.planner.plan.limits import DoesNotFit, Limits
from controlplane.planner.plan.replan import replan
from controlplane.planner.rules import Beside, build
from controlplane.planner.simulate.plans import synchronisation_seconds
from controlplane.planner.strategies import Infeasible, get_strategy
from controlplane.planner.strategies.wan.selmcast.strategy import orpheus, selmcast
from controlplane.planner.topology import Topology
from tests.controlplane.instances import instances
from tests.support.examples import examples

NAMES = ("selmcast", "selmcast-l7", "orpheus")
LIMITS = Limits(64, 1024, 1024, 1024)


def star(rates: dict[str, tuple[float, float]]) -> tuple[Topology, Job]:
    """Return workers with (upload, download) on one switch."""
    nodes: dict[str, dict[str, object]] = {w: {"kind": "server"} for w in (*rates, "p")}
    nodes["s"] = {"kind": "switch"}
    links = [("s", "p", {"bandwidth_mbps": 100.0}), ("p", "s", {"bandwidth_mbps": 100.0})]
    for worker, (up, down) in rates.items():
        links += [(worker, "s", {"bandwidth_mbps": up}), ("s", worker, {"bandwidth_mbps": down})]
    return Topology(nodes, links), Job("job", tuple(rates), ("p",), 1_000_000)


@settings(max_examples=examples(60), deadline=None)
@given(instances(), st.sampled_from(NAMES), st.integers(0, 9))
def test_every_plan_is_feasible_and_reads_back_the_same(instance: tuple[Topology, Job], name: str, seed: int) -> None:
    topology, job = instance
    if len(job.workers) == 1:
        with pytest.raises(Infeasible, match="one worker has nobody"):
            get_strategy(name)(topology, job, seed=seed)
        return
    plan = get_strategy(name)(topology, job, seed=seed)
    plan.check(topology)
    evaluation = evaluate(plan, topology)
    assert 0 < plan.rate_mbps == evaluation.rate_mbps <= evaluation.bound_mbps * (1 + 1e-9)
    assert all(load.utilisation <= 1 + 1e-9 for load in evaluation.loads)
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    assert {each.sender for each in plan.multicasts} == set(job.workers)
    assert min(len(each.receivers) for each in plan.multicasts) >= max(1, round(0.3 * len(job.workers)))
    assert replan(plan, topology, seed=seed).multicasts == plan.multicasts


@settings(max_examples=examples(30), deadline=None)
@given(instances(), st.sampled_from(NAMES))
def test_paced_at_its_rate_no_run_in_the_simulator_is_faster_than_the_bound(
    instance: tuple[Topology, Job], name: str
) -> None:
    topology, job = instance
    if len(job.workers) == 1:
        return
    plan = get_strategy(name)(topology, job)
    model = job.model_bytes * 8e-6
    # Max-min can only be slower than the paced plan, and hop by hop slower than a fluid at the least link's rate.
    assert synchronisation_seconds(plan, topology) >= model / plan.rate_mbps * (1 - 1e-9)
    assert synchronisation_seconds(plan, topology, stored=True) > 0


def test_a_multicast_of_layer_3_uses_a_link_once_and_one_of_layer_7_once_per_receiver() -> None:
    topology, job = star({"a": (8.0, 8.0), "b": (8.0, 8.0), "c": (8.0, 8.0)})
    routes = (("a", "s", "b"), ("a", "s", "c"))
    for layer, seconds in (("L3", 1.0), ("L7", 2.0)):
        plan = Plan(job, "by hand", 0.0, (), multicasts=(Multicast("a", layer, routes),))  # type: ignore[arg-type]
        assert evaluate(plan, topology).rate_mbps == pytest.approx(8 / seconds)
        assert synchronisation_seconds(plan, topology) == pytest.approx(seconds)
        assert evaluate(plan, topology).gap == pytest.approx(0)
    assert plan.multicasts[0].receivers == ("b", "c")


def test_selection_avoids_slow_receivers_but_takes_required_ones() -> None:
    topology, job = star({"a": (9.0, 9.0), "b": (9.0, 9.0), "c": (9.0, 9.0), "d": (9.0, 1.0)})
    free = selmcast(topology, job)
    assert all("d" not in each.receivers for each in free.multicasts)
    forced = selmcast(topology, job, must={"a": ["d"]}, receivers=2)
    by_sender = {each.sender: each.receivers for each in forced.multicasts}
    assert "d" in by_sender["a"] and all(len(receivers) >= 2 for receivers in by_sender.values())
    assert "d" in next(m for m in orpheus(topology, job, must={"a": ["d"]}).multicasts if m.sender == "a").receivers


def test_receivers_that_were_left_out_longest_come_first() -> None:
    """Downloads are 2: beside one receiver each, two more deliveries fit before the end at a's link (download 1)."""
    topology, job = star({"a": (9.0, 1.0), "b": (9.0, 2.0), "c": (9.0, 2.0), "d": (9.0, 2.0)})
    plan = selmcast(topology, job, must={"b": ["a"]}, stale={("a", "d"): 3})
    assert "d" in next(each for each in plan.multicasts if each.sender == "a").receivers


@pytest.mark.parametrize(
    ("rates", "options", "message"),
    [
        ({"a": (0.0, 5.0), "b": (5.0, 5.0)}, {}, "a"),
        ({"a": (5.0, 5.0), "b": (5.0, 5.0)}, {"receivers": 2}, "can have"),
        ({"a": (5.0, 5.0), "b": (5.0, 5.0)}, {"receivers": 0}, "no worker has a receiver"),
        ({"a": (5.0, 5.0), "b": (5.0, 5.0)}, {"must": {"a": ["x"]}}, "a -> x is no pair"),
        ({"a": (5.0, 5.0), "b": (5.0, 5.0)}, {"frozen_split": {"p": 1.0}}, "no split to keep"),
    ],
)
def test_impossible_plans_are_refused_with_the_reason(
    rates: dict[str, tuple[float, float]], options: dict, message: str
) -> None:
    topology, job = star(rates)
    with pytest.raises(ValueError, match=message):
        selmcast(topology, job, **options)


def test_plans_that_are_wrong_are_refused() -> None:
    topology, job = star({"a": (8.0, 8.0), "b": (8.0, 8.0), "c": (8.0, 8.0)})
    good = Plan(job, "by hand", 1.0, (), multicasts=(Multicast("a", "L3", (("a", "s", "b"),)),))
    good.check(topology)
    for message, routes in (
        ("receivers", ()),
        ("receivers", ((),)),
        ("each once", (("a", "s", "b"), ("a", "s", "b"))),
        ("no worker of", (("a", "s", "p"),)),
        ("must lead from a", (("c", "s", "b"),)),
        ("does not exist", (("a", "b"),)),
    ):
        with pytest.raises(PlanError, match=message):
            replace(good, multicasts=(Multicast("a", "L3", routes),)).check(topology)
    with pytest.raises(PlanError, match="two multicasts"):
        replace(good, multicasts=good.multicasts * 2).check(topology)
    with pytest.raises(PlanError, match="L3 or L7"):
        replace(good, multicasts=(replace(good.multicasts[0], layer="L2"),)).check(topology)  # type: ignore[arg-type]
    crew = get_strategy("crew")(topology, job)
    with pytest.raises(PlanError, match="only have one"):
        replace(good, trees=crew.trees).check(topology)
    with pytest.raises(PlanError, match="needs no rules of switches"):
        build(get_strategy("selmcast-l7")(topology, job), topology, LIMITS, job_id=1, epoch=1)


def test_switches_copy_packets_that_a_sender_sends_once() -> None:
    """Each multicast, followed through the label tables, reaches each of its receivers once, and nobody else."""
    topology = fattree(4, 20.0)
    plan = selmcast(topology, place_job(topology, 10, 1), receivers=4)
    deployment = build(plan, topology, LIMITS, job_id=1, epoch=1, beside=Beside(first_label=7))
    assert deployment.agents == {} and deployment.next_label == 7 + 10
    assert sorted(deployment.multicasts.values()) == list(range(7, 17))
    tables = {
        name: {(entry.ingress_port, entry.label): entry.action for entry in rules.labels}
        for name, rules in deployment.rulesets.items()
    }
    groups = {name: {g.group: g.ports for g in rules.groups} for name, rules in deployment.rulesets.items()}
    copied = 0
    for each in plan.multicasts:
        label, reached = deployment.multicasts[each.sender], []
        under_way = [(each.sender, topology.access_switch(each.sender))]
        while under_way:
            before, node = under_way.pop()
            if topology.kind(node) == "server":
                reached.append(node)
                continue
            action = tables[node][topology.port(node, before), label]
            ports = groups[node][action.group] if isinstance(action, Replicate) else (action.port,)
            copied += len(ports) > 1
            by_port = {topology.port(node, other): other for other in topology.neighbours(node)}
            under_way += [(node, by_port[port]) for port in ports]
        assert sorted(reached) == sorted(each.receivers)
    assert copied
    with pytest.raises(DoesNotFit, match="multicast groups"):
        build(plan, topology, replace(LIMITS, multicast_groups=0), job_id=1, epoch=1)


def test_the_command_line_plans_it(capsys: pytest.CaptureFixture[str]) -> None:
    for name in NAMES:
        assert main(["--topology", "fattree:k=4", "--job", "workers=6,ps=1", "--strategy", name, "--json"]) == 0
        content = json.loads(capsys.readouterr().out)
        assert len(content["multicasts"]) == 6 and content["trees"] == []
        assert Plan.from_json(content).rate_mbps > 0


def test_a_non_blocking_fat_tree_is_the_papers_big_switch() -> None:
    """With equal links and enough of them, the selection is balanced and meets the bound."""
    topology = fattree(4, 20.0)
    job = place_job(topology, 10, 1)
    plan = selmcast(topology, job)
    assert evaluate(plan, topology).gap == pytest.approx(0, abs=1e-9)


def test_it_beats_random_receivers_where_access_links_are_the_bottleneck() -> None:
    topology, job = star({f"w{k}": (6.0 + k % 5, 6.0 + 3 * k % 5) for k in range(20)})
    rates = [orpheus(topology, job, seed=seed).rate_mbps for seed in range(5)]
    assert selmcast(topology, job).rate_mbps > 1.2 * max(rates)
