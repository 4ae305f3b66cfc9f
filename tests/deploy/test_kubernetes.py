"""`inart kubernetes` with a real controller and a stand-in for the API server; the files against published schemas."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("yaml", reason="PyYAML is not installed")

from controlplane.planner.job import Job
from controlplane.planner.terms import Quota
from examples.train_gpt import HOW, make_parser
from inart.command import PLUGINS, VERBS
from tests.deploy.cluster import EXAMPLES, TOKEN, FakeCluster, documents, serving
from tests.deploy.memory_network import MemoryNetwork
from worker_agent.launch import kubernetes
from worker_agent.launch.cluster_api import Cluster, ClusterError
from worker_agent.launch.kubernetes import Operator, job_name

FILES = sorted(path.name for path in EXAMPLES.glob("*.yaml"))


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> FakeCluster:
    return FakeCluster(getattr(request, "param", "pytorchjobs"))


both_kinds = pytest.mark.parametrize("cluster", ["pytorchjobs", "trainjobs"], indirect=True)


@pytest.fixture
def operator(address: str, cluster: FakeCluster, tmp_path: Path) -> Iterator[Operator]:
    (tmp_path / "token").write_text(TOKEN + "\n")
    with serving(cluster) as url:
        yield Operator(Cluster(url, tmp_path), address)


def names(rig: MemoryNetwork) -> list[str]:
    return sorted(job.name for job in rig.network.jobs)


@both_kinds
def test_an_annotated_job_is_in_the_network_from_its_pods_placement_to_its_end(operator, rig, cluster):
    cluster.add_job("gpt", ["h1", None])
    cluster.add_job("unasked", ["h2", "h5"], asks=None)
    operator.look()
    assert names(rig) == [], "a pod has no node yet"
    cluster.place("gpt", 1, "h4")
    operator.look()
    (running,) = rig.network.jobs
    name = {"pytorchjobs": "k8s-physics.gpt", "trainjobs": "k8s-physics.gpt.trainjob"}[cluster.kind]
    assert running.name == name
    assert running.terms.tenant == "physics"
    assert running.plan.job.workers == running.plan.job.parameter_servers == ("h1", "h4")
    assert cluster.status("gpt").startswith("in the network: ")
    operator.look()
    assert names(rig) == [name]
    cluster.end("gpt")
    operator.look()
    assert names(rig) == []
    assert not cluster.refused


@both_kinds
@pytest.mark.parametrize("how", ["failed", "suspended", "deleted", "being deleted"])
def test_a_job_that_goes_on_no_more_is_taken_off(operator, rig, cluster, how):
    cluster.add_job("gpt", ["h1", "h4"])
    operator.look()
    assert names(rig)
    job = cluster.jobs["physics", "gpt"]
    if how == "failed":
        cluster.end("gpt", "Failed")
    elif how == "suspended":
        job["spec"] |= {"suspend": True} if cluster.kind == "trainjobs" else {"runPolicy": {"suspend": True}}
    elif how == "being deleted":
        job["metadata"]["deletionTimestamp"] = "2026-11-24T12:00:00Z"
    else:
        del cluster.jobs["physics", "gpt"]
    operator.look()
    assert names(rig) == []


@pytest.mark.parametrize("cluster", ["trainjobs"], indirect=True)
def test_the_pods_that_a_trainjob_needs_are_those_that_train_as_many_as_its_runtime_says(operator, rig, cluster):
    cluster.add_job("gpt", ["h1"])
    del cluster.jobs["physics", "gpt"]["spec"]["trainer"]["numNodes"]
    environment = [{"name": "PET_NNODES", "value": "2"}]
    cluster.pods["physics", "gpt-0"]["spec"]["containers"] = [{"name": "node", "env": environment}]
    cluster.place("gpt", 7, "h5")
    cluster.pods["physics", "gpt-7"]["metadata"]["labels"]["jobset.sigs.k8s.io/replicatedjob-name"] = (
        "model-initializer"
    )
    operator.look()
    assert names(rig) == []
    cluster.place("gpt", 1, "h4")
    operator.look()
    (running,) = rig.network.jobs
    assert running.plan.job.workers == ("h1", "h4")


@pytest.mark.parametrize("cluster", ["none"], indirect=True)
def test_a_cluster_without_training_jobs_is_named(operator, rig, cluster):
    with pytest.raises(ClusterError, match=r"GET /apis/kubeflow.org/v1/pytorchjobs.*404"):
        operator.look()


def test_a_job_whose_pods_come_back_on_other_nodes_has_these(operator, rig, cluster):
    cluster.add_job("gpt", ["h1", "h4"])
    operator.look()
    cluster.pods["physics", "gpt-1"]["status"]["phase"] = "Failed"
    operator.look()
    assert names(rig) == ["k8s-physics.gpt"], "its pod is about to be replaced"
    cluster.place("gpt", 1, "h5")
    operator.look()
    (running,) = rig.network.jobs
    assert running.plan.job.workers == ("h1", "h5")


def test_an_operator_that_was_away_neither_forgets_nor_disturbs(operator, rig, cluster):
    cluster.add_job("stays", ["h1", "h4"])
    cluster.add_job("goes", ["h2", "h5"])
    operator.look()
    numbers = {job.name: job.job_id for job in rig.network.jobs}
    del cluster.jobs["physics", "goes"]
    again = Operator(operator.cluster, operator.controller)
    again.look()
    assert {job.name: job.job_id for job in rig.network.jobs} == {"k8s-physics.stays": numbers["k8s-physics.stays"]}


def test_jobs_that_others_have_added_are_left_alone(operator, rig):
    rig.add(Job("mine", ("h1", "h4"), ("h2",), 1_000_000))
    operator.look()
    assert names(rig) == ["mine"]


REFUSALS = [
    ("ps=9", "h4", "servers are free"),
    ("else=wait", "h4", "pods have begun"),
    ("else=stop", "h4", "else=stop in the annotation inart/job"),
    ("name=x", "h4", "name= in the annotation inart/job"),
    ("", "h1", "one node has nothing to send"),
    ("", "gpu9", "gpu9"),
]


@pytest.fixture(params=REFUSALS, ids=[words for *_, words in REFUSALS])
def case(request, rig, cluster):
    return rig, cluster, request.param


def test_what_the_network_cannot_take_is_told_and_tried_again(operator, case, monkeypatch):
    rig, cluster, (asks, second, words) = case
    cluster.add_job("gpt", ["h1", second], asks)
    operator.look()
    assert names(rig) == []
    assert cluster.status("gpt").startswith("not in the network, it runs over torch.distributed: ")
    assert words in cluster.status("gpt")
    cluster.jobs["physics", "gpt"]["metadata"]["annotations"]["inart/job"] = ""
    for number, node in enumerate(("h1", "h4")):
        cluster.place("gpt", number, node)
    operator.look()
    assert names(rig) == [], "not yet again"
    monkeypatch.setattr(kubernetes, "AGAIN_SECONDS", 0.0)
    operator.look()
    assert names(rig) == ["k8s-physics.gpt"]


def test_a_node_serves_one_job_at_a_time(operator, rig, cluster, monkeypatch):
    monkeypatch.setattr(kubernetes, "AGAIN_SECONDS", 0.0)
    cluster.add_job("first", ["h1", "h4"])
    operator.look()
    cluster.add_job("second", ["h4", "h5"])
    operator.look()
    assert "h4: the agent there serves job k8s-physics.first" in cluster.status("second")
    cluster.end("first")
    operator.look()
    assert names(rig) == ["k8s-physics.second"]


def test_the_namespace_is_the_tenant_whose_quota_counts(operator, rig, cluster):
    rig.network.tenants.quota = lambda tenant: Quota(jobs=1)
    cluster.add_job("first", ["h1", "h4"])
    cluster.add_job("second", ["h2", "h5"])
    cluster.add_job("other", ["h3", "h6"], namespace="biology")
    operator.look()
    assert names(rig) == ["k8s-biology.other", "k8s-physics.first"]
    assert "tenant physics: it has 1 jobs and may have 1" in cluster.status("second")


def test_an_api_server_that_is_away_is_named_and_nothing_is_taken_off(operator, rig, cluster):
    cluster.add_job("gpt", ["h1", "h4"])
    operator.look()
    cluster.down = True
    with pytest.raises(
        ClusterError, match=r"GET /apis/kubeflow.org/v1/pytorchjobs\?resourceVersion=0: 503 etcdserver: no leader"
    ):
        operator.look()
    assert names(rig) == ["k8s-physics.gpt"]


def test_names_are_short_enough_and_never_the_same():
    long = job_name("n" * 63, "j" * 63)
    assert len(long) == 64 and long != job_name("n" * 63, "j" * 62)
    assert job_name("a-b", "c") != job_name("a", "b-c")


def test_outside_a_cluster_it_says_what_to_give(monkeypatch, capsys):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert kubernetes.main(["--controller", "127.0.0.1:9600"]) == 1
    assert "give --server URL" in capsys.readouterr().err


# -- the files -------------------------------------------------------------------------------------------------------


def pods_in(one: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the specifications of the pods that train in an object of Kubeflow."""
    if one["kind"] == "PyTorchJob":
        return [replica["template"]["spec"] for replica in one["spec"]["pytorchReplicaSpecs"].values()]
    if one["kind"] == "TrainingRuntime":
        jobs = one["spec"]["template"]["spec"]["replicatedJobs"]
        return [job["template"]["spec"]["template"]["spec"] for job in jobs]
    return []


def training_pods() -> list[dict[str, Any]]:
    """Return the specifications of all pods of the examples that train."""
    found = [pods_in(one) for name in ("pytorchjob.yaml", "trainjob.yaml") for one in documents(name)]
    return [spec for specs in found for spec in specs]


@pytest.mark.parametrize("name", FILES)
def test_the_files_fit_kubernetes_schemas(name):
    """Strictly: a field that Kubernetes does not know is an error. Of Kubeflow's kinds the pods are checked."""
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    version = validate.latest_version()
    for one in documents(name):
        if one["kind"] in ("PyTorchJob", "TrainingRuntime", "TrainJob"):
            for spec in pods_in(one):
                pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}
                validate.validate(pod, version, strict=True)
        else:
            validate.validate(one, version, strict=True)


def test_the_commands_in_the_files_are_ours(tmp_path):
    """Every container's arguments are a verb of `inart` with options that it has, and its settings are ours."""
    seen = set()
    (settings,) = (one["data"] for one in documents("controller.yaml") if one["kind"] == "ConfigMap")
    for name, text in settings.items():
        (tmp_path / name).write_text(text)
    for name in ("controller.yaml", "agent.yaml", "operator.yaml"):
        for one in documents(name):
            if one["kind"] in ("Deployment", "DaemonSet"):
                (container,) = one["spec"]["template"]["spec"]["containers"]
                verb, *options = container["args"]
                found = (VERBS | PLUGINS)[verb]
                parser = import_module(found.module).make_parser()
                options = [option.replace("=/config/", f"={tmp_path}/") for option in options]
                read = parser.parse_args([*found.first, *options])
                assert verb != "serve" or read.config.controller.store == "etcd://etcd.inart:2379/network"
                seen.add(verb)
    assert seen == {"serve", "agent", "kubernetes"}


RESTRICTED_VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected",
                      "secret"}  # fmt: skip


def forbidden(pod: dict[str, Any]) -> list[str]:
    """Return what the Pod Security Standard `restricted`, and so `baseline`, forbids of a pod's specification."""
    security = pod.get("securityContext", {})
    found = [name for name in ("hostNetwork", "hostPID", "hostIPC") if pod.get(name)]
    found += [kind for one in pod.get("volumes", ()) for kind in set(one) - {"name"} - RESTRICTED_VOLUMES]
    if security.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
        found.append("seccompProfile")
    if security.get("runAsNonRoot") is not True or security.get("runAsUser", 1) == 0:
        found.append("runAsNonRoot")
    for container in (*pod["containers"], *pod.get("initContainers", ())):
        own = container.get("securityContext", {})
        found += ["privileged"] * bool(own.get("privileged"))
        found += ["capabilities"] * (own.get("capabilities") != {"drop": ["ALL"]})
        found += ["allowPrivilegeEscalation"] * (own.get("allowPrivilegeEscalation") is not False)
        found += ["runAsUser"] * (own.get("runAsUser", 1) == 0)
        found += ["hostPort"] * any(port.get("hostPort") for port in container.get("ports", ()))
    return found


def test_every_pod_security_level_admits_pods_that_train():
    """They mount the agent's folder by the driver of socket.yaml; what needs more is in a namespace of its own."""
    pods = training_pods()
    assert len(pods) == 3 and all(forbidden(pod) == [] for pod in pods)
    (namespace,) = documents("namespace.yaml")
    level = namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"]
    for name in ("agent.yaml", "socket.yaml"):
        *_, daemon = documents(name)
        assert forbidden(daemon["spec"]["template"]["spec"]) and level == "privileged"
        assert daemon["metadata"]["namespace"] == namespace["metadata"]["name"]


def test_the_volume_of_pods_that_train_is_the_folder_of_the_nodes_agent():
    driver, mounts = documents("socket.yaml")
    (agent,) = documents("agent.yaml")
    name = driver["metadata"]["name"]
    for pod in training_pods():
        (volume,) = pod["volumes"]
        assert volume["csi"] == {"driver": name, "readOnly": True}, "the driver refuses others"
    assert driver["spec"]["volumeLifecycleModes"] == ["Ephemeral"] and driver["spec"]["podInfoOnMount"] is True
    folders = [
        {one["name"]: one["hostPath"]["path"] for one in daemon["spec"]["template"]["spec"]["volumes"]}
        for daemon in (agent, mounts)
    ]
    assert folders[0]["socket"] == folders[1]["agent"] == "/run/inart"
    first, second = mounts["spec"]["template"]["spec"]["containers"]
    options = dict(word.removeprefix("-").split("=") for word in (*first["args"], *second["args"]))
    at = {one["name"]: one["mountPath"] for one in first["volumeMounts"]}
    assert options["plugin-name"] == name and options["workload-api-socket-dir"] == at["agent"]
    assert options["csi-socket-path"] == options["csi-address"] == f"{at['csi']}/csi.sock"
    assert options["kubelet-registration-path"] == f"{folders[1]['csi']}/csi.sock"
    assert at["pods"] == folders[1]["pods"], "the kubelet names its targets by this path"


def test_the_pytorchjob_trains_the_example_through_the_nodes_agent():
    (job,) = documents("pytorchjob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v1", "PyTorchJob")
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert set(replicas) == {"Master", "Worker"} and replicas["Master"]["replicas"] == 1
    (daemon,) = documents("agent.yaml")
    (agent,) = daemon["spec"]["template"]["spec"]["containers"]
    socket = next(word.partition("=")[2] for word in agent["args"] if word.startswith("--socket="))
    for replica in replicas.values():
        assert replica["restartPolicy"] in ("Always", "OnFailure", "Never", "ExitCode")
        (container,) = replica["template"]["spec"]["containers"]
        assert container["name"] == "pytorch", "the operator sets torchrun's environment in the container of this name"
        start = container["command"].index("examples/train_gpt.py")
        arguments = make_parser().parse_args(container["command"][start + 1 :])
        assert arguments.how in HOW and arguments.agent == f"unix:{socket}"


def test_the_trainjob_trains_the_example_through_the_nodes_agent():
    runtime, job = documents("trainjob.yaml")
    (pod,) = pods_in(runtime)
    (replicated,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    (container,) = pod["containers"]
    assert container["name"] == replicated["name"] == kubernetes.TRAINERS, "Trainer sets the command in this container"
    assert job["apiVersion"] == runtime["apiVersion"] == kubernetes.TRAIN_JOBS.group
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
    command = job["spec"]["trainer"]["command"]
    arguments = make_parser().parse_args(command[command.index("examples/train_gpt.py") + 1 :])
    (variable,) = container["env"]
    assert arguments.how in HOW and arguments.agent == variable["value"]
    assert variable["value"].startswith(f"unix:{container['volumeMounts'][0]['mountPath']}/")
