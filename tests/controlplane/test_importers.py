"""Topology files of other projects: read as their projects write them, completed by what the user gives, refused with a
remedy where data are missing, and harmless whatever is in them.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import quoteattr

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.cli import controller
from controlplane.planner.generators import parse_topology
from controlplane.planner.importers import import_file
from controlplane.planner.topology import Topology, TopologyError

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")


class Net(NamedTuple):
    """A network as tests draw it: links (node, node, Mbit/s, km), of which some are parallel cables."""

    nodes: list[str]
    links: list[tuple[str, str, int, int]]

    @property
    def simple(self) -> Net:
        """The network with one link between two nodes."""
        return Net(self.nodes, list({frozenset(link[:2]): link for link in self.links}.values()))

    def topology(self, name: str, *, mbps: int | None = None, lengths: bool = False) -> Topology:
        """Return the network as InArt has it; `mbps` for all links if the format has no bandwidths."""
        nodes = {n: {"kind": "server" if n.startswith("h") else "switch"} for n in self.nodes}
        links = []
        for u, v, own, km in self.links:
            rates = {"bandwidth_mbps": mbps or own, **({"delay_ms": km / 200} if lengths and km else {})}
            links += [(u, v, rates), (v, u, rates)]
        return Topology(nodes, links, name)


@st.composite
def nets(draw: st.DrawFn) -> Net:
    switches = [f"s{i}" for i in range(draw(st.integers(1, 5)))]
    servers = [f"h{i}" for i in range(draw(st.integers(2, 4)))]
    pairs = [(draw(st.sampled_from(switches[:i])), one) for i, one in enumerate(switches) if i]
    pairs += [(draw(st.sampled_from(switches)), one) for one in servers]
    if len(switches) > 1:
        pairs += draw(st.lists(st.lists(st.sampled_from(switches), min_size=2, max_size=2, unique=True), max_size=3))
    rates = st.sampled_from([1000, 10_000, 25_000, 400_000])
    return Net(switches + servers, [(u, v, draw(rates), draw(st.integers(0, 900))) for u, v in pairs])


def cables(net: Net) -> list[tuple[str, str, str, str, int]]:
    """Return the links with their ports: (node, port, node, port, Mbit/s)."""
    used: dict[str, int] = {}

    def port(node: str) -> str:
        used[node] = used.get(node, 0) + 1
        return f"eth{used[node]}"

    return [(u, port(u), v, port(v), mbps) for u, v, mbps, _ in net.links]


def teal(net: Net, folder: Path) -> str:
    arcs = [(a, b, mbps) for u, v, mbps, _ in net.links for a, b in ((u, v), (v, u))]
    links = [{"capacity": mbps / 1000, "source": u, "target": v} for u, v, mbps in arcs]
    nodes = [{"id": node} for node in net.nodes]
    content = {"directed": True, "multigraph": False, "graph": {}, "nodes": nodes, "links": links}
    return written(folder / "net.json", json.dumps(content), "unit=Gbit/s,servers=h*,adding=s*")


def topohub(net: Net, folder: Path) -> str:
    links = [{"dist": km, "ecmp_fwd": {"uni": 1.5}, "source": u, "target": v} for u, v, _, km in net.links]
    nodes = [{"pos": [4.89, 52.37], "id": node} for node in net.nodes]
    graph = {"name": "net", "demands": {}, "stats": {"nodes": len(nodes)}}
    content = {"directed": False, "multigraph": False, "graph": graph, "nodes": nodes, "links": links}
    return written(folder / "net.json", json.dumps(content), "bandwidth=500,servers=h*,adding=s*")


def graphml(net: Net, folder: Path) -> str:
    keys = [("d1", "node", "label"), ("d2", "edge", "LinkSpeedRaw"), ("d3", "edge", "LinkType")]
    lines = ['<?xml version="1.0" encoding="utf-8"?>', '<graphml xmlns="http://graphml.graphdrawing.org/xmlns">']
    lines += [f'<key id="{key}" for="{of}" attr.name="{name}" attr.type="string"/>' for key, of, name in keys]
    lines.append('<graph edgedefault="undirected">')
    number = {node: str(i) for i, node in enumerate(net.nodes)}
    lines += [f'<node id={quoteattr(i)}><data key="d1">{node}</data></node>' for node, i in number.items()]
    for u, v, mbps, _ in net.links:
        data = f'<data key="d2">{mbps * 1e6}</data><data key="d3">Fibre</data>'
        lines.append(f'<edge source="{number[u]}" target="{number[v]}">{data}</edge>')
    return written(folder / "net.graphml", "\n".join([*lines, "</graph></graphml>"]), "servers=h*,adding=s*")


def clab(net: Net, folder: Path) -> str:
    nodes = {node: {"kind": "linux", "image": "alpine"} if node[0] == "h" else {"kind": "srl"} for node in net.nodes}
    links = [{"endpoints": [f"{u}:{one}", f"{v}:{other}"]} for u, one, v, other, _ in cables(net)]
    content = {"name": "net", "topology": {"nodes": nodes, "links": links}}
    return written(folder / "net.clab.yml", yaml.safe_dump(content), "bandwidth=500,adding=s*")


def chassis(node: str) -> dict[str, Any]:
    kinds = [{"type": "Bridge", "enabled": node[0] == "s"}, {"type": "Station", "enabled": node[0] == "h"}]
    return {"id": {"type": "mac", "value": "02:00:00:00:00:01"}, "descr": "Linux", "capability": kinds}


def lldp(net: Net, folder: Path) -> str:
    """lldpcli -f json: an object for one interface, a list for several; ports are named by MAC addresses."""
    views: dict[str, list[dict[str, Any]]] = {}
    for u, one, v, other, mbps in cables(net):
        medium = f"{mbps // 1000}GbaseCR - copper" if mbps > 1000 else "1000BaseTFD - full duplex"
        for node, interface, near in ((u, one, v), (v, other, u)):
            port = {"id": {"type": "mac", "value": "02:00:00:00:00:02"}, "auto-negotiation": {"current": medium}}
            view = {"via": "LLDP", "rid": "1", "chassis": {near: chassis(near)}, "port": port}
            views.setdefault(node, []).append({interface: view})
    (folder / "net").mkdir(exist_ok=True)
    for old in (folder / "net").iterdir():
        old.unlink()
    for node, entries in views.items():
        content = {"lldp": {"interface": entries[0] if len(entries) == 1 else entries}}
        (folder / "net" / f"{node}.json").write_text(json.dumps(content))
    return f"{folder / 'net'}:adding=s*"


def netbox(net: Net, folder: Path) -> str:
    lines = ["side_a_device,side_a_type,side_a_name,side_b_device,side_b_type,side_b_name,status,label"]
    kind = "dcim.interface"
    lines += [f"{u},{kind},{one},{v},{kind},{other},connected,x" for u, one, v, other, _ in cables(net)]
    return written(folder / "net.csv", "\r\n".join(lines), "bandwidth=500,servers=h*,adding=s*")


def sonic(net: Net, folder: Path) -> str:
    lines = ["StartDevice,StartPort,EndDevice,EndPort,BandWidth,VlanID,VlanMode"]
    lines += [f"{u},{one},{v},{other},{mbps},1681,Access" for u, one, v, other, mbps in cables(net)]
    return written(folder / "net.csv", "\n".join(lines), "servers=h*,adding=s*")


def batfish(net: Net, folder: Path) -> str:
    def end(node: str, port: str) -> dict[str, str]:
        return {"hostname": node, "interfaceName": port}

    edges = [{"node1": end(u, one), "node2": end(v, other)} for u, one, v, other, _ in cables(net)]
    edges += [{"node1": edge["node2"], "node2": edge["node1"]} for edge in edges]
    return written(folder / "net.json", json.dumps({"edges": edges}), "bandwidth=500,servers=h*,adding=s*")


def written(path: Path, text: str, options: str) -> str:
    path.write_text(text)
    return f"{path}:{options}"


def shape(topology: Topology) -> tuple[dict[str, float], list[tuple[str, str, float, float]]]:
    """Return the nodes with what they add, and the links between them. A cable is one, whatever its name is."""
    ends = {cable: topology.neighbours(cable) for cable in topology.cables}
    found = []
    for u, v in topology.links:
        if v in ends:
            far = next(end for end in ends[v] if end != u)
            found.append((u, far, topology.bandwidth_mbps(u, v), topology.delay_ms(u, v) + topology.delay_ms(v, far)))
        elif u not in ends:
            found.append((u, v, topology.bandwidth_mbps(u, v), topology.delay_ms(u, v)))
    return {node: topology.aggregation_mbps(node) for node in topology.nodes if node not in ends}, sorted(found)


class Format(NamedTuple):
    """A format: how to write a network, whether it has parallel cables and lengths, the Mbit/s if it has none."""

    write: Callable[[Net, Path], str]
    parallel: bool = True
    mbps: int | None = None
    lengths: bool = False


FORMATS = {
    "teal": Format(teal, parallel=False),
    "topohub": Format(topohub, parallel=False, mbps=500, lengths=True),
    "graphml": Format(graphml, parallel=False),
    "containerlab": Format(clab, mbps=500),
    "lldp": Format(lldp),
    "netbox": Format(netbox, mbps=500),
    "sonic": Format(sonic),
    "batfish": Format(batfish, mbps=500),
}


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(net=nets())
def test_a_network_written_in_a_format_is_read_as_it_was(net: Net, name: str, tmp_path: Path) -> None:
    form = FORMATS[name]
    net = net if form.parallel else net.simple
    imported = parse_topology(form.write(net, tmp_path))
    assert imported.name == "net"
    assert shape(imported) == shape(net.topology("net", mbps=form.mbps, lengths=form.lengths))


def imported(tmp_path: Path, name: str, text: str | bytes, options: str = "") -> tuple[Topology, str]:
    """Return the topology in a file with this text, and the notes about it."""
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    topology, notes = import_file(f"{path}:{options}" if options else str(path))
    return topology, "\n".join(notes)


def links(topology: Topology) -> dict[tuple[str, str], float]:
    return {(u, v): topology.bandwidth_mbps(u, v) for u, v in topology.links if u < v}


GRAPH = {"nodes": [{"id": 0, "pos": [1, 2]}, {"id": 1}], "links": [{"source": 0, "target": 1, "capacity": 5.0}]}


def graph(**changes: Any) -> str:
    return json.dumps({**GRAPH, **changes})


def test_no_imported_switch_adds_unless_the_user_says_so(tmp_path: Path) -> None:
    topology, notes = imported(tmp_path, "net.json", graph(), "servers=1")
    assert [topology.aggregation_mbps(switch) for switch in topology.switches] == [0, 0]
    assert "no switch adds" in notes and "adding=" in notes
    topology, notes = imported(tmp_path, "net.json", graph(), "servers=1,adding=1|7")
    assert [topology.aggregation_mbps(switch) for switch in ("0", "1")] == [0, float("inf")]
    assert "no switch adds" not in notes


def test_servers_are_put_at_each_switch_on_links_that_are_no_bottleneck(tmp_path: Path) -> None:
    topology, _ = imported(tmp_path, "net.json", graph(), "servers=2")
    assert topology.servers == ("0-h1", "0-h2", "1-h1", "1-h2")
    assert links(topology)["0", "0-h1"] == 5


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        (graph(links=[{"source": 0, "target": 1}]), "", ["bandwidths of 1 of 1 links", "0 - 1", "servers=1"]),
        (graph(), "", ["servers", "host*", "FILE:servers=1"]),
        (graph(links=[]), "servers=1", ["no link"]),
        (graph(links=[{"source": 0, "target": 0}]), "servers=1", ["no link"]),
        (graph(), "servers=x*", ["servers=x*", "matches none", "0, 1"]),
        (graph(), "servers=0", ["servers", "1 to 1000"]),
        (graph(), "servers=1,adding=leaf*", ["adding=leaf*", "matches none"]),
        (graph(), "servers=1,unit=Mbps", ["unit", "Mbit/s", "'Mbps'"]),
        (graph(), "servers=1,bandwidth=fast", ["bandwidth", "'fast'"]),
        (graph(), "servers=1,speed=3", ["'speed=3'", "bandwidth="]),
        (graph(), "servers=1,servers=2", ["servers= is given twice"]),
        (graph(links=[{"source": 0, "target": 7, "capacity": 1}]), "servers=1", ["link 0 - 7", "'7' does not exist"]),
        (graph(links=[{"source": 0, "target": 1, "capacity": -1}]), "servers=1", ["capacity", "negative", "-1"]),
        (graph(links=[{"source": 0, "target": 1, "capacity": True}]), "servers=1", ["capacity", "True"]),
        (graph(links=[{"source": 0, "target": 1, "capacity": 1e999}]), "servers=1", ["capacity", "inf"]),
        (graph(directed="false"), "servers=1", ["directed must be true or false", "'false'"]),
        (graph(nodes=[{"id": 0}, {"id": 0}]), "servers=1", ["'0' is given twice"]),
        (graph(nodes=[{"id": None}]), "servers=1", ["node's id", "None"]),
        (graph(edges=[]), "servers=1", ["not in both"]),
        (graph(nodes={}), "servers=1", ["nodes must be a list"]),
    ],
)
def test_what_is_missing_or_wrong_is_asked_for(tmp_path: Path, text: str, options: str, words: list[str]) -> None:
    with pytest.raises(TopologyError) as error:
        imported(tmp_path, "net.json", text, options)
    assert str(tmp_path / "net.json") in str(error.value)
    for word in words:
        assert word in str(error.value)


def test_self_links_duplicates_and_lonely_nodes_are_left_out_and_reported(tmp_path: Path) -> None:
    ends = [(0, 1, 5), (1, 0, 9), (0, 0, 1), (0, 1, 2)]
    text = graph(
        links=[{"source": u, "target": v, "capacity": c, "cost": 3} for u, v, c in ends],
        nodes=[{"id": 0, "pos": [1, 2]}, {"id": 1}, {"id": "alone"}],
    )
    topology, notes = imported(tmp_path, "net.json", text, "servers=1")
    assert links(topology)["0", "1"] == 9 and "alone" not in topology
    assert "links from a node to itself, at 0" in notes and "2 links that were given again" in notes
    assert "alone" in notes and notes.count("not used: cost, pos") == 1


def test_parallel_links_of_a_multigraph_stay_parallel(tmp_path: Path) -> None:
    two = [{"source": 0, "target": 1, "key": key, "capacity": 5} for key in (0, 1)]
    topology, _ = imported(tmp_path, "net.json", graph(links=two, multigraph=True), "servers=1")
    assert len(topology.cables) == 1
    assert not imported(tmp_path, "net.json", graph(links=two), "servers=1")[0].cables


CLAB = """
name: lab
mgmt: {network: fixed}
topology:
  defaults: {kind: srl}
  groups:
    clients: {kind: linux}
  kinds:
    srl: {image: ghcr.io/nokia/srlinux}
  nodes:
    leaf1: &leaf
      type: ixr6
    leaf2:
      <<: *leaf
    client1: {group: clients}
    client2: {kind: linux, exec: ["ip link"]}
    br: {kind: bridge}
  links:
    - endpoints: ["leaf1:e1-1", "leaf2:e1-1"]
    - endpoints: ["leaf1:e1-2", "leaf2:e1-2"]
      mtu: 9000
    - type: veth
      endpoints:
        - {node: client1, interface: eth1}
        - {node: leaf1, interface: e1-3}
    - endpoints: ["client2:eth1", "leaf2:e1-3"]
    - endpoints: ["leaf1:e1-9", "host:leaf1-e9"]
    - type: mgmt-net
      endpoint: {node: leaf1, interface: e1-10}
      host-interface: veth1
"""


def test_containerlab(tmp_path: Path) -> None:
    topology, notes = imported(tmp_path, "lab.clab.yml", CLAB, "bandwidth=100,adding=leaf1")
    assert topology.servers == ("client1", "client2") and topology.devices == ("leaf1", "leaf2")
    assert len(topology.cables) == 1 and topology.aggregation_mbps("leaf2") == 0
    assert "2 links to the machine itself or outside" in notes and "no link: br" in notes
    assert "client1, client2" in notes
    assert "not used: exec, interface names, kinds, mgmt, mtu, type" in notes.replace("host-interface, ", "")


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("a: b", "without `topology`"),
        ("topology:\n  nodes: {a: {}}\n", "no link between two nodes"),
        ("topology:\n{{- if .more }}\n  nodes: {}\n", "a template"),
        ("!!python/object/apply:os.system ['false']", "no YAML"),
        ("topology: {nodes: {a: {kind: srl, kind: linux}}}", "'kind' is given twice"),
        ("topology:\n  nodes:\n   a: x", "node a must be an object"),
        ("topology: {nodes: {a: {}}, links: [{endpoints: ['a:1']}]}", "list of two"),
        ("topology: {nodes: {a: {}}, links: [{endpoints: ['a:1', 'b:1']}]}", "'b' does not exist"),
        ("topology: {nodes: {}, links: [7]}", "list of objects"),
        ("topology: [", "no YAML"),
        ("[" * 5000, "nested too deeply"),
        ("a: " + "x" * (1 << 20), "is read up to"),
        ("{a: &a {k: 1}, b: &b {<<: [*a, *a]}, ? {x: 1} : 2}", "no YAML"),
        ("\n".join(["a0: &a0 {" + ", ".join(f"k{i}: 1" for i in range(20)) + "}",
                    *(f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 60)}]}}" for n in range(1, 9))]), "merges"),
    ],
)  # fmt: skip
def test_yaml_that_is_wrong_or_hostile_is_refused(tmp_path: Path, text: str, word: str) -> None:
    with pytest.raises(TopologyError, match=word):
        imported(tmp_path, "lab.yaml", text, "servers=1,bandwidth=1")


ZOO = """<graphml xmlns="http://graphml.graphdrawing.org/xmlns"><key attr.name="LinkLabel" for="edge" id="d1" />
<key attr.name="Latitude" for="node" id="d2" /><key attr.name="Longitude" for="node" id="d3" />
<key attr.name="label" for="node" id="d4" /><key attr.name="Country" for="node" id="d5" />
<graph edgedefault="undirected"><data key="d9">x</data>
<node id="0"><data key="d2">52.37</data><data key="d3">4.89</data><data key="d4">Amsterdam</data></node>
<node id="1"><data key="d2">50.85</data><data key="d3">4.35</data><data key="d4">None</data></node>
<node id="2"><data key="d4">None</data><data key="d5">France</data></node>
<edge source="0" target="1"><data key="d1">2.5 Gbps</data></edge><edge source="1" target="2" />
</graph></graphml>"""


def test_topology_zoo(tmp_path: Path) -> None:
    topology, notes = imported(tmp_path, "Zoo.graphml", ZOO, "bandwidth=155,servers=1")
    assert topology.devices == ("Amsterdam", "None-1", "None-2") and topology.name == "Zoo"
    assert (topology.bandwidth_mbps("Amsterdam", "None-1"), topology.bandwidth_mbps("None-1", "None-2")) == (2500, 155)
    assert topology.delay_ms("Amsterdam", "None-1") == pytest.approx(173.5 / 200, rel=0.01)
    assert topology.delay_ms("None-1", "None-2") == 0 and "not used: Country" in notes


def test_drawings_of_yed_are_undirected_and_named_by_what_is_drawn(tmp_path: Path) -> None:
    text = """<graphml xmlns="http://graphml.graphdrawing.org/xmlns" xmlns:y="http://www.yworks.com/xml/graphml">
    <key for="node" id="d1" yfiles.type="nodegraphics"/><key attr.name="label" for="edge" id="d2"/>
    <graph edgedefault="directed" id="G">
    <node id="n0"><data key="d1"><y:ShapeNode><y:NodeLabel>IS<y:x/></y:NodeLabel></y:ShapeNode></data></node>
    <node id="n1"><data key="d1"/></node>
    <edge id="e0" source="n0" target="n1"><data key="d2"><![CDATA[10 Gbps]]></data></edge>
    </graph></graphml>"""
    topology, _ = imported(tmp_path, "g.graphml", text, "servers=1")
    assert topology.devices == ("IS", "n1")
    assert topology.bandwidth_mbps("IS", "n1") == topology.bandwidth_mbps("n1", "IS") == 10_000


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('<!DOCTYPE g [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><graphml>&b;</graphml>', "document type"),
        ('<!DOCTYPE g SYSTEM "file:///etc/passwd"><graphml/>', "document type"),
        ("<graphml><graph>", "no well-formed XML"),
        ("<html><graph/></html>", "no GraphML"),
        ("<graphml><graph/><graph/></graphml>", "no GraphML with one graph"),
        (ZOO.replace('<edge source="1"', '<edge directed="true" source="1"'), "some of its edges are directed"),
        ('<?xml version="1.0" encoding="nonsense"?><graphml/>', "no well-formed XML"),
        (ZOO.replace('target="2"', 'target="9"'), "'9', which does not exist"),
        (ZOO.replace('id="2"', 'id="1"'), "'1' is given twice"),
        (ZOO.replace("4.89", "east"), "Latitude and Longitude"),
        (ZOO.replace('key="d3">4.89', 'key="d2">4.89'), "node 0: Latitude is given twice"),
        ("<graphml><graph>" + "<node>" * 100_000, "no well-formed XML"),
    ],
)
def test_xml_that_is_wrong_or_hostile_is_refused(tmp_path: Path, text: str, word: str) -> None:
    with pytest.raises(TopologyError, match=word):
        imported(tmp_path, "net.graphml", text, "servers=1,bandwidth=1")


def test_lldp_in_the_verbose_form_of_one_node(tmp_path: Path) -> None:
    port = [
        {"id": [{"type": "ifname", "value": "swp7"}], "auto-negotiation": [{"current": [{"value": "10GigBaseLR"}]}]}
    ]
    host = [{"name": [{"value": "host1"}], "capability": [{"type": "Station", "enabled": True}]}]
    silent = [{"id": [{"type": "mac", "value": "02:00:00:00:00:09"}]}]
    interfaces = [{"name": "swp1", "chassis": host, "port": port}, {"name": "swp2", "chassis": silent, "port": []}]
    text = json.dumps({"lldp": [{"interface": interfaces}]})
    topology, _ = imported(tmp_path, "leaf1.json", text, "bandwidth=1000")
    assert topology.servers == ("host1",) and links(topology)["host1", "leaf1"] == 10_000
    assert links(topology)["02:00:00:00:00:09", "leaf1"] == 1000


def test_lldp_of_nodes_that_have_other_names_than_their_files_is_reported(tmp_path: Path) -> None:
    for node, near in (("leaf1", "spine1"), ("spine1", "leaf1.example.com")):
        interface = {"swp1": {"chassis": {near: chassis("s")}}}
        (tmp_path / f"{node}.json").write_text(json.dumps({"lldp": {"interface": interface}}))
    notes = import_file(f"{tmp_path}:bandwidth=10,servers=1").notes
    assert [note for note in notes if "leaf1 sees spine1, which does not see leaf1" in note]


@pytest.mark.parametrize(
    "content",
    [7, {"interface": {"e": 7}}, {"interface": "e"}, {"interface": {"e": {"chassis": 7}}}, {"interface": {"e": {}}}],
)
def test_lldp_that_is_wrong_is_refused(tmp_path: Path, content: Any) -> None:
    with pytest.raises(TopologyError, match=r"leaf1\.json: leaf1"):
        imported(tmp_path, "leaf1.json", json.dumps({"lldp": content}), "bandwidth=1")


def test_a_folder_without_files_of_nodes_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match=r"no file NAME\.json"):
        parse_topology(str(tmp_path))


def test_netbox_export_without_power_patch_and_planned_cables(tmp_path: Path) -> None:
    text = "\ufeffID,Label,Termination A,Termination B,Device A,Device B,Status,Type\r\n"
    rows = ["1,,Ethernet1,eth0,leaf1,host1,Connected,DAC", "2,,Ethernet2,eth0,leaf1,host2,Connected,",
            "3,,PSU1,Outlet 3,leaf1,pdu1,Connected,Power", "4,,Ethernet9,xe-0,leaf1,,Connected,SMF",
            "5,,Ethernet3,eth0,leaf1,host3,Planned,DAC"]  # fmt: skip
    topology, notes = imported(tmp_path, "cables.csv", text + "\r\n".join(rows), "bandwidth=1000,servers=host*")
    assert topology.servers == ("host1", "host2")
    assert "1 cables that are not connected" in notes and "2 cables that do not lead" in notes


def test_sonic_links_with_the_devices_beside_them(tmp_path: Path) -> None:
    devices = (
        "Hostname,ManagementIp,HwSku,Type,Protocol\nserv-01,10.0.0.1/23,TestServ,Server,,,\nroot,,Arista,FanoutRoot,\n"
    )
    (tmp_path / "lab_devices.csv").write_text(devices)
    text = (
        "StartDevice,StartPort,EndDevice,EndPort,BandWidth,VlanID,VlanMode\nroot,Ethernet19,serv-01,p4p1,40000,,Trunk\n"
    )
    topology, notes = imported(tmp_path, "lab_links.csv", text)
    assert topology.servers == ("serv-01",) and links(topology) == {("root", "serv-01"): 40_000}
    assert "lab_devices.csv" in notes and "VlanID" in notes


SONIC = "StartDevice,StartPort,EndDevice,EndPort,BandWidth\n"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("a,b\n1,2\n", "side_a_device"),
        ("ID,Termination A,Termination B\n", 'export "All data"'),
        (SONIC + "a,1,b,1,fast\n", "line 2: BandWidth"),
        (SONIC + "a,1,,1,10\n", "line 2: EndDevice"),
        (SONIC + "a,1,b,1,10,7\n", "line 2: it has more values"),
        ("StartDevice,StartDevice\n", "'StartDevice' is given twice"),
        (SONIC + '"a', "line"),
        (SONIC.encode() + b"\xff", "UTF-8"),
        ("", "first line"),
        ("side_a_device,side_a_type,side_a_name,side_b_device,side_b_type,side_b_name\n"
         "a,dcim.interface,1,panel,dcim.rearport,1\n", "line 2: the cable ends at a patch panel"),
    ],
)  # fmt: skip
def test_csv_that_is_wrong_is_refused(tmp_path: Path, text: str | bytes, word: str) -> None:
    with pytest.raises(TopologyError, match=word):
        imported(tmp_path, "net.csv", text, "servers=1,bandwidth=1")


@pytest.mark.parametrize(
    "edges", [7, [7], [{"node1": {"hostname": "a", "interfaceName": "e"}}], [{"node1": 1, "node2": 2}]]
)
def test_batfish_that_is_wrong_is_refused(tmp_path: Path, edges: Any) -> None:
    with pytest.raises(TopologyError, match=r"net\.json: (an edge|edges)"):
        imported(tmp_path, "net.json", json.dumps({"edges": edges}), "servers=1,bandwidth=1")


def test_gml_is_refused_with_the_formats_that_have_the_same_networks(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="GraphML and JSON"):
        imported(tmp_path, "net.gml", "graph [ node [ id 0 ] ]", "servers=1")


def test_what_has_no_effect_is_reported(tmp_path: Path) -> None:
    text = json.dumps({**GRAPH, "graph": {"demands": {}}, "author": "x"})
    assert "not used: author, demands, pos" in imported(tmp_path, "net.json", text, "servers=1")[1]
    assert "bandwidth= has no effect" in imported(tmp_path, "net.json", text, "servers=1,bandwidth=7")[1]
    edges = {
        "edges": [
            {"node1": {"hostname": n, "interfaceName": "e", "speed": 1}, "node2": {"hostname": "b", "interfaceName": n}}
            for n in "ac"
        ]
    }
    notes = imported(tmp_path, "l1.json", json.dumps(edges), "servers=1,bandwidth=7,unit=Gbit/s")[1]
    assert "unit= has no effect" in notes and "speed" in notes


def test_a_unit_that_the_format_defines_cannot_be_changed(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match="are in Mbit/s"):
        imported(tmp_path, "net.csv", SONIC + "a,1,b,1,10\n", "servers=1,unit=Gbit/s")


SAMPLES = {"lab.yml": CLAB, "zoo.graphml": ZOO, "net.json": graph(), "net.csv": SONIC + "a,1,b,1,10\n",
           "leaf1.json": json.dumps({"lldp": {"interface": {"e": {"chassis": {"s2": chassis("s2")}}}}})}  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(sorted(SAMPLES)), at=st.floats(0, 1), cut=st.integers(0, 9), new=st.binary(max_size=6))
def test_a_file_with_changed_bytes_is_read_or_refused(
    name: str, at: float, cut: int, new: bytes, tmp_path: Path
) -> None:
    text = SAMPLES[name].encode()
    where = int(at * len(text))
    try:
        imported(tmp_path, name, text[:where] + new + text[where + cut :], "servers=1,bandwidth=10")
    except TopologyError as error:
        assert name in str(error)


def test_the_command_writes_the_topology_that_is_read_directly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "net.json").write_text(graph())
    file, made = str(tmp_path / "net.json"), tmp_path / "made.json"
    words = ["topology", "import", f"{file}:servers=1", "--unit", "Gbit/s", "--adding", "1", "--output", str(made)]
    assert controller.main(words) == 0
    with caplog.at_level(logging.WARNING, "inart"):
        direct = parse_topology(f"{file}:servers=1,unit=Gbit/s,adding=1")
    assert parse_topology(str(made)).to_json() == direct.to_json() and links(direct)["0", "1"] == 5000
    assert "note: not used: pos" in capsys.readouterr().err
    assert [record.getMessage() for record in caplog.records if "not used: pos" in record.getMessage()]
    assert controller.main(["topology", "import", str(made)]) == 2
    assert "is a topology file already" in capsys.readouterr().err
    with pytest.raises(TopologyError, match="takes no data behind its name"):
        parse_topology(f"{made}:servers=1")
