"""The controller's replies to operators as messages (inart.proto)."""

from __future__ import annotations

import json

from controlplane.common.rpc import inart_pb2 as pb
from controlplane.service.admission import Admission
from controlplane.service.entry_changes import messages
from controlplane.service.migration import Migrated
from controlplane.service.network import Network
from controlplane.service.reload import Reloaded, in_words
from controlplane.service.running import RunningJob, job_state
from controlplane.service.shares import Loads, Used, bottleneck_words

LEAST_SHOWN = 0.01
"""Part of a link from which on other traffic on the link is shown."""


def job_statuses(network: Network) -> list[pb.JobStatus]:
    """Return a line for each job, with its bottleneck and the job's share there."""
    jobs = list(network.jobs)
    loads = [Loads.of(job.plan, network.topology) for job in jobs]
    used = Used(network.topology, loads)
    return [job_status(job, bottleneck_words(used.bottleneck(own))) for job, own in zip(jobs, loads, strict=True)]


def job_status(job: RunningJob, bottleneck: str) -> pb.JobStatus:
    """Return a line about a job."""
    plan, roster = job.plan, job.roster
    joined = roster.members()
    missing = [node for node in roster.configs if node not in joined]
    return pb.JobStatus(
        name=job.name,
        job_id=job.job_id,
        strategy=plan.strategy,
        plan_version=plan.version,
        planned_rate_mbps=plan.rate_mbps,
        state=job_state(job),
        epoch=roster.epoch,
        joined=len(roster.configs) - len(missing),
        agents=len(roster.configs),
        missing=missing,
        bottleneck=bottleneck,
        terms=str(job.terms),
    )


def other_traffic(network: Network) -> list[pb.OtherTraffic]:
    """Return what other traffic takes of the links, where that was measured and is at least LEAST_SHOWN of the link."""
    state, topology = network.state, network.topology
    return [
        pb.OtherTraffic(
            source=u,
            target=v,
            measured_mbps=mbps,
            planned_mbps=state.others.get((u, v), 0.0),
            bandwidth_mbps=topology.bandwidth_mbps(u, v),
        )
        for (u, v), mbps in state.others_mbps.items()
        if topology.has_link(u, v) and mbps >= LEAST_SHOWN * topology.bandwidth_mbps(u, v)
    ]


def reload_reply(done: Reloaded) -> pb.ReloadReply:
    """Return the answer to `topology reload`."""
    found = done.difference
    return pb.ReloadReply(
        added=found.added,
        removed=found.removed,
        changed=found.changed,
        changes=messages(done.changes),
        entries=done.entries,
        summary=in_words(found),
    )


def admission_reply(admission: Admission) -> pb.AddJobReply:
    """Return the answer to `job add`, still without what was installed."""
    plan = admission.plan
    return pb.AddJobReply(
        name=plan.job.name,
        rate_mbps=plan.rate_mbps,
        bottleneck=admission.bottleneck,
        note=admission.note,
        plan=json.dumps(plan.to_json()),
        workers=plan.job.workers,
        parameter_servers=plan.job.parameter_servers,
        others=[
            pb.JobRate(name=name, before_mbps=before, after_mbps=after)
            for name, (before, after) in admission.others.items()
        ],
    )


def replan_reply(migrated: Migrated, dry_run: bool) -> pb.ReplanReply:
    """Return the answer to `replan`."""
    return pb.ReplanReply(
        outcome="updated" if migrated.changed else "planned" if dry_run else "later" if migrated.later else "unchanged",
        rate_before_mbps=migrated.rate_before,
        rate_mbps=migrated.plan.rate_mbps,
        version=migrated.plan.version,
        trees_kept=len(migrated.trees.kept),
        trees_removed=len(migrated.trees.removed),
        trees_added=len(migrated.trees.added),
        entries_added=migrated.entries_added,
        entries_removed=migrated.entries_removed,
        epoch=migrated.epoch,
        first_operation=migrated.first_operation,
        held_seconds=migrated.held_seconds,
        seconds=migrated.seconds,
        plan=json.dumps(migrated.plan.to_json()),
        changes=messages(migrated.changes),
    )
