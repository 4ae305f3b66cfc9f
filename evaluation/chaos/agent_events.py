"""Events of hosts: agents are killed, stopped and late, trainers fork, and other users forge packets."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from controlplane.common.agentconfig import AgentConfig
from controlplane.common.rpc.client import ControllerError, fetch_status
from evaluation.chaos import forger
from evaluation.chaos.controller import dead, eventually, stopped
from evaluation.chaos.events import Act, Happening, Steps
from evaluation.chaos.harness import Place
from evaluation.chaos.jobs import JobRun
from p4src.protocol import PROTOCOL, VERSION, Flag
from topologies.command import repeated

FORGED_AT_ONCE = 40
FORGE_EVERY = 0.25
VALUES = PROTOCOL.targets["v1model"].values_per_packet
ANSWER_SECONDS = 1.0
LATE_SLACK_SECONDS = 60.0
FORKED_SECONDS = 60.0
DISBELIEVED = ("check", "unknown", "other_epoch", "refused", "malformed", "foreign", "stranger")
"""Words in the names of the counters of packets that agents have refused to believe."""


class AgentEvents:
    """Events that affect the agents of jobs, and events that another user of their hosts causes. `stored` returns the
    configurations of agents in the controller's state, by job and node.
    """

    def __init__(
        self, place: Place, jobs: Sequence[JobRun], stored: Callable[[], Mapping[str, Mapping[str, Any]]] = dict
    ) -> None:
        self._emulation, self._findings = place.emulation, place.findings
        self._jobs, self._stored = jobs, stored

    def acts(self) -> dict[str, Act]:
        """Return the function that makes an event happen, by kind."""
        return {
            "ps": self._kill, "worker": self._kill, "stop-ps": self._stop, "stop-worker": self._stop,
            "stop-agents": self._stop_all, "late": self._late, "fork": self._fork, "forge": self._forge,
        }  # fmt: skip

    def _job(self, node: str) -> JobRun:
        return next(run for run in self._jobs if node in (*run.job.workers, *run.job.parameter_servers))

    def _kill(self, one: Happening) -> Steps:
        node, run = one.event.target, self._job(one.event.target)
        process = run.process(node)
        run.kill(node)
        one.evidence["process"] = process.pid
        one.happened = process.pid is not None and eventually(lambda: dead(process.pid))
        try:
            yield
        finally:
            run.restart(node)

    def _stop(self, one: Happening) -> Steps:
        node, run = one.event.target, self._job(one.event.target)
        process = run.process(node)
        process.signal(signal.SIGSTOP)
        one.happened = eventually(lambda: stopped(process.pid))
        one.evidence["process"] = process.pid
        try:
            yield
        finally:
            process.signal(signal.SIGCONT)

    def _stop_all(self, one: Happening) -> Steps:
        processes = [run.process(node) for run in self._jobs for node in (*run.job.workers, *run.job.parameter_servers)]
        for process in processes:
            process.signal(signal.SIGSTOP)
        one.happened = eventually(lambda: all(stopped(process.pid) for process in processes))
        one.evidence["processes"] = len(processes)
        try:
            yield
        finally:
            for process in processes:
                process.signal(signal.SIGCONT)

    def _late(self, one: Happening) -> Steps:
        sent = self._job(one.event.target).make_late(one.event.target, one.event.seconds)
        yield
        one.happened = sent.wait(LATE_SLACK_SECONDS)
        one.evidence["seconds late"] = round(one.event.seconds, 1)

    def _fork(self, one: Happening) -> Steps:
        run = self._job(one.event.target)
        run.fork(one.event.target, one.event.seconds)
        yield
        codes = run.forked(one.event.target, FORKED_SECONDS)
        one.evidence["children ended with"] = codes
        one.happened = bool(codes)
        if any(code != 0 for code in codes):
            self._findings.failed.append(f"children that {one.event.target} forked ended with {codes}")

    def _forge(self, one: Happening) -> Steps:
        node, run = one.event.target, self._job(one.event.target)
        process = self._emulation.popen(
            node, [sys.executable, "-I", "-S", forger.__file__, str(VERSION), str(VALUES), str(one.event.seed)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdin is not None

        def feed() -> None:
            assert process.stdin is not None
            with suppress(OSError, ValueError):
                process.stdin.write(json.dumps(self._forged(node, run)) + "\n")
                process.stdin.flush()

        before = refused(run, node)
        try:
            with repeated(feed, FORGE_EVERY):
                yield
        finally:
            process.stdin.close()
        try:
            process.wait(30.0)
        except subprocess.TimeoutExpired:
            process.kill()
        said = process.stdout.read() if process.stdout is not None else ""
        if not said:
            one.problem = (process.stderr.read() if process.stderr is not None else "")[-300:]
        report = json.loads(said or "{}")
        one.evidence |= report | {"refused": f"{before} -> {refused(run, node)}"}
        one.happened = report.get("sent", 0) > 0 and int(report.get("capabilities", "1"), 16) == 0

    def _forged(self, node: str, run: JobRun) -> Mapping[str, Any]:
        """Return the packets that a forger would send who knows everything except the keys."""
        kept = self._stored().get(run.job.name, {})
        address = self._emulation.topology.address(node)
        if node not in kept:
            return {"address": address, "packets": []}
        agents = {name: AgentConfig.from_json(each) for name, each in kept.items()}
        config = agents[node]
        if not config.worker_trees and not config.root_trees:  # A server on standby: it forges another agent's packets.
            config = next(one for one in agents.values() if one.worker_trees)
        common = {"job": config.job_id, "epoch": run.epoch, "count": FORGED_AT_ONCE}
        packets: list[dict[str, Any]] = []
        for tree in config.worker_trees:
            sequence = run.sequences.get(str(tree.tree), 0)
            own = common | {"port": tree.port, "sequence": sequence, "bitmap": 0}
            packets.append(own | {"label": tree.up_label, "flags": 0})
            packets.append(own | {"label": tree.up_label, "flags": int(Flag.RESEND)})
            answer = own | {"bitmap": len(config.workers), "flags": int(Flag.RESULT)}
            packets.append(answer | {"label": tree.return_label})
            packets.append(answer | {"label": tree.answer_label})
        for root in config.root_trees:
            sequence = run.sequences.get(str(root.tree), 0)
            for flow in root.flows[:4]:
                bitmap = (1 << len(flow.parts)) - 1
                packets.append(common | {"port": root.port, "sequence": sequence, "bitmap": bitmap, "label": flow.label,
                                         "flags": 0})  # fmt: skip
        random.shuffle(packets)
        return {"address": address, "packets": packets[:6]}


def refused(run: JobRun, node: str) -> int | None:
    """Return the number of packets that this node's agent has refused to believe, as it last reported; None where the
    controller does not answer.
    """
    with suppress(ControllerError, OSError):
        status = fetch_status(run.controller, timeout=ANSWER_SECONDS, job=run.job.name)
        found = [agent.statistics for agent in status.agents if agent.node == node]
        counted = dict(found[0]) if found else {}
        return int(sum(value for name, value in counted.items() if any(word in name for word in DISBELIEVED)))
    return None
