"""Every entry that a plan leads to is allowed by bf-rt.json and means the same as its rule; a wrong entry is
refused.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.planner.entries import Aggregate, LabelEntry, RuleSet
from controlplane.planner.generators import parse_topology
from controlplane.planner.plan.limits import DoesNotFit
from controlplane.planner.rules import build
from controlplane.targets.base import TargetError, difference
from controlplane.targets.bri.entries import Entry, PortName, Prefix, entry_problems, problems
from controlplane.targets.bri.kind import TofinoKind
from controlplane.targets.bri.ports import Panel, PortMap
from controlplane.targets.bri.program import FIXED, Program
from controlplane.targets.bri.reading import rule_set
from controlplane.targets.bri.schema import Schema, SchemaError, local
from p4src.artifacts import find
from tests.controlplane.instances import instances, random_plan
from tests.p4.rig import PORTS
from tests.support.examples import examples
from tests.tofino import frames
from tests.tofino.chip import PROGRAMS
from tests.tofino.plans import deployment, with_front_panel

LIMITS = TofinoKind(find("tna")).limits
FEW = settings(
    max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


def devices(panel: Panel) -> dict[str, int]:
    """Return ports of two pipes in turns, so that the flows of most aggregation points have to meet."""
    return {port.name: port.connector % 2 * 128 + port.connector for port in panel.ports}


@given(instance=instances(), seed=st.integers(0, 2**16))
@FEW
def test_plans_become_allowed_entries_that_say_the_same(program, instance, seed):
    topology, job = instance
    hardware = with_front_panel(topology)
    try:
        rulesets = build(random_plan(hardware, job, seed), hardware, LIMITS, job_id=1, epoch=0).rulesets
    except DoesNotFit:
        return
    for name, rules in rulesets.items():
        panel = Panel.of(hardware, name)
        assert problems(program.schema, program.entries(rules, PortMap(panel))) == []
        ports = PortMap(panel, devices(panel))
        entries = program.entries(rules, ports)
        assert problems(program.schema, entries) == []
        assert difference(rule_set(program, name, entries, ports), rules) == []


@pytest.mark.parametrize("strategy", ["inart", "atp", "lbmm", "equal"])
@pytest.mark.parametrize("workers", [1, 4, 6])
def test_every_strategy_on_the_testbed(program, topology, strategy, workers):
    for name, rules in deployment(topology, strategy, f"workers={workers},ps=2").rulesets.items():
        assert problems(program.schema, program.entries(rules, PortMap(Panel.of(topology, name)))) == []


@pytest.mark.parametrize("strategy", ["inart", "atp", "lbmm", "equal"])
def test_fat_trees_of_tofino_switches(program, strategy):
    """The larger fat trees only fit when the planner knows how many flows Tofino adds at one aggregation point."""
    for k, job in ((4, "workers=8,ps=2,seed=1"), (6, "workers=50,ps=4,seed=1")):
        topology = with_front_panel(parse_topology(f"fattree:k={k}"))
        try:
            rulesets = deployment(topology, strategy, job).rulesets
        except DoesNotFit as error:
            assert (strategy, k) == ("equal", 6), error
            assert "needs 50 flows added at one point of one tree, available are 31" in str(error)
            continue
        for name, rules in rulesets.items():
            panel = Panel.of(topology, name)
            for ports in (PortMap(panel), PortMap(panel, devices(panel))):
                assert problems(program.schema, program.entries(rules, ports)) == []


@pytest.fixture(scope="module")
def entries(program, topology) -> list[Entry]:
    return program.entries(deployment(topology).rulesets["V1"], PortMap(Panel.of(topology, "V1")))


def changed(entry: Entry, **data: object) -> Entry:
    return replace(entry, data=tuple((name, data.get(name, value)) for name, value in entry.data))  # type: ignore[arg-type]


@given(data=st.data())
@settings(max_examples=examples(150), deadline=None)
def test_any_mutation_is_refused(program, entries, data):
    """An entry with an unknown name, a missing field, a value that is too wide or of another type, or another match
    kind is refused.
    """
    entry = data.draw(st.sampled_from(entries))
    table = program.schema.tables[entry.table]
    which = data.draw(
        st.sampled_from(["table", "action", "key name", "key missing", "key value", "data name", "data value"])
    )
    if which == "table":
        wrong = replace(entry, table=entry.table + "x")
    elif which == "action":
        wrong = replace(entry, action=(entry.action or "") + "x")
    elif which == "key name":
        wrong = replace(entry, key=(("no_such_field", 1), *entry.key[1:]))
    elif which == "key missing":
        wrong = replace(entry, key=entry.key[1:])
    elif which == "key value":
        name, value = data.draw(st.sampled_from(entry.key))
        bits = table.keys[name].bits
        bad = [1 << bits, -1, "text", PortName("1/0") if bits < 9 else "x"]
        bad.append(3 if isinstance(value, Prefix) else Prefix(0, 0))
        key = tuple((n, data.draw(st.sampled_from(bad)) if n == name else v) for n, v in entry.key)
        wrong = replace(entry, key=key)
    elif which == "data name":
        wrong = replace(entry, data=(*entry.data, ("no_such_field", 1)))
    else:
        name, value = data.draw(st.sampled_from(entry.data))
        field = table.fields(entry.action)[name]
        bad = {"bool": [1, "yes"], "string": [3, "BF_SPEED_7G", True]}.get(
            field.kind, [-1, 1 << (field.bits or 0), True]
        )
        chosen = data.draw(st.sampled_from(bad))
        # The value is a list of bad values or, for a field that takes lists, a single value; and the reverse.
        wrong = changed(entry, **{name: data.draw(st.sampled_from([chosen, (chosen,)]))})
    assert entry_problems(program.schema, wrong), wrong


def test_inconsistent_entries_are_refused(program, entries):
    label = next(entry for entry in entries if local(entry.table) == "label_table")
    assert any("entries have the key" in problem for problem in problems(program.schema, [label, label]))
    size = program.schema.table("label_table").size
    many = [replace(label, key=((label.key[0][0], 1), (label.key[1][0], n))) for n in range(size + 1)]
    assert not problems(program.schema, many[:-1])
    assert any(f"{size + 1} entries, {size} fit" in problem for problem in problems(program.schema, many))
    route = next(entry for entry in entries if local(entry.table) == "ipv4_table")
    loose = replace(route, key=((route.key[0][0], Prefix(0x0A000001, 24)),))
    assert any("bits behind its prefix" in problem for problem in problems(program.schema, [loose]))
    default = replace(label, action="InartIngress.label.unknown", data=())
    assert any("only for the default entry" in problem for problem in problems(program.schema, [default]))
    constant = program.schema.table("finish_table")
    assert problems(program.schema, [Entry(constant.name, (), None, ())]) == [
        f"{Entry(constant.name, (), None, ())}: table {constant.name} is constant"
    ]


def rule(ingress_port: int, label: int, **values: int) -> LabelEntry:
    action = {"slot_base": 0, "slot_mask": 15, "flow": 1, "everyone": 3, "next_label": 9, "port": 1}
    return LabelEntry(ingress_port, label, Aggregate(**{**action, "partial_label": 19, **values}))


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ([rule(3, n, flow=1 << n, everyone=(1 << 32) - 1) for n in range(32)], "32 flows come in.*at most 31"),
        ([rule(3, 1, slot_base=8, everyone=1)], "slots begin at 8, not at a multiple of 16"),
        ([rule(3, 1), rule(4, 2, flow=2, port=2)], "differ in slots, bits of all flows, labels or port"),
        ([rule(3, 1), rule(4, 2, flow=2, partial_label=20)], "differ in slots, bits of all flows, labels or port"),
        ([rule(3, 1), rule(4, 2)], "the bit of a flow is 0x1; each has one of its own"),
        ([rule(3, 1, flow=3)], "the bit of a flow is 0x3; each has one of its own"),
        ([rule(3, 1, flow=1 << 31, everyone=1 << 31)], "its flows bring 0x80000000; there are 31 bits"),
        ([rule(3, 1)], "expects 0x3, its flows bring 0x1"),
        ([rule(99, 1, everyone=1)], "port 99, which the topology's front panel does not have"),
    ],
)
def test_unsupported_rules_are_explained(program, topology, rules, message):
    with pytest.raises(TargetError, match=message):
        program.entries(RuleSet("V1", tuple(rules), (), ()), PortMap(Panel.of(topology, "V1")))


def test_aggregation_without_a_loopback_port_is_explained(program, topology):
    panel = replace(Panel.of(topology, "V1"), loopback=())
    with pytest.raises(TargetError, match=r'needs a loopback port.*"loopback_ports"'):
        program.entries(deployment(topology).rulesets["V1"], PortMap(panel))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("no json", "is not a bf-rt.json"),
        ("{}", "is not a bf-rt.json: KeyError: 'tables'"),
        ('{"tables": [{"name": "t", "id": 1}]}', "table t: 'table_type' is missing"),
    ],
)
def test_unreadable_schema_is_explained(text, message):
    with pytest.raises(SchemaError, match=message):
        Schema.parse(text.encode(), "here")


def test_schema_without_our_tables_is_explained():
    with pytest.raises(SchemaError, match=r"has no table 'label_table'; it has \$PORT"):
        Program.load(FIXED)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_entries_that_tests_give_a_model_of_the_chip_are_allowed(name):
    target, _, values = name.partition("-")
    artifact = find(target, int(values))
    ports = {port: frames.FIRST[target] + port for port in PORTS}
    made = frames.entries(artifact, frames.ours(artifact), ports, frames.FIRST[target] + frames.LOOP)
    assert problems(Program.load(artifact.program).schema, made) == []
    assert {local(entry.table) for entry in made} >= {"label_table", "ipv4_table", "bridge_table"}
