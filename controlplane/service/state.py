"""State that a controller needs when it starts again: the jobs, their plans, what each has on the switches, and what an
operator has disabled."""

from __future__ import annotations

import fcntl
import hashlib
import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from controlplane.common.agentconfig import AgentConfig
from controlplane.common.inputs import parse_json
from controlplane.common.log_lines import Log
from controlplane.common.whole_file import replace_file, state_home
from controlplane.planner.entries import Aggregate, Forward, LabelEntry, MulticastGroup, Replicate, RuleSet
from controlplane.planner.job import Job
from controlplane.planner.plan import Plan
from controlplane.planner.rules import Deployment
from controlplane.planner.terms import USUAL, Terms
from controlplane.service.epochs import LAST_EPOCH, SECRET, EpochStore

ACTIONS: dict[str, type[Forward] | type[Replicate] | type[Aggregate]] = {
    "forward": Forward,
    "replicate": Replicate,
    "aggregate": Aggregate,
}


RETRY_SECONDS = 5.0


class StateError(Exception):
    """The stored state cannot be used; the message says what to do."""


@dataclass(frozen=True)
class Stored:
    """A job as it is installed. `job` is the whole job where the plan is for a part of it."""

    job_id: int
    plan: Plan
    deployment: Deployment
    terms: Terms = USUAL
    job: Job | None = None


@dataclass(frozen=True)
class Keeps:
    """State that a controller needs when it starts again.

    Attributes:
        disabled: names of elements that an operator has disabled.
        begun: numbers of jobs that are being added: switches may have entries of them.
        epoch: last epoch when the state was stored.
        secret: fingerprint of the secret from which the labels of the jobs' entries were derived; "" if not stored.
    """

    jobs: Sequence[Stored] = ()
    disabled: Sequence[str] = ()
    begun: Sequence[int] = ()
    epoch: int = 0
    secret: str = ""


def default_folder(addresses: Iterable[str]) -> Path:
    """Return the folder that keeps the state of the network with these switches, unless another one is given."""
    network = hashlib.sha256("\n".join(sorted(addresses)).encode()).hexdigest()[:12]
    return state_home() / f"network-{network}"


class StateFolder:
    """The stored state of one network's controller; one process at a time holds it. A context manager.

    Raises StateError where another process holds it, or it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._saving = threading.Lock()
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = open(path / "lock", "w")  # noqa: SIM115  # it is the lock, until `close`
        except OSError as error:
            raise StateError(f"jobs cannot be kept in {path}: {error.strerror}; another place: --state DIR") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise StateError(
                f"another controller of this network runs on this machine (it has {path}): give it the order "
                "(inart job add), or end it"
            ) from None

    def load(self) -> Keeps:
        """Return what was stored last; nothing where nothing was."""
        try:
            text = self._stored()
            data = {"jobs": []} if text is None else parse_json(text)
            if "digest" in data and data["digest"] != digest_of(data):  # earlier versions stored none
                raise ValueError("its content does not have the digest that it names: it was damaged or edited")
            _check_reservations(data)
            return Keeps(
                [_job(entry) for entry in data["jobs"]],
                [_name(name) for name in data.get("kept_off", [])],
                [int(number) for number in data.get("begun", [])],
                _epoch(data.get("epoch", 0)),
                str(data.get("secret", "")),
            )
        except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError) as error:
            where = self.path / "jobs.json"
            raise StateError(f"{where} cannot be used ({error}): move it away to begin without jobs") from None

    def _stored(self) -> bytes | None:
        """Return the stored text, or None if none was stored. Raise OSError or ValueError if it cannot be read."""
        try:
            return (self.path / "jobs.json").read_bytes()
        except FileNotFoundError:
            return None

    def _store(self, text: str) -> None:
        """Replace the stored text, all or nothing. Raise OSError where it cannot be written."""
        replace_file(self.path / "jobs.json", text.encode(), 0o666)

    def save(self, keeps: Keeps) -> None:
        """Replace the stored state, all or nothing, also when the machine stops meanwhile."""
        with self._saving:
            data = {
                "jobs": [_json(one) for one in keeps.jobs],
                "kept_off": sorted(keeps.disabled),
                "begun": sorted(keeps.begun),
                "epoch": keeps.epoch,
                "secret": keeps.secret,
            }
            self._store(json.dumps(data | {"digest": digest_of(data)}))

    @property
    def closed(self) -> bool:
        return self._lock.closed

    def close(self) -> None:
        self._lock.close()

    def __enter__(self) -> StateFolder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Kept:
    """The state of a running network, stored at each change. When it cannot be stored (the disk is full), the network
    goes on, the log says so once, and storing is tried again."""

    def __init__(
        self,
        folder: StateFolder,
        what: Callable[[], Keeps],
        log: Log,
    ) -> None:
        self._folder, self._what, self._log = folder, what, log
        self._lock = threading.Lock()
        self._saving = threading.Lock()  # so that an older state never replaces a newer one
        self._waits = False
        self._problem = ""

    def save(self) -> None:
        """Store the state. Does not raise."""
        with self._saving:
            before = self._problem
            try:
                self._folder.save(self._what())
                self._problem = ""
            except OSError as error:
                self._problem = f"jobs cannot be kept in {self._folder.path}: {error.strerror or error}"
                self._again_soon()
            now = self._problem
        if now != before:
            if now:
                self._log.error(
                    f"{now}; tried again every {RETRY_SECONDS:g} s: a controller that starts before that begins with "
                    "what was kept last"
                )
            else:
                self._log.info(f"jobs are kept in {self._folder.path} again")

    def problem(self) -> str:
        """Return why the present state is not stored; "" where it is."""
        return self._problem

    def _again_soon(self) -> None:
        with self._lock:
            if self._waits:
                return
            self._waits = True
        timer = threading.Timer(RETRY_SECONDS, self._again)
        timer.daemon = True
        timer.start()

    def _again(self) -> None:
        with self._lock:
            self._waits = False
        if not self._folder.closed:
            self.save()


def _check_reservations(data: Mapping[str, Any]) -> None:
    """Raise StateError if a version that had reservations stored some: their jobs must not be dropped unsaid."""
    if names := ", ".join(str(one["job"]["name"]) for one in data.get("reserved", [])):
        raise StateError(
            f"the stored state has reservations ({names}), which this version does not support: cancel them with the "
            'version that stored them (inart job remove NAME), or delete "reserved" from the stored text'
        )


def resume(state: StateFolder, epochs: EpochStore) -> Keeps:
    """Return the stored state, after which no epoch is used again. Raise StateError if the state cannot be used, or the
    secret is not the one with which it was stored, and OSError if the epoch and the secret cannot be kept."""
    kept = state.load()
    jobs = bool(kept.jobs or kept.begun)
    remedy = f"copy the whole folder, or move {state.path / 'jobs.json'} away to begin without jobs"
    if jobs and not epochs.has_secret():
        old = state_home() / "epoch.secret"
        where = f"{old}, where an earlier version kept it" if old.exists() else "where it was (--epoch-file)"
        raise StateError(
            f"{state.path} has jobs, but not the secret of their labels and keys: copy it from {where}, to "
            f"{state.path / SECRET}; or {remedy}"
        )
    epochs.check(kept.epoch)
    if jobs and kept.secret not in ("", epochs.fingerprint()):
        raise StateError(f"{state.path} has jobs that were stored with another secret than {SECRET}: {remedy}")
    return kept


def digest_of(data: Mapping[str, Any]) -> str:
    """Return the digest of a stored state, in hexadecimal digits. The field `digest` is not counted."""
    counted = {name: value for name, value in data.items() if name != "digest"}
    return hashlib.sha256(json.dumps(counted, sort_keys=True).encode()).hexdigest()


def _epoch(epoch: object) -> int:
    if type(epoch) is not int or not 0 <= epoch <= LAST_EPOCH:
        raise ValueError(f"an epoch is an integer of 32 bits, not {epoch!r}")
    return epoch


def _name(name: object) -> str:
    if not isinstance(name, str):
        raise ValueError(f"kept_off holds names, not {name!r}")
    return name


def _json(stored: Stored) -> dict[str, Any]:
    deployment = stored.deployment
    return {
        "job_id": stored.job_id,
        "terms": {name: value for name, value in asdict(stored.terms).items() if value != ""},
        "plan": stored.plan.to_json(),
        "job": (stored.job or stored.plan.job).to_json(),
        "labels": [deployment.first_label, deployment.next_label],
        "slots": [[switch, tree, first] for (switch, tree), first in deployment.slots.items()],
        "agents": {node: config.to_json() for node, config in deployment.agents.items()},
        "switches": {switch: _rules_json(rules) for switch, rules in deployment.rulesets.items()},
    }


def _rules_json(rules: RuleSet) -> dict[str, Any]:
    return {
        "labels": [
            [entry.ingress_port, entry.label, type(entry.action).__name__.lower(), list(asdict(entry.action).values())]
            for entry in rules.labels
        ],
        "groups": [[group.group, list(group.ports)] for group in rules.groups],
    }


def _job(data: Mapping[str, Any]) -> Stored:
    rulesets = {switch: _rules(switch, entry) for switch, entry in data["switches"].items()}
    agents = {node: AgentConfig.from_json(config) for node, config in data["agents"].items()}
    first, after = data["labels"]
    slots = {(switch, tree): slot for switch, tree, slot in data["slots"]}
    deployment = Deployment(rulesets, agents, after, first, slots)
    plan = Plan.from_json(data["plan"])
    whole = Job.from_json(data["job"]) if "job" in data else plan.job
    terms = Terms(**data["terms"]) if "terms" in data else Terms(data.get("weight", 1.0))
    return Stored(data["job_id"], plan, deployment, terms, whole)


def _rules(switch: str, data: Mapping[str, Any]) -> RuleSet:
    labels = tuple(LabelEntry(port, label, ACTIONS[action](*values)) for port, label, action, values in data["labels"])
    groups = tuple(MulticastGroup(number, tuple(ports)) for number, ports in data["groups"])
    return RuleSet(switch, labels, groups, ())
