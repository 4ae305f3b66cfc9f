"""A stand-in for Kubernetes' API server: it lists training jobs and pods, takes patches of annotations, and allows what
the operator's ClusterRole in examples/kubernetes allows, and no more."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "kubernetes"
TOKEN = "a-token-of-the-service-account"


def documents(name: str) -> list[dict[str, Any]]:
    """Return the objects in one of the example's files."""
    return [one for one in yaml.safe_load_all((EXAMPLES / name).read_text()) if one]


class FakeCluster:
    """What the cluster has. jobs, pods: by namespace and name. down: whether the server fails every call.

    kind: the kind of the jobs, the only one that is installed: "pytorchjobs" or "trainjobs".
    """

    def __init__(self, kind: str = "pytorchjobs") -> None:
        self.kind = kind
        self.jobs: dict[tuple[str, str], dict[str, Any]] = {}
        self.pods: dict[tuple[str, str], dict[str, Any]] = {}
        self.down = False
        self.refused: list[str] = []
        (role,) = [one for one in documents("operator.yaml") if one["kind"] == "ClusterRole"]
        self.allowed = {
            (group, resource, verb)
            for rule in role["rules"]
            for group in rule["apiGroups"]
            for resource in rule["resources"]
            for verb in rule["verbs"]
        }

    def add_job(self, name: str, nodes: list[str | None], asks: str | None = "", namespace: str = "physics") -> None:
        """Add a training job and its pods; a node of None: the pod has not been scheduled."""
        *_, job = documents(f"{self.kind.removesuffix('s')}.yaml")
        job["metadata"] = {"name": name, "namespace": namespace, "annotations": {}}
        if asks is not None:
            job["metadata"]["annotations"]["inart/job"] = asks
        if self.kind == "pytorchjobs":
            job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] = len(nodes) - 1
        else:
            job["spec"]["trainer"]["numNodes"] = len(nodes)
        self.jobs[namespace, name] = job
        for number, node in enumerate(nodes):
            self.place(name, number, node, namespace)

    def place(self, name: str, number: int, node: str | None, namespace: str = "physics") -> None:
        """Put a job's pod on a node."""
        labels = {"training.kubeflow.org/job-name": name}
        if self.kind == "trainjobs":
            labels = {"jobset.sigs.k8s.io/jobset-name": name, "jobset.sigs.k8s.io/replicatedjob-name": "node"}
        pod: dict[str, Any] = {"metadata": {"name": f"{name}-{number}", "namespace": namespace, "labels": labels}}
        pod |= {"spec": {}, "status": {"phase": "Pending"}}
        if node is not None:
            pod["spec"]["nodeName"] = node
            pod["status"] = {"phase": "Running", "hostIP": "192.0.2.1"}
        self.pods[namespace, f"{name}-{number}"] = pod

    def end(self, name: str, how: str = "", namespace: str = "physics") -> None:
        """End a job as Kubeflow's operator says it."""
        how = how or {"pytorchjobs": "Succeeded", "trainjobs": "Complete"}[self.kind]
        self.jobs[namespace, name]["status"] = {"conditions": [{"type": how, "status": "True"}]}

    def status(self, name: str, namespace: str = "physics") -> str:
        """Return what the operator has told about a job."""
        return str(self.jobs[namespace, name]["metadata"]["annotations"].get("inart/status", ""))

    def answer(self, method: str, target: str, body: bytes) -> tuple[int, dict[str, Any]]:
        """Return status and content of an answer."""
        path, query = urlsplit(target).path, parse_qs(urlsplit(target).query)
        words = path.strip("/").split("/")
        group = words[1] if words[0] == "apis" else ""
        inside = words[3:] if words[0] == "apis" else words[2:]
        resource = inside[2] if inside[0] == "namespaces" else inside[0]
        verb = {"GET": "list" if len(inside) == 1 else "get", "PATCH": "patch"}[method]
        if (group, resource, verb) not in self.allowed:
            self.refused.append(f"{verb} {group} {resource}")
            return 403, {"kind": "Status", "message": f"{resource} is forbidden: cannot {verb}"}
        if resource not in ("pods", self.kind):
            return 404, {"kind": "Status", "message": "the server could not find the requested resource"}
        if method == "PATCH":
            job = self.jobs.get((inside[1], inside[3]))
            if job is None:
                return 404, {"kind": "Status", "message": "not found"}
            job["metadata"]["annotations"] |= json.loads(body)["metadata"]["annotations"]
            return 200, job
        found = list((self.pods if resource == "pods" else self.jobs).values())
        for label in query.get("labelSelector", []):
            found = [one for one in found if label in one["metadata"].get("labels", {})]
        return 200, {"kind": "List", "items": found}


@contextmanager
def serving(cluster: FakeCluster) -> Iterator[str]:
    """Serve a cluster on this machine; gives its URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.answer()

        do_PATCH = do_GET

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if cluster.down:
                status, content = 503, {"message": "etcdserver: no leader"}
            elif self.headers.get("Authorization") != f"Bearer {TOKEN}":
                status, content = 401, {"message": "Unauthorized"}
            else:
                status, content = cluster.answer(self.command, self.path, body)
            text = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
