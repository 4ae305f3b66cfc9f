"""Emulate a WAN with a system's agents and controller, inject failures in the middle of rounds, and report results.

    inart emulate run --wan netstorm --system wan --fail 'dc0-dc1 at 5s for 5s'
    inart emulate run --wan netstorm --system crew --fail 'controller at 5s for 4s' --fail 'h3 at 8s for 5s'
    inart emulate run --wan netstorm --system netstorm --loss 0.0002 --delay-ms 15 --redraw 180 --seconds 600

Each site is a namespace: its agent synchronises values round after round and checks every mean. --fail names a link
between two sites (dc0-dc1), a site's agent (h3) or the controller; without "for" the failure is for good.
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from controlplane.cli.certificates import Wanted
from controlplane.cli.certificates import make as make_certificates
from controlplane.common import command_line
from overlay.__main__ import amount
from overlay.core.systems import PAPERS
from topologies.command import Say, guarded, stopwatch
from topologies.faults import parse_fault
from topologies.load import LoadMonitor
from topologies.network import EmulationError
from topologies.wan.changes import Changes
from topologies.wan.networks import NETWORKS, Wan, emulated, network_named, redrawn, scaled
from topologies.wan.processes import Agents, CoordinatorProcess
from topologies.zygote import HostFailure, Zygote

SYSTEMS = tuple(dict.fromkeys(name for names in PAPERS.values() for name in names))
AFTER_SECONDS = 60.0
"""Longest time that a task may still take when the last failure and the run's time are over."""


class _Journal:
    """The lines that the controller and the agents print, with their times, without those after the end."""

    def __init__(self, say: Say) -> None:
        self.events: list[tuple[float, str]] = []
        self.over = threading.Event()
        self._say = say

    def __call__(self, line: str) -> None:
        if self.over.is_set():
            return  # At the end all agents leave, in any order.
        self.events.append((time.monotonic(), line))
        self._say(line)


def run(arguments: argparse.Namespace, say: Say) -> dict[str, Any]:
    """Do the run and return its report. Raise EmulationError where the network does not work."""
    graph, factor = scaled(network_named(arguments.wan, arguments.seed), arguments.total_mbps)
    topology = emulated(graph, arguments.delay_ms)
    faults = [parse_fault(text, topology, ("controller",)) for text in arguments.fail]
    say(f"{arguments.wan}: {len(graph)} sites, rates times {factor:.3g}; {arguments.system}")
    log = _Journal(say)
    with ExitStack() as stack:
        wan = stack.enter_context(Wan(topology, arguments.loss, arguments.seed))
        keys: Path | None = None
        if arguments.tls:
            keys = Path(stack.enter_context(TemporaryDirectory()))
            make_certificates(keys, Wanted(nodes=tuple(topology.servers)))
        zygote = stack.enter_context(Zygote(wan.emulation, ["overlay.net.agent", "topologies.wan.hosts"]))
        controller = CoordinatorProcess(wan.emulation.controller_host, _given(arguments, wan, len(graph), keys), log)
        stack.callback(controller.close)
        controller.start()
        zygote.wait_ready()
        agents = Agents(zygote, topology, controller, arguments.values, keys)
        for node in topology.servers:
            agents.start(node)
        for node in topology.servers:
            agents.begin(node)
        load, began = LoadMonitor(wan.emulation), time.monotonic()
        changes = Changes(
            wan.emulation, faults, controller, agents, log,
            redraw=arguments.redraw, draw=lambda k: redrawn(graph, factor, arguments.seed, k),
        )  # fmt: skip
        stack.callback(changes.close)
        changes.start()
        last = max([f.at + (f.length or 0.0) for f in faults], default=0.0)
        end = began + max(arguments.seconds, last)
        while time.monotonic() < end:
            time.sleep(0.05)
        while not any(at > began + last for at, _ in controller.tasks) and time.monotonic() < end + AFTER_SECONDS:
            time.sleep(0.05)
        idle = load.stop().idle
        log.over.set()
        changes.close()
        reports = agents.end()
    return {
        "network": arguments.wan, "system": arguments.system, "seconds": arguments.seconds, "rate_factor": factor,
        **_tasks(controller, began, last), "wrong": sum(report["wrong"] for report in reports), "cpu_idle": idle,
        "agents": reports, "events": [(at - began, line) for at, line in log.events if at >= began],
    }  # fmt: skip


def _given(arguments: argparse.Namespace, wan: Wan, sites: int, keys: Path | None) -> dict[str, Any]:
    """Return the arguments of the controller's process (topologies/wan/controller.py)."""
    return {
        "network": arguments.wan, "seed": arguments.seed, "total_mbps": arguments.total_mbps,
        "system": arguments.system, "values": arguments.values, "p": arguments.p or max(2, sites // 2),
        "switches": [[a.name, a.address, a.device_id] for a in wan.emulation.switch_addresses.values()],
        "chunk": arguments.chunk, "loss": arguments.loss, "delay_ms": arguments.delay_ms,
        "credentials": str(keys / "controller") if keys else None,
    }  # fmt: skip


def _tasks(controller: CoordinatorProcess, began: float, last: float) -> dict[str, Any]:
    """Return how many tasks ended, and how regularly; `last` is the seconds until the last failure was over."""
    ended = sorted(at - began for at, _ in controller.tasks)
    gaps = [b - a for a, b in zip([0.0, *ended], ended, strict=False)]
    return {
        "tasks": len(ended),
        "task_s": median(s for _, s in controller.tasks) if ended else None,
        "longest_gap_s": max(gaps, default=None),
        "tasks_after_the_last_failure": sum(at > last for at in ended),
    }


def text(report: dict[str, Any]) -> str:
    lines = [
        f"{'agent':<8} {'rounds':>7} {'alone':>6} {'given up':>9} {'wrong':>6} {'slowest s':>10} {'memory MB':>10}"
    ]
    for each in report["agents"]:
        lines.append(
            f"{each['node']:<8} {each['rounds']:>7} {each['alone']:>6} {each['given_up']:>9} {each['wrong']:>6} "
            f"{each['slowest_s']:>10.2f} {each['peak_mb']:>10.0f}"
        )
    if report["events"]:
        lines += ["", "What happened, in seconds after the work began:"]
        lines += [f"  {at:7.2f}  {line}" for at, line in report["events"]]
    gap = report["longest_gap_s"]
    lines += [
        "",
        f"{report['tasks']} synchronisations, median {report['task_s'] or 0:.3f} s, longest time without one "
        f"{gap or 0:.2f} s; {report['tasks_after_the_last_failure']} after the last failure. "
        f"CPU {report['cpu_idle']:.0%} idle.",
        "Every result was the exact mean of those who took part." if not report["wrong"] else "RESULTS WERE WRONG.",
    ]
    return "\n".join(lines)


def main(argv: Sequence[str]) -> int:
    """Run the command.

    The exit status is 0 where all is well, 1 where it could not run, and 3 where a result was wrong or the work did not
    go on after failures.
    """
    parser = command_line.make("emulate run --wan", __doc__)
    parser.add_argument("--wan", nargs="?", const="netstorm", metavar="NETWORK",
                        help=f"one of {', '.join(NETWORKS)}, or a file with the links of one's own, {{\"links\": "
                        "[[from, to, Mbit/s, Mbit/s back], ..]} (default: netstorm)")  # fmt: skip
    parser.add_argument("--system", default="wan", choices=SYSTEMS, metavar="NAME", help=f"of {', '.join(SYSTEMS)}")
    parser.add_argument("--fail", action="append", default=[], metavar="'WHAT at 10s [for 5s]'", help="see above")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long it runs (default: %(default)s)")
    parser.add_argument("--values", type=amount, default=50_000, help="float32 values of a round (default 50k)")
    parser.add_argument("--p", type=int, help="sites in a group, receivers + 1 (default: half of the sites)")
    parser.add_argument("--chunk", type=int, default=2048, help="values of a chunk (default 2048)")
    parser.add_argument("--delay-ms", type=float, default=5.0, help="one way, of each link between sites (default 5)")
    parser.add_argument("--loss", type=float, default=0.0, help="fraction of packets that each link loses")
    parser.add_argument("--redraw", type=float, metavar="S", help="seconds after which all links get new rates "
                        "(NetStorm's paper: 20 to 155 Mbit/s every 180 s)")  # fmt: skip
    parser.add_argument(
        "--total-mbps", type=float, default=200.0, help="sum of all links' rates, which are scaled to it"
    )
    parser.add_argument("--seed", type=int, default=1, help="random seed of network and values (default: %(default)s)")
    parser.add_argument("--tls", action="store_true", help="controller and agents show certificates, made for this run")
    parser.add_argument("--output", type=command_line.new_file, metavar="FILE", help="write the report as JSON")
    arguments = parser.parse_args(argv)
    try:
        network_named(arguments.wan, arguments.seed)
    except ValueError as error:
        parser.error(str(error))
    say = stopwatch()

    def work() -> int:
        report = run(arguments, say)
        print(f"\n{text(report)}")
        if arguments.output is not None:
            arguments.output.write_text(json.dumps(report, indent=1) + "\n")
        return 3 if report["wrong"] or not report["tasks_after_the_last_failure"] else 0

    return guarded("topologies run --wan", work, EmulationError, HostFailure, ValueError)
