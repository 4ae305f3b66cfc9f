"""A training job: which servers work, which are parameter servers, how large the model is."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from controlplane.common import inputs
from controlplane.common.inputs import parse_json, read_json, unknown_name
from controlplane.planner.topology import Topology, natural_key

DEFAULT_MODEL_BYTES = 1_000_000
ANY = "any"
ON_WORKERS = "workers"
"""Value of `ps=` that puts a parameter server on every worker's server."""
MOST_TENSORS = 100_000
FIELDS = ("name", "workers", "parameter_servers", "model_bytes", "max_trees", "at_least", "gathers", "ready_ms")
WORDS = ("workers", "ps", "seed", "model", "ready", "trees", "at_least", "gathers", "name")


class JobError(ValueError):
    """Error of a job that is wrong or does not fit the topology; the message names the node."""


LONGEST_NAME = 64
"""Most letters of a job's name, which stands in commands, in tables, in metrics and in environment variables."""


def is_job_name(name: str) -> bool:
    """Return whether a job may have this name: a word of 1 to 64 printable letters, without spaces."""
    return 0 < len(name) <= LONGEST_NAME and name.isprintable() and not any(letter.isspace() for letter in name)


@dataclass(frozen=True)
class Job:
    """A training job. A server may be a worker and a parameter server at once (`both_roles`): it is named in both
    lists.

    Attributes:
        workers: Node ids; a worker's index is its bit in bitmaps.
        model_bytes: Bytes of one gradient (float32).
        max_trees: Most aggregation trees that a plan may have; None for any number.
        buckets: Bytes of the tensors that make a gradient and are reduced one by one; None for a single one of
            model_bytes; () for tensors of any size, so that only the rate counts and model_bytes is an example.
        at_least: When workers are lost for good, the job goes on as long as it has this many; None makes it wait for
            each of them.
        gathers: Whether the job gathers (fully sharded training); plans then make all-gathers fast, too
            (controlplane/planner/gathers.py).
        ready_ms: When each of the tensors is ready to be reduced, in ms after the step begins, in their order; None for
            all at once. With it, a plan is judged by the time at which the last result arrives.
    """

    name: str
    workers: tuple[str, ...]
    parameter_servers: tuple[str, ...]
    model_bytes: int
    max_trees: int | None = None
    buckets: tuple[int, ...] | None = None
    at_least: int | None = None
    gathers: bool = False
    ready_ms: tuple[float, ...] | None = None

    @property
    def sizes(self) -> tuple[int, ...]:
        """The bytes of the tensors that are reduced; empty where they may have any size."""
        return (self.model_bytes,) if self.buckets is None else self.buckets

    def ends_at(self, seconds_from: Callable[[int], float]) -> float:
        """Return when the last of the tensors is reduced, in seconds after the step begins, where they are reduced in
        their order, each as soon as it is ready. `seconds_from` returns the seconds that the tensors from a number on
        take without a pause.
        """
        if not self.ready_ms:
            return seconds_from(0)
        return max(at / 1e3 + seconds_from(number) for number, at in enumerate(self.ready_ms))

    @cached_property
    def both_roles(self) -> frozenset[str]:
        """The servers that are worker and parameter server at once: what such a worker sends to itself crosses no
        link.
        """
        return frozenset(self.workers).intersection(self.parameter_servers)

    @property
    def may_lose_workers(self) -> bool:
        """Whether the job may go on with fewer workers than it has."""
        return self.at_least is not None and self.at_least < len(self.workers)

    def among(self, nodes: Container[str]) -> Job:
        """Return the job with only those parameter servers that are in `nodes`, and, where it may lose workers, only
        those workers.

        Raise JobError where no parameter server or too few workers are left.
        """
        roots = tuple(node for node in self.parameter_servers if node in nodes)
        workers = tuple(node for node in self.workers if node in nodes) if self.may_lose_workers else self.workers
        if not roots:
            raise JobError(f"job {self.name!r} has no parameter server left: {', '.join(self.parameter_servers)}")
        if self.at_least is not None and len(workers) < self.at_least:
            raise JobError(f"job {self.name!r} has {len(workers)} workers left and wants at least {self.at_least}")
        if (workers, roots) == (self.workers, self.parameter_servers):
            return self
        return replace(self, workers=workers, parameter_servers=roots)

    def __post_init__(self) -> None:
        if not is_job_name(self.name):
            raise JobError(
                f"a job's name is a word of 1 to {LONGEST_NAME} letters that can be printed, without spaces, got "
                f"{self.name[:LONGEST_NAME]!r}"
                + (f" and {len(self.name) - LONGEST_NAME} more letters" if len(self.name) > LONGEST_NAME else "")
            )
        if not self.workers:
            raise JobError(f"job {self.name!r} has no workers")
        if not self.parameter_servers:
            raise JobError(f"job {self.name!r} has no parameter servers")
        for role, nodes in (("worker", self.workers), ("parameter server", self.parameter_servers)):
            if len(set(nodes)) < len(nodes):
                twice = next(node for i, node in enumerate(nodes) if node in nodes[:i])
                raise JobError(f"job {self.name!r}: {role} {twice!r} is given twice")
        if len(self.workers) == 1 and self.workers[0] in self.parameter_servers:
            raise JobError(
                f"job {self.name!r}: its only worker {self.workers[0]!r} is its own parameter server: there is nothing "
                "to send"
            )
        if isinstance(self.model_bytes, bool) or not isinstance(self.model_bytes, int) or self.model_bytes <= 0:
            raise JobError(
                f"job {self.name!r}: model_bytes must be a whole number of bytes above 0, like 1000000, a list "
                f"of buckets' bytes, or {ANY!r}, got {self.model_bytes!r}"
            )
        if any(isinstance(b, bool) or not isinstance(b, int) or b <= 0 for b in self.buckets or ()):
            raise JobError(f"job {self.name!r}: buckets must be whole numbers above 0, got {list(self.buckets or ())}")
        if self.buckets and sum(self.buckets) != self.model_bytes:
            raise JobError(f"job {self.name!r}: its buckets have {sum(self.buckets)} bytes, not {self.model_bytes}")
        if self.ready_ms is not None:
            _check_ready(self.name, self.ready_ms, len(self.sizes))
        most = self.max_trees
        if most is not None and (isinstance(most, bool) or not isinstance(most, int) or most < 1):
            raise JobError(f"job {self.name!r}: max_trees must be a whole number above 0, got {most!r}")
        if not isinstance(self.gathers, bool):
            raise JobError(f"job {self.name!r}: gathers must be true or false, got {self.gathers!r}")
        least = self.at_least
        if least is not None and (isinstance(least, bool) or not isinstance(least, int) or least < 1):
            raise JobError(f"job {self.name!r}: at_least must be a whole number above 0, got {least!r}")
        if least is not None and least > len(self.workers):
            raise JobError(f"job {self.name!r}: at_least={least}, and it has {len(self.workers)} workers")

    def check(self, topology: Topology) -> None:
        """Check that every node of the job is a server of the topology; raise JobError otherwise."""
        for role, nodes in (("worker", self.workers), ("parameter server", self.parameter_servers)):
            for node in nodes:
                if node not in topology:
                    raise JobError(f"job {self.name!r}: {role} {node!r} does not exist in the topology")
                if topology.kind(node) != "server":
                    raise JobError(f"job {self.name!r}: {role} {node!r} is a switch, it must be a server")

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "workers": list(self.workers),
            "parameter_servers": list(self.parameter_servers),
            "model_bytes": self.model_bytes if self.buckets is None else list(self.buckets) or ANY,
            **({} if self.max_trees is None else {"max_trees": self.max_trees}),
            **({} if self.at_least is None else {"at_least": self.at_least}),
            **({"gathers": True} if self.gathers else {}),
            **({} if self.ready_ms is None else {"ready_ms": list(self.ready_ms)}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Job:
        """Return the job that a JSON object describes. Raise JobError, naming the field, where one is missing or
        wrong.
        """
        if not isinstance(data, Mapping):
            raise JobError(f"a job is a JSON object, got {data!r}")
        if unknown := unknown_name(data, FIELDS):
            raise JobError(f"job: {unknown}")
        for key in ("workers", "parameter_servers"):
            value = data.get(key)
            if (
                isinstance(value, str)
                or not isinstance(value, Sequence)
                or not all(isinstance(n, str | int) for n in value)
            ):
                raise JobError(f"job: {key} must be a list of node ids, got {value!r}")
        if "model_bytes" not in data:
            raise JobError(f'job: model_bytes is missing: a number, a list of tensors\' sizes, or "{ANY}"')
        size: Any = data["model_bytes"]
        buckets: tuple[int, ...] | None = None
        if size == ANY:
            size, buckets = DEFAULT_MODEL_BYTES, ()
        elif isinstance(size, list):
            if not size or not all(isinstance(b, int) for b in size):
                raise JobError(f"job: model_bytes must be a number, a list of numbers or {ANY!r}, got {size!r}")
            size, buckets = sum(size), tuple(size)
        ready = data.get("ready_ms")
        if ready is not None and not isinstance(ready, list):
            raise JobError(f"job: ready_ms must be a list of numbers, got {ready!r}")
        return cls(
            str(data.get("name", "job")),
            tuple(str(n) for n in data["workers"]),
            tuple(str(n) for n in data["parameter_servers"]),
            size,
            data.get("max_trees"),
            buckets,
            data.get("at_least"),
            data.get("gathers", False),
            None if ready is None else tuple(ready),
        )


def _check_ready(name: str, ready_ms: tuple[float, ...], tensors: int) -> None:
    """Check that `ready_ms` has one time for each tensor, none before the one ahead of it; raise JobError otherwise."""
    for at in ready_ms:
        if isinstance(at, bool) or not isinstance(at, int | float) or not 0 <= at < math.inf:
            raise JobError(f"job {name!r}: ready_ms must be numbers of ms from 0 on, got {at!r}")
    if len(ready_ms) != tensors:
        what = f"its model has {tensors}" if tensors else "the model's size is not given (model=25M*4)"
        raise JobError(f"job {name!r}: ready_ms has {len(ready_ms)} times, and {what}")
    if list(ready_ms) != sorted(ready_ms):
        raise JobError(f"job {name!r}: ready_ms must not fall: tensors are reduced in their order")


def parse_bytes(text: str) -> int:
    """Return the bytes of a text such as "25M", as `inputs.parse_bytes` does. Raise JobError for anything else."""
    try:
        return inputs.parse_bytes(text)
    except ValueError as error:
        raise JobError(str(error)) from None


def parse_sizes(text: str) -> tuple[int, tuple[int, ...] | None]:
    """Return the bytes of a gradient and the sizes of its tensors (as `Job.buckets` has them) of "25M", "25M+25M+7M",
    "25M*40" or "any". Raise JobError for anything else.
    """
    if text.strip() == ANY:
        return DEFAULT_MODEL_BYTES, ()
    sizes: list[int] = []
    for part in text.split("+"):
        size, star, times = part.partition("*")
        if star and not times.strip().isdigit():
            raise JobError(f"a size may be given several times, like 25M*40, got {part!r}")
        count = int(times) if star else 1
        if len(sizes) + count > MOST_TENSORS:
            raise JobError(f"a gradient has at most {MOST_TENSORS} tensors, got {part!r}")
        sizes += [parse_bytes(size)] * count
    return sum(sizes), None if len(sizes) == 1 else tuple(sizes)


def place_job(
    topology: Topology,
    workers: int | None = None,
    parameter_servers: int | None = 1,
    *,
    seed: int = 0,
    model_bytes: int = DEFAULT_MODEL_BYTES,
    name: str = "job",
) -> Job:
    """Return a job with parameter servers and workers on random servers; the same seed gives the same job. Servers
    whose `role` says so are taken first. Raise JobError where there are too few servers.

    Args:
        workers: Number of workers; None for one on each server that is left.
        parameter_servers: Number of parameter servers; None for one on every worker's server.
    """
    generator = random.Random(seed)
    order = list(topology.servers)
    generator.shuffle(order)

    def take(count: int, role: str, other: str) -> list[str]:
        preference = {role: 0, None: 1, other: 2}
        chosen = sorted(order, key=lambda node: preference[topology.role(node)])[:count]
        for node in chosen:
            order.remove(node)
        return sorted(chosen, key=natural_key)

    own = parameter_servers or 0  # servers that are parameter servers only
    if (parameter_servers is not None and own < 1) or (workers is not None and workers < 1):
        raise JobError(f"a job needs a worker and a parameter server, got workers={workers}, ps={parameter_servers}")
    needed = own + (workers if workers is not None else 1)
    if needed > len(order):
        raise JobError(f"the job needs {needed} servers, the topology has {len(order)}")
    roots = take(own, "parameter_server", "worker")
    chosen = take(workers if workers is not None else len(order), "worker", "parameter_server")
    return Job(name, tuple(chosen), tuple(roots if parameter_servers is not None else chosen), model_bytes)


def _parse_times(text: str) -> tuple[float, ...]:
    """Return the ms of a text such as "10+20+30". Raise JobError for anything else."""
    try:
        return tuple(float(at) for at in text.split("+"))
    except ValueError:
        raise JobError(f"job: ready must be times in ms, like 10+20+30, got {text!r}") from None


def parse_job(spec: str, topology: Topology) -> Job:
    """Return a job from a JSON file, or from words such as
    "workers=8,ps=2,seed=1,model=200K,trees=8,at_least=6,gathers=1,name=x" (every part optional). Raise JobError where
    that cannot be.

    Without workers=, all servers that are left work. Without ps=, there are as many parameter servers as the topology
    has servers with that role, else 1; ps=workers makes each worker a parameter server, too. model= gives the bytes of
    the gradient, or of its tensors (25M+7M, 25M*40), or "any" (the default); ready= when each is ready, in ms (10+20).
    """
    if spec and "=" not in spec:
        path = Path(spec)
        try:
            data = read_json(path)
        except OSError as error:
            raise JobError(
                f"cannot read job file {path}: {error.strerror}; a job is a file or workers=8,ps=2,seed=1"
            ) from None
        except ValueError as error:
            raise JobError(f"cannot read job file {path}: {error}") from None
        try:
            job = Job.from_json(data)
            job.check(topology)
        except JobError as error:
            raise JobError(f"job file {path}: {error}") from None
        return job
    values: dict[str, str] = {}
    for part in filter(None, spec.split(",")):
        key, _, value = part.partition("=")
        if key not in WORDS:
            raise JobError(f"job: unknown part {part!r}; known are {', '.join(f'{word}=' for word in WORDS)}")
        if key in values:
            raise JobError(f"job: {key}= is given twice")
        values[key] = value

    def integer(key: str, default: int | None) -> int | None:
        try:
            return int(values[key]) if key in values else default
        except ValueError:
            raise JobError(f"job: {key} must be a whole number, got {values[key]!r}") from None

    if (gathers := values.get("gathers", "0")) not in ("0", "1"):
        raise JobError(f"job: gathers must be 0 or 1, got {gathers!r}")
    size, buckets = parse_sizes(values.get("model", ANY))
    hinted = sum(topology.role(s) == "parameter_server" for s in topology.servers)
    placed = place_job(
        topology,
        integer("workers", None),
        None if values.get("ps") == ON_WORKERS else integer("ps", hinted or 1) or 0,
        seed=integer("seed", 0) or 0,
        model_bytes=size,
        name=values.get("name", "job"),
    )
    return replace(
        placed,
        max_trees=integer("trees", None),
        buckets=buckets,
        ready_ms=_parse_times(values["ready"]) if "ready" in values else None,
        at_least=integer("at_least", None),
        gathers=gathers == "1",
    )


def parse_next_job(
    text: str,
    topology: Topology,
    others: Mapping[str, Iterable[str]],
    workers: Sequence[str] = (),
    barred: Iterable[str] = (),
) -> Job:
    """Return a job that is to run beside others. Raise JobError where that cannot be.

    Args:
        text: A job as JSON, or words as `parse_job` takes them; words choose among servers that no other job has, and
            where they give no name, a free one is taken.
        others: The nodes of the other jobs, by the job's name.
        workers: The servers of the job's workers, where they are given. Each is a parameter server, too, unless the
            words give a number of parameter servers: these then have servers of their own.
        barred: Servers that words do not choose.
    """
    if text.lstrip().startswith("["):
        raise JobError("a job file is a JSON object of workers and parameter servers, and not a list")
    if text.lstrip().startswith("{"):
        if workers:
            raise JobError("a job file names its workers: they cannot be given beside it")
        job = Job.from_json(parse_json(text))
        job.check(topology)
        return job
    busy = {node for nodes in others.values() for node in nodes}.union(barred)
    if "name=" not in text:
        name = next(name for name in ("job", *(f"job{n}" for n in range(2, 1 << 16))) if name not in others)
        text = f"{text},name={name}" if text else f"name={name}"
    if workers:
        return _job_on(text, topology, busy, workers)
    free = topology.replace(remove_nodes=[node for node in topology.servers if node in busy])
    try:
        return parse_job(text, free)
    except JobError as error:
        if busy and "the topology has" in str(error):
            beside = f"those of {', '.join(others)}" if others else "those of other tenants"
            raise JobError(f"{error} beside {beside}") from None
        raise


def _job_on(text: str, topology: Topology, busy: Container[str], workers: Sequence[str]) -> Job:
    """Return the job that words describe whose workers are given. `busy` has the servers of other jobs. Raise JobError
    where that cannot be.
    """
    if twice := sorted({node for node in workers if list(workers).count(node) > 1}):
        raise JobError(f"the job's workers are given: {twice[0]} twice")
    words = text.split(",")
    if any(word.startswith(("workers=", "seed=")) for word in words):
        raise JobError(
            "the job's workers are given: workers= and seed=, which choose servers, cannot be among the words"
        )
    servers = next((word.removeprefix("ps=") for word in words if word.startswith("ps=")), ON_WORKERS)
    kept = [word for word in words if not word.startswith("ps=")]
    among = topology.replace(remove_nodes=[node for node in topology.servers if node not in workers])
    job = parse_job(",".join([*kept, f"ps={ON_WORKERS}"]), among)
    if servers == ON_WORKERS:
        return job
    if not servers.isdigit() or int(servers) < 1:
        raise JobError(f"job: ps= is a number of parameter servers above 0, or {ON_WORKERS}, got {servers!r}")
    free = [node for node in topology.servers if node not in busy and node not in workers]
    free.sort(key=lambda node: (topology.role(node) != "parameter_server", natural_key(node)))
    if len(free) < int(servers):
        raise JobError(f"the job needs {servers} parameter servers, and {len(free)} servers are free")
    return replace(job, parameter_servers=tuple(free[: int(servers)]))
