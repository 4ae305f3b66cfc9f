"""The functions that run inside emulated hosts, each in a process of its own (see `topologies.zygote`).

There are no heavy imports at the top: the zygote decides what is imported before the fork.
"""

import hashlib
import json
import os
import socket
import subprocess
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from topologies.zygote import Channel

if TYPE_CHECKING:
    from worker_agent.engine_stats import EngineStats

JOIN_SECONDS = 60.0
OPERATION_SECONDS = 300.0
PROGRESS_SECONDS = 60.0
TCP_PORT = 5201
TCP_BLOCK = 1 << 16
SO_MAX_PACING_RATE = 47  # of Linux; Python's socket module has no name for it


def gradient(seed: int, worker: int, size: int) -> npt.NDArray[np.float32]:
    """Return a made-up gradient of `size` bytes; heavy-tailed like real ones, different for each worker."""
    random = np.random.default_rng([seed, worker, size])
    count = size // 4
    values = random.standard_normal(count, dtype=np.float32) * np.exp(random.standard_normal(count, dtype=np.float32))
    return (values * 1e-2).astype(np.float32)


def parameter_server(_: Channel, *, controller: str, job: str = "") -> int:
    """Run a parameter server of a job until it is ended; `job` is "" for the only job that the host is in."""
    from ps_server.__main__ import main

    os.environ["INART_JOB"] = job
    return main(["--controller", controller])


def allreduce(
    channel: Channel,
    *,
    controller: str,
    interface: str,
    seed: int,
    workers: int,
    check: bool,
    job: str = "",
) -> None:
    """Run a worker that sums made-up gradients through the switches.

    For each message {"size": bytes} it runs an all-reduce. The message may also have "seed" of the gradients; "timeout"
    in seconds; "at", the time.monotonic() at which to begin (all hosts of an emulation share that clock); "among", the
    numbers of the workers that are left. The worker answers with times, the bytes that the interface sent meanwhile,
    the number of workers in the sum, a digest of it and, with `check`, its largest error and the bound on that. The
    message null ends it.

    `job` is "" for the only job that the host is in. After PROGRESS_SECONDS without progress an all-reduce fails.
    """
    from worker_agent import connect
    from worker_agent.fixedpoint import error_bound

    os.environ["INART_JOB"] = job
    agent = connect(controller, timeout=JOIN_SECONDS, operation_timeout=PROGRESS_SECONDS)
    try:
        assert agent.config is not None
        index = agent.config.index
        # This all-reduce ensures that all workers have joined and that code and memory are warm.
        agent.allreduce(np.zeros(1, np.float32), op="sum")
        channel.send({"index": index})
        while (order := channel.receive()) is not None:
            chosen = order.get("seed", seed)
            values = gradient(chosen, index, order["size"])
            # The job may have stopped since the last one, and begin anew at this moment.
            agent.wait_ready(PROGRESS_SECONDS)
            before, stats = sent_bytes(interface), agent.stats()
            time.sleep(max(0.0, order.get("at", 0.0) - time.monotonic()))
            work = agent.allreduce_async(values, op="sum")
            work.wait(order.get("timeout", OPERATION_SECONDS))
            result: dict[str, Any] = {
                "first_send": work.first_send,
                "last_answer": work.last_answer,
                "sent_bytes": sent_bytes(interface) - before,
                # After a replan the counters may be those of a new engine, which has counted nothing.
                "resent": max(0, agent.stats().resent - stats.resent),
                "duplicates": max(0, duplicates(agent.stats()) - duplicates(stats)),
                "workers": work.workers,
                "digest": hashlib.sha256(values.tobytes()).hexdigest(),
            }
            if check:
                all_values = [gradient(chosen, i, order["size"]) for i in order.get("among", range(workers))]
                exact = np.sum([each.astype(np.float64) for each in all_values], axis=0)
                result["error"] = float(np.abs(values - exact).max())
                result["bound"] = error_bound(all_values)
            channel.send(result)
    finally:
        agent.close()


def duplicates(stats: "EngineStats") -> int:
    """Return the number of results that arrived more than once."""
    return sum(tree.duplicates for tree in stats.trees)


def tcp_sink(channel: Channel, *, address: str) -> float:
    """Receive one TCP connection's bytes, and return Mbit/s from the first to the last."""
    with socket.create_server((address, TCP_PORT)) as server:
        server.settimeout(OPERATION_SECONDS)
        channel.send("listening")
        connection, _ = server.accept()
    with connection:
        connection.recv(TCP_BLOCK)  # The clock starts with the first bytes.
        start = last = time.monotonic()
        counted = 0
        while data := connection.recv(TCP_BLOCK):
            last = time.monotonic()
            counted += len(data)
    return counted * 8 / max(last - start, 1e-9) / 1e6


def tcp_source(_: Channel, *, address: str, seconds: float, most_mbps: float = 0.0) -> int:
    """Send over TCP for `seconds`, at most at this rate (0: as TCP likes), and return the number of bytes."""
    block = bytes(TCP_BLOCK)
    sent = 0
    with socket.create_connection((address, TCP_PORT), timeout=OPERATION_SECONDS) as connection:
        if most_mbps:
            connection.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, int(most_mbps * 1e6 / 8))
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            connection.sendall(block)
            sent += len(block)
    return sent


def sent_bytes(interface: str) -> int:
    """Return the bytes that the interface's queue has sent: frames without their checksums.

    The queue counts every packet of a super-frame; the interface itself would count the headers of only one.
    """
    shown = subprocess.run(
        ["tc", "-s", "-j", "qdisc", "show", "dev", interface, "root"], capture_output=True, text=True, check=True
    )
    return int(json.loads(shown.stdout)[0]["bytes"])
