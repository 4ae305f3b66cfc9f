"""Tenants: who owns which jobs on a network, what each tenant's jobs have together, and what they may have."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path

from controlplane.common.log_lines import Log
from controlplane.common.rpc import inart_pb2 as pb
from controlplane.common.whole_file import Fresh
from controlplane.planner.entries import RuleSet
from controlplane.planner.job import Job
from controlplane.planner.rules import Taken
from controlplane.planner.terms import UNLIMITED, Quota, Terms, parse_quotas, quota_of
from controlplane.service.running import Jobs, JobsError, RunningJob


class Tenants:
    """The tenants of a network. `quotas` returns what a tenant may have, by name, and `rules` what a job (by number)
    has on each switch."""

    def __init__(
        self, jobs: Jobs, quotas: Callable[[str], Quota], rules: Callable[[int], Mapping[str, RuleSet]]
    ) -> None:
        self._jobs, self.quota, self._rules = jobs, quotas, rules

    def of(self, tenant: str) -> list[RunningJob]:
        """Return the tenant's jobs."""
        return [job for job in self._jobs.staying() if job.terms.tenant == tenant]

    def check(self, job: Job, terms: Terms) -> None:
        """Check that a job with these terms is within its tenant's quota, and uses no servers of other tenants; raise
        JobsError otherwise."""
        quota = self.quota(terms.tenant)
        self._refuse(terms, quota.refusal(terms, [other.terms for other in self.of(terms.tenant)]))
        barred = sorted({node for node in (*job.workers, *job.parameter_servers) if not quota.allows(node)})
        if barred:
            self._refuse(terms, f"job {job.name} would use {', '.join(barred)}, which the quotas do not give it")

    def check_rules(self, terms: Terms, rulesets: Mapping[str, RuleSet], without: int) -> None:
        """Check that these entries of the job with the number `without` are within the tenant's quota beside those of
        its other jobs; raise JobsError otherwise."""
        quota = self.quota(terms.tenant)
        if quota == UNLIMITED:
            return
        others = [self._rules(job.job_id) for job in self.of(terms.tenant) if job.job_id != without]
        self._refuse(terms, quota.over(*_counts([rulesets, *others])))

    def rate_left(self, tenant: str, keep: Iterable[str] | None = None) -> float:
        """Return what a tenant's quota leaves, Mbit/s, beside its jobs that keep what they have (`keep`, all by
        default)."""
        quota = self.quota(tenant).rate_mbps
        if math.isinf(quota):
            return quota
        return quota - sum(job.plan.rate_mbps for job in self.of(tenant) if keep is None or job.name in keep)

    def most_of(self, job: RunningJob) -> float:
        """Return what a running job may have beside its tenant's other jobs, Mbit/s. A quota that has become smaller
        takes nothing from the job as long as it is planned by itself."""
        others = [one.name for one in self.of(job.terms.tenant) if one is not job]
        return max(self.rate_left(job.terms.tenant, others), job.plan.rate_mbps)

    def status(self) -> list[pb.TenantStatus]:
        """Return what each tenant has now, and may have."""
        found = []
        for tenant in dict.fromkeys(job.terms.tenant for job in self._jobs if job.terms.tenant):
            jobs = self.of(tenant)
            entries, slots = _counts([self._rules(job.job_id) for job in jobs])
            status = pb.TenantStatus(name=tenant, jobs=len(jobs), quota=str(self.quota(tenant)))
            status.rate_mbps = sum(job.plan.rate_mbps for job in jobs)
            status.entries, status.slots = max(entries.values(), default=0), max(slots.values(), default=0)
            found.append(status)
        return found

    def _refuse(self, terms: Terms, words: str) -> None:
        if words:
            raise JobsError(f"tenant {terms.tenant}: {words}")


class QuotasFile:
    """Quotas that a file gives, read again whenever it has changed. Thread-safe. A change that cannot be read is
    logged, and the previous quotas stay valid, since running jobs are replanned by them, too. Raises ValueError where
    the file cannot be read at the start.

    `servers` returns the names that nodes in the file may have.
    """

    def __init__(self, path: Path, log: Log, servers: Callable[[], Collection[str]]) -> None:
        problem = f"the file of quotas {path} cannot be used"

        def refused(error: Exception) -> None:
            log.warning(f"{problem}: {error}; what it said before holds on")

        try:
            self._quotas = Fresh([path], lambda: parse_quotas(path.read_text(), servers()), refused)
        except (OSError, ValueError) as error:
            raise ValueError(f"{problem}: {error}") from None

    def __call__(self, tenant: str) -> Quota:
        """Return a tenant's quota."""
        return quota_of(self._quotas.now(), tenant)


def unlimited(tenant: str) -> Quota:
    """Return the quota of a tenant where none are set."""
    return UNLIMITED


def _counts(rules: Iterable[Mapping[str, RuleSet]]) -> tuple[dict[str, int], dict[str, int]]:
    """Return the entries of the label table and the slots of several jobs together, by switch."""
    entries: dict[str, int] = {}
    slots: dict[str, int] = {}
    for one in rules:
        for switch, own in one.items():
            taken = Taken.by(own)
            entries[switch] = entries.get(switch, 0) + taken.labels
            slots[switch] = slots.get(switch, 0) + taken.used_slots
    return entries, slots
