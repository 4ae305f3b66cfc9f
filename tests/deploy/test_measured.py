"""The agents' measurements of round trips appear in the status and in the next plan of a live network and of the
command.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.cli.controller import format_status, message_dict
from controlplane.cli.plan.command import main as plan_command
from controlplane.common.agentconfig import ROOT_ADDS, SWITCH_ADDS
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.planner.generators import fattree, leaf_spine, testbed
from controlplane.planner.job import place_job
from controlplane.planner.plan import Plan
from controlplane.planner.plan.measured import host_times_ms, measured_in, with_adding, with_measured
from controlplane.planner.plan.slots import HOST_MS, HOSTS, place_slots, round_trip, round_trip_ms, with_host_ms
from controlplane.planner.strategies import get_strategy
from controlplane.planner.topology import Topology
from controlplane.service.controller import Controller
from p4src.protocol import frame_bytes
from tests.deploy.agents import Agents
from tests.deploy.memory_network import MemoryNetwork
from tests.support.examples import examples

BITS = 8 * frame_bytes(256)
SLOW_MS = 100.0
STAR = testbed(switch_mbps=60, server_mbps=40, link_mbps=60)
NETWORKS = (STAR, fattree(4, 20.0, delay_ms=0.3), leaf_spine(3, 2, 4, 20.0, uplink_mbps=10.0))


@settings(max_examples=examples(20), deadline=None)
@given(st.sampled_from(NETWORKS), st.integers(0, 50), st.data())
def test_delays_that_links_do_not_explain_are_the_hosts(topology, seed, data):
    """The workers' round trips are alike and the parameter servers' differ; the sum of both is reproduced."""
    plan = get_strategy("inart")(topology, place_job(topology, 5, 2, seed=seed))
    hosts = st.floats(0.0, 30.0)
    worker, roots = data.draw(hosts), {root: data.draw(hosts) for root in plan.job.parameter_servers}
    measured = {}
    for index, tree in enumerate(plan.trees):
        links = sum(level.ms for level in round_trip(tree, topology, BITS) if level.source != HOSTS)
        measured[index] = dict.fromkeys(plan.job.workers, links + worker + roots[tree.root])
    found = host_times_ms(plan, topology, BITS, measured)
    assert set(found) == {*plan.job.workers, *(tree.root for tree in plan.trees)}
    known = with_measured(topology, found)
    for index, tree in enumerate(plan.trees):
        assert round_trip_ms(tree, known, BITS) == pytest.approx(max(measured[index].values()))


def test_round_trips_below_the_links_delay_count_as_zero_and_unknown_ones_are_omitted():
    plan = get_strategy("inart")(STAR, place_job(STAR, 6, 2))
    assert host_times_ms(plan, STAR, BITS, {}) == {}
    assert host_times_ms(plan, STAR, BITS, {0: {"W1": 1e-6}, 99: {"W2": 1.0}}) == {"W1": 0.0, plan.trees[0].root: 0.0}


def test_a_stated_time_counts_before_a_measured_one_and_that_before_an_assumed_one():
    plan = get_strategy("inart")(STAR, place_job(STAR, 6, 2))
    tree = plan.trees[0]
    empty = round_trip_ms(tree, with_host_ms(STAR, 0.0), BITS)
    measured = with_measured(STAR, dict.fromkeys(STAR.servers, 5.0))
    stated = STAR.replace(nodes={server: {"host_ms": 7.0} for server in STAR.servers})
    assert round_trip_ms(tree, STAR, BITS) == pytest.approx(empty + 2 * HOST_MS)
    assert round_trip_ms(tree, with_host_ms(measured, 1.0), BITS) == pytest.approx(empty + 10.0)
    assert round_trip_ms(tree, with_measured(stated, {tree.root: 5.0}), BITS) == pytest.approx(empty + 14.0)


def test_slots_are_given_out_for_longer_than_the_shortest_round_trip():
    """A short measured round trip takes no slots away; a long one requests more."""
    fast = testbed(switch_mbps=60_000, server_mbps=40_000, link_mbps=60_000)
    plan = get_strategy("inart")(fast, place_job(fast, 6, 2))
    free = {switch: [(0, 1 << 20)] for switch in fast.switches}

    def slots(ms: float | None) -> tuple[int, ...]:
        known = fast if ms is None else with_measured(fast, dict.fromkeys(fast.servers, ms))
        return place_slots(plan, known, BITS, free)[0]

    assert slots(0.01) == slots(None)
    assert all(more >= usual for more, usual in zip(slots(3 * HOST_MS), slots(None), strict=True))
    assert sum(slots(3 * HOST_MS)) > sum(slots(None))


# -- a network that runs -----------------------------------------------------------------------------------------------


class Rig(MemoryNetwork):
    """The paper's testbed with little memory, and a job with its agents."""

    def __init__(self, folder: Path, star: Topology = STAR) -> None:
        super().__init__(folder, star.replace(nodes={switch: {"slots": 96} for switch in STAR.switches}), values=256)
        self.job = self.add(place_job(STAR, 6, 2, seed=1))
        self.controller = Controller(self.network)
        self.agents = Agents(self.job.roster)
        self.agents.join()

    @property
    def plan(self) -> Plan:
        return self.job.migrator.plan

    def report(self, hosts_ms: float) -> None:
        """Let all workers measure the time of the links, and this much more for two hosts."""
        for worker in self.plan.job.workers:
            report = pb.ReportRequest(node=worker, epoch=self.job.roster.epoch)
            for number, tree in enumerate(self.plan.trees):
                links = sum(level.ms for level in round_trip(tree, self.topology, BITS) if level.source != HOSTS)
                report.trees.add(tree=number, round_trip_seconds=(links + 2 * hosts_ms) / 1e3)
            self.job.roster.report(report)

    def status(self) -> pb.StatusReply:
        return self.controller.status(pb.StatusRequest(), None)

    def close(self) -> None:
        super().close()
        self.agents.end()


@pytest.fixture
def rig(tmp_path) -> Iterator[Rig]:
    made = Rig(tmp_path)
    yield made
    made.close()


def test_a_live_network_plans_with_its_agents_measurements(rig, tmp_path, capsys):
    assumed = rig.plan
    assert not any(agent.HasField("host_ms") for agent in rig.status().agents)
    rig.report(HOST_MS)
    rate = rig.network.replan(dry_run=True).plan.rate_mbps
    assert rate == pytest.approx(assumed.rate_mbps), "what was assumed is right"

    rig.report(SLOW_MS)
    status = rig.status()
    assert all(agent.host_ms == pytest.approx(SLOW_MS) for agent in status.agents)
    assert format_status(status).count(f" {SLOW_MS:g} ms ") == len(status.agents)
    update = rig.network.replan()
    assert update.rate_before < assumed.rate_mbps, "the windows do not carry the rate that was planned"
    assert update.rate_before < update.plan.rate_mbps < assumed.rate_mbps
    assert update.changed

    # The command, with the same measurements, plans the same rate.
    known = tmp_path / "status.json"
    known.write_text(json.dumps(message_dict(rig.status())))
    network = tmp_path / "net.json"
    network.write_text(json.dumps(rig.topology.to_json()))
    words = ["--topology", str(network), "--job", "workers=6,ps=2,seed=1", "--target", "v1model", "--json"]
    assert plan_command([*words, "--measured", str(known)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rate_mbps"] >= update.plan.rate_mbps * (1 - 1e-6)  # The plan has shares of its own.
    assert not found["windows"]["assumed"]
    assert found["windows"]["rate_mbps"] >= found["rate_mbps"] * (1 - 1e-6)


def without_ingress(topology: Topology) -> Topology:
    """The network whose servers do not say what they take in."""
    nodes = {node: dict(topology.graph.nodes[node]) for node in topology.nodes}
    for server in topology.servers:
        nodes[server].pop("ingress_mbps", None)
    return Topology(nodes, topology.graph.edges(data=True), topology.name)


def test_what_hosts_add_is_planned_with_where_the_topology_does_not_say_it(tmp_path):
    """Two hosts add inside of trees, one as much as the file says, the other as much as its agent measured; and a
    parameter server takes in what its agent says."""
    plain = without_ingress(fattree(4, 20.0, aggregation_mbps=0.0))
    nodes = {"h1": {"aggregation_mbps": 30.0}, "h2": {"aggregation_mbps": math.inf}}
    topology = plain.replace(nodes=nodes)
    job = place_job(plain, 6, 2, seed=1)
    found = {
        "h1": {SWITCH_ADDS: 50.0},
        "h2": {SWITCH_ADDS: 50.0},
        "h3": {SWITCH_ADDS: 50.0},
        job.parameter_servers[0]: {ROOT_ADDS: 7.0},
    }
    known = with_adding(topology, found)
    assert (known.aggregation_mbps("h1-adds"), known.aggregation_mbps("h2-adds")) == (30.0, 50.0)
    assert known.ingress_mbps(job.parameter_servers[0]) == 7.0
    assert known.ingress_mbps(job.parameter_servers[1]) == 20.0 and "h3-adds" not in known

    # The command has it from the status, for the network as the operator's file has it.
    agents = [{"node": node, "host_ms": 1.0, "statistics": named} for node, named in found.items()]
    (tmp_path / "status.json").write_text(json.dumps({"agents": agents}))
    known = measured_in(plain.replace(nodes=nodes), tmp_path / "status.json")
    assert (known.aggregation_mbps("h1-adds"), known.aggregation_mbps("h2-adds")) == (30.0, 50.0)
    assert known.ingress_mbps(job.parameter_servers[0]) == 7.0 and "h3-adds" not in known
    assert set(Topology.load(json.loads(json.dumps(topology.to_json()))).switch_on) == {"h1", "h2"}


def test_a_live_network_plans_with_what_its_agents_say_that_they_add(tmp_path):
    rig = Rig(tmp_path, without_ingress(STAR))
    try:
        check_planned_with_what_agents_say(rig)
    finally:
        rig.close()


def check_planned_with_what_agents_say(rig: Rig) -> None:
    root = max(rig.plan.split, key=lambda node: rig.plan.split[node])
    report = pb.ReportRequest(node=root, epoch=rig.job.roster.epoch, statistics={ROOT_ADDS: 5.0})
    rig.job.roster.report(report)
    assert rig.network.state.now.ingress_mbps(root) == 5.0
    after = get_strategy("inart")(rig.network.state.now, rig.plan.job)
    assert after.rate_mbps < rig.plan.rate_mbps and after.split[root] < rig.plan.split[root]
    rig.job.roster.report(pb.ReportRequest(node=root, epoch=rig.job.roster.epoch))
    assert rig.network.state.now.ingress_mbps(root) == 5.0, "it holds where the agent says nothing, as it is not busy"


def test_measurements_are_kept_while_no_agent_reports(rig):
    rig.report(SLOW_MS)
    rig.network.replan()
    assert not rig.job.roster.round_trips_ms(), "of the new plan nothing was measured yet"
    assert all(agent.host_ms == pytest.approx(SLOW_MS) for agent in rig.status().agents)
    rig.report(1.0)
    assert all(agent.host_ms == pytest.approx(1.0) for agent in rig.status().agents)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"agents": [{"node": "W1"}]}', '{"agents": [{"host_ms": "x"}]}'])
def test_a_file_without_measurements_is_refused(content, tmp_path, capsys):
    (tmp_path / "status.json").write_text(content)
    assert plan_command(["--topology", "testbed", "--measured", str(tmp_path / "status.json")]) == 2
    assert "status.json" in capsys.readouterr().err
