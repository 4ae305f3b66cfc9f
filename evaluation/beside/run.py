"""Runs a job beside foreign traffic on an emulated network of switches e1 and e2 with s1 between them.

Where that traffic takes two ways, s2 is between e1 and e2, too. The workers are at e1, and the parameter server is at
e2, so that sums cross the links from e1 and results come back over them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from controlplane.planner.evaluate import evaluate
from controlplane.planner.generators import leaf_spine
from controlplane.planner.job import Job
from controlplane.planner.plan import Plan
from controlplane.planner.routing import next_hops
from controlplane.planner.strategies import get_strategy
from controlplane.planner.topology import Topology
from evaluation.beside.flows import HERE
from evaluation.beside.shares import Samples, Share, wire_mbps
from topologies.agents import MODULES, PREPARED_SECONDS, WORKER_SECONDS, JobAgents
from topologies.command import Say, repeated
from topologies.deployment import Fabric
from topologies.emulation import Emulation
from topologies.load import LoadMonitor
from topologies.zygote import HostProcess, Zygote

CASES = {
    "alone": "no TCP",
    "with": "TCP goes the way of the sums",
    "against": "TCP goes the way of the results",
    "both": "TCP goes both ways",
    "incast": "TCP from many hosts to the parameter server's host, whose link is the narrow one",
    "ecmp": "the way of the sums, there are two; each TCP flow takes one of them",
    "one way": "the way of the sums, there are two; all TCP flows take the same one",
    "sprayed": "the way of the sums, there are two; senders of UDP take them in turns, packet by packet",
}
PLANS = ("all", "a share", "own queue", "measured")
"""Plans with which a case is run: for the whole link ("all"); for the equal share that TCP leaves, as an operator
declares it; for the same share, with a queue of their own for the job's packets in the switches, whose rate is that
share; and for what the controller measures as left (`beside = 25`), which replans when that changes.
"""
BESIDE = 0.25
"""Least part of each link for which the controller plans, whatever it measures."""
CLASS = 4
"""The class of service of the job's packets, which have DSCP CS4."""
WIDE = 4.0
"""Rate of the other links, as a multiple of the narrow link's."""
TWO_WAYS = ("ecmp", "one way", "sprayed")
"""Cases with two switches between e1 and e2."""
SETTLE_SECONDS = 3.0
"""Seconds for which TCP runs before the job begins."""
MEASURED_SECONDS = 20.0
"""Seconds for which TCP runs before the job begins where the controller measures it."""
SAMPLE_SECONDS = 0.02
READY_SECONDS = 60.0
OPERATION_SECONDS = 120.0


@dataclass(frozen=True)
class Settings:
    """Settings of a run.

    Attributes:
        mbps: rate of the narrow link.
        workers: number of workers.
        flows: number of TCP flows, each way.
        seconds: how long the job would take with an equal share of the link.
        queue: number of packets that fit into the narrow link's queue.
        congestion: TCP's congestion control, as the kernel names it.
        ecn: number of packets that wait for a link, from which on switches mark others; 0 for no marks.
        beside: least part of each link for which a controller that measures the rest plans; None where it does not
            measure.
    """

    mbps: float = 20.0
    workers: int = 4
    flows: int = 4
    seconds: float = 6.0
    queue: int = 64
    congestion: str = "cubic"
    ecn: int = 0
    beside: float | None = None


class Place:
    """The network of a case: where workers, parameter server and foreign flows are, and which links are narrow."""

    def __init__(self, case: str, settings: Settings) -> None:
        wide, narrow = settings.mbps * WIDE, settings.mbps
        access, uplink = (narrow, wide) if case == "incast" else (wide, narrow)
        count = settings.workers + settings.flows
        self.topology = leaf_spine(
            2, 2 if case in TWO_WAYS else 1, count, access, uplink_mbps=uplink, aggregation_mbps=None,
            ingress_mbps=None,
        )  # fmt: skip
        left, right = self.topology.servers[:count], self.topology.servers[count:]
        self.root = right[0]
        self.job = Job("job", tuple(left[: settings.workers]), (self.root,), 10**6)
        senders, receivers = left[settings.workers :], right[1 : 1 + settings.flows]
        self.with_sums: list[tuple[str, str]] = []  # senders and receivers of TCP
        self.against: list[tuple[str, str]] = []
        self.sprayed: list[tuple[str, tuple[str, ...]]] = []  # senders of UDP, each with a receiver for each way
        if case in ("with", "both", "ecmp"):
            self.with_sums = list(zip(senders, receivers, strict=True))
        if case in ("against", "both"):
            self.against = list(zip(receivers, senders, strict=True))
        if case == "incast":
            self.with_sums = [(sender, self.root) for sender in senders]
        hops = next_hops(self.topology)
        ways = sorted({hops[receiver]["e1"] for receiver in right})
        if case == "one way":
            along = [each for each in receivers if hops[each]["e1"] == ways[0]]
            self.with_sums = [(sender, along[i % len(along)]) for i, sender in enumerate(senders)]
        if case == "sprayed":
            ends = tuple(next(each for each in right[1:] if hops[each]["e1"] == way) for way in ways)
            self.sprayed = [(sender, ends) for sender in senders]
        links = [("e2", self.root)] if case == "incast" else [("e1", way) for way in ways]
        self.narrow = {
            link: len(self.sprayed) + sum(case not in TWO_WAYS or hops[to]["e1"] == link[1] for _, to in self.with_sums)
            for link in links
        }
        """Number of foreign flows over each narrow link towards the parameter server."""
        self.results = [("e2", way) for way in ways]  # where results meet TCP that goes their way
        self.queue = self.results[0] if case == "against" else links[0]  # where the job and TCP meet

    def share_mbps(self, mbps: float) -> float:
        """Return the job's equal share of narrow links of this rate, beside the flows that go over each of them."""
        if self.against and not self.with_sums:
            return mbps / (1 + len(self.against))
        return sum(mbps / (1 + flows) for flows in self.narrow.values())

    def planned(self, plan: str, mbps: float) -> Plan:
        """Return the plan for the whole link, or for the equal share of it that foreign traffic leaves."""
        state = self.topology
        if plan not in ("all", "measured"):
            used = {link: flows for link, flows in self.narrow.items() if flows}
            used |= {(v, u): len(self.against) for u, v in self.narrow if self.against}
            state = state.replace(
                links={link: {"used_bandwidth_mbps": mbps * flows / (1 + flows)} for link, flows in used.items()}
            )
        return get_strategy("inart")(state, self.job, seed=0)


def run(case: str, plans: Sequence[str], settings: Settings, say: Say) -> list[Share]:
    """Run one case with each of these plans, on a network of its own: without marks, and once more with marks where the
    settings have some. Raise EmulationError, HostFailure.
    """
    place = Place(case, settings)
    with ExitStack() as stack:
        emulation = stack.enter_context(Emulation(place.topology, "softswitch"))
        os.environ["INART_DSCP"] = str(CLASS << 3)  # for the agents' processes, which inherit it
        stack.callback(os.environ.pop, "INART_DSCP", None)
        zygote = stack.enter_context(Zygote(emulation, (*MODULES, HERE)))
        for port in (*place.narrow, *place.results):
            emulation.shape(*port, queue_packets=settings.queue)
        fabric = stack.enter_context(Fabric(emulation))
        zygote.wait_ready()
        shares = []
        for ecn in sorted({0, settings.ecn}):
            for plan in plans:
                planned = place.planned(plan, settings.mbps)
                loads = evaluate(planned, place.topology)
                for u, v in place.topology.links:
                    if u in place.topology.switches:
                        load = loads.load("link", f"{u}->{v}") if plan == "own queue" else 0.0
                        shaped: dict[str, Any] = {"dscp_classes": int(load > 0), f"class{CLASS}_mbps": load or None}
                        emulation.shape(u, v, ecn_packets=ecn, **shaped)
                own = replace(settings, ecn=ecn, beside=BESIDE if plan == "measured" else None)
                share = _measure(place, planned, own, zygote, fabric)
                share.case, share.plan, share.ecn = case, plan, ecn
                shares.append(share)
                say(f"{case}, planned for {plan}{', marked' if ecn else ''}: {share.job_mbps:.2f} of "
                    f"{share.planned_mbps:.2f} Mbit/s, fairness {share.fairness:.3f}")  # fmt: skip
        return shares


def _measure(place: Place, plan: Plan, settings: Settings, zygote: Zygote, fabric: Fabric) -> Share:
    emulation, flows = zygote.emulation, Flows(zygote, place.topology, settings)
    with fabric.serve(plan, beside=settings.beside) as service, JobAgents(zygote, service.address, place.job) as agents:
        agents.ready(READY_SECONDS)
        try:
            flows.start(place.with_sums)
            flows.start(place.against)
            flows.spray(place.sprayed)
            time.sleep((SETTLE_SECONDS if settings.beside is None else MEASURED_SECONDS) if flows.any else 0.0)
            planned = service.network.jobs.get().plan.rate_mbps
            share = place.share_mbps(settings.mbps)
            size = int(min(share, plan.rate_mbps) * 1e6 / 8 * settings.seconds) // 4 * 4
            samples: list[tuple[float, float]] = []

            def look() -> None:
                samples.append((time.monotonic(), emulation.switches.queued_bytes(*place.queue)))

            with repeated(look, SAMPLE_SECONDS):
                load = LoadMonitor(emulation)
                begin = time.monotonic() + PREPARED_SECONDS + WORKER_SECONDS * settings.workers
                agents.submit(size, timeout=OPERATION_SECONDS, at=begin)
                outcome = agents.collect(OPERATION_SECONDS + READY_SECONDS)
                found = load.stop()
            end = begin + outcome.seconds
            received = flows.received()
        finally:
            flows.end()
        agents.leave(READY_SECONDS)
    rates = {pair: wire_mbps(one, begin, end) for pair, one in received.items()}
    return Share(
        case="", plan="", link_mbps=settings.mbps, planned_mbps=planned, job_mbps=outcome.rate_mbps,
        tcp_mbps=[rates[pair] for pair in place.with_sums]
        + [sum(rates[sender, end] for end in ends) for sender, ends in place.sprayed],
        back_mbps=[rates[pair] for pair in place.against],
        links=len(place.narrow), flow_links=len(place.narrow) if place.sprayed else 1, share_mbps=share,
        queue=[(at - begin, waits) for at, waits in samples if begin <= at <= end],
        queue_full=found.drops.get("queue_full", 0), resent=outcome.resent, right=outcome.right, idle=found.idle,
    )  # fmt: skip


class Flows:
    """Foreign flows in hosts, until `end`."""

    def __init__(self, zygote: Zygote, topology: Topology, settings: Settings) -> None:
        self._zygote, self._topology, self._settings = zygote, topology, settings
        self._sinks: list[tuple[HostProcess, list[tuple[str, str]]]] = []
        self._sources: list[HostProcess] = []

    @property
    def any(self) -> bool:
        return bool(self._sinks)

    def start(self, pairs: Sequence[tuple[str, str]]) -> None:
        """Start these flows (sender, receiver), and wait until they are connected. Raise HostFailure."""
        for receiver in dict.fromkeys(receiver for _, receiver in pairs):
            own = [pair for pair in pairs if pair[1] == receiver]
            address = self._topology.address(receiver)
            sink = self._zygote.spawn(
                receiver, f"{HERE}:sink", {"address": address, "flows": len(own), "ecn": self._settings.ecn > 0}
            )
            self._sinks.append((sink, own))
            sink.receive(READY_SECONDS)
            for sender, _ in own:
                arguments = {"address": address, "congestion": self._settings.congestion, "ecn": self._settings.ecn > 0}
                source = self._zygote.spawn(sender, f"{HERE}:source", arguments)
                self._sources.append(source)
                source.receive(READY_SECONDS)
            sink.receive(READY_SECONDS)

    def spray(self, senders: Sequence[tuple[str, tuple[str, ...]]]) -> None:
        """Start senders of UDP, each to these receivers in turns, all at one rate that leaves the job an equal share.
        Raise HostFailure.
        """
        for receiver in dict.fromkeys(end for _, ends in senders for end in ends):
            own = [(sender, receiver) for sender, ends in senders if receiver in ends]
            arguments = {
                "address": self._topology.address(receiver), "senders": [self._topology.address(a) for a, _ in own]
            }  # fmt: skip
            sink = self._zygote.spawn(receiver, f"{HERE}:drain", arguments)
            self._sinks.append((sink, own))
            sink.receive(READY_SECONDS)
        for sender, ends in senders:
            mbps = len(ends) * self._settings.mbps / (1 + len(senders))
            addresses = [self._topology.address(end) for end in ends]
            self._sources.append(self._zygote.spawn(sender, f"{HERE}:spray", {"addresses": addresses, "mbps": mbps}))

    def received(self) -> dict[tuple[str, str], Samples]:
        """Return what each flow has delivered so far, by (sender, receiver). Raise HostFailure."""
        found: dict[tuple[str, str], Samples] = {}
        for sink, own in self._sinks:
            sink.send(None)
            found |= dict(zip(own, sink.receive(READY_SECONDS), strict=True))
        return found

    def end(self) -> None:
        for process in (*self._sources, *(sink for sink, _ in self._sinks)):
            process.kill()
