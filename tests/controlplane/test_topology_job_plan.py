"""Files are read and written, generators make networks, and bad input leads to clear messages."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.cli.plan.command import main
from controlplane.common.agentconfig import AgentConfig
from controlplane.planner.evaluate import evaluate
from controlplane.planner.generators import fattree, parse_topology, testbed
from controlplane.planner.job import Job, JobError, parse_job, place_job
from controlplane.planner.plan import Plan, PlanError
from controlplane.planner.plan.limits import Limits
from controlplane.planner.plan.replan import difference, replan
from controlplane.planner.rules import build
from controlplane.planner.strategies import get_strategy
from controlplane.planner.topology import Topology, TopologyError
from p4src.protocol import frame_bytes
from tests.controlplane.instances import instances, random_plan


def small(**changes):
    data = {
        "nodes": [
            {"id": "v", "kind": "switch", "aggregation_mbps": 5},
            {"id": "w", "kind": "server"},
            {"id": "s", "kind": "server", "ingress_mbps": 4},
        ],
        "edges": [
            {"source": "w", "target": "v", "bandwidth_mbps": 10, "delay_ms": 2},
            {"source": "v", "target": "s", "bandwidth_mbps": 10, "used_bandwidth_mbps": 7, "ports": {"v": 9}},
        ],
    }
    return {**data, **changes}


def node(**attributes):
    return small(nodes=[*small()["nodes"][1:], {"id": "v", "kind": "switch", **attributes}])


def link(**attributes):
    return small(edges=[{"source": "w", "target": "v", "bandwidth_mbps": 1, **attributes}])


def test_a_topology_file(tmp_path):
    path = tmp_path / "net.json"
    path.write_text(json.dumps(small()))
    topology = Topology.load(path)
    assert topology.switches == ("v",) and topology.servers == ("s", "w")
    assert topology.aggregation_mbps("v") == 5 and topology.ingress_mbps("w") == 10
    assert topology.residual_ingress_mbps("s") == 3 and topology.residual_bandwidth_mbps("s", "v") == 3
    assert topology.delay_ms("v", "w") == 2
    assert (topology.port("v", "s"), topology.port("v", "w"), topology.port("s", "v")) == (9, 1, 1)
    assert topology.address("w") == "10.0.0.2" and topology.mac("w") == "02:00:0a:00:00:02"
    assert topology.access_switch("w") == "v"
    again = Topology.load(json.loads(json.dumps(topology.to_json())))
    assert again.to_json() == topology.to_json()
    linked = small()
    linked["links"] = linked.pop("edges")
    assert Topology.load(linked).to_json() == Topology.load(small()).to_json()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (small(nodes=[]), "no nodes"),
        (small(nodes="v"), "nodes"),
        (small(nodes=[{"kind": "switch"}]), "id"),
        (small(nodes=[*small()["nodes"], {"id": "v", "kind": "switch"}]), "'v' is given twice"),
        (node(kind="router"), "node 'v': kind"),
        (node(aggregation_mbps=-1), "node 'v': aggregation_mbps must not be negative"),
        (node(aggregation_mbps="9"), "node 'v': aggregation_mbps must be a number"),
        (node(used_aggregation_mbps=float("nan")), "node 'v': used_aggregation_mbps"),
        (node(ingress_mbps=3), "node 'v': ingress_mbps does not belong on a switch"),
        (link(bandwidth_mbps=-2), "link w -> v: bandwidth_mbps must not be negative"),
        (link(bandwidth_mbps=10**400), "link w -> v: bandwidth_mbps is larger than any number"),
        (link(ports={"w": True}), "link w -> v: ports must map its ends to port numbers"),
        (small(nodes=[{"id": True, "kind": "switch"}]), "each node needs an .id. .a string., got"),
        (small(nodes=[{"id": "v\x1b[2J", "kind": "switch"}]), "at most 100 characters that can be printed"),
        (small(nodes=[{"id": "v" * 101, "kind": "switch"}]), "at most 100 characters"),
        (small(nodes=[{"id": "h", "kind": "server", "ip": "239.1.1.1"}]), "ip 239.1.1.1 cannot be a server's"),
        (small(nodes=[{"id": "h", "kind": "server", "ip": 5}]), "node 'h': ip must be an IPv4 address, got 5"),
        (link(target="x"), "link w -> x: node x does not exist"),
        (link(target="w"), "both ends"),
        (link(ports={"w": 0}), "link w -> v: ports"),
        (small(links=[]), 'in "edges" or in "links"'),
        (small(edges=[{"source": "w", "target": "v"}]), "link w -> v: bandwidth_mbps is missing"),
    ],
)
def test_a_wrong_topology_is_refused_by_name(data, message):
    with pytest.raises(TopologyError, match=message):
        Topology.load(data)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("fattree:k=1000", "is too large: at most 200000 nodes"),
        ("leafspine:leaves=99999,spines=99999", "is too large"),
        ("clos:cores=1000000", "is too large"),
        ("random:switches=100000", "is too large"),
        ("fattree:k=inf", "k must be a whole number, got 'inf'"),
        ("fattree:k=4.7", "k must be a whole number, got '4.7'"),
        ("netstorm:seed=-1", "seed must be a whole number, got '-1'"),
        ("fattree:k=4,k=6", "k= is given twice"),
        ("ring:switches=4,switches=5", "switches= is given twice"),
    ],
)
def test_impossible_generator_arguments_are_reported_at_once(spec, message):
    with pytest.raises(TopologyError, match=message):
        parse_topology(spec)


@pytest.mark.parametrize("spec", ["fattree:k=3", "fattree:k=x", "fattree:q=1", "nothing.json", "fattree:bandwidth=9-x"])
def test_a_wrong_topology_spec_is_refused(spec):
    with pytest.raises(TopologyError):
        parse_topology(spec)


def test_fattree_counts():
    topology = parse_topology("fattree:k=6,bandwidth=10-30,seed=2,oversubscription=4")
    kinds = [sum(n.startswith(c) for n in topology.nodes) for c in "caeh"]
    assert kinds == [9, 18, 18, 54]
    assert len(topology.links) == 2 * (54 + 54 + 54)
    hosts = [topology.bandwidth_mbps(h, topology.access_switch(h)) for h in topology.servers]
    assert 10 <= min(hosts) < max(hosts) <= 30
    fabric = [topology.bandwidth_mbps(u, v) for u, v in topology.links if "h" not in u + v]
    assert 2.5 <= min(fabric) < max(fabric) <= 7.5
    assert topology.to_json() == parse_topology("fattree:k=6,bandwidth=10-30,seed=2,oversubscription=4").to_json()


def test_replace_keeps_ports_and_addresses():
    topology = fattree(4)
    changed = topology.replace(remove_nodes=["c1", "h1"], links={("e2", "a1"): {"used_bandwidth_mbps": 5}})
    assert "c1" not in changed and changed.address("h2") == topology.address("h2")
    assert changed.port("a1", "c2") == topology.port("a1", "c2")
    assert changed.residual_bandwidth_mbps("e2", "a1") == 15 and changed.residual_bandwidth_mbps("a1", "e2") == 20
    with pytest.raises(TopologyError, match="link h2 -> c2"):
        topology.replace(links={("h2", "c2"): {}})


def test_jobs(tmp_path):
    topology = testbed()
    job = parse_job("model=200K,seed=3", topology)
    assert job.workers == ("W1", "W2", "W3", "W4", "W5", "W6") and job.parameter_servers == ("S1", "S2")
    assert job.model_bytes == 200_000
    path = tmp_path / "job.json"
    path.write_text(json.dumps(job.to_json()))
    assert parse_job(str(path), topology) == job
    tree = fattree(4)
    assert place_job(tree, 8, 2, seed=1) == place_job(tree, 8, 2, seed=1) != place_job(tree, 8, 2, seed=2)
    for spec, message in [
        ("workers=99", "needs 1"),
        ("workers=x", "workers must be a whole number"),
        ("worker=3", "unknown part"),
        ("ps=0", "at least|needs a worker"),
        ("model=big", "a size"),
        ("model=25M*100000000", "at most 100000 tensors"),
        ("workers=4,workers=5", "workers= is given twice"),
        ("name=", "a job's name is a word"),
        ("missing.json", "cannot read"),
    ]:
        with pytest.raises(JobError, match=message):
            parse_job(spec, topology)
    with pytest.raises(JobError, match="'W1' is given twice"):
        Job("j", ("W1", "W2", "W1"), ("S1",), 1)
    assert Job("j", ("W1", "W2"), ("W1", "S1"), 1).both_roles == {"W1"}
    with pytest.raises(JobError, match="model_bytes"):
        Job("j", ("W1",), ("S1",), 0)


@settings(max_examples=40, deadline=None)
@given(instances(), st.integers(0, 10**6))
def test_plans_and_configurations_round_trip(instance, seed):
    topology, job = instance
    plan = random_plan(topology, job, seed)
    plan.check(topology)
    assert Plan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    deployment = build(plan, topology, Limits.of_target("v1model"), job_id=1, epoch=2)
    for config in deployment.agents.values():
        assert AgentConfig.from_json(config.dumps()) == config


@settings(max_examples=80, deadline=None)
@given(instances(), st.integers(0, 10**6), st.data())
def test_a_damaged_plan_is_noticed(instance, seed, data):
    topology, job = instance
    content = random_plan(topology, job, seed).to_json()
    tree = data.draw(st.sampled_from(content["trees"]))
    damage = data.draw(st.sampled_from(["share", "worker", "route", "return", "root", "relay"]))
    if damage == "share":
        tree["share"] += 0.1
    elif damage == "worker":
        tree["assignments"].pop()
    elif damage == "route":
        tree["assignments"][0]["route"].insert(1, tree["assignments"][0]["worker"])
    elif damage == "return":
        tree["return_edges"].pop()
    elif damage == "root":
        tree["root"] = job.workers[0]
    elif tree["relays"]:
        tree["relays"].pop()
    else:
        tree["relays"].append({"node": tree["root"], "next": tree["root"], "route": [tree["root"]]})
    with pytest.raises(PlanError):
        Plan.from_json(content).check(topology)


def test_result_routes_may_be_written_in_any_order_and_must_start_at_the_root():
    topology = fattree(4)
    plan = random_plan(topology, place_job(topology, 6, 1, seed=1), 1)
    content = plan.to_json()
    for tree in content["trees"]:
        tree["return_edges"].reverse()
    Plan.from_json(content).check(topology)
    edges = content["trees"][0]["return_edges"]
    edges[:] = [edge for edge in edges if edge[0] != content["trees"][0]["root"]]
    with pytest.raises(PlanError, match="does not hang on the root"):
        Plan.from_json(content).check(topology)


def test_replanning_keeps_the_split_and_reports_the_changes():
    topology = fattree(4, heterogeneous=(10, 30), seed=4)
    job = place_job(topology, 10, 2, seed=1)
    plan = get_strategy("inart")(topology, job)
    same = replan(plan, topology)
    assert same.version == plan.version + 1 and same.split == pytest.approx(plan.split)
    weaker = topology.replace(nodes={"c1": {"used_aggregation_mbps": 9}, "a3": {"used_aggregation_mbps": 5}})
    following = replan(plan, weaker)
    assert following.split == pytest.approx(plan.split)
    assert "c1" not in {point for tree in following.trees for point in tree.points}
    changes = difference(plan, following)
    assert len(changes.kept) + len(changes.added) == len(following.trees)
    assert len(changes.kept) + len(changes.removed) == len(plan.trees)
    assert all(plan.trees[i].assignments == following.trees[j].assignments for i, j in changes.kept)
    content = changes.to_json(plan, following)
    workers = len(job.workers)
    points = sum(len(following.trees[i].relays) for i in changes.added)
    assert len(content["labels_to_add"]) == len(changes.added) * (2 * workers + 1) + points


def test_replanning_keeps_the_trees_that_still_serve():
    topology = fattree(4)
    job = place_job(topology, 8, 2, seed=1)
    plan = get_strategy("inart")(topology, job)
    assert not difference(plan, replan(plan, topology)).added
    lost = plan.trees[0].points[0]
    weaker = topology.replace(nodes={lost: {"used_aggregation_mbps": 9}})
    following = replan(plan, weaker)
    anew = get_strategy("inart")(weaker, job, frozen_split=plan.split)
    assert following.rate_mbps >= 0.999 * anew.rate_mbps
    assert following.rate_mbps == evaluate(following, weaker).rate_mbps
    hit = sum(lost in tree.points for tree in plan.trees)
    assert len(difference(plan, following).removed) <= hit + 1
    assert len(difference(plan, following).added) <= len(difference(plan, anew).added)
    with pytest.raises(PlanError, match="for other servers than job 'job'"):
        replan(plan, topology, job=place_job(topology, 8, 2, seed=2))


def test_limits_on_the_command_line(tmp_path, capsys):
    few = ["--topology", "fattree:k=4", "--job", "workers=8,ps=2,seed=1,model=20K,trees=9"]
    assert main([*few, "--target", "v1model", "--max-trees", "3", "--json", "--output", str(tmp_path / "p.json")]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert len(printed["trees"]) <= 3 and printed["job"]["max_trees"] == 3
    assert printed["values_per_packet"] == 256 and printed["packets"] >= 20 + 2
    bits = printed["packets"] * frame_bytes(256) * 8
    assert printed["packet_seconds"] >= bits / (printed["rate_mbps"] * 1e6) * (1 - 1e-9)
    # The job is that of the plan, unless another one is given.
    assert main(["--topology", "fattree:k=4", "--frozen-split", str(tmp_path / "p.json"), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["job"] == printed["job"] and not again["difference"]["labels_to_add"]
    assert main([*few, "--strategy", "lbmm", "--max-trees", "1"]) == 2
    assert "lbmm: the plan needs 2 trees, job 'job' allows 1" in capsys.readouterr().err
    assert main([*few, "--target", "abacus"]) == 2
    assert "unknown target 'abacus'; known: v1model" in capsys.readouterr().err
    assert main(["--compare", *few, "--draw", "x.png"]) == 2
    assert "--draw shows one plan: give one --strategy, and no --compare" in capsys.readouterr().err


def test_the_command_line(tmp_path, capsys):
    output = tmp_path / "plan.json"
    picture = tmp_path / "plan.png"
    assert main(["--topology", "testbed", "--json", "--output", str(output), "--draw", str(picture)]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["rate_mbps"] == pytest.approx(3) and printed["bound_mbps"] == pytest.approx(3)
    assert {"strategy", "gap", "bottleneck", "solve_seconds", "trees"} <= set(printed)
    assert Plan.load(output).split == pytest.approx(printed["split"])
    assert picture.stat().st_size > 10_000
    assert main(["--topology", "testbed", "--strategy", "atp", "--frozen-split", str(output), "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["version"] == 2 and again["split"] == pytest.approx(printed["split"])
    assert again["difference"]["removed_trees"] == [0, 1, 2, 3]
    assert main(["--topology", "testbed", "--json", "--strategy", "inart,lbmm,exact", "--output", str(output)]) == 0
    table = json.loads(capsys.readouterr().out)
    assert json.loads(output.read_text()) == table
    rates = {row["strategy"]: row["rate_mbps"] for row in table["strategies"]}
    assert rates == pytest.approx({"inart": 3, "lbmm": 4 / 3, "exact": 8 / 3}, rel=1e-6)
    assert main(["--topology", "testbed", "--strategy", "best"]) == 2
    assert "unknown strategy 'best'" in capsys.readouterr().err
    assert main(["--topology", "testbed", "--strategy", "inart,best"]) == 2
    assert "unknown strategy 'best'" in capsys.readouterr().err
    for option in ("--output", "--draw"):
        assert main(["--topology", "testbed", option, str(tmp_path / "missing" / "plan.png")]) == 2
        assert f"error: cannot write {tmp_path}/missing/plan.png: No such file" in capsys.readouterr().err
    assert main(["--topology", "testbed", "--draw", str(tmp_path / "plan.abc")]) == 2
    assert "plan.abc: no picture has the format 'abc'" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_reported_before_planning(tmp_path, capsys):
    for words in (["place", "--output"], ["pareto", "--plot"], ["--output"], ["--draw"]):
        assert main([*words, str(tmp_path / "missing" / "x.png"), "--topology", "testbed"]) == 2
        assert capsys.readouterr() == ("", f"error: cannot write {tmp_path}/missing/x.png: No such file or directory\n")
    assert main(["--topology", "testbed", "--output", str(tmp_path)]) == 2
    assert "Is a directory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["place", "--strategy", "inart,atp"], "place plans with one strategy, got --strategy inart,atp"),
        (["pareto", "--compare"], "--compare is for plan: pareto has no use for it"),
        (["pareto", "--rate-at-least", "90%", "--plot", "x.png"], "--plot shows all numbers of trees"),
        (["--plot", "x.png"], "--plot is for pareto"),
        (["pareto", "--losses"], "--losses is for plan: pareto has no use for it"),
        (["--time-limit", "-1"], "--time-limit must be above 0 s, got -1"),
        (["--time-limit", "nan"], "--time-limit must be above 0 s, got nan"),
    ],
)
def test_options_that_would_be_passed_over_are_refused(words, message, capsys):
    assert main([*words, "--topology", "testbed"]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert message in err


@pytest.mark.parametrize(
    ("network", "job", "message"),
    [
        ({}, {"workers": ["W1", "W9"]}, "job 'j': worker 'W9' does not exist in the topology"),
        ({}, {"workers": ["W1", "V1"]}, "job 'j': worker 'V1' is a switch, it must be a server"),
        ({}, {"parameter_servers": ["V1"]}, "job 'j': parameter server 'V1' is a switch, it must be a server"),
        ({"aggregation_mbps": -6}, {}, "node 'V1': aggregation_mbps must not be negative, got -6"),
        ({"links": ("W1", "W2")}, {}, "parameter server S1: no route from W1 to S1: S1 has no link"),
    ],
)
def test_bad_input_is_named_on_the_command_line(tmp_path, capsys, network, job, message):
    nodes = [
        {"id": "V1", "kind": "switch", "aggregation_mbps": network.get("aggregation_mbps", 6)},
        *({"id": name, "kind": "server"} for name in ("W1", "W2", "S1")),
    ]
    ends = network.get("links", ("W1", "W2", "S1"))
    edges = [{"source": "V1", "target": end, "bandwidth_mbps": 6} for end in ends]
    (tmp_path / "net.json").write_text(json.dumps({"nodes": nodes, "edges": edges}))
    whole = {"name": "j", "workers": ["W1", "W2"], "parameter_servers": ["S1"], "model_bytes": 1000, **job}
    (tmp_path / "job.json").write_text(json.dumps(whole))
    assert main(["--topology", str(tmp_path / "net.json"), "--job", str(tmp_path / "job.json")]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and err.endswith(f"{message}\n")
    assert err.count("\n") == 1 and (str(tmp_path) in err or "no route" in err)


def test_a_closed_pipe_ends_a_table_without_an_error():
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "controlplane.plan", "compare", "--topology", "testbed", "--strategy", "atp"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")
