"""Topology generators: the networks that they make, and their messages for arguments that make no network."""

from __future__ import annotations

import json

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.planner.generators import parse_topology, shapes
from controlplane.planner.shapes import Rates, clos, dumbbell, ring
from controlplane.planner.topology import Topology, TopologyError
from topologies.generate import main as generate

small = st.integers(1, 3)


@settings(max_examples=30, deadline=None)
@given(st.tuples(small, small, small, small, small), st.sampled_from([0.5, 1.0, 3.0]))
def test_clos_has_the_oversubscription_that_was_asked_for_at_both_tiers(sizes, ratio):
    pods, leaves, spines, cores, servers = sizes
    made = clos(pods, leaves, spines, cores, servers=servers, oversubscription=ratio, rates=Rates(12.0))
    assert len(made.servers) == pods * leaves * servers
    assert len(made.switches) == pods * (leaves + spines) + spines * cores
    assert nx.is_weakly_connected(made.graph)
    for switch in made.switches:
        rates = {other: made.bandwidth_mbps(switch, other) for other in made.neighbours(switch)}
        below = sum(rate for other, rate in rates.items() if other[0] == {"e": "h", "a": "e"}.get(switch[0]))
        above = sum(rate for other, rate in rates.items() if other[0] == {"e": "a", "a": "c"}.get(switch[0]))
        if switch[0] != "c":
            assert below / above == pytest.approx(ratio)


def test_ring_and_dumbbell_have_their_shapes():
    made = ring(5, 2, trunk_mbps=7.0)
    for i in range(5):
        others = made.neighbours(f"s{i + 1}")
        assert sorted(o for o in others if o in made.switches) == sorted({f"s{(i + 1) % 5 + 1}", f"s{(i - 1) % 5 + 1}"})
        assert len(others) == 4
    assert made.bandwidth_mbps("s5", "s1") == made.bandwidth_mbps("s1", "s5") == 7.0
    two = dumbbell(3, 2, Rates(10.0), trunk_mbps=4.0)
    assert [two.access_switch(server) for server in two.servers] == ["s1"] * 3 + ["s2"] * 2
    assert two.bandwidth_mbps("s1", "s2") == 4.0
    assert two.bandwidth_mbps("s1", "h1") == 10.0


@pytest.mark.parametrize("name", sorted(shapes()))
def test_every_rule_has_help_and_makes_a_file_that_loads_as_the_spec_does(name, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        generate([name, "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert all(f"--{option}" in said for option in shapes()[name].options)
    file = tmp_path / "net.json"
    assert generate([name, "--bandwidth", "12", "--output", str(file)]) == 0
    loaded, spec = Topology.load(file), parse_topology(f"{name}:bandwidth=12")
    assert json.dumps(loaded.to_json()) == json.dumps(spec.to_json())


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("ring:swiches=3", "unknown option 'swiches'; did you mean switches"),
        ("leafspine:spine=2", "unknown option 'spine'; did you mean spines"),
        ("clos:pods=two", "pods must be a whole number, got 'two'"),
        ("ring:switches=2", "needs 3 switches"),
        ("dumbbell:left=0", "servers on both sides"),
        ("clos:oversubscription=0", "oversubscription must be above 0"),
        ("dumbbell:trunk=-3", "bandwidth_mbps must not be negative"),
        ("ring:delay=fast", "delay must be a number"),
    ],
)
def test_impossible_networks_are_refused_with_the_reason(spec, words, capsys):
    with pytest.raises(TopologyError, match=words):
        parse_topology(spec)
    name, _, option = spec.partition(":")
    key, _, value = option.partition("=")
    if not words.startswith("unknown option"):
        assert generate([name, f"--{key}={value}"]) == 2
        assert words in capsys.readouterr().err
