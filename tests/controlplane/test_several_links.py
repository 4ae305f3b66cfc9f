"""Servers with several links, several cables between two nodes, and links made of several members."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.cli.plan.command import main
from controlplane.planner.adding_hosts import workers_add
from controlplane.planner.evaluate import evaluate
from controlplane.planner.generators import leaf_spine
from controlplane.planner.job import Job, parse_job
from controlplane.planner.plan.host_collectives import host_rows
from controlplane.planner.plan.limits import Limits
from controlplane.planner.plan.measured import measured_in
from controlplane.planner.plan.replan import replan
from controlplane.planner.plan.separated import separated
from controlplane.planner.rules import build
from controlplane.planner.strategies import get_strategy
from controlplane.planner.strategies.fabric.bounds import all_reduce_bound, cheap_bound
from controlplane.planner.strategies.fabric.prove import closer_bound, proven_bound
from controlplane.planner.strategies.fabric.sharing import Demand, share
from controlplane.planner.topology import Topology, TopologyError
from controlplane.planner.topology_cables import beyond
from controlplane.service.hops import hops_of
from controlplane.targets.cabling import End, cables_of
from evaluation.inart import kinds
from evaluation.inart.checked import faults
from tests.controlplane.instances import Walk, instances
from tests.controlplane.test_same_plan import case
from tests.controlplane.test_strategies import REFUSALS, check_plan
from tests.support.examples import examples

LIMITS = Limits.of_target("v1model")


def both_ways(u: str, v: str, mbps: float, **more: object) -> list[tuple[str, str, dict]]:
    """Return a link and the one back."""
    return [(u, v, {"bandwidth_mbps": mbps, **more}), (v, u, {"bandwidth_mbps": mbps, **more})]


def two_racks(trunks: int, mbps: float = 10.0, **switch: float) -> Topology:
    """Return hosts a, b at switch s and c, d at switch t, with so many cables between the switches; hosts' links have
    40 Mbit/s."""
    nodes = {v: {"kind": "switch", **switch} for v in "st"} | {h: {"kind": "server"} for h in "abcd"}
    links = [each for _ in range(trunks) for each in both_ways("s", "t", mbps)]
    for host, rack in zip("abcd", "sstt", strict=True):
        links += both_ways(host, rack, 40.0)
    return Topology(nodes, links)


def test_each_cable_between_two_switches_carries_flows_of_its_own():
    """Two workers in the other rack, nothing is added: each of three cables of 10 Mbit/s carries two thirds."""
    topology = two_racks(3, aggregation_mbps=0.0)
    job = Job("j", tuple("abc"), ("d",), 1000)
    assert topology.cables == {"s=t#2", "s=t#3"} and topology.devices == ("s", "t")
    plan = get_strategy("inart")(topology, job)
    check_plan(plan, topology)
    assert plan.rate_mbps == pytest.approx(40 / 3)  # d's link is full; one cable would give 5, two 10
    assert get_strategy("inart")(two_racks(1, aggregation_mbps=0.0), job).rate_mbps == pytest.approx(5.0)
    deployed = build(plan, topology, LIMITS, job_id=1, epoch=1)
    assert set(deployed.rulesets) == {"s", "t"}
    ports = {topology.port("s", near) for near in ("t", *topology.cables)}
    assert {e.action.port for e in deployed.rulesets["s"].labels if hasattr(e.action, "port")} >= ports
    carried = {hop.ends for hop in hops_of(plan, deployed, topology)}
    assert carried >= {("s", near) for near in ("t", *topology.cables)}
    assert not any(end in topology.cables for hop in hops_of(plan, deployed, topology) for end in hop.out[:1])


def test_packets_walk_over_the_cable_that_the_plan_names():
    topology = two_racks(3, aggregation_mbps=100.0)
    job = Job("j", tuple("abcd"), ("a", "c"), 1000)
    plan = get_strategy("inart")(topology, job)
    deployed = build(plan, topology, LIMITS, job_id=1, epoch=1)
    walk = CableWalk(topology, deployed)
    for index, tree in enumerate(plan.trees):
        got: list[int] = []
        for worker in job.workers:
            if worker != tree.root:
                label = next(t for t in deployed.agents[worker].worker_trees if t.tree == index).up_label
                got += [bitmap for at, _, bitmap in walk.send(worker, label, 1) if at == tree.root]
        assert got
        back = next(each for each in deployed.agents[tree.root].root_trees if each.tree == index).return_label
        reached = {at for at, _, _ in walk.send(tree.root, back)}
        assert reached == set(job.workers) - {tree.root}


class CableWalk(Walk):
    """Packets that pass cables as wires do."""

    def hop(self, before, node, label, bitmap, life=64):
        if node in self.topology.cables:
            self.crossed[before, node] = self.crossed.get((before, node), 0) + 1
            return self.hop(node, beyond(self.topology, before, node), label, bitmap, life - 1)
        return super().hop(before, node, label, bitmap, life)


def test_a_topology_with_cables_is_written_and_read_again():
    topology = two_racks(2)
    again = Topology.load(topology.to_json())
    assert again.to_json() == topology.to_json() and again.cables == topology.cables
    assert cables_of(topology) == {
        End("s", topology.port("s", "t")): End("t", topology.port("t", "s")),
        End("s", topology.port("s", "s=t#2")): End("t", topology.port("t", "s=t#2")),
        End("t", topology.port("t", "s")): End("s", topology.port("s", "t")),
        End("t", topology.port("t", "s=t#2")): End("s", topology.port("s", "s=t#2")),
    }


def test_members_share_what_the_link_has():
    content = two_racks(1).to_json()
    for edge in content["edges"]:
        if {edge["source"], edge["target"]} == {"s", "t"}:
            edge |= {"bandwidth_mbps": 30.0, "used_bandwidth_mbps": 3.0, "members": 3}
    topology = Topology.load(content)
    assert len(topology.cables) == 2
    assert topology.residual_bandwidth_mbps("s", "t") == pytest.approx(9.0)
    assert topology.residual_bandwidth_mbps("s", "s=t#2") == pytest.approx(9.0)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"members": 0}, "link s -> t: members must be a whole number of 1 to 64, got 0"),
        ({"members": 2, "ports": {"s": 4}}, "link s -> t: ports of a link with members: give the link once for each"),
        ({"ports": {"s": 9}}, "node s: two links have the same port number"),
    ],
)
def test_what_is_wrong_with_cables_is_said(more, message):
    links = [*both_ways("s", "t", 10.0, **more), *(both_ways("s", "t", 10.0, **more) if "members" not in more else [])]
    with pytest.raises(TopologyError, match=message):
        Topology({v: {"kind": "switch"} for v in "st"}, links)


def test_a_cable_has_two_ends():
    nodes = {"s": {"kind": "switch"}, "c": {"kind": "switch", "cable": True}}
    with pytest.raises(TopologyError, match="node 'c' is a cable: it must have links with two switches or servers"):
        Topology(nodes, both_ways("s", "c", 1.0))
    with pytest.raises(TopologyError, match="cable must be true or false, of a switch"):
        Topology({"h": {"kind": "server", "cable": True}}, [])


def dual_homed(count: int = 4, mbps: float = 10.0, **switch: float) -> Topology:
    """Return hosts h1, h2, .. each with a link to both switches s and t, between which there is none."""
    nodes = {v: {"kind": "switch", **switch} for v in "st"} | {f"h{i}": {"kind": "server"} for i in range(1, count + 1)}
    return Topology(nodes, [each for i in range(1, count + 1) for v in "st" for each in both_ways(f"h{i}", v, mbps)])


@pytest.mark.parametrize("roots", ["workers", "own"])
def test_both_links_of_dual_homed_hosts_carry(roots):
    """All hosts work and are parameter servers: two links are worth twice what one is worth, W B / (W - 1), as switches
    add without a limit. With one parameter server of its own both of its links are full."""
    topology = dual_homed()
    workers = tuple(topology.servers) if roots == "workers" else tuple(topology.servers[:-1])
    job = Job("j", workers, workers if roots == "workers" else topology.servers[-1:], 1000)
    plan = get_strategy("inart")(topology, job)
    check_plan(plan, topology)
    single = Topology(
        {n: dict(topology.graph.nodes[n]) for n in topology.nodes if n != "t"},
        [(u, v, topology.graph.edges[u, v]) for u, v in topology.links if "t" not in (u, v)],
    )
    alone = get_strategy("inart")(single, job)
    assert plan.rate_mbps == pytest.approx(2 * alone.rate_mbps, rel=1e-3)
    assert plan.rate_mbps == pytest.approx(cheap_bound(topology, job).mbps, rel=1e-2)
    deployed = build(plan, topology, LIMITS, job_id=1, epoch=1)  # each tree leaves its root over one link
    assert {tree.root for tree in plan.trees} <= set(deployed.agents)


def test_replanning_and_sharing_keep_dual_homed_hosts():
    topology = dual_homed()
    job = parse_job("workers=4,ps=workers", topology)
    plan = get_strategy("inart")(topology, job)
    weaker = topology.replace(links={("s", "h1"): {"bandwidth_mbps": 4.0}})
    new = replan(plan, weaker)
    check_plan(new, weaker)
    assert new.split == pytest.approx(plan.split)
    one, two = share(topology, [Demand(each, (plan,)) for each in (job, replace(job, name="k"))])
    for each in (one, two):
        each.check(topology)
        assert each.rate_mbps <= evaluate(each, topology).rate_mbps * (1 + 1e-9)
    assert one.rate_mbps == pytest.approx(plan.rate_mbps / 2, rel=0.02)


@st.composite
def several_links(draw: st.DrawFn) -> tuple[Topology, Job]:
    """Draw an instance with further links of servers to switches and further cables; parameter servers on workers or
    not; some hosts add."""
    topology, job = draw(instances(5, 5).filter(lambda found: len(found[1].workers) > 1))
    links = [(u, v, dict(topology.graph.edges[u, v])) for u, v in topology.links]
    for server in draw(st.lists(st.sampled_from(topology.servers), max_size=4)):
        links += both_ways(server, draw(st.sampled_from(topology.switches)), 12.0)
    between = [(u, v) for u, v in topology.links if topology.kind(u) == topology.kind(v) == "switch"]
    for u, v in draw(st.lists(st.sampled_from(between), max_size=2)) if between else []:
        links += both_ways(u, v, 7.0)
    nodes = {node: dict(topology.graph.nodes[node]) for node in topology.nodes}
    for server in draw(st.lists(st.sampled_from(topology.servers), max_size=2)):
        nodes[server]["aggregation_mbps"] = draw(st.sampled_from([5.0, 1e4]))
    if draw(st.booleans()):
        job = replace(job, parameter_servers=job.workers)
    return Topology(nodes, links, topology.name), job


@settings(max_examples=examples(30), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(several_links(), st.sampled_from(["inart", "lbmm", "equal"]))
def test_plans_with_several_links_hold(instance, name):
    topology, job = instance
    try:
        plan = get_strategy(name)(topology, job)
    except REFUSALS as refusal:
        assert str(refusal) and "inside " not in str(refusal)
        return
    check_plan(plan, topology)
    assert plan.rate_mbps <= cheap_bound(topology, job).mbps * (1 + 1e-6)
    assert plan.rate_mbps <= all_reduce_bound(topology, job).mbps * (1 + 1e-6)
    for tree in plan.trees:  # what an agent can send: a tree's results leave its root over one link
        assert len({v for u, v in tree.return_edges if u == tree.root}) <= 1
    if parts := separated(topology, job):
        taken = parts.apart(plan)
        taken.check(parts.topology)
        assert evaluate(taken, parts.topology).rate_mbps == pytest.approx(plan.rate_mbps)
        parts.together(taken).check(topology)


def test_hosts_alone_are_never_faster_than_dual_homed_hosts_that_add():
    topology = dual_homed(4, aggregation_mbps=2.0)
    job = Job("j", tuple(topology.servers), topology.servers[:1], 1000)
    network, everywhere = workers_add(topology, job)
    plan = get_strategy("inart")(network, everywhere)
    check_plan(plan, network)
    assert plan.rate_mbps >= 0.999 * max(row.rate_mbps for row in host_rows(topology, job))


def two_fabrics(between: float | None, second_nic: float | None = 30.0) -> Topology:
    """Return workers a and b and the parameter server p, which takes in 10 Mbit/s, at switch s, with links of 10; a
    second link of p to switch t; and a link between the switches."""
    nodes: dict[str, dict] = {v: {"kind": "switch", "aggregation_mbps": 0.0} for v in "st"}
    nodes |= {"a": {"kind": "server"}, "b": {"kind": "server"}, "p": {"kind": "server", "ingress_mbps": 10.0}}
    links = [each for host in "abp" for each in both_ways(host, "s", 10.0)]
    links += both_ways("p", "t", second_nic) if second_nic else []
    return Topology(nodes, links + (both_ways("s", "t", between) if between else []))


@pytest.mark.parametrize("between", [None, 0.1, 20.0])
def test_what_a_parameter_server_takes_in_is_not_divided_among_its_links(between):
    """Three quarters of it were given to a link that nothing could use: 1.3 Mbit/s, and no plan at all without a link
    between the switches."""
    topology, job = two_fabrics(between), Job("j", ("a", "b"), ("p",), 1_000_000)
    plan = get_strategy("inart")(topology, job)
    check_plan(plan, topology)
    assert plan.rate_mbps == pytest.approx(5.0) == pytest.approx(cheap_bound(topology, job).mbps)
    assert plan.rate_mbps == pytest.approx(get_strategy("inart")(two_fabrics(None, None), job).rate_mbps)


@pytest.mark.parametrize(("hosts", "rate"), [(2, 4.0), (3, 6.0), (4, 8.0)])
def test_hosts_that_add_join_rails(hosts, rate):
    """Hosts with two links each are all that joins two switches. Each was one adding point per link, which nothing
    joined: 4 Mbit/s, while hosts alone reach 8."""
    names = [f"h{i}" for i in range(hosts)]
    nodes = {r: {"kind": "switch", "aggregation_mbps": 0.0} for r in ("r1", "r2")}
    links = []
    for i, name in enumerate(names):
        for rail, mbps in (("r1", 10.0 if i % 2 else 2.0), ("r2", 2.0 if i % 2 else 10.0)):
            links += both_ways(name, rail, mbps)
    topology = Topology(nodes | {name: {"kind": "server"} for name in names}, links)
    network, job = workers_add(topology, Job("j", tuple(names), tuple(names), 1_000_000))
    plan = get_strategy("inart")(network, job)
    check_plan(plan, network)
    assert plan.rate_mbps == pytest.approx(rate)
    assert plan.rate_mbps >= max(row.rate_mbps for row in host_rows(topology, job)) * (1 - 1e-6)


def test_each_adding_point_has_one_relay():
    """Two inner switches of one host were points of one tree: put together, the host had two relays, and the proof
    ended in a KeyError."""
    topology, job = case("crash30")
    plan = get_strategy("inart")(topology, job)
    check_plan(plan, topology)
    assert all(len({relay.node for relay in tree.relays}) == len(tree.relays) for tree in plan.trees)
    closer = closer_bound(plan, topology)
    assert closer is None or closer.mbps >= plan.rate_mbps * (1 - 1e-6)


def test_servers_of_a_bcube_that_add_are_planned_at_least_as_fast_as_they_are_alone():
    instance = kinds.draw(69)
    network, job = workers_add(instance.topology, instance.job)
    plan = get_strategy("inart")(network, job)
    check_plan(plan, network)
    assert faults(network.to_json(), plan.to_json()) == []
    assert plan.rate_mbps >= 1.1 * max(row.rate_mbps for row in host_rows(instance.topology, instance.job))


@pytest.mark.parametrize("seed", [7, 31, 55])
def test_plans_with_servers_of_several_links_are_the_best_that_there_are(seed):
    """Rails that only hosts join, with parameter servers on the workers."""
    instance = kinds.draw(seed)
    job = replace(instance.job, parameter_servers=instance.job.workers)
    plan = get_strategy("inart")(instance.topology, job)
    check_plan(plan, instance.topology)
    assert plan.rate_mbps == pytest.approx(proven_bound(instance.topology, job, plan).mbps, rel=1e-3)


def test_results_leave_a_server_over_one_link_that_leads_to_all_workers():
    nodes = {v: {"kind": "switch"} for v in "st"} | {h: {"kind": "server"} for h in "abp"}
    links = [each for pair in ("as", "bt", "ps", "pt") for each in both_ways(*pair, 10.0)]
    with pytest.raises(ValueError, match="p sends results over one of its links, and none of these leads to all"):
        get_strategy("inart")(Topology(nodes, links), Job("j", ("a", "b"), ("p",), 1000))


def test_hosts_with_slow_links_are_roots_of_less():
    """Three hosts of 20 Mbit/s and one of 5: each sends and gets all of the model, so none is faster than the slow
    one's link; shares are such that the slow one's link carries nothing else, and no ring comes near."""
    nodes = {"s": {"kind": "switch"}, **{h: {"kind": "server"} for h in "abcd"}}
    links = [each for h, mbps in zip("abcd", (20.0, 20.0, 20.0, 5.0), strict=True) for each in both_ways(h, "s", mbps)]
    topology, job = Topology(nodes, links), Job("j", tuple("abcd"), tuple("abcd"), 1000)
    plan = get_strategy("inart")(topology, job)
    check_plan(plan, topology)
    assert plan.rate_mbps == pytest.approx(5.0, rel=1e-3) == pytest.approx(all_reduce_bound(topology, job).mbps)
    assert plan.split.get("d", 0.0) < 0.01
    assert next(row for row in host_rows(topology, job) if row.strategy == "host-ring").rate_mbps < 0.7 * plan.rate_mbps


def test_measured_rates_take_the_place_of_declared_ones(tmp_path, capsys):
    topology = two_racks(1, aggregation_mbps=0.0)
    (tmp_path / "net.json").write_text(json.dumps(topology.to_json()))
    measured = {"links": {"s->t": 3.0}, "nodes": {"s": {"aggregation_mbps": 50.0}, "d": {"ingress_mbps": 9.0}}}
    (tmp_path / "measured.json").write_text(json.dumps(measured))
    job = Job("j", tuple("abc"), ("d",), 1000)
    (tmp_path / "job.json").write_text(json.dumps(job.to_json()))
    words = ["--topology", str(tmp_path / "net.json"), "--job", str(tmp_path / "job.json")]
    words += ["--measured", str(tmp_path / "measured.json"), "--json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["rate_mbps"] == pytest.approx(3.0)  # a and b are added at s
    for wrong, message in (
        ({"links": {"s->x": 1}}, "the topology has no link 's->x'"),
        ({"links": {"s->t": -1}}, "bandwidth_mbps must not be negative"),
        ({"nodes": {"x": {"aggregation_mbps": 1}}}, "'x' does not exist"),
        ({"nodes": {"s": {"speed": 1}}}, "'s' has speed, known are aggregation_mbps, ingress_mbps"),
        ({"nodes": []}, "nodes must be an object"),
    ):
        (tmp_path / "measured.json").write_text(json.dumps(wrong))
        with pytest.raises(ValueError, match=message):
            measured_in(topology, tmp_path / "measured.json")


def test_members_of_uplinks_are_worth_what_one_link_of_their_capacity_is():
    whole = leaf_spine(3, 2, 3, uplink_mbps=12.0)
    content = whole.to_json()
    for edge in content["edges"]:
        if whole.kind(edge["source"]) == whole.kind(edge["target"]) == "switch":
            edge["members"] = 4
    divided = Topology.load(content)
    job = parse_job("workers=6,ps=2,seed=1", whole)
    rate = get_strategy("inart")(whole, job).rate_mbps
    assert get_strategy("inart")(divided, job).rate_mbps == pytest.approx(rate, rel=0.02)


def test_a_parameter_server_that_some_worker_cannot_reach_gets_no_trees():
    """The job was refused, although another of its servers reaches all workers."""
    nodes = {v: {"kind": "switch"} for v in "st"} | {h: {"kind": "server"} for h in ("a", "b", "p", "q", "r")}
    pairs = [("a", "s"), ("b", "s"), ("p", "s"), ("q", "t"), ("r", "s"), ("r", "t"), ("b", "t")]
    topology = Topology(nodes, [each for u, v in pairs for each in both_ways(u, v, 10.0)])
    job = Job("j", ("a", "b"), ("q", "p", "r"), 1000)
    plan = get_strategy("inart")(topology, job)
    check_plan(plan, topology)
    assert plan.job == job and {tree.root for tree in plan.trees} <= {"p", "r"}
    assert plan.rate_mbps == pytest.approx(10.0)
    deployed = build(plan, topology, LIMITS, job_id=1, epoch=1)
    assert not deployed.agents["q"].root_trees and deployed.agents["a"].worker_trees
    assert get_strategy("inart")(topology, replace(job, parameter_servers=("q", "b"))).split == {"q": 0.0, "b": 1.0}
    with pytest.raises(REFUSALS, match="parameter server q: no route from a to q"):
        get_strategy("inart")(topology, replace(job, parameter_servers=("q",)))
