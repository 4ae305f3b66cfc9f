"""Wrong input is refused with a message in words that suggests what may have been meant."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from controlplane.cli.deploy import main
from controlplane.cli.plan.command import main as plan_command
from controlplane.planner.frontpanel import FrontPanelError, make_port
from controlplane.planner.generators import testbed
from controlplane.planner.job import Job, JobError, parse_job, parse_next_job
from controlplane.planner.plan import Plan, PlanError
from controlplane.planner.plan.limits import ATTRIBUTES
from controlplane.planner.routing import Unreachable
from controlplane.planner.strategies import get_strategy
from controlplane.planner.topology import Topology, TopologyError
from controlplane.planner.topology_checks import SWITCH_LIMITS

NET = testbed(switch_mbps=60, server_mbps=40, link_mbps=60)
JOB = parse_job("workers=4,ps=2", NET)


def changed(what: str, name: str, **attributes: Any) -> dict[str, Any]:
    """Return the testbed with other attributes of one node or link."""
    data = NET.to_json()
    for entry in data[what]:
        if name in (entry.get("id"), f"{entry.get('source')}-{entry.get('target')}"):
            entry.update(attributes)
    return data


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (
            changed("nodes", "V1", agregation_mbps=5),
            "node 'V1': unknown attribute 'agregation_mbps'; did you mean aggr",
        ),
        (changed("nodes", "V1", slotz=5), "unknown attribute 'slotz'; did you mean slots"),
        (
            changed("edges", "V1-V2", bandwidth=5),
            "link V1 -> V2: unknown attribute 'bandwidth'; did you mean bandwidth_",
        ),
        (changed("nodes", "W1", mac="01:00:5e:00:00:01"), "node 'W1': mac 01:00:5e:00:00:01 is a group's"),
        (changed("nodes", "W1", mac=NET.mac("W2")), "servers W1 and W2 have the same MAC address"),
        (
            {**NET.to_json(), "graph": {"results_on_link": False}},
            "graph: unknown attribute 'results_on_link'; did you mean results_on_links",
        ),
        ({**NET.to_json(), "graph": {"results_on_links": "no"}}, "results_on_links must be true or false, got 'no'"),
        ({**NET.to_json(), "graph": ["name"]}, '"graph" must be an object'),
        ({**NET.to_json(), "results_on_links": False}, 'results_on_links belongs in the object "graph"'),
        ({**NET.to_json(), "result_on_links": False}, "unknown attribute 'result_on_links'; did you mean results_on_"),
        ({**NET.to_json(), "edgez": []}, "unknown attribute 'edgez'; did you mean edges"),
        ({**NET.to_json(), "directed": "false"}, "directed must be true or false, got 'false'"),
        ({**NET.to_json(), "multigraph": 0}, "multigraph must be true or false, got 0"),
    ],
)
def test_topologies(data, words):
    with pytest.raises(TopologyError, match=words):
        Topology.load(data)


NET_TEXT = json.dumps(NET.to_json())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (NET_TEXT.replace('"id": "V1"', '"id": "V1", "id": "V2"').encode(), "key 'id' is given twice in one object"),
        (
            NET_TEXT.replace('"nodes"', '// the nodes\n"nodes"').encode(),
            "JSON has no comments; remove the one at line 1",
        ),
        (b"# a network\n" + NET_TEXT.encode(), "JSON has no comments; remove the one at line 1 column 1"),
        (b"", "it is empty"),
        (b"\n<graphml/>", "it looks like XML (GraphML?)"),
        (b"graph [\n  node [\n", "it looks like GML"),
        (b"name: srl\ntopology:\n", "it begins with 'name:', a JSON file with an object or a list"),
        (NET_TEXT.encode("utf-16"), "it is not UTF-8 text (byte 1)"),
        (NET_TEXT[:-2].encode(), "Expecting ',' delimiter: line 1 column"),
    ],
)
def test_a_file_that_is_no_json_says_what_it_is(text, words, tmp_path):
    file = tmp_path / "net.json"
    file.write_bytes(text)
    with pytest.raises(TopologyError, match=re.escape(f"cannot read topology file {file}: {words}")):
        Topology.load(file)


def test_a_byte_order_mark_changes_nothing(tmp_path):
    file = tmp_path / "net.json"
    file.write_bytes(NET_TEXT.encode("utf-8-sig"))
    assert Topology.load(file).to_json() == NET.to_json()


@pytest.mark.parametrize(
    ("links", "words"),
    [
        ({("s", "a"): 10, ("t", "b"): 10}, "no route from a to b: no path of links leads there"),
        ({("s", "a"): 10}, "no route from a to b: b has no link"),
        (
            {("s", "a"): 10, ("s", "h"): 10, ("t", "h"): 10, ("t", "b"): 10},
            "no route from a to b: the only paths lead through servers, which do not forward (h)",
        ),
        (
            {("s", "a"): 10, ("s", "t"): 0, ("t", "b"): 10},
            "no route with bandwidth left from a to b: link s -> t has none",
        ),
    ],
)
def test_a_route_that_is_missing_says_why(links, words):
    kinds = {"s": "switch", "t": "switch", "a": "server", "b": "server", "h": "server"}
    topology = Topology.load(
        {
            "nodes": [{"id": node, "kind": kind} for node, kind in kinds.items()],
            "edges": [{"source": u, "target": v, "bandwidth_mbps": mbps} for (u, v), mbps in links.items()],
        }
    )
    with pytest.raises(Unreachable, match=re.escape(f"parameter server b: {words}")):
        get_strategy("inart")(topology, Job("j", ("a",), ("b",), 1000))


def test_messages_name_each_limit_once():
    assert set(SWITCH_LIMITS) == set(ATTRIBUTES)


def test_jobs():
    with pytest.raises(JobError, match="unknown attribute 'worker'; did you mean workers"):
        Job.from_json({**JOB.to_json(), "worker": ["W1"]})


@pytest.mark.parametrize("rate", [-1.0, float("nan"), float("inf")])
def test_plans(rate):
    plan = get_strategy("atp")(NET, JOB).to_json()
    with pytest.raises(PlanError, match="rate_mbps must be a number of at least 0"):
        Plan.from_json({**plan, "rate_mbps": rate})
    plan["trees"][0]["share"] = rate
    with pytest.raises(PlanError, match="share must be a number of at least 0"):
        Plan.from_json(plan)


@pytest.mark.parametrize("kind", ["topology", "job", "plan", "switches"])
def test_files_nested_too_deeply(kind, tmp_path, capsys):
    file = tmp_path / "deep.json"
    file.write_text("[" * 100_000)
    files = {"topology": str(file), "job": str(file), "plan": str(file), "switches": str(file)}
    words = ["--topology", files["topology"] if kind == "topology" else "testbed"]
    words += ["--plan", files["plan"]] if kind == "plan" else ["--job", files["job"] if kind == "job" else "ps=1"]
    assert main([*words, *(["--bmv2", "--switches", str(file)] if kind == "switches" else ["--dry-run"])]) in (1, 2)
    assert "nested too deeply" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["99/0", "0/1", "66/0", "1/8", "1"])
def test_front_panel_ports_that_no_switch_has(name):
    with pytest.raises(FrontPanelError):
        make_port(name, {"speed": "100G"})


@pytest.mark.parametrize(
    ("speed", "fec"),
    [("10G", "rs"), ("40G", "rs"), ("100G", "firecode"), ("200G", "none"), ("400G", "none"), ("400G", "firecode")],
)
def test_a_fec_that_a_driver_would_refuse_is_refused(speed: str, fec: str) -> None:
    with pytest.raises(FrontPanelError, match=f"fec with {speed}"):
        make_port("1/0", {"speed": speed, "fec": fec})


@pytest.mark.parametrize(("speed", "fec"), [("10G", "none"), ("25G", "none"), ("100G", "none"), ("400G", "rs")])
def test_the_default_fec_of_a_port_fits_its_speed(speed: str, fec: str) -> None:
    assert make_port("1/0", {"speed": speed}).fec == fec


def test_ports_that_the_switches_do_not_have(tmp_path, capsys):
    (tmp_path / "net.json").write_text(json.dumps(changed("edges", "V1-V2", ports={"V1": 600, "V2": 1})))
    assert main(["--topology", str(tmp_path / "net.json"), "--job", "workers=4,ps=2", "--dry-run"]) == 2
    assert "switch V1: port 600 towards V2: ports are 1 to 510" in capsys.readouterr().err


def test_server_on_two_switches_is_planned_and_its_trees_go_over_both_links(tmp_path, capsys):
    data = NET.to_json()
    data["edges"].append({"source": "W1", "target": "V2", "bandwidth_mbps": 60})
    Path(tmp_path / "net.json").write_text(json.dumps(data))
    assert main(["--topology", str(tmp_path / "net.json"), "--job", "workers=6,ps=2", "--dry-run"]) == 0
    entries = capsys.readouterr().out
    first, second = entries.split("\nswitch V2:")
    assert ": from W1" in first, "a tree of W1 goes over its link to V1"
    assert ": from W1" in second, "a tree of W1 goes over its link to V2"
    assert plan_command(["--topology", str(tmp_path / "net.json"), "--job", "workers=6,ps=2"]) == 0
    assert "30 Mbit/s" in capsys.readouterr().out


def test_a_job_beside_others_is_told_which_resource_is_short():
    topology = testbed()
    others = {"one": topology.servers[:-1]}
    with pytest.raises(JobError, match="needs 3 servers, the topology has 1 beside those of one"):
        parse_next_job("workers=2,ps=1", topology, others)
    with pytest.raises(JobError, match="not a list"):
        parse_next_job("[" * 100_000, topology, others)


NAN_NODE = changed("nodes", "V1", aggregation_mbps=float("nan"))


@pytest.mark.parametrize(
    ("option", "content", "words"),
    [
        ("--topology", {"a": 1}, "a topology is node-link JSON"),
        ("--topology", NAN_NODE, "aggregation_mbps must be a number, got NaN"),
        ("--job", {"a": 1}, "unknown attribute 'a'"),
        ("--job", {**JOB.to_json(), "workers": ["nobody"]}, "worker 'nobody' does not exist"),
        ("--frozen-split", {"a": 1}, "field 'job' is missing"),
        ("--frozen-split", [1], "a plan is an object with a job"),
    ],
)
def test_an_error_in_a_file_names_the_file(option, content, words, tmp_path, capsys):
    file = tmp_path / "wrong.json"
    file.write_text(json.dumps(content))
    given = {"--topology": "testbed", option: str(file)}
    assert plan_command([word for pair in given.items() for word in pair]) == 2
    said = capsys.readouterr().err
    assert str(file) in said and words in said


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["pareto", "--rate-at-least", "nan"], "--rate-at-least must be a part of the rate"),
        (["pareto", "--rate-at-least", "3"], "--rate-at-least must be a part of the rate"),
        (["--strategy", "nobody"], "unknown strategy 'nobody'"),
        (["--strategy", "lbmm,nobody"], "unknown strategy 'nobody'"),
        (["--draw", "plan.nothing"], "no picture has the format 'nothing'"),
        (["pareto", "--plot", "plan.nothing"], "no picture has the format 'nothing'"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_planned(arguments, words, monkeypatch, capsys):
    def loaded(_):
        raise AssertionError("it has begun to work")

    monkeypatch.setattr("controlplane.cli.plan.command.loaded", loaded)
    assert plan_command([*arguments, "--topology", "testbed"]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "own", "others"),
    [
        ("plan", ("--losses", "--draw", "--output", "--compare"), ("--plot", "--apart", "--rate-at-least")),
        ("pareto", ("--plot", "--rate-at-least"), ("--draw", "--losses", "--frozen-split")),
        ("place", ("--apart", "--output"), ("--prove", "--plot", "--keep")),
    ],
)
def test_help_of_a_command_has_its_own_options(command, own, others, capsys):
    with pytest.raises(SystemExit):
        plan_command([command, "--help"])
    words = capsys.readouterr().out
    assert all(option in words for option in ("--topology", "--job", *own))
    assert not any(option in words for option in others)
