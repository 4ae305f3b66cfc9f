"""Makes each event happen, for real, and looks whether it did."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

from controlplane.common.agentconfig import AgentConfig
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.common.rpc.client import ControllerError, ask
from controlplane.service.core.disabled import Why
from evaluation.chaos import forger
from evaluation.chaos.controller import ControllerProcess, eventually, stopped
from evaluation.chaos.findings import Happening
from evaluation.chaos.jobs import JobRun, Place
from evaluation.chaos.kinds import KINDS
from p4src.protocol import HEADER_OFFSET, PROTOCOL, VERSION, Flag
from topologies.faults import link_of

BURST_LOSS = 0.3
FLIPPED = 0.01
FLIP_SLOTS = 255
FLIPS_AT_ONCE = 400
VALUE_REGISTERS = "InartIngress.values."
YEAR = 365.25 * 86400
JUMPS = (3600.0, 86400.0, YEAR, 10 * YEAR)
FORGED_AT_ONCE = 40
FORGE_EVERY = 0.25
VALUES = PROTOCOL.targets["v1model"].values_per_packet
REPLAN_SECONDS = 20.0
LATE_SLACK_SECONDS = 60.0
FORKED_SECONDS = 60.0
STATE_SECONDS = 10.0
ALONE = frozenset({"controller", "stop-controller", "clock"})

Steps = Iterator[None]
"""One event: it has begun when the first step is done; what comes after the yield ends it."""


class Disturber:
    """What can be done to a network, its controller and its jobs. `run` takes one event from its beginning to its end;
    each in a thread of its own."""

    def __init__(self, place: Place, controller: ControllerProcess, jobs: Sequence[JobRun]) -> None:
        self._emulation, self._controller, self._jobs = place.emulation, controller, jobs
        self._findings, self._say = place.findings, place.say
        self._over = threading.Event()
        self._controlling = threading.Lock()
        self._kinds: dict[str, Callable[[Happening], Steps]] = {
            "link": self._link, "switch": self._switch, "edge": self._switch, "reboot": self._reboot,
            "burst": lambda one: self._lossy(one, BURST_LOSS), "blackout": lambda one: self._lossy(one, 1.0),
            "ps": self._kill, "worker": self._kill, "controller": self._kill_controller,
            "stop-ps": self._stop, "stop-worker": self._stop, "stop-controller": self._stop_controller,
            "late": self._late, "forge": self._forge, "flip": self._flip, "memory": self._memory,
            "clock": self._clock, "disk": self._disk, "interface": self._interface, "fork": self._fork,
        }  # fmt: skip

    def close(self) -> None:
        """Events under way end now, and no other begins."""
        self._over.set()

    def run(self, one: Happening) -> None:
        """Waits for its time, does it, ends it."""
        event = one.event
        self._over.wait(max(0.0, self._findings.began + event.at - time.monotonic()))
        if self._over.is_set():
            return
        one.jobs = self._waiting(event.kind, event.target)
        before = self._plans()
        # What is done to the controller may take longer than it should: another one does not come in between.
        alone = self._controlling if event.kind in ALONE else nullcontext()
        with alone:
            self._do(one)
        one.ended = time.monotonic()
        after = self._plans()
        if before and after and "plans" not in one.evidence:
            one.evidence["plans"] = f"{before} -> {after}" if before != after else "no change"
        self._say(f"{event.kind} {event.target}".rstrip() + f" is over: {one.evidence}")

    def _do(self, one: Happening) -> None:
        event = one.event
        one.began = time.monotonic()
        self._say(f"{event.kind} {event.target}".rstrip() + (f" for {event.seconds:.1f} s" if event.seconds else ""))
        try:
            steps = self._kinds[event.kind](one)
            next(steps)
            self._over.wait(max(0.0, one.began + event.seconds - time.monotonic()))
            with suppress(StopIteration):
                next(steps)
        except Exception as error:  # of the emulation, a process that is gone, ...: it is a finding, not the end
            one.problem = f"{type(error).__name__}: {error}"
            one.happened = bool(one.happened)
            self._say(f"{event.kind} {event.target}: {one.problem}")

    def _plans(self) -> str:
        """The jobs' plan versions; "" where the controller cannot say."""
        versions = [job.plan_version() for job in self._jobs]
        return "" if None in versions else ",".join(map(str, versions))

    def _waiting(self, kind: str, target: str) -> frozenset[str]:
        """The jobs that can only wait while this is so."""
        if not KINDS[kind].waits:
            return frozenset()
        topology = self._emulation.topology
        touched = set()
        for run in self._jobs:
            hosts = (*run.job.workers, *run.job.parameter_servers)
            if not target or target in hosts or target in map(topology.access_switch, hosts):
                touched.add(run.job.name)
        return frozenset(touched)

    def _job(self, node: str) -> JobRun:
        return next(run for run in self._jobs if node in (*run.job.workers, *run.job.parameter_servers))

    # -- the network ---------------------------------------------------------------------------------------------------

    def _lost(self, *switches: str) -> int:
        drops = self._emulation.drops()
        return sum(drops[name].get("injected_loss", 0) for name in switches or drops)

    def _link(self, one: Happening) -> Steps:
        ends = link_of(one.event.target, self._emulation.topology)
        assert ends is not None, "it was drawn from the links between switches"
        u, v = ends
        before = self._lost(u, v)
        self._emulation.cut(u, v)
        one.happened = True
        try:
            yield
        finally:
            self._emulation.mend(u, v)
        one.evidence["frames lost"] = self._lost(u, v) - before

    def _switch(self, one: Happening) -> Steps:
        switch = one.event.target
        self._emulation.fail(switch, max(0.1, one.event.seconds))
        one.happened = eventually(lambda: not self._emulation.is_up(switch))
        yield
        one.evidence["is back"] = eventually(lambda: self._emulation.is_up(switch), STATE_SECONDS)

    def _reboot(self, one: Happening) -> Steps:
        self._emulation.reboot(one.event.target)
        one.happened = True
        one.evidence["forgot everything"] = True
        yield

    def _lossy(self, one: Happening, loss: float) -> Steps:
        before = self._lost()
        self._shape_all(loss=loss)
        try:
            yield
        finally:
            self._shape_all(loss=0.0)
        one.evidence["frames lost"] = self._lost() - before
        one.happened = one.evidence["frames lost"] > 0

    def _shape_all(self, **faults: float) -> None:
        topology = self._emulation.topology
        for u, v in topology.links:
            if u in topology.switches:
                self._emulation.shape(u, v, **faults)

    def _flip(self, one: Happening) -> Steps:
        switch = one.event.target
        before = self._emulation.corrupted()[switch]
        where = random.Random(one.event.seed).choice((HEADER_OFFSET, PROTOCOL.values_offset))
        faults = {"corrupt": FLIPPED, "corrupt_udp": 1.0, "corrupt_hidden": 1.0, "corrupt_from": float(where)}
        neighbours = self._emulation.topology.neighbours(switch)
        try:
            for neighbour in neighbours:
                self._emulation.shape(switch, neighbour, **faults)
            yield
        finally:
            for neighbour in neighbours:
                self._emulation.shape(switch, neighbour, corrupt=0.0)
        one.evidence["frames corrupted"] = self._emulation.corrupted()[switch] - before
        self._take_back(one)
        one.evidence["in"] = "values" if where == PROTOCOL.values_offset else "header and values"
        one.happened = one.evidence["frames corrupted"] > 0

    def _memory(self, one: Happening) -> Steps:
        one.evidence["bits flipped"] = 0
        stop = threading.Event()

        def flip() -> None:
            while not stop.wait(0.1):
                with suppress(Exception):  # it has just rebooted
                    flipped = self._emulation.flip(one.event.target, VALUE_REGISTERS, FLIPS_AT_ONCE, FLIP_SLOTS)
                    one.evidence["bits flipped"] += flipped

        thread = threading.Thread(target=flip, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
        one.happened = one.evidence["bits flipped"] > 0
        self._take_back(one)

    def _interface(self, one: Happening) -> Steps:
        node = one.event.target
        before = self._emulation.interface_index(node)
        self._emulation.remake_interface(node)
        after = self._emulation.interface_index(node)
        one.evidence["interface index"] = f"{before} -> {after}"
        one.happened = before != after
        yield

    # -- agents --------------------------------------------------------------------------------------------------------

    def _kill(self, one: Happening) -> Steps:
        node, run = one.event.target, self._job(one.event.target)
        process = run.process(node)
        run.kill(node)
        one.evidence["process"] = process.pid
        one.happened = process.pid is not None and eventually(lambda: _dead(process.pid))
        try:
            yield
        finally:
            run.restart(node)

    def _stop(self, one: Happening) -> Steps:
        node, run = one.event.target, self._job(one.event.target)
        process = run.process(node)
        run.signal(node, signal.SIGSTOP)
        one.happened = eventually(lambda: stopped(process.pid or 0))
        one.evidence["process"] = process.pid
        try:
            yield
        finally:
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
            self._findings.add_failed(f"children that {one.event.target} forked ended with {codes}")

    # -- the controller ------------------------------------------------------------------------------------------------

    def _kill_controller(self, one: Happening) -> Steps:
        one.evidence["process"] = self._controller.kill()
        one.happened = bool(one.evidence["process"])
        yield from self._controller_back(one)

    def _controller_back(self, one: Happening) -> Steps:
        starts = self._controller.starts
        try:
            yield
        finally:
            self._controller.back()
        self._serves_again(one, starts)

    def _serves_again(self, one: Happening, starts: int) -> None:
        began = time.monotonic()
        if eventually(lambda: self._controller.starts > starts, 60.0):
            one.evidence["served again after"] = f"{time.monotonic() - began:.1f} s"
        else:
            self._findings.add_failed(f"the controller does not serve again after {one.event}: {self._said()}")

    def _said(self) -> str:
        return self._controller.ended[-1] if self._controller.ended else self._controller.last_words()

    def _stop_controller(self, one: Happening) -> Steps:
        pid = self._controller.send(signal.SIGSTOP)
        one.happened = eventually(lambda: stopped(pid))
        one.evidence["process"] = pid
        try:
            yield
        finally:
            self._controller.send(signal.SIGCONT)

    def _clock(self, one: Happening) -> Steps:
        drawn = random.Random(one.event.seed)
        ahead = drawn.choice(JUMPS) * drawn.choice((1, -1))
        reads = self._controller.clock.wrong_reads
        self._controller.clock.jump(ahead)
        one.evidence["clock"] = f"{ahead / 86400:+.4g} days"
        one.happened = eventually(lambda: self._controller.clock.wrong_reads > reads, STATE_SECONDS)
        starts = self._controller.starts
        self._controller.kill()
        self._controller.back()
        self._serves_again(one, starts)
        try:
            yield
        finally:
            self._controller.clock.jump(0.0)
        one.evidence["wrong times read"] = self._controller.clock.wrong_reads - reads
        starts = self._controller.starts
        self._controller.kill()
        self._controller.back()
        self._serves_again(one, starts)

    def _disk(self, one: Happening) -> Steps:
        one.evidence["bytes filled"] = self._controller.fill_disk()
        one.happened = one.evidence["bytes filled"] > 0
        topology = self._emulation.topology
        with_hosts = {topology.access_switch(node) for node in topology.servers}
        spine = random.Random(one.event.seed).choice([name for name in topology.switches if name not in with_hosts])
        thread = threading.Thread(target=self._keep_off, args=(one, {"without": [spine]}), daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._controller.free_disk()
        thread.join()
        self._keep_off(one, {"restored": [spine]})

    def _take_back(self, one: Happening) -> None:
        """As an operator who has mended it: what the controller keeps off because it corrupts is used again."""
        try:
            request = pb.StatusRequest(job=self._jobs[0].job.name)
            reply = ask(self._controller.address, "status", request, timeout=REPLAN_SECONDS)
        except (ControllerError, OSError):
            return
        kept_off = [name.partition(" (")[0] for name in reply.without if name.endswith(f"({Why.CORRUPTS})")]
        if kept_off:
            one.evidence["kept off"] = ", ".join(kept_off)
            self._keep_off(one, {"restored": kept_off})

    def _keep_off(self, one: Happening, change: Mapping[str, list[str]]) -> None:
        """A change that the controller must keep: it wants a new plan, and an epoch."""
        request = pb.ReplanRequest(
            job=self._jobs[0].job.name, without=change.get("without", ()), restored=change.get("restored", ())
        )
        try:
            said = ask(self._controller.address, "replan", request, timeout=REPLAN_SECONDS).outcome
        except (ControllerError, OSError) as error:
            said = f"refused: {str(error)[:200]}"
        one.evidence[f"asked {next(iter(change))}"] = said

    # -- other users ---------------------------------------------------------------------------------------------------

    def _forge(self, one: Happening) -> Steps:
        node, run = one.event.target, self._job(one.event.target)
        process = self._emulation.popen(
            node, [sys.executable, "-I", "-S", forger.__file__, str(VERSION), str(VALUES), str(one.event.seed)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdin is not None
        stop = threading.Event()

        def feed() -> None:
            assert process.stdin is not None
            while not stop.wait(FORGE_EVERY):
                with suppress(OSError, ValueError):
                    process.stdin.write(json.dumps(self._forged(node, run)) + "\n")
                    process.stdin.flush()

        refused = run.refused(node)
        thread = threading.Thread(target=feed, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
            process.stdin.close()
        try:
            process.wait(30.0)
        except subprocess.TimeoutExpired:
            process.kill()
        said = process.stdout.read() if process.stdout is not None else ""
        if not said:
            one.problem = (process.stderr.read() if process.stderr is not None else "")[-300:]
        report = json.loads(said or "{}")
        one.evidence |= report | {"refused": f"{refused} -> {run.refused(node)}"}
        one.happened = report.get("sent", 0) > 0 and int(report.get("capabilities", "1"), 16) == 0

    def _forged(self, node: str, run: JobRun) -> Mapping[str, Any]:
        """What somebody who knows everything but the keys would send next."""
        kept = self._controller.agents().get(run.job.name, {}).get(node)
        address = self._emulation.topology.address(node)
        if kept is None:
            return {"address": address, "packets": []}
        config = AgentConfig.from_json(kept)
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


def _dead(pid: int | None) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True
