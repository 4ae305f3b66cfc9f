"""Entries that adding a job would write to the switches: for dry runs."""

from __future__ import annotations

from controlplane.planner.terms import Terms
from controlplane.service.admission import Admission
from controlplane.service.entry_changes import EntryChange, between
from controlplane.service.network import Network
from controlplane.service.room import deployment_of, part


def foreseen(network: Network, admission: Admission, terms: Terms) -> tuple[EntryChange, ...]:
    """Return the entries that adding a job as admitted would write, also those for the jobs that make room for it.

    Raise DoesNotFit, PlanError, UpdateError or JobsError where the job cannot be added.
    """
    made: list[EntryChange] = []
    for job in network.jobs:
        if (plan := admission.plans.get(job.name)) is not None:
            made += job.updater.update(network.state.of(job), plan=plan, dry_run=True).changes
    taken, pace = network.switches.taken(), network.settings.pace
    number = network.free_id()
    new = deployment_of(admission.plan, network.topology, network.kind, number, taken=taken, pace=pace)
    network.tenants.check_rules(terms, new.rulesets, number)
    return (*made, *between({}, {name: part(rules) for name, rules in new.rulesets.items()}))
