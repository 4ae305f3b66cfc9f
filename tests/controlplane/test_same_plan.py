"""The same input gives the same plan and the same bound on every machine, however busy it is, and both end in time."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from controlplane.planner.job import Job
from controlplane.planner.plan import Plan
from controlplane.planner.strategies import get_strategy
from controlplane.planner.strategies.deadline import limited_work
from controlplane.planner.strategies.fabric import prove
from controlplane.planner.strategies.fabric.bounds import cheap_bound
from controlplane.planner.strategies.fabric.prove import ENDED, closer_bound, proven_bound
from controlplane.planner.topology import Topology
from evaluation.inart.__main__ import main
from evaluation.inart.varied import draw
from tests.support.examples import nightly

CASES = Path(__file__).parent / "cases"


def case(name: str) -> tuple[Topology, Job]:
    """Return a network and a job that were reported as a fault."""
    content = json.loads((CASES / f"{name}.json").read_text())
    return Topology.load(content["topology"]), Job.from_json(content["job"])


@pytest.mark.parametrize("name", ["det172", nightly("slow24")])
def test_no_search_reads_a_clock(name, monkeypatch):
    """Clocks ended parts of searches: on a busy machine one network had plans of 11.0478, 11.0301 and 11.0103."""

    def read():
        raise AssertionError("a search has read a clock")

    topology, job = case(name)
    get_strategy("inart")  # its modules are imported
    for clock in ("process_time", "monotonic", "perf_counter", "thread_time", "time"):
        original = getattr(time, clock)
        taken = [
            where
            for where, module in sys.modules.items()
            if where.startswith("controlplane.planner.strategies.fabric") and getattr(module, clock, None) is original
        ]
        assert not taken, f"{taken} have {clock} of their own"
        monkeypatch.setattr(time, clock, read)
    plan = get_strategy("inart")(topology, job)
    assert closer_bound(plan, topology) is not None


def test_few_trees_are_searched_for_without_a_clock(monkeypatch):
    topology, job = case("det172")
    network = topology.replace(nodes={v: {"slots": 64} for v in topology.switches})

    def planned() -> Plan:
        return get_strategy("inart")(network, job)

    first = planned()
    monkeypatch.setattr(time, "process_time", lambda: pytest.fail("a search has read a clock"))
    assert planned().to_json() == first.to_json()


PLANNED = """
import json, sys
from controlplane.planner.strategies import get_strategy
from tests.controlplane.test_same_plan import case
print(json.dumps(get_strategy("inart")(*case("det172")).to_json()))
"""


def test_the_order_of_sets_changes_no_plan():
    """Sets of names have another order in every process."""
    made = []
    for seed in ("1", "2"):
        environment = {"PYTHONHASHSEED": seed, "PYTHONPATH": ".", "PATH": ""}
        command = [sys.executable, "-c", PLANNED]
        made.append(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)
    assert made[0] == made[1]


@pytest.mark.parametrize(("name", "ended"), [("slow24", False), ("det172", True)])
def test_a_proof_keeps_to_its_budget_and_says_if_it_is_used_up(name, ended):
    """Exact pricing took 145 CPU seconds and more for `slow24`, a network of 16 hosts that add."""
    topology, job = case(name)
    plan = get_strategy("inart")(topology, job)
    with limited_work(1e15) as limit:
        found = closer_bound(plan, topology)
    assert found is not None and found.what.endswith(ENDED) == ended
    assert plan.rate_mbps * (1 - 1e-9) <= found.mbps < cheap_bound(topology, job).mbps * 0.99
    assert limit.work_left is not None and 1e15 - limit.work_left < 1.5 * prove.CLOSER_WORK


def test_more_work_makes_no_bound_worse():
    instance = draw(10)
    plan = get_strategy("inart")(instance.topology, instance.job)
    bounds = [proven_bound(instance.topology, instance.job, plan, work=work) for work in (1.0, 1e5, 1e9)]
    assert bounds[0].what.endswith(ENDED) and not bounds[-1].what.endswith(ENDED)
    assert bounds[0].mbps >= bounds[1].mbps >= bounds[2].mbps >= plan.rate_mbps * (1 - 1e-9)
    assert bounds[0].mbps > bounds[2].mbps * 1.02


def test_networks_get_the_same_plans_beside_busy_processes(capsys):
    assert main(["steady", "--count", "2", "--seed", "4809"]) == 0
    assert "different: [] of 2 networks" in capsys.readouterr().out
