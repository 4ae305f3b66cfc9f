"""`inart topology reload`: racks come and go and rates change under a controller, with its jobs running."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.cli.controller import main as operate
from controlplane.cli.reload import Files
from controlplane.common.log_lines import calling
from controlplane.planner.generators import leaf_spine
from controlplane.planner.job import Job
from controlplane.planner.topology import Topology
from controlplane.service.core import parts
from controlplane.service.core.disabled import Why
from controlplane.service.network_state import layout_of
from controlplane.service.reload import ReloadError, compare, reload
from controlplane.targets.base import TargetError
from tests.deploy.memory_network import RACKS, MemoryNetwork
from tests.support.memory import MemoryTarget
from tests.support.waiting import wait_until

TWO = RACKS
THREE = leaf_spine(3, 2, 3, 300.0)
"""The same with another rack, e3 with h7 to h9: its links are at new ports of the spines."""
A = Job("A", ("h1", "h4"), ("h2",), 10**6)


class Rig(MemoryNetwork):
    """A network in memory with a job, whose switches of another topology can be connected, too."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.job = self.add(A)
        self.stubborn: set[str] = set()

    def connect(self, names: Sequence[str]) -> list[MemoryTarget]:
        if wrong := self.stubborn.intersection(names):
            raise TargetError(f"switch {min(wrong)} does not answer")
        made = [MemoryTarget(name) for name in names]
        self.targets |= {target.name: target for target in made}
        return made

    def reload(self, topology: Topology, *, dry_run: bool = False):
        return reload(self.network, topology, self.connect, dry_run=dry_run)

    def holds(self) -> dict[str, object]:
        return {name: target.rules for name, target in self.targets.items()}


@pytest.fixture
def rig(tmp_path):
    made = Rig(tmp_path)
    yield made
    made.close()


def routes_of(target: MemoryTarget) -> set[str]:
    return {route.address for route in target.rules.routes}


def test_a_rack_is_added_with_a_job_running_and_jobs_can_be_added_there(rig):
    before = rig.job.plan
    done = rig.reload(THREE)
    assert {"e3", "h7", "h8", "h9", "e3-s1"} <= set(done.difference.added) and not done.difference.removed
    assert rig.job.plan is before, "the job has not noticed"
    assert THREE.address("h9") in routes_of(rig.targets["e1"]) and THREE.address("h1") in routes_of(rig.targets["e3"])
    rig.add(Job("B", ("h7", "h5"), ("h8",), 10**6))
    assert any(entry.label for entry in rig.targets["e3"].rules.labels)
    assert rig.as_wanted()
    rig.targets["e3"].die()
    rig.targets["e3"].down = False
    keeper = next(one for one in rig.network.switches.keepers if one.target.name == "e3")
    wait_until(lambda: (keeper.wake(), keeper.refills)[1], "the new switch is watched like the others")
    wait_until(rig.as_wanted, "it is filled again")  # A job may be migrating meanwhile.


def test_a_dry_run_names_the_entries_and_changes_nothing(rig):
    before = rig.holds()
    done = rig.reload(THREE, dry_run=True)
    words = {f"{one.switch}: {one.change}" for one in done.changes}
    assert any(one.startswith(f"e1: insert ipv4_table: {THREE.address('h9')}/32") for one in words)
    assert rig.holds() == before and rig.network.topology is TWO and "e3" not in rig.targets


def test_a_rack_goes_when_nothing_of_it_is_used(rig):
    rig.reload(THREE)
    leaving = rig.targets["e3"]
    rig.network.replan(off=["e3"])
    done = rig.reload(TWO)
    assert set(done.difference.removed) >= {"e3", "h7"}
    assert THREE.address("h9") not in routes_of(rig.targets["e1"])
    assert {one.target.name for one in rig.network.switches.keepers} == set(TWO.switches)
    assert not leaving.alive, "its connection is closed"
    del rig.targets["e3"]
    assert rig.as_wanted()


def test_a_topology_without_a_jobs_node_is_refused_and_nothing_changes(rig):
    without = TWO.replace(remove_nodes=["h4"])
    before = rig.holds()
    with pytest.raises(ReloadError, match="job A would lose h4: remove the job first"):
        rig.reload(without)
    assert rig.holds() == before and rig.network.topology is TWO


def test_a_switch_that_a_job_uses_has_to_be_drained_first(rig):
    """The error says how; after a drain it can go."""
    used = next(name for name in ("s1", "s2") if any(rig.network.uses([name])))
    without = TWO.replace(remove_nodes=[used])
    with pytest.raises(ReloadError, match=rf"{used} is not in the new topology, .*job A uses it .*drain {used} --wait"):
        rig.reload(without)
    rig.network.replan(off=[used])
    assert not any(rig.network.uses([used]))
    rig.reload(without)
    assert used not in rig.network.state.off and used not in rig.network.topology
    assert rig.network.state.now.switches == without.switches


def test_another_port_or_address_of_what_a_job_uses_is_refused(rig):
    data = TWO.to_json()
    for link in data["edges"]:
        if {link["source"], link["target"]} == {"e1", "h1"}:
            link["ports"] = {"e1": 40}
    with pytest.raises(ReloadError, match=r"is at port .* of e1 instead of .*job A uses it"):
        rig.reload(Topology.load(data))
    data = TWO.to_json()
    for node in data["nodes"]:
        if node["id"] == "h1":
            node["ip"] = "10.9.9.9"
    with pytest.raises(ReloadError, match=r"job A: h1.* has another address"):
        rig.reload(Topology.load(data))


def test_other_rates_are_planned_for_with_the_job_running(rig):
    """A link that has become slower: the job migrates to what it carries, without an order."""
    slow = TWO.replace(links={link: {"bandwidth_mbps": 5.0} for link in TWO.links if "h1" in link})
    changed = threading.Event()
    before, rig.network.changed = rig.job.plan.rate_mbps, changed.set
    assert before > 5
    done = rig.reload(slow)
    assert {"e1-h1"} == set(done.difference.changed)
    while rig.job.plan.rate_mbps > 5:
        assert changed.wait(30), rig.log
        changed.clear()
    assert rig.job.plan.rate_mbps <= 5


def test_a_new_switch_that_does_not_answer_changes_nothing(rig):
    rig.stubborn = {"e3"}
    before = rig.holds()
    with pytest.raises(TargetError, match="e3 does not answer"):
        rig.reload(THREE)
    assert rig.holds() == before and rig.network.topology is TWO


def test_a_switch_that_refuses_the_new_routes_leaves_all_as_it_was(rig):
    rig.targets["s2"].refuses = lambda change: change.item.kind == "routes"
    before = {name: rules for name, rules in rig.holds().items() if name != "e3"}
    with pytest.raises(TargetError, match="s2 refused"):
        rig.reload(THREE)
    rig.targets["s2"].refuses = lambda change: False
    assert {name: rules for name, rules in rig.holds().items() if name != "e3"} == before
    assert rig.network.topology is TWO
    rig.reload(THREE)
    assert THREE.address("h9") in routes_of(rig.targets["s2"])


def test_what_has_gone_is_not_disabled_and_nobody_looks_for_it():
    """An event about a switch that is no more, from a thread that looked before, is passed over."""
    layout = layout_of(THREE)
    state = replace(parts.Parts(layout), off={"e3": Why.LOST, "s1": Why.OPERATOR, "e3-s2": Why.SILENT})
    state, _ = parts.relaid(state, 0.0, layout_of(TWO))
    assert state.off == {"s1": Why.OPERATOR}
    for event, given in (
        (parts.switches_seen, {"e3": False, "e1": True}),
        (parts.ports_seen, {"e3": {1: True}}),
        (parts.found_silent, ("e3-s2",)),
    ):
        state, _ = event(state, 100.0, given)
        assert state.off == {"s1": Why.OPERATOR}


def test_a_difference_names_links_once():
    found = compare(TWO, THREE.replace(links={("e1", "s1"): {"bandwidth_mbps": 1.0}}))
    assert sorted(name for name in found.added if "-" in name) == ["e3-h7", "e3-h8", "e3-h9", "e3-s1", "e3-s2"]
    assert found.changed == ("e1-s1",)
    assert not compare(TWO, leaf_spine(2, 2, 3, 300.0))


def test_drained_switches_carry_no_ordinary_ipv4_either(rig):
    """Before "safe to unplug": routes through the spine go by the other one; undrain brings them back."""
    spine = "s1" if any(route.port == TWO.port("e1", "s1") for route in rig.targets["e1"].rules.routes) else "s2"
    port = TWO.port("e1", spine)
    usual = rig.targets["e1"].rules.routes
    assert any(route.port == port for route in usual)
    rig.network.replan(off=[spine])
    assert not any(route.port == port for route in rig.targets["e1"].rules.routes)
    assert routes_of(rig.targets["e1"]) == {route.address for route in usual}, "every server can still be reached"
    rig.network.replan(restored=[spine])
    assert set(rig.targets["e1"].rules.routes) == set(usual)


def test_the_verb_reloads_what_the_files_say_and_the_dry_runs_name_entries(rig, tmp_path, capsys):
    """The operator edits the topology file; the controller reads it again on order, and on SIGHUP."""
    file = tmp_path / "net.json"
    file.write_text(json.dumps(TWO.to_json()))
    arguments = type("Arguments", (), {"topology": str(file), "timeout": 5.0, "take_over": False, "keeps": False})
    files = Files(
        arguments, rig.network, connect=lambda names, topology: [], switches=lambda: [], close=lambda target: None,
        log=calling(rig.log.append),
    )  # fmt: skip
    rig.network.read_again = files.read_again
    address = rig.serve()
    assert operate(["topology", "reload", "--controller", address]) == 0
    assert "nothing is different" in capsys.readouterr().out
    file.write_text(json.dumps(TWO.replace(links={("e1", "s1"): {"bandwidth_mbps": 7.0}}).to_json()))
    assert operate(["topology", "reload", "--dry-run", "--json", "--controller", address]) == 0
    assert json.loads(capsys.readouterr().out)["changed"] == ["e1-s1"]
    files.hangup()
    assert rig.network.topology.bandwidth_mbps("e1", "s1") == 7.0
    file.write_text("not JSON")
    files.hangup()
    assert "topology not reloaded" in rig.log[-1]
    assert operate(["topology", "reload", "--controller", address]) == 1
    capsys.readouterr()
    assert operate(["job", "add", "--job", "workers=2,ps=1,name=B", "--dry-run", "--controller", address]) == 0
    said = capsys.readouterr().out
    assert "entries: " in said and ": insert label_table: port " in said
    assert operate(["drain", "s1", "--controller", address]) == 0
    capsys.readouterr()
    assert operate(["replan", "--with", "s1", "--dry-run", "--job", "A", "--controller", address]) == 0
    said = capsys.readouterr().out
    assert "no entry on any switch would change" in said or ": delete label_table: port " in said
