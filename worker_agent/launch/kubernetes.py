"""Keeps the network's jobs in step with annotated PyTorchJobs of Kubernetes: it adds a job when all its pods have
nodes, and removes it afterwards.

inart kubernetes --controller 10.1.0.1:9600                 # in a pod: examples/kubernetes/operator.yaml

A PyTorchJob with the annotation `inart/job: ""` (or words as `inart job add` takes them: "ps=2,share,model=100M") has a
job in the network called k8s-NAMESPACE.NAME from the moment when all its pods have nodes until it has ended, failed,
was suspended or deleted. Its nodes are the workers and the parameter servers; agents run on them as a DaemonSet. The
outcome is written to its annotation `inart/status`. A job that the network cannot take trains over torch.distributed,
and is tried again every half minute. The jobs that are wanted are compared with those of the network every few seconds,
so nothing is lost while this operator, the API server or the controller is away.
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
from worker_agent.launch.cluster_api import ACCOUNT, Cluster, ClusterError, Object
from worker_agent.launch.wishes import Refused, gets, parse_wish

ASKS, TELLS = "inart/job", "inart/status"
"""Annotations of a PyTorchJob: the user's wishes, and the status that this program writes."""
JOBS = "/apis/kubeflow.org/v1/pytorchjobs"
PODS = "/api/v1/pods"
OF_A_JOB = "training.kubeflow.org/job-name"
"""The label with the job's name that Kubeflow's training operator gives the pods of a job."""
PREFIX = "k8s-"
LOOK_SECONDS = 2.0
AGAIN_SECONDS = 30.0
"""Seconds between two attempts to add a job that was refused."""
MOST_LETTERS = 64
"""Most letters of a job's name in the network."""
MOST_WORDS = 1000
"""Most letters of a status that are written to the annotation."""


@dataclass(frozen=True)
class Wanted:
    """A job that its PyTorchJob asks for.

    Attributes:
        name: the job's name in the network.
        where: the PyTorchJob's path on the API server.
        nodes: names and addresses of the nodes of its pods; empty while a pod has no node yet.
        told: the status that the PyTorchJob's annotation has.
    """

    name: str
    where: str
    tenant: str
    words: str
    nodes: tuple[tuple[str, tuple[str, ...]], ...]
    told: str


def job_name(namespace: str, name: str) -> str:
    """Return the job's name in the network; a namespace has no dots, so no two jobs share a name."""
    whole = f"{PREFIX}{namespace}.{name}"
    if len(whole) <= MOST_LETTERS:
        return whole
    return f"{whole[: MOST_LETTERS - 9]}-{hashlib.sha256(whole.encode()).hexdigest()[:8]}"


def wanted(jobs: Iterable[Object], pods: Iterable[Object]) -> list[Wanted]:
    """Return the jobs that are to be in the network, given the PyTorchJobs and pods that the API server lists."""
    by_job: dict[tuple[str, str], list[Object]] = {}
    for pod in pods:
        about = pod["metadata"]
        by_job.setdefault((about["namespace"], about.get("labels", {}).get(OF_A_JOB, "")), []).append(pod)
    found = []
    for job in jobs:
        about, spec = job["metadata"], job.get("spec", {})
        namespace, name, annotations = about["namespace"], about["name"], about.get("annotations") or {}
        if ASKS not in annotations or _over(job):
            continue
        pods_of = [pod for pod in by_job.get((namespace, name), []) if _lives(pod)]
        replicas = sum(int(one.get("replicas", 1)) for one in spec.get("pytorchReplicaSpecs", {}).values())
        placed = len(pods_of) >= replicas and all(pod["spec"].get("nodeName") for pod in pods_of)
        where = f"/apis/kubeflow.org/v1/namespaces/{namespace}/pytorchjobs/{name}"
        nodes = _nodes(pods_of) if placed else ()
        told = annotations.get(TELLS, "")
        found.append(Wanted(job_name(namespace, name), where, namespace, annotations[ASKS] or "", nodes, told))
    return found


def _over(job: Object) -> bool:
    """Return whether the job has ended, failed, is suspended or is being deleted."""
    spec, conditions = job.get("spec", {}), (job.get("status") or {}).get("conditions") or []
    ended = any(one["type"] in ("Succeeded", "Failed") and one["status"] == "True" for one in conditions)
    return ended or bool((spec.get("runPolicy") or {}).get("suspend")) or "deletionTimestamp" in job["metadata"]


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
    """Adds and removes jobs of one network until they are those that the PyTorchJobs of one cluster ask for.

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
        jobs = self.cluster.items(JOBS)
        pods = self.cluster.items(PODS, f"&labelSelector={OF_A_JOB}")
        wishes = {one.name: one for one in wanted(jobs, pods)}
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
