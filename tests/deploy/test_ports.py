"""When a switch reports that a port is down, jobs are rerouted around its link before an agent misses packets; the link
is used again later.
"""

from __future__ import annotations

from itertools import pairwise

import pytest

from controlplane.common.log_lines import calling
from controlplane.planner.generators import fattree
from controlplane.planner.job import Job
from controlplane.service.core import ports
from controlplane.service.failures import PortWatch

NETWORK = fattree(4, 100.0, aggregation_mbps=None, ingress_mbps=None)
JOB = Job("one", NETWORK.servers[:3] + NETWORK.servers[8:10], NETWORK.servers[5:6], 1_000_000)


@pytest.fixture
def targets(rig):
    for name, target in rig.targets.items():
        target.ports = {NETWORK.port(name, other): True for other in NETWORK.neighbours(name)}
    return rig.targets


@pytest.fixture
def log(rig):
    return rig.log


@pytest.fixture
def network(rig, targets):
    return rig.network


@pytest.fixture
def job(network):
    return network.launch(JOB, "inart")[1]


def ways(job):
    plan = job.migrator.plan
    routes = [pair for tree in plan.trees for flow in tree.flows for pair in pairwise(flow.route)]
    return {frozenset(pair) for pair in (*routes, *(pair for tree in plan.trees for pair in tree.return_edges))}


def link_of(job):
    """Return a link between switches that the job uses, above a switch with servers connected."""
    return sorted(next(way for way in sorted(ways(job), key=sorted) if all(NETWORK.kind(n) == "switch" for n in way)))


def test_port_that_goes_down_takes_its_link_out_and_back_in_when_it_is_steady(network, targets, job, log, monkeypatch):
    monkeypatch.setattr(ports, "STEADY_SECONDS", 0.0)
    u, v = link_of(job)
    watch = PortWatch(network, calling(log.append))
    watch.look()
    assert not network.state.off
    targets[u].ports[NETWORK.port(u, v)] = False
    watch.look()
    assert network.state.off == {f"{u}-{v}": "port down"}
    assert frozenset((u, v)) not in ways(job)
    assert f"lost: port {NETWORK.port(u, v)} of {u}, to {v}, is down" in log
    watch.look()
    assert network.state.off, "it is down still"
    targets[u].ports[NETWORK.port(u, v)] = True
    watch.look()
    assert not network.state.off
    assert f"{u}-{v} can be used again: its ports have been up for 0 s" in log


def test_link_is_off_twice_as_long_each_time_that_its_port_was_down(network, targets, job, log):
    u, v = link_of(job)
    watch = PortWatch(network, calling(log.append))
    watch.look()
    for _ in range(3):
        targets[v].ports[NETWORK.port(v, u)] = False
        watch.look()
        targets[v].ports[NETWORK.port(v, u)] = True
        watch.look()
    assert network.state.off, "not steady for long enough"
    network.replan(restored=[f"{u}-{v}"])
    watch.look()
    assert not network.state.off, "an operator decides otherwise"
    targets[v].ports[NETWORK.port(v, u)] = False
    watch.look()
    assert network.state.off
    assert network.state.parts.ports.losses == {f"{u}-{v}": 2}


def test_a_switch_that_reports_no_port_up_is_not_believed(network, targets, job, log, monkeypatch):
    monkeypatch.setattr(ports, "AT_FIRST_SECONDS", 0.0)
    for target in targets.values():
        target.ports = dict.fromkeys(target.ports, False)
    watch = PortWatch(network, calling(log.append))
    watch.look()
    watch.look()
    assert not network.state.off


def test_port_that_does_not_come_up_counts_after_some_time(network, targets, job, log, monkeypatch):
    u, v = link_of(job)
    targets[u].ports[NETWORK.port(u, v)] = False
    watch = PortWatch(network, calling(log.append))
    watch.look()
    assert not network.state.off, "it may be coming up"
    monkeypatch.setattr(ports, "AT_FIRST_SECONDS", 0.0)
    watch.look()
    assert network.state.off == {f"{u}-{v}": "port down"}
    network.replan(restored=[f"{u}-{v}"])
    watch.look()
    assert not network.state.off, "said once: an operator knows better"


def test_a_lost_only_path_of_a_server_is_reported(network, targets, job, log):
    server = JOB.workers[0]
    access = NETWORK.access_switch(server)
    watch = PortWatch(network, calling(log.append))
    watch.look()
    targets[access].ports[NETWORK.port(access, server)] = False
    watch.look()
    watch.look()
    words = f"port {NETWORK.port(access, server)} of {access}, to {server}, is down: {server} has no other way"
    assert log.count(words) == 1
    assert not network.state.off


def test_switches_without_a_state_of_ports_are_asked_once(network, targets, log):
    for target in targets.values():
        target.ports = None
    watch = PortWatch(network, calling(log.append))
    watch.start()
    assert watch.ended(30)


def test_switch_that_does_not_answer_is_no_port_that_is_down(network, targets, job, log):
    u, _ = link_of(job)
    watch = PortWatch(network, calling(log.append))
    watch.look()
    targets[u].die()
    watch.look()
    assert not network.state.off, "that is the heartbeat's to say"
