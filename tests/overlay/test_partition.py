"""Coordinators that cannot reach each other: only one acts, in whichever part of the network they and the agents
are.
"""

from __future__ import annotations

import json
import socket
import threading
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from itertools import product

import numpy as np
import pytest

from controlplane.planner.strategies.wan.crew.policy import Crew, CrewSettings
from overlay import Agent, Coordinator
from overlay.core.quorum import Quorum
from overlay.net import leadership, liveness, membership
from tests.overlay.test_agents import SECONDS, Drawn, running, synchronise, until

NODES = ("a", "b", "c", "d")


class Wire:
    """The connection between two ends: an address that leads to another one. While it is cut, nothing comes through,
    and neither end is told.
    """

    def __init__(self, target: tuple[str, int]) -> None:
        self._target, self._cut = target, False
        self._sockets: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address: tuple[str, int] = self._server.getsockname()
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        self._cut = True

    def mend(self) -> None:
        """Close the connections: data sent meanwhile is lost, and both ends notice it."""
        if self._cut:
            self._cut = False
            self._end()

    def close(self) -> None:
        self._server.close()
        self._end()

    def _end(self) -> None:
        for each in self._sockets:
            _end(each)
        self._sockets.clear()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._server.accept()
            except OSError:
                return
            self._sockets.append(near)
            if not self._cut:
                try:
                    far = socket.create_connection(self._target)
                except OSError:
                    near.close()
                    continue
                self._sockets.append(far)
                for here, there in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=(here, there), daemon=True).start()

    def _carry(self, here: socket.socket, there: socket.socket) -> None:
        try:
            while data := here.recv(1 << 16):
                if not self._cut:
                    there.sendall(data)
            if not self._cut:
                there.shutdown(socket.SHUT_WR)
        except OSError:
            _end(there)


def _end(one: socket.socket) -> None:
    """Close the socket; its readers notice it."""
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()


@contextmanager
def two(policy):
    """Start a primary and a backup; returns (primary, backup, wires by (sender, coordinator), agents). The backup
    reaches the primary over a wire, too.
    """
    with ExitStack() as stack:
        primary = stack.enter_context(Coordinator(policy(), log=partial(print, "primary:")))
        between = Wire(primary.address)
        backup = stack.enter_context(Coordinator(policy(), backs_up=between.address, log=partial(print, "backup:")))
        wires = {("backup", "primary"): between}
        for node, (name, one) in product(NODES, (("primary", primary), ("backup", backup))):
            wires[node, name] = Wire(one.address)
        for wire in wires.values():
            stack.callback(wire.close)
        agents = {node: joins(wires, node, "primary", "backup") for node in NODES}
        stack.callback(lambda: [agent.close() for agent in agents.values()])
        until(lambda: primary.active and len(primary.members) == len(NODES))
        until(lambda: all(agent.membership.term for agent in agents.values()))
        yield primary, backup, wires, agents


def joins(wires, node: str, first: str, second: str) -> Agent:
    backups = [wires[node, second].address]
    return Agent(wires[node, first].address, node, listen=("127.0.0.1", 0), backups=backups, log=print)


@pytest.fixture
def soon(monkeypatch):
    """Silence is noticed after some seconds."""
    monkeypatch.setattr(membership, "SILENT_SECONDS", 2.0)
    monkeypatch.setattr(liveness, "FROZEN_SECONDS", 2.0)


def crew() -> Crew:
    bandwidth = np.full((len(NODES), len(NODES)), 100.0)
    np.fill_diagonal(bandwidth, np.inf)
    return Crew(NODES, bandwidth, 3, settings=CrewSettings(chunk_values=16))


def test_a_backup_that_misses_the_primary_does_not_act_while_agents_are_with_that():
    """Only the path between the coordinators is broken. An agent that starts again asks the backup first."""
    with two(lambda: Drawn(NODES, 1)) as (primary, backup, wires, agents):
        synchronise(agents, 100, 0)
        wires["backup", "primary"].cut()
        until(lambda: backup.leadership.standby.over)
        agents["d"].close()
        agents["d"] = joins(wires, "d", "backup", "primary")
        synchronise(agents, 100, 1)
        assert primary.active and not backup.active
        wires["backup", "primary"].mend()
        until(lambda: not backup.leadership.standby.over)
        synchronise(agents, 100, 2)


@pytest.mark.usefixtures("soon")
def test_in_a_partition_the_larger_part_goes_on_and_the_smaller_one_waits():
    with two(crew) as (primary, backup, wires, agents):
        wires["backup", "primary"].cut()
        wires["a", "backup"].cut()
        for node in ("b", "c", "d"):
            wires[node, "primary"].cut()
        until(lambda: backup.active and not primary.active)
        larger = {node: agents[node] for node in ("b", "c", "d")}
        given = {node: np.full(64, float(k), np.float32) for k, node in enumerate(NODES)}
        futures = {node: agent.synchronise_async(given[node]) for node, agent in larger.items()}
        for node, future in futures.items():
            assert set(future.result(SECONDS).participants) == {"b", "c", "d"}
            np.testing.assert_array_equal(given[node], np.float32(2.0))
        assert agents["a"].synchronise(given["a"], SECONDS).participants == ("a",), "alone, as CREW has it"
        for wire in wires.values():
            wire.mend()
        until(lambda: len(backup.members) == 4 and not primary.members)
        some = {node: agents[node] for node in ("a", "b", "c")}
        synchronise(some, 64, 1)
        assert backup.active and not primary.active
        assert (agents["a"].membership.term, backup.leadership.quorum.term) == (2, 2)


def test_a_coordinator_that_was_replaced_steps_down_when_it_hears_of_it():
    lines: list[str] = []
    with running(Drawn(("a", "b"), 1), log=lines.append) as (there, agents):
        synchronise(agents, 100, 0)
        with socket.create_connection(there.address, SECONDS) as late:
            host, port = agents["b"].listen
            word = {"type": "join", "node": "b", "host": host, "port": port, "term": 7}
            late.sendall(json.dumps(word).encode() + b"\n")
            until(lambda: any("steps down" in line for line in lines))
        until(lambda: there.active and len(there.members) == 2 and there.leadership.quorum.term > 7)
        synchronise(agents, 100, 1)


def test_of_two_coordinators_one_at_most_has_enough_agents():
    for agents in range(1, 12):
        quorum = Quorum(agents, contested=True)
        enough = [here for here in range(agents + 1) if quorum.reached_by([str(k) for k in range(here)])]
        assert enough and all(agents - here not in enough for here in enough)
    alone = Quorum(9, contested=False)
    assert alone.reached_by(["a"]), "nobody else can have the others"
    alone.observe({"term": 0, "others": True})
    assert not alone.reached_by(["a"])


def test_agents_gather_where_enough_can_be_reached_though_each_waits_elsewhere_at_first(monkeypatch):
    """Both coordinators admit agents, and the agents begin with different ones."""
    monkeypatch.setattr(leadership, "GATHER_SECONDS", 1.0)
    with two(lambda: Drawn(NODES, 1)) as (primary, backup, wires, agents):
        for agent in agents.values():
            agent.close()
        until(lambda: not primary.active)
        wires["backup", "primary"].cut()
        until(lambda: backup.leadership.standby.over)
        for k, node in enumerate(NODES):
            agents[node] = joins(wires, node, *(("primary", "backup") if k % 2 else ("backup", "primary")))
        synchronise(agents, 100, 0)
        assert primary.active != backup.active
