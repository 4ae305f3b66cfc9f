"""Keeps the network's jobs in step with annotated training jobs of Kubernetes: it adds a job when all its pods have
nodes, and removes it afterwards.

inart kubernetes --controller 10.1.0.1:9600                 # in a pod: examples/kubernetes/operator.yaml

A TrainJob (Kubeflow Trainer v2) or PyTorchJob (v1) with the annotation `inart/job: ""` (or words as `inart job add`
takes them: "ps=2,share,model=100M") has a job in the network, called k8s-NAMESPACE.NAME.trainjob or k8s-NAMESPACE.NAME,
from the moment when all its pods have nodes until it has ended, failed, was suspended or deleted. Its nodes are the
workers and the parameter servers; agents run on them as a DaemonSet. The outcome is written to its annotation
`inart/status`. A job that the network cannot take trains over torch.distributed, and is tried again every half minute.
The jobs that are wanted are compared with those of the network every few seconds, so nothing is lost while this
operator, the API server or the controller is away.
"""

from __future__ import annotations

import argparse
import hashlib
import signal
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from controlplane.common import command_line
from controlplane.common.rpc.channels import controller_address
from controlplane.common.rpc.client import ControllerError, fetch_status
from worker_agent.launch.adding import add, take_off
from worker_agent.launch.cluster_api import ACCOUNT, Cluster, ClusterError, Object, UnknownPath
from worker_agent.launch.wishes import Refused, gets, parse_wish

ASKS, TELLS = "inart/job", "inart/status"
"""Annotations of a training job: the user's wishes, and the status that this program writes."""
PODS = "/api/v1/pods"
REPLICATED = "jobset.sigs.k8s.io/replicatedjob-name"
TRAINERS = "node"
"""The name that Kubeflow Trainer gives the pods of a TrainJob that train; others download models and data."""
NODES_VARIABLE = "PET_NNODES"
"""The environment variable with the number of pods that train, which Kubeflow Trainer sets for torchrun."""
PREFIX = "k8s-"
LOOK_SECONDS = 2.0
AGAIN_SECONDS = 30.0
"""Seconds between two attempts to add a job that was refused."""
MOST_LETTERS = 64
"""Most letters of a job's name in the network."""
MOST_WORDS = 1000
"""Most letters of a status that are written to the annotation."""


@dataclass(frozen=True)
class Kind:
    """A kind of training jobs.

    Attributes:
        group, plural: its group and version, and its name in paths of the API server.
        label: the label of pods with the name of their job.
        suffix: the end of the names of its jobs in the network.
    """

    group: str
    plural: str
    label: str
    suffix: str

    @property
    def path(self) -> str:
        """The path of all jobs of this kind."""
        return f"/apis/{self.group}/{self.plural}"

    def by_job(self, pods: Iterable[Object]) -> dict[tuple[str, str], list[Object]]:
        """Return the pods that train and have not ended, by namespace and name of their jobs."""
        found: dict[tuple[str, str], list[Object]] = {}
        for pod in pods:
            labels = pod["metadata"].get("labels") or {}
            if labels.get(REPLICATED, TRAINERS) == TRAINERS and _lives(pod):
                found.setdefault((pod["metadata"]["namespace"], labels.get(self.label, "")), []).append(pod)
        return found


PYTORCH_JOBS = Kind("kubeflow.org/v1", "pytorchjobs", "training.kubeflow.org/job-name", "")
TRAIN_JOBS = Kind("trainer.kubeflow.org/v1alpha1", "trainjobs", "jobset.sigs.k8s.io/jobset-name", ".trainjob")
KINDS = PYTORCH_JOBS, TRAIN_JOBS


@dataclass(frozen=True)
class Wanted:
    """A job that its training job asks for.

    Attributes:
        name: the job's name in the network.
        where: the training job's path on the API server.
        nodes: names and addresses of the nodes of its pods; empty while a pod has no node yet.
        told: the status that the training job's annotation has.
    """

    name: str
    where: str
    tenant: str
    words: str
    nodes: tuple[tuple[str, tuple[str, ...]], ...]
    told: str


def job_name(namespace: str, name: str, suffix: str = "") -> str:
    """Return the job's name in the network; namespaces and names have no dots, so no two jobs share a name."""
    whole = f"{PREFIX}{namespace}.{name}{suffix}"
    if len(whole) <= MOST_LETTERS:
        return whole
    return f"{whole[: MOST_LETTERS - 9]}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}"


def wanted(kind: Kind, jobs: Iterable[Object], pods: Iterable[Object]) -> list[Wanted]:
    """Return the jobs that are to be in the network, given the training jobs and pods that the API server lists."""
    by_job, found = kind.by_job(pods), []
    for job in jobs:
        about = job["metadata"]
        namespace, name, annotations = about["namespace"], about["name"], about.get("annotations") or {}
        if ASKS not in annotations or _over(job):
            continue
        pods_of = by_job.get((namespace, name), [])
        placed = len(pods_of) >= _replicas(job, pods_of) and all(pod["spec"].get("nodeName") for pod in pods_of)
        where = f"/apis/{kind.group}/namespaces/{namespace}/{kind.plural}/{name}"
        nodes = _nodes(pods_of) if placed else ()
        own = job_name(namespace, name, kind.suffix)
        found.append(Wanted(own, where, namespace, annotations[ASKS] or "", nodes, annotations.get(TELLS, "")))
    return found


def _replicas(job: Object, pods: Sequence[Object]) -> int:
    """Return the number of pods that a job must have.

    A TrainJob may leave it to its runtime. Then its first pod has the number in its environment.
    """
    spec = job.get("spec", {})
    if "pytorchReplicaSpecs" in spec:
        return sum(int(one.get("replicas", 1)) for one in spec["pytorchReplicaSpecs"].values())
    given = (spec.get("trainer") or {}).get("numNodes")
    for container in pods[0]["spec"].get("containers", ()) if pods and given is None else ():
        values = [one.get("value") for one in container.get("env") or () if one["name"] == NODES_VARIABLE]
        given = next(iter(values), given)
    return int(given) if given is not None else max(1, len(pods))


def _over(job: Object) -> bool:
    """Return whether the job has ended, failed, is suspended or is being deleted."""
    spec, conditions = job.get("spec", {}), (job.get("status") or {}).get("conditions") or []
    ended = any(one["type"] in ("Succeeded", "Complete", "Failed") and one["status"] == "True" for one in conditions)
    suspended = spec.get("suspend") or (spec.get("runPolicy") or {}).get("suspend")
    return ended or bool(suspended) or "deletionTimestamp" in job["metadata"]


def _lives(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")


def _nodes(pods: Iterable[Object]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the nodes of pods, each once, in the order of their names."""
    found: dict[str, tuple[str, ...]] = {}
    for pod in pods:
        status = pod.get("status") or {}
        addresses = [one["ip"] for one in status.get("hostIPs") or []] or [status.get("hostIP", "")]
        found.setdefault(pod["spec"]["nodeName"], tuple(one for one in addresses if one and ":" not in one))
    return tuple(sorted(found.items()))


@dataclass
class Operator:
    """Adds and removes jobs of one network until they are those that the training jobs of one cluster ask for.

    Attributes:
        cluster, controller: the API server, and the controller's address.
        placed: the nodes of every job that it has added, by the job's name.
        tried: when a job was last refused, and why.
    """

    cluster: Cluster
    controller: str
    placed: dict[str, Any] = field(default_factory=dict)
    tried: dict[str, tuple[float, str]] = field(default_factory=dict)

    def look(self) -> None:
        """Compare the wanted jobs with the network's once, and add, remove and annotate. Raise ClusterError or
        ControllerError where one of them does not answer.
        """
        # Read before the wanted jobs: a job that another operator adds meanwhile would seem to be over.
        there = {job.name for job in fetch_status(self.controller).jobs if job.name.startswith(PREFIX)}
        wishes = {one.name: one for one in self._wanted()}
        for name in sorted(there):
            wish = wishes.get(name)
            moved = wish is not None and wish.nodes and self.placed.get(name, wish.nodes) != wish.nodes
            if wish is None or moved:
                take_off(self.controller, name)
                self.placed.pop(name, None)
                there.discard(name)
                _say(f"job {name} is off the network: {'its pods have other nodes' if moved else 'it is over'}")
        self.tried = {name: when for name, when in self.tried.items() if name in wishes}
        for name, wish in wishes.items():
            if name in there:
                self.placed.setdefault(name, wish.nodes)
            elif wish.nodes and time.monotonic() - self.tried.get(name, (-AGAIN_SECONDS, ""))[0] >= AGAIN_SECONDS:
                self._add(wish)

    def _wanted(self) -> list[Wanted]:
        """Return the wanted jobs of all kinds that the cluster has."""
        found: list[Wanted] = []
        missing = []
        for kind in KINDS:
            try:
                jobs = self.cluster.items(kind.path)
            except UnknownPath as error:
                missing.append(error)
                continue
            found += wanted(kind, jobs, self.cluster.items(PODS, f"&labelSelector={kind.label}"))
        if len(missing) == len(KINDS):
            raise missing[0]
        return found

    def _add(self, wish: Wanted) -> None:
        try:
            words = self._added(wish)
            self.placed[wish.name] = wish.nodes
            self.tried.pop(wish.name, None)
        except (Refused, ControllerError) as error:
            words = f"not in the network, it runs over torch.distributed: {error}"
            self.tried[wish.name] = time.monotonic(), words
        words = " ".join(words.split())[:MOST_WORDS]
        _say(f"job {wish.name}: {words}")
        if words != wish.told:
            self.cluster.annotate(wish.where, {TELLS: words})

    def _added(self, wish: Wanted) -> str:
        """Add a job, and return in words what it gets. Raise Refused where it is refused, ControllerError where no
        controller answers.
        """
        asked = parse_wish(wish.words, f"the annotation {ASKS}")
        if asked.waits:
            raise Refused(f"else=wait in the annotation {ASKS}: pods have begun when their nodes are known")
        request = asked.request(wish.name, wish.tenant, wish.nodes)
        names = [name for name, _ in wish.nodes]
        for other, nodes in self.placed.items():
            if both := {name for name, _ in nodes}.intersection(names):
                raise Refused(f"{', '.join(sorted(both))}: the agent there serves job {other}, and one job at a time")
        return f"in the network: {gets(add(self.controller, wish.name, request))}"


def _say(words: str) -> None:
    print(f"inart kubernetes: {words}", file=sys.stderr, flush=True)


def run(operator: Operator, stop: threading.Event) -> None:
    """Call `operator.look` every few seconds until `stop` is set; an error is logged once, and the next look tries
    again.
    """
    problem = ""
    while not stop.wait(LOOK_SECONDS):
        before, problem = problem, ""
        try:
            operator.look()
        except (ClusterError, ControllerError) as error:
            problem = str(error)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            problem = f"the API server's answer is not understood: {type(error).__name__}: {error}"
        if problem != before:
            _say(f"{problem}; tried again every {LOOK_SECONDS:g} s" if problem else "goes on")


def make_parser() -> argparse.ArgumentParser:
    parser = command_line.make("kubernetes", __doc__)
    parser.add_argument("--controller", metavar="HOST:PORT", help="default: $INART_CONTROLLER")
    parser.add_argument("--server", default="", metavar="URL", help="Kubernetes' API server (default: this pod's own)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    parser = make_parser()
    arguments = parser.parse_args(argv)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    try:
        operator = Operator(Cluster(arguments.server, ACCOUNT), controller_address(arguments.controller))
    except ValueError as error:
        parser.error(str(error))
    except ClusterError as error:
        _say(str(error))
        return 1
    run(operator, stop)
    return 0


if __name__ == "__main__":
    sys.exit(main())
