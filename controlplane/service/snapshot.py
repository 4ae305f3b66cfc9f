"""A network and its jobs at one moment, as data: what the page shows and /api/snapshot returns."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from controlplane.planner.plan import Plan
from controlplane.planner.plan.layout import positions
from controlplane.planner.rules import NOTHING, Taken
from controlplane.service.measure import Measurements, Reading
from controlplane.service.network import Network
from controlplane.service.running import RunningJob, job_state
from controlplane.service.shares import Loads, Used

EVENTS = 200


class Snapshots:
    """Makes snapshots of a network. Thread-safe."""

    def __init__(self, network: Network, measurements: Measurements) -> None:
        self.network = network
        self.measurements = measurements
        self._drawn, self._places = network.topology, positions(network.topology)
        self._loads: dict[str, tuple[Plan, Loads]] = {}

    def take(self) -> dict[str, Any]:
        """Return the network now, as data that JSON can hold. Rates are in Mbit/s, times in seconds since 1970."""
        network, topology = self.network, self.network.topology
        if topology is not self._drawn:  # it has been reloaded
            self._drawn, self._places = topology, positions(topology)
            self._loads.clear()
        reading = self.measurements.read()
        jobs = list(network.jobs)
        loads = {job.name: self._planned(job) for job in jobs}
        used = Used(topology, loads.values())
        names = {job.job_id: job.name for job in jobs}
        hosts = network.state.host_times_ms()
        taken = network.switches.taken()
        disabled, others = network.state.disabled, network.state.others_mbps
        return {
            "time": time.time(),
            "measured_at": reading.at,
            "topology": topology.name,
            "without": disabled,
            "answers": dict(network.answers),
            "host_times_ms": dict(hosts),
            "nodes": [self._node(node, reading, loads, used, taken.get(node, NOTHING)) for node in topology.nodes],
            "links": [
                {
                    "from": u,
                    "to": v,
                    "bandwidth_mbps": topology.bandwidth_mbps(u, v),
                    "planned_mbps": used.flows.get((u, v), 0.0),
                    "measured_mbps": reading.link((u, v)),
                    "other_mbps": others.get((u, v), 0.0),
                    "jobs": {
                        names[number]: flow.mbps
                        for number, flow in reading.links.get((u, v), {}).items()
                        if number in names
                    },
                    "off": _is_off(disabled, u, v),
                }
                for u, v in topology.links
            ],
            "jobs": [self._job(job, reading, loads[job.name], used) for job in jobs],
            "events": [{"time": event.time, "text": event.text} for event in network.journal.lines(EVENTS)],
        }

    def _planned(self, job: RunningJob) -> Loads:
        plan = job.plan
        kept = self._loads.get(job.name)
        if kept is None or kept[0] is not plan:
            kept = plan, Loads.of(plan, self.network.topology)
            self._loads[job.name] = kept
        return kept[1]

    def _node(
        self, node: str, reading: Reading, loads: Mapping[str, Loads], used: Used, taken: Taken
    ) -> dict[str, Any]:
        network, topology = self.network, self.network.topology
        x, y = self._places[node]
        found: dict[str, Any] = {"name": node, "kind": topology.kind(node), "x": x, "y": y}
        found["off"] = network.state.disabled.get(node, "")
        if topology.kind(node) == "switch":
            keeper = next((one for one in network.switches.keepers if one.target.name == node), None)
            found |= {
                "state": keeper.state if keeper is not None else "",
                "problem": reading.silent.get(node, ""),
                "refills": keeper.refills if keeper is not None else 0,
                "adds_for": sorted(name for name, one in loads.items() if one.switches.get(node)),
                "aggregation_mbps": _finite(topology.aggregation_mbps(node)),
                "planned_mbps": used.switches.get(node, 0.0),
                "slots_used": sum(end - begin for begin, end in taken.slots),
                "slots": network.kind.limits.slots,
                "labels": taken.labels,
                "verdicts": reading.verdicts.get(node, {}),
            }
        else:
            roles = {job.name: job.roster.configs[node].role for job in network.jobs if node in job.roster.configs}
            joined = [job.name for job in network.jobs if node in job.roster.members()]
            found |= {
                "jobs": roles,
                "joined": joined,
                "ingress_mbps": _finite(topology.ingress_mbps(node)),
                "planned_mbps": used.roots.get(node, 0.0),
            }
        return found

    def _job(self, job: RunningJob, reading: Reading, loads: Loads, used: Used) -> dict[str, Any]:
        plan = job.plan
        history = self.measurements.history(job)
        members = job.roster.members()
        status = job.roster.status()
        waits, rates = {one.tree: one for one in status.trees}, job.roster.tree_rates()
        trees = []
        for index, tree in enumerate(plan.trees):
            flow = reading.trees.get((job.job_id, index))
            waiting = waits.get(index)
            late = waiting is not None and waiting.HasField("oldest_chunk")
            trees.append(
                {
                    "tree": index,
                    "root": tree.root,
                    "share": tree.share,
                    "planned_mbps": plan.rate_mbps * tree.share,
                    "measured_mbps": flow.mbps if flow is not None else 0.0,
                    "busy_mbps": rates.get(index),
                    "points": list(tree.points),
                    "links": sorted({pair for one in tree.flows for pair in pairwise(one.route)}),
                    "oldest_chunk": waiting.oldest_chunk if waiting is not None and late else None,
                    "waits_for": list(waiting.missing) if waiting is not None and late else [],
                    "waiting_seconds": waiting.waiting_seconds if waiting is not None and late else 0.0,
                }
            )
        return {
            "name": job.name,
            "number": job.job_id,
            "strategy": plan.strategy,
            "version": plan.version,
            "weight": job.terms.weight,
            "guarantee_mbps": job.terms.guarantee_mbps,
            "priority": job.terms.priority,
            "state": job_state(job),
            "epoch": job.roster.epoch,
            "update": status.update,
            "planned_mbps": plan.rate_mbps,
            "measured_mbps": history[-1][1] if history else 0.0,
            "bottleneck": used.bottleneck(loads),
            "workers": list(plan.job.workers),
            "parameter_servers": list(plan.job.parameter_servers),
            "missing": [node for node in job.roster.configs if node not in members],
            "workers_waiting": 0 if job.roster.running else sum(node in members for node in plan.job.workers),
            "agents": {
                node: {"role": config.role, "joined": node in members, "statistics": _statistics(members, node)}
                for node, config in job.roster.configs.items()
            },
            "history": [[when, rate] for when, rate in history],
            "trees": trees,
        }


def _finite(value: float) -> float | None:
    return None if math.isinf(value) else value


def _statistics(members: Mapping[str, Any], node: str) -> dict[str, float]:
    return dict(members[node].statistics) if node in members else {}


def _is_off(off: Mapping[str, str], u: str, v: str) -> str:
    return next((off[name] for name in (f"{u}-{v}", f"{v}-{u}", u, v) if name in off), "")
