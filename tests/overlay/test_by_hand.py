"""A coordinator that a user starts by hand, with sites and names of their own."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from controlplane.common.config_file import ConfigFile, OverlayTable
from controlplane.planner.job import Job
from controlplane.planner.strategies.wan.policy import Back, FollowNetwork, Lost, Ready, Start
from controlplane.planner.topology import Topology
from overlay import Agent, OverlayError
from overlay.__main__ import main, policy_of
from overlay.core.systems import SELECTABLE, between_sites, make
from tests.overlay.test_agents import SECONDS

ROOT = Path(__file__).resolve().parents[2]
SITES = ("lima", "oslo", "tokyo")


def network(*, router: bool = False) -> tuple[Topology, Job]:
    """Return three sites, each linked with each other one. router: the link between the first and the last site goes
    over a switch without a site.
    """
    nodes: dict[str, dict[str, object]] = {}
    links = []
    for site in SITES:
        nodes |= {f"sw-{site}": {"kind": "switch"}, site: {"kind": "server"}, f"ps-{site}": {"kind": "server"}}
        for server in (site, f"ps-{site}"):
            links += [(server, f"sw-{site}", 1e4), (f"sw-{site}", server, 1e4)]
    for u, v, mbps in (("lima", "oslo", 100.0), ("oslo", "tokyo", 80.0)):
        links += [(f"sw-{u}", f"sw-{v}", mbps), (f"sw-{v}", f"sw-{u}", mbps / 2)]
    if router:
        nodes["router"] = {"kind": "switch"}
        for site, mbps in (("lima", 30.0), ("tokyo", 20.0)):
            links += [(f"sw-{site}", "router", mbps), ("router", f"sw-{site}", mbps)]
    else:
        links += [("sw-lima", "sw-tokyo", 20.0), ("sw-tokyo", "sw-lima", 20.0)]
    topology = Topology(nodes, [(u, v, {"bandwidth_mbps": mbps}) for u, v, mbps in links], "ours")
    return topology, Job("job", SITES, tuple(f"ps-{site}" for site in SITES), 40_000)


@pytest.mark.parametrize("router", [False, True])
def test_links_between_sites_are_under_their_agents_names(router):
    graph = between_sites(*network(router=router))
    found = {(u, v): data["mbps"] for u, v, data in graph.edges(data=True)}
    assert found == {
        ("lima", "oslo"): 100.0, ("oslo", "lima"): 50.0, ("oslo", "tokyo"): 80.0, ("tokyo", "oslo"): 40.0,
        ("lima", "tokyo"): 20.0, ("tokyo", "lima"): 20.0,
    }  # fmt: skip


def test_two_agents_at_one_site_are_named():
    topology, _ = network()
    with pytest.raises(OverlayError, match="lima and ps-lima are both at sw-lima"):
        between_sites(topology, Job("job", (*SITES, "ps-lima"), ("ps-oslo",), 4000))


@pytest.mark.parametrize("system", SELECTABLE)
def test_every_system_takes_the_names_of_the_sites(system):
    policy = make(system, between_sites(*network()), 10_000, p=3, chunk=1000, seed=0)
    assert set(policy.nodes) == set(SITES)
    orders = [order for site in SITES for order in policy.handle(Ready(site, 10_000, 1), 0.0)]
    begun = [order.task for order in orders if isinstance(order, Start)]
    assert begun or system in ("orpheus", "selmcast"), "those begin with whoever has joined"
    for task in begun:
        task.check()
        assert task.nodes <= set(SITES)


@contextmanager
def coordinator(tmp_path, *options: str):
    """Start the coordinator; returns (the address where it listens, its first line)."""
    topology, job = network()
    (tmp_path / "net.json").write_text(json.dumps(topology.to_json()))
    (tmp_path / "job.json").write_text(json.dumps(job.to_json()))
    (tmp_path / "site.toml").write_text("[overlay]\nchunk = 1000\n")
    words = ["--topology", str(tmp_path / "net.json"), "--job", str(tmp_path / "job.json"), "--listen", "127.0.0.1:0"]
    words += ["--config", str(tmp_path / "site.toml")]
    process = subprocess.Popen(
        [sys.executable, "-m", "overlay", "coordinator", *words, *options],
        cwd=ROOT, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("waiting for"):
                host, _, port = line.split()[-1].rpartition(":")
                yield host, int(port)
                break
    finally:
        process.terminate()
        process.communicate()


@pytest.mark.parametrize("options", [("--system", "crew", "--p", "2"), ("--system", "netstorm"), ("--strategy", "wan")])
def test_sites_train_under_a_chosen_system(options, tmp_path):
    with coordinator(tmp_path, *options) as address:
        agents = {site: Agent(address, site, listen=("127.0.0.1", 0)) for site in SITES}
        try:
            for _ in range(2):
                given = {site: np.full(10_000, float(k), np.float32) for k, site in enumerate(SITES)}
                members = SITES[:2] if "crew" in options else SITES
                futures = {site: agents[site].synchronise_async(given[site]) for site in members}
                for site, future in futures.items():
                    assert set(future.result(SECONDS).participants) == set(members)
                    np.testing.assert_array_equal(given[site], np.float32(np.mean(range(len(members)))))
        finally:
            for agent in agents.values():
                agent.close()


def test_a_strategys_trees_avoid_broken_connections():
    """The plan is made as `--strategy` makes it: it is made again when two agents cannot reach each other."""
    arguments = argparse.Namespace(
        system=None, switches=None, strategy="wan", seed=0, config=ConfigFile(overlay=OverlayTable(chunk=1000))
    )
    policy = policy_of(arguments, *network())
    assert isinstance(policy, FollowNetwork)

    def hops() -> set[tuple[str, str]]:
        orders = [order for site in SITES for order in policy.handle(Ready(site, 10_000), 0.0)]
        (start,) = orders
        assert isinstance(start, Start), orders
        return set(start.task.hops())

    assert ("lima", "oslo") in hops()
    policy.handle(Lost("lima", "oslo"), 1.0)
    assert not {("lima", "oslo"), ("oslo", "lima")} & hops()
    policy.handle(Lost("oslo"), 2.0)
    policy.handle(Back("oslo"), 3.0)
    assert ("lima", "oslo") in hops(), "it was its process that was broken"


def test_incompatible_options_are_reported(tmp_path, capsys):
    topology, job = network()
    (tmp_path / "net.json").write_text(json.dumps(topology.to_json()))
    (tmp_path / "job.json").write_text(json.dumps(job.to_json()))
    words = ["--topology", str(tmp_path / "net.json"), "--job", str(tmp_path / "job.json")]
    (tmp_path / "site.toml").write_text("[overlay]\ndetours = true\n")
    assert main(["coordinator", *words, "--system", "crew", "--config", str(tmp_path / "site.toml")]) == 1
    assert "`detours` of the config file need a --strategy" in capsys.readouterr().err
