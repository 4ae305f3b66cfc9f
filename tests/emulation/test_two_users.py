"""Two users of the same hosts, each with a job of its own: both jobs' sums are right, and neither reads or forges the
other's."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from tempfile import TemporaryDirectory

import pytest

from controlplane.common.agentconfig import AgentConfig
from controlplane.common.log_lines import calling
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.common.rpc.client import ask
from controlplane.planner.generators import leaf_spine
from controlplane.planner.job import Job
from controlplane.service.roster import Roster
from evaluation.chaos import forger
from p4src.protocol import VERSION, Flag
from tests.emulation.rig import MODULES, SECONDS, SEED
from tests.emulation.test_lifetime import poll
from tests.hosts.test_corruption import BIND
from topologies import Emulation
from topologies.deployment import Fabric, Service
from topologies.zygote import HostProcess, Zygote

USERS = {"one": 65533, "two": 65532}
"""By the name of the job."""
SIZE = 400_000
FORGED = 500


class Shared:
    """Two hosts with a worker of each user, and one with a parameter server of each."""

    def __init__(self, stack: ExitStack) -> None:
        self.topology = leaf_spine(2, 1, 2, 50.0, aggregation_mbps=None, ingress_mbps=None)
        self.log: list[str] = []
        self.begun = 0  # sums
        self.emulation = stack.enter_context(Emulation(self.topology, "softswitch", seed=SEED))
        zygote = stack.enter_context(Zygote(self.emulation, (*MODULES, "tests.emulation.functions")))
        fabric = stack.enter_context(Fabric(self.emulation, calling(self.log.append)))
        self.labels = fabric.labels
        service: Service = stack.enter_context(fabric.control())
        server, *workers = self.topology.servers[:3]
        self.server, self.hosts = server, workers
        self.workers: dict[str, list[HostProcess]] = {}
        self.servers: list[HostProcess] = []
        self.rosters: dict[str, Roster] = {}
        for name in USERS:
            job = Job(name, tuple(workers), (server,), model_bytes=SIZE)
            request = pb.AddJobRequest(job=json.dumps(job.to_json()), strategy="inart", seed=SEED, share=True)
            ask(service.address, "add_job", request, timeout=SECONDS)
            self.rosters[name] = service.network.jobs.get(name).roster
        # Both jobs are there before an agent is: a job that comes while the agents of another join waits for, or is
        # refused for, what that one holds.
        for name, uid in USERS.items():
            cache = stack.enter_context(TemporaryDirectory(prefix="inart-user-"))
            common = {"uid": uid, "cache": cache, "controller": service.address, "job": name}
            self.servers.append(zygote.spawn(server, "tests.emulation.functions:server_of_user", common))
            self.workers[name] = [
                zygote.spawn(
                    node,
                    "tests.emulation.functions:worker_of_user",
                    {**common, "interface": self.emulation.interface(node), "seed": uid, "workers": len(workers)},
                )
                for node in workers
            ]
        for processes in self.workers.values():
            for process in processes:
                process.receive(SECONDS)

    def sums_are_right(self) -> None:
        """Both jobs add up at once."""
        self.begun += 1
        for processes in self.workers.values():
            for process in processes:
                process.send({"size": SIZE})
        for processes in self.workers.values():
            answers: list[Mapping[str, float]] = [process.receive(SECONDS) for process in processes]
            assert len({answer["digest"] for answer in answers}) == 1
            assert all(answer["error"] <= answer["bound"] for answer in answers)

    def forge(self, by: str, packets: list[dict[str, int]]) -> dict[str, int]:
        """A process of this user on the first worker's host sends these, as `forger` says; what it says."""
        node = self.hosts[0]
        config = self.rosters[by].configs[node]
        order = json.dumps({"address": config.address, "packets": packets}) + "\n"
        command = [sys.executable, "-I", "-S", forger.__file__, str(VERSION), "256", "1", str(USERS[by])]
        process = self.emulation.popen(node, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        said: dict[str, int] = json.loads(process.communicate(order, timeout=SECONDS)[0])
        return said


@pytest.fixture(scope="module")
def shared() -> Iterator[Shared]:
    if os.geteuid():
        pytest.skip("needs root: makes network namespaces")
    with ExitStack() as stack:
        yield Shared(stack)


def owners(processes: list[HostProcess]) -> set[int]:
    """Whose processes they are."""
    return {os.stat(f"/proc/{process.pid}").st_uid for process in processes}


def test_both_have_their_sums(shared: Shared) -> None:
    shared.sums_are_right()
    assert {name: owners(processes) for name, processes in shared.workers.items()} == {
        name: {uid} for name, uid in USERS.items()
    }


def of_worker(config: AgentConfig) -> list[dict[str, int]]:
    """Contributions in the place of a worker: all that a packet of its trees has, but the key."""
    return [
        {"port": tree.port, "label": tree.up_label, "flags": flags}
        for tree in config.worker_trees
        for flags in (0, int(Flag.RESEND))
    ]


def of_server(config: AgentConfig) -> list[dict[str, int]]:
    """Results in the place of the parameter server."""
    return [{"port": tree.port, "label": tree.return_label, "flags": int(Flag.RESULT)} for tree in config.root_trees]


@pytest.mark.parametrize("place", [of_worker, of_server])
@pytest.mark.parametrize(("by", "victim"), [("one", "two"), ("two", "one")])
def test_neither_forges_the_others(
    shared: Shared, by: str, victim: str, place: Callable[[AgentConfig], list[dict[str, int]]]
) -> None:
    """Though it is told the labels, the port, the epoch and the number of the other's job, which it cannot read."""
    roster = shared.rosters[victim]
    node = shared.server if place is of_server else shared.hosts[0]
    config = shared.labels.configuration(roster.configs[node])  # as its agent is told
    common = {"job": config.job_id, "epoch": roster.epoch, "bitmap": len(shared.hosts), "count": FORGED}
    chunks = SIZE // 4 // 255  # of each sum so far: what is older nobody takes, whoever sends it
    packets = [{**common, **one, "sequence": shared.begun * chunks} for one in place(config)]
    before = len([line for line in shared.log if "refused" in line])
    said = shared.forge(by, packets)
    assert said["uid"] == USERS[by] and said["sent"] == FORGED * len(packets)
    shared.sums_are_right()
    if place is of_worker:
        poll(lambda: len([line for line in shared.log if "refused" in line]) > before, "it is noticed", 30.0)


@pytest.mark.parametrize("victim", list(USERS))
def test_neither_reads_the_others(shared: Shared, victim: str) -> None:
    """Results are multicast to whoever has the port; another user cannot have it, in any way in which it may ask."""
    for node in (shared.hosts[0], shared.server):
        config = shared.rosters[victim].configs[node]
        trees = config.worker_trees or config.root_trees
        command = [sys.executable, "-I", "-S", "-c", BIND, forger.GROUP, str(trees[0].port)]
        done = shared.emulation.run(node, command)
        assert [int(word) for word in done.stdout.split()] == [errno.EADDRINUSE] * 8, done.stderr
