"""Runs a coordinator in a process of its own, so that it can be killed: python -m topologies.wan.controller ARGUMENTS.

ARGUMENTS is JSON. The process prints one line of JSON per event, and reads lines on stdin with the rates of links:
{"sender", "receiver", "mbps"}.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from controlplane.common.rpc.tls import credentials
from controlplane.planner.plan.task import Task
from controlplane.planner.strategies.wan.policy import Changed
from controlplane.targets.base import SwitchAddress
from overlay.core.systems import LinkQuality, make
from overlay.net.coordinator import Coordinator
from overlay.net.replication import p4runtime
from overlay.net.tls import Security
from topologies.wan.networks import emulated, network_named, scaled


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def main() -> int:
    given = json.loads(sys.argv[1])
    graph, _ = scaled(network_named(given["network"], given["seed"]), given["total_mbps"])
    policy = make(
        given["system"],
        graph,
        given["values"],
        p=given["p"],
        chunk=given["chunk"],
        seed=given["seed"],
        update=2.0,
        links=LinkQuality(given["loss"], given["delay_ms"]),
    )

    def finished(task: Task, seconds: float) -> None:
        say(task=task.number, seconds=seconds, participants=len(task.participants))

    switches = [SwitchAddress(*each) for each in given["switches"]]
    with Coordinator(
        policy, given["host"], given["port"], probe_values=given["chunk"] // 2, finished=finished,
        security=Security.of(credentials(Path(given["credentials"]))) if given["credentials"] else None,
        replication=p4runtime(emulated(graph, 0.0), switches), log=lambda line: say(log=line),
    ) as coordinator:  # fmt: skip
        say(address=coordinator.address)
        for line in sys.stdin:
            told = json.loads(line)
            coordinator.tell(Changed(told["sender"], told["receiver"], told["mbps"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
