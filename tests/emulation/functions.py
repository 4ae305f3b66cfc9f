"""Functions that tests run in hosts of an emulation."""

import hashlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np

from controlplane.common import native_build
from topologies import hosts
from topologies.hosts import gradient
from topologies.zygote import Channel
from worker_agent import connect, native_worker


def fail(_: Channel, *, word: str) -> None:
    raise ValueError(word)


def die(_: Channel) -> None:
    print("last words", flush=True)
    os._exit(3)


def echo(channel: Channel) -> str:
    channel.send(channel.receive(30))
    return subprocess.run(["ip", "address"], capture_output=True, text=True, check=True).stdout


def hang(_: Channel) -> None:
    """Ignore SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)


def train(
    channel: Channel, *, controller: str, worker: int, size: int, last_number: int = native_worker.LAST_NUMBER
) -> None:
    """Run a worker each of whose steps is two all-reduces of `size` bytes, submitted one after the other without
    waiting.

    For each message {"steps": n, "pause": seconds} the worker pauses, as a late rank does, and then takes n steps, with
    "waits": true each all-reduce when the one before has ended; the
    answer is a list with a digest of every result. The message null ends it. An epoch has sequence numbers up to
    `last_number`.
    """
    native_worker.LAST_NUMBER = last_number
    agent = connect(controller, timeout=60.0, operation_timeout=120.0)
    try:
        agent.allreduce(np.zeros(1, np.float32), op="sum")
        channel.send({"worker": worker})
        while (order := channel.receive()) is not None:
            time.sleep(order.get("pause", 0.0))
            digests = []
            for step in range(order["steps"]):
                values = [gradient(step, 2 * worker + part, size) for part in range(2)]
                if order.get("waits"):
                    for each in values:
                        agent.allreduce(each, op="sum", timeout=120.0)
                else:
                    for work in [agent.allreduce_async(each, op="sum") for each in values]:
                        work.wait(120.0)
                digests += [hashlib.sha256(each.tobytes()).hexdigest() for each in values]
            channel.send(digests)
    finally:
        agent.close()


def _become(uid: int, cache: str) -> None:
    """Another user from now on, with no groups and no capabilities. What agents compile is in a cache of its own."""
    from ps_server import server

    os.chown(cache, uid, uid)
    for load in (native_worker.library, server.library):
        load()
    mapped = {Path(line.split()[-1]) for line in Path("/proc/self/maps").read_text().splitlines()}
    for library in mapped & set(native_build.cache_directory().iterdir()):
        # The user's processes share the cache: a library that another of them has loaded is replaced, not written into.
        made = shutil.copy(library, f"{cache}/{os.getpid()}")
        os.replace(made, Path(cache, library.name))
    os.environ["INART_CACHE"] = cache
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)


def server_of_user(channel: Channel, *, uid: int, cache: str, controller: str, job: str) -> int:
    """A parameter server of this user."""
    _become(uid, cache)
    return hosts.parameter_server(channel, controller=controller, job=job)


def worker_of_user(
    channel: Channel, *, uid: int, cache: str, controller: str, job: str, interface: str, seed: int, workers: int
) -> None:
    """A worker of this user: `topologies.hosts.allreduce`, which compares what it gets with the exact sum."""
    _become(uid, cache)
    hosts.allreduce(
        channel, controller=controller, interface=interface, seed=seed, workers=workers, check=True, job=job
    )
