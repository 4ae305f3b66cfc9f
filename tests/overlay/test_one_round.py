"""An error in one round ends only that round, names the agents concerned, and does not affect the next round."""

from __future__ import annotations

import asyncio
import ctypes
import json
import logging
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from controlplane.cli.certificates import Wanted, make
from controlplane.common.rpc.tls import credentials
from controlplane.planner.plan.task import Task
from controlplane.planner.strategies.wan.policy import Ready
from overlay import Agent, Coordinator, Late, OverlayError
from overlay.net import coordinator, liveness
from overlay.net.loop import report_unless_lost_twice
from overlay.net.tls import Security
from tests.overlay.test_agents import SECONDS, Drawn, running, synchronise, until
from tests.overlay.test_recovery import SlowCrew, SlowRounds
from tests.support.examples import nightly

NODES = ("a", "b", "c")
ROOT = Path(__file__).resolve().parents[2]
SPAWN = multiprocessing.get_context("spawn")


def fails(agents, sizes: dict[str, int], match: str) -> None:
    given = {node: np.full(size, 3.0, np.float32) for node, size in sizes.items()}
    futures = [agents[node].synchronise_async(values) for node, values in given.items()]
    for future in futures:
        with pytest.raises(OverlayError, match=match):
            future.result(SECONDS)
    for values in given.values():
        np.testing.assert_array_equal(values, np.float32(3.0))


def test_a_tensor_of_another_size_ends_its_round_and_is_named():
    with running(Drawn(NODES, 1)) as (_, agents):
        fails(agents, {"a": 5, "b": 5, "c": 6}, "c has 6 values to synchronise, and a, b 5")
        synchronise(agents, 1000, 1)
        fails(agents, {"a": 4, "b": 5, "c": 5}, "a has 4 values to synchronise, and b, c 5")
        synchronise(agents, 1000, 2)


def test_a_plan_that_cannot_be_made_ends_its_round():
    class Once(Drawn):
        def task(self, number: int, values: int, now: float) -> Task:
            if number == 2:
                raise RuntimeError("the solver has crashed")
            return super().task(number, values, now)

    with running(Once(NODES, 1)) as (_, agents):
        synchronise(agents, 1000, 1)
        fails(agents, dict.fromkeys(NODES, 10), "RuntimeError: the solver has crashed")
        synchronise(agents, 1000, 2)


@pytest.mark.parametrize("policy", [Drawn, SlowCrew], ids=["rounds", "crew"])
def test_a_policy_that_raises_ends_the_round_that_it_was_asked_about(policy):
    class Once(policy):
        broken = True

        def handle(self, event, now):
            if isinstance(event, Ready) and event.node == "b" and self.broken:
                self.broken = False
                raise ZeroDivisionError("a policy's bug")
            return super().handle(event, now)

    made = Once(NODES, 1) if policy is Drawn else Once(p=3)
    with Coordinator(made) as there:
        agents = {node: Agent(there.address, node, listen=("127.0.0.1", 0)) for node in made.nodes}
        try:
            for agent in agents.values():
                agent.wait_joined()
            first = agents["a"].synchronise_async(np.ones(64, np.float32))
            until(lambda: there.driver.pending.waiting() == ["a"])
            for future in (agents["b"].synchronise_async(np.ones(64, np.float32)), first):
                with pytest.raises(OverlayError, match="ZeroDivisionError: a policy's bug"):
                    future.result(SECONDS)
            some = dict(list(agents.items())[:3])
            synchronise(some, 64, 3)
        finally:
            for agent in agents.values():
                agent.close()


@pytest.mark.parametrize(
    "line",
    [
        b"[]", b"null", b"3", b'"join"', b'{"type": "join", "node": []}', b"Infinity",
        b'{"type": "ready", "values": 9, "weight": NaN}',
        b'{"type": "ready", "values": 9, "contents": {"tensors": "1", "norm": NaN, "reference": 0, "most": null}}',
    ],
)  # fmt: skip
def test_an_invalid_message_ends_one_connection(line, caplog):
    with caplog.at_level(logging.ERROR, "asyncio"), running(Drawn(NODES, 1)) as (there, agents):
        with socket.create_connection(there.address, SECONDS) as stranger:
            stranger.sendall(line + b"\n")
            assert stranger.makefile("rb").read() == b""
        with socket.create_connection(there.address, SECONDS) as member:
            host, port = agents["a"].listen
            member.sendall(json.dumps({"type": "join", "node": "a", "host": host, "port": port}).encode() + b"\n")
            member.sendall(line + b"\n")
            until(lambda: not member.recv(1 << 16))
        synchronise(agents, 1000, 1)
    assert not caplog.records, [record.getMessage() for record in caplog.records]


def test_an_invalid_message_of_the_coordinator_does_not_end_the_membership():
    """The message is one that an agent of another version might send: the agent comes again."""
    lines: list[str] = []
    with Coordinator(Drawn(("a",), 1)) as there:
        agent = Agent(there.address, "a", listen=("127.0.0.1", 0), log=lines.append)
        try:
            agent.wait_joined()
            there.loop.call_soon_threadsafe(there.members["a"].tell, b"[]\n")
            until(lambda: any("no coordinator at" in line for line in lines))
            synchronise({"a": agent}, 100, 1)
        finally:
            agent.close()


# --- who is missing ---


def test_a_timeout_names_the_missing_agents():
    with Coordinator(Drawn(NODES, 1)) as there:
        agents = {node: Agent(there.address, node, listen=("127.0.0.1", 0)) for node in ("a", "b")}
        try:
            for agent in agents.values():
                agent.wait_joined()
            tensor = np.full(10, 3.0, np.float32)
            with pytest.raises(Late, match=r"no result within 0\.05 s: c has not joined; b has submitted nothing"):
                agents["a"].synchronise(tensor, 0.05)
            agents["c"] = Agent(there.address, "c", listen=("127.0.0.1", 0))
            agents["c"].wait_joined()
            with pytest.raises(TimeoutError, match="b, c have submitted nothing"):
                agents["a"].synchronise(tensor, 0.05)
            np.testing.assert_array_equal(tensor, np.float32(3.0))
            synchronise(agents, 1000, 1)  # Withdrawn values are in no round.
        finally:
            for agent in agents.values():
                agent.close()


def test_a_timeout_within_a_round_names_the_missing_agents_and_restores_the_values():
    with running(SlowRounds(("a", "b", "c", "d"))) as (_, agents):
        given = {node: np.full(8192, 3.0, np.float32) for node in agents}
        futures = {node: agents[node].synchronise_async(given[node]) for node in ("b", "c", "d")}
        with pytest.raises(Late, match=r"no result within 0\.5 s; without all of it: a, b, c, d"):
            agents["a"].synchronise(given["a"], 0.5)
        for node, future in futures.items():
            with pytest.raises(OverlayError, match="a: no result within"):
                future.result(SECONDS)
            np.testing.assert_array_equal(given[node], np.float32(3.0))


def test_a_timeout_without_a_coordinator_says_so():
    agent = Agent(("127.0.0.1", 1), "a", listen=("127.0.0.1", 0))
    try:
        with pytest.raises(Late, match=r"there is no coordinator at 127\.0\.0\.1:1"):
            agent.synchronise(np.ones(4, np.float32), 0.05)
    finally:
        agent.close()


def test_a_long_wait_logs_the_missing_agents(monkeypatch):
    monkeypatch.setattr(coordinator, "REMIND_SECONDS", 0.0)
    lines: list[str] = []
    with Coordinator(Drawn(NODES, 1)) as there:
        agent = Agent(there.address, "a", listen=("127.0.0.1", 0), log=lines.append)
        try:
            agent.synchronise_async(np.ones(4, np.float32))
            until(lambda: any("waits for others: b, c have not joined" in line for line in lines))
        finally:
            agent.close()


# --- where agents are ---


@pytest.mark.parametrize(
    ("advertise", "told"), [(None, ("127.0.0.1", None)), (("192.0.2.7", 0), ("192.0.2.7", None)), (("h", 7), ("h", 7))]
)
def test_an_agent_that_listens_everywhere_is_announced_where_it_can_be_reached(advertise, told):
    with Coordinator(Drawn(("a",), 1)) as there:
        agent = Agent(there.address, "a", listen=("0.0.0.0", 0), advertise=advertise)
        try:
            agent.wait_joined()
            assert agent.neighbours.members["a"] == (told[0], told[1] or agent.listen[1])
        finally:
            agent.close()


# --- who lives ---


def train(port: int, node: str, hold: float, rounds: int, out) -> None:
    """A trainer in a process of its own. hold: seconds for which it keeps the interpreter lock before it continues."""
    agent = Agent(("127.0.0.1", port), node, listen=("127.0.0.1", 0))
    agent.wait_joined()
    for round_ in range(rounds):
        if round_ == 1 and hold:
            ctypes.PyDLL(None).usleep(int(hold * 1e6))  # C code keeps the lock, as a compiler does.
        agent.synchronise(np.full(1000, float(round_), np.float32), SECONDS)
    out.put(node)
    agent.leave()


@contextmanager
def trainers(there, nodes, hold: float, rounds: int):
    out = SPAWN.Queue()
    processes = [SPAWN.Process(target=train, args=(there.address[1], n, hold, rounds, out), daemon=True) for n in nodes]
    for each in processes:
        each.start()
    try:
        yield out, processes
    finally:
        for each in processes:
            each.kill()
            each.join()


def test_trainers_that_keep_the_interpreter_lock_are_not_lost(monkeypatch):
    """The agents' hosts answer: they are busy. All are slow at once, as on a busy machine."""
    monkeypatch.setattr(liveness, "UNREACHED_SECONDS", 1.0)
    lines: list[str] = []
    with Coordinator(Drawn(NODES, 1), log=lines.append) as there, trainers(there, NODES, 3.0, 3) as (out, _):
        assert sorted(out.get(timeout=SECONDS) for _ in NODES) == list(NODES)
        assert not any("lost" in line or "given up" in line or "nothing" in line for line in lines), lines


def test_a_process_that_stands_for_long_is_lost_in_the_end(monkeypatch):
    """Its host answers for it for ever."""
    monkeypatch.setattr(liveness, "FROZEN_SECONDS", 2.0)
    lines: list[str] = []
    with Coordinator(Drawn(("a",), 1), log=lines.append) as there, trainers(there, ("a",), 0.0, 10**9) as (_, (one,)):
        until(lambda: there.driver.newest > 3)
        os.kill(one.pid, signal.SIGSTOP)
        until(lambda: any("a itself has said nothing for 2 s" in line for line in lines))


TRAINER = """
import sys, threading, numpy as np
from pathlib import Path
from controlplane.common.rpc.tls import credentials
from overlay import Agent, Connections, OverlayError
from overlay.net.loop import report_unless_lost_twice
from overlay.net.tls import Security
port, node, connections, folder = sys.argv[1:]
security = Security.of(credentials(Path(folder))) if folder else None
agent = Agent(("127.0.0.1", int(port)), node, listen=("127.0.0.1", 0), connections=Connections(int(connections)),
              security=security)
agent.wait_joined()
for k in range(3):
    agent.synchronise(np.ones(2_000_000, np.float32))
told = threading.Event()
threading.Thread(target=lambda: (sys.stdin.readline(), told.set()), daemon=True).start()
print("under way", flush=True)
while True:
    try:
        agent.synchronise(np.ones(2_000_000, np.float32), 1.0)
    except OverlayError as error:
        if told.is_set():
            print(error, flush=True)
            break
agent.close()
"""
"""Trains until a round fails after it was told that a peer had died."""


@pytest.mark.parametrize(
    ("secure", "connections"), [(False, "1"), nightly(False, "3"), nightly(True, "1"), (True, "3")]
)
def test_no_traceback_is_printed_when_a_peer_dies(connections, secure, tmp_path, caplog):
    if secure:
        make(tmp_path, Wanted(nodes=NODES))
    own = Security.of(credentials(tmp_path / "controller")) if secure else None
    with caplog.at_level(logging.WARNING, "asyncio"), Coordinator(Drawn(NODES, 1), security=own) as there:
        processes = {}
        for node in NODES:
            words = [str(there.address[1]), node, connections, str(tmp_path / "nodes" / node) if secure else ""]
            processes[node] = subprocess.Popen(
                [sys.executable, "-c", TRAINER, *words], cwd=ROOT, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
        try:
            for each in processes.values():
                assert each.stdout.readline() == "under way\n"
            processes["b"].kill()
            processes["b"].wait()
            for node in ("a", "c"):
                out, errors = processes[node].communicate("b is gone\n", timeout=SECONDS)
                assert "b" in out and errors == "", (out, errors)
        finally:
            for each in processes.values():
                each.kill()
                each.communicate()
    assert not caplog.records, [record.getMessage() for record in caplog.records]


class _LostTwice:
    """Has asyncio's transport's method, without the socket that the first call has closed."""

    def _call_connection_lost(self) -> None:
        raise AttributeError("'NoneType' object has no attribute 'close'")


def test_a_connection_that_asyncio_ends_twice_is_no_traceback_but_what_else_fails_is(caplog):
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(report_unless_lost_twice)
    loop.call_soon(_LostTwice()._call_connection_lost)
    loop.call_soon(lambda: 1 / 0)
    loop.call_soon(loop.stop)
    with caplog.at_level(logging.ERROR, "asyncio"):
        loop.run_forever()
    loop.close()
    (record,) = caplog.records
    assert "ZeroDivisionError" in str(record.exc_info)
