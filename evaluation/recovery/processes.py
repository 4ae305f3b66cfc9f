"""Processes inside the hosts: parameter servers that note their counters as time goes by, and workers that do
all-reduces.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from typing import Any

from topologies.zygote import Channel

HERE = "evaluation.recovery.processes"
JOIN_SECONDS = 120.0
NOTED = ("completed", "packets", "bytes", "results", "answers", "questions", "results_dropped", "refused", "duplicates")
"""Counters of a parameter server's trees, summed, in the order of a sample."""


def root(channel: Channel, *, controller: str, job: str, interval: float) -> list[list[float]]:
    """Run a parameter server until it gets a message. Return samples: the time (of the monotonic clock, which all hosts
    share) and the counters NOTED, once in `interval` seconds.
    """
    from ps_server.__main__ import ParameterServer

    os.environ["INART_JOB"] = job
    samples: list[list[float]] = []
    over = threading.Event()
    server = ParameterServer(controller)
    try:
        server.wait_ready(JOIN_SECONDS)
        engine = server.versions.server

        def note() -> None:
            while not over.wait(interval):
                trees = engine.stats().trees
                samples.append([time.monotonic(), *(float(sum(getattr(t, name) for t in trees)) for name in NOTED)])

        thread = threading.Thread(target=note, daemon=True)
        thread.start()
        channel.send({"joined": True})
        while channel.receive() is not None:
            pass
        over.set()
        thread.join()
    finally:
        server.close()
    return samples


def worker(channel: Channel, *, controller: str, job: str, seed: int, check: bool) -> None:
    """Run a worker. For each message {"elements": n, "seconds": patience} it makes its contribution and answers
    {"prepared"}, and with the next message, {"at": time}, it begins at that time. The answer to that has the times of
    its first packet and its last result, a digest of the sum, with `check` how many values are wrong, and the counters
    of its engine. The message null ends it.
    """
    from evaluation.chaos.worker import contribution, exact_sum, judged
    from worker_agent import connect

    os.environ["INART_JOB"] = job
    agent = connect(controller, timeout=JOIN_SECONDS, operation_timeout=60.0)
    try:
        assert agent.config is not None
        index, workers = agent.config.index, len(agent.config.workers)
        channel.send({"joined": index})
        while (order := channel.receive()) is not None:
            values = contribution(seed, index, order["elements"])
            before = _counted(agent)
            channel.send({"prepared": index})
            at = channel.receive()["at"]
            time.sleep(max(0.0, at - time.monotonic()))
            work = agent.allreduce_async(values, op="sum")
            work.wait(order["seconds"])
            answer: dict[str, Any] = {
                "first_send": work.first_send,
                "last_answer": work.last_answer,
                "digest": hashlib.sha256(values.tobytes()).hexdigest(),
                "counted": {name: value - before[name] for name, value in _counted(agent).items()},
            }
            if check:
                answer["wrong"] = judged(values, exact_sum(seed, list(range(workers)), order["elements"]))
            channel.send(answer)
    finally:
        agent.close()


def _counted(agent: Any) -> dict[str, float]:
    """Return the counters of this worker's engine since it was made."""
    stats = agent.stats()
    names = ("chunks_sent", "resent_gap", "resent_timeout", "resent_recovery", "answers", "duplicates", "refused")
    trees = {name: float(sum(getattr(tree, name) for tree in stats.trees)) for name in names}
    return trees | {
        "packets_sent": stats.packets_sent,
        "packets_received": stats.packets_received,
        "wakeups": stats.wakeups,
        "cpu_seconds": stats.cpu_seconds,
        "kernel_drops": stats.kernel_drops,
        "messages_received": stats.io.messages_received,
    }
