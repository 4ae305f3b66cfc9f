"""Runs a whole job in one process and softswitch in another, with the events of a job's life; started by
tests/sanitize.py.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import threading
from dataclasses import replace

import numpy as np

from evaluation.hosts.network import StarNetwork
from evaluation.hosts.star import TreeShape, star
from tests.hosts.rig import Rig, finish
from tests.support.star_switch import Switch
from tests.support.waiting import wait_until
from worker_agent.errors import AllReduceError
from worker_agent.io_options import IoOptions

WORKERS, SERVERS, VALUES, ELEMENTS = 3, 2, 64, 60_000
CHILD_SECONDS = 20.0
MOST_SECONDS = 120.0
"""The most seconds of a round; a round that takes longer hangs, and the stacks of its threads are printed."""
TREES = (TreeShape(0, 0.5, True), TreeShape(1, 0.3, False), TreeShape(1, 0.2, True))


def reduce(rig: Rig, elements: int = ELEMENTS) -> None:
    """Reduce whole numbers, whose sum is exact, and check the result."""
    tensors = [np.full(elements, worker + 1, np.float32) for worker in range(WORKERS)]
    finish(rig.submit(tensors))
    assert all((tensor == sum(range(1, WORKERS + 1))).all() for tensor in tensors)


def under_way(rig: Rig, op: str = "sum") -> list[np.ndarray]:
    """Start sums that will not complete, while the trainer writes into the tensors."""
    tensors = [np.ones(20 * ELEMENTS, np.float32) for _ in range(WORKERS)]
    before = rig.engines[0].stats().packets_sent
    rig.submit(tensors, op)
    for tensor in tensors:
        tensor[::7] = 1e38
        tensor[::11] = np.nan
    wait_until(lambda: rig.engines[0].stats().packets_sent > before + 20, "packets are under way")
    return tensors


def fork(rig: Rig) -> None:
    """Fork a child that ends without having touched anything. A sanitizer's own locks may be held when a process with
    threads forks, and its child may then wait for ever. That says nothing about our code; test_forked.py tests it
    without sanitizers.
    """
    child = os.fork()
    if child == 0:
        for agent in (*rig.engines, *rig.servers):
            agent.close()
        os._exit(0)
    ended = [0, 0]  # the process that has ended, and its status

    def over() -> int:
        ended[:] = os.waitpid(child, os.WNOHANG)
        return ended[0]

    try:
        wait_until(over, "the child has ended", CHILD_SECONDS)
    except AssertionError:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert ended[1] == 0


def life(network: StarNetwork, switch: Switch, io: IoOptions, lanes: int) -> None:
    """Run a job from its first sum until it is closed in the middle of a sum."""
    hosts = list(network.hosts)
    job = star(WORKERS, SERVERS, TREES, values_per_packet=VALUES, slots=64, rate_mbps=40, hosts=hosts, gathers=True)
    job = job.in_lanes(lanes)
    with Rig(network, switch, job, io=io) as rig:
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(0.001):
                for agent in (*rig.engines, *rig.servers):
                    agent.stats()

        watching = threading.Thread(target=watch)
        watching.start()
        try:
            reduce(rig)
            rig.faults(loss=0.03, duplicate=0.02, reorder=0.05, hold_seconds=0.002)
            reduce(rig)
            fork(rig)
            parts = [np.ones(WORKERS * 3000, np.float32) for _ in range(WORKERS)]
            finish(rig.submit(parts, "scatter sum"))
            finish(rig.submit([np.ones(WORKERS * 3000, np.float32) for _ in range(WORKERS)], "gather"))
            finish(rig.submit([np.ones(6000, np.float32) for _ in range(WORKERS)], "sum bits=8 seed=1 feedback"))
            rig.faults()
            network.remake("w1")
            network.remake("s0")
            reduce(rig)
            kept = under_way(rig)
            rig.renew(epoch=2)
            reduce(rig)
            kept += under_way(rig, "sum bits=8 seed=1")
            rig.engines[0].abort("enough")
            rig.renew(epoch=3)
            reduce(rig, 1000)
            kept += under_way(rig)
            for server in rig.servers:
                server.reconfigure(replace(server.config, epoch=4))
        finally:
            ended.set()
            watching.join()
    try:
        rig.engines[0].allreduce_async(np.ones(4, np.float32))
    except AllReduceError:
        return
    raise AssertionError("a closed engine takes operations")


def main() -> None:
    faulthandler.dump_traceback_later(MOST_SECONDS * (1 + int(sys.argv[1])), exit=True)
    job = star(WORKERS, SERVERS)
    agents = job.workers + job.servers
    names, addresses = [agent.node for agent in agents], [agent.address for agent in agents]
    with (
        StarNetwork("inart-sa", names, addresses) as network,
        Switch(network.middle, network.ports(), VALUES, threads=2) as switch,
    ):
        for number in range(int(sys.argv[1])):
            life(network, switch, IoOptions((2, 1, 3)[number % 3]), (2, 1, 4)[number % 3])
    print("good")


if __name__ == "__main__":
    main()
