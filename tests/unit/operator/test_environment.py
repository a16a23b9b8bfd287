"""The environment of each replica, compared with that of the training operator."""

from __future__ import annotations

import json

import pytest

from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.operator.frameworks import pytorch, tensorflow
from gpu_scheduler.operator.managed_job import ManagedJob
from gpu_scheduler.operator.pods import make_pod, make_service
from tests.unit.operator.job_fixtures import raw, replicas, torch


def env_of(job: ManagedJob, role: str, index: int, container: int = 0) -> dict[str, str]:
    found = job.role(role)
    assert found is not None
    made = make_pod(job, found, index)["spec"]["containers"][container]
    listed = [(one["name"], one["value"]) for one in made.get("env", [])]
    assert len(listed) == len(dict(listed)), "a name is there twice"
    return dict(listed)


def elastic(workers: int = 3, *, master: bool = False, nproc: str | None = None, **policy: object) -> ManagedJob:
    specs: Json = {"Worker": replicas(workers)}
    if master:
        specs["Master"] = replicas(1)
    spec: Json = {"pytorchReplicaSpecs": specs, "elasticPolicy": policy}
    if nproc is not None:
        spec["nprocPerNode"] = nproc
    return pytorch.decode(raw(spec))


def with_master(world: int, rank: int, nodes: str, nproc: str, port: str = "23456") -> dict[str, str]:
    return {
        "PYTHONUNBUFFERED": "1",
        "MASTER_ADDR": "train-master-0",
        "MASTER_PORT": port,
        "PET_MASTER_ADDR": "train-master-0",
        "PET_MASTER_PORT": port,
        "WORLD_SIZE": str(world),
        "RANK": str(rank),
        "PET_NODE_RANK": str(rank),
        "PET_NPROC_PER_NODE": nproc,
        "PET_NNODES": nodes,
    }


def without_master(nodes: str, endpoint: str = "train-worker-0:23456", **more: str) -> dict[str, str]:
    found = {"PYTHONUNBUFFERED": "1", "PET_NPROC_PER_NODE": "auto", "PET_NNODES": nodes}
    return {**found, "PET_RDZV_ENDPOINT": endpoint, "PET_RDZV_BACKEND": "c10d", **more}


TORCH = {
    "the master": (torch(3), "Master", 0, with_master(4, 0, "4", "auto")),
    "the first worker": (torch(3), "Worker", 0, with_master(4, 1, "4", "auto")),
    "the last worker": (torch(3), "Worker", 2, with_master(4, 3, "4", "auto")),
    "a master alone": (torch(None), "Master", 0, with_master(1, 0, "1", "auto")),
    "processes per node": (torch(3, nprocPerNode="8"), "Worker", 1, with_master(32, 2, "4", "8")),
    "processes per node as a number": (torch(1, nprocPerNode=2), "Worker", 0, with_master(4, 1, "2", "2")),
    "one process per GPU": (torch(1, nprocPerNode="gpu"), "Worker", 0, with_master(2, 1, "2", "gpu")),
    "elastic": (elastic(3), "Worker", 0, without_master("3:3")),
    "elastic between": (elastic(3, minReplicas=1, maxReplicas=5), "Worker", 2, without_master("1:5")),
    "elastic from": (elastic(3, minReplicas=2), "Worker", 0, without_master("2:2")),
    "elastic up to": (elastic(3, maxReplicas=4), "Worker", 0, without_master("4:4")),
    "a meeting point": (
        elastic(2, rdzvHost="meet", rdzvPort=29400, rdzvBackend="etcd", rdzvId="run-1"),
        "Worker",
        0,
        without_master("2:2", "meet:29400", PET_RDZV_BACKEND="etcd", PET_RDZV_ID="run-1"),
    ),
    "the rest of an elastic policy": (
        elastic(
            2,
            maxRestarts=3,
            standalone=True,
            rdzvConf=[{"key": "timeout", "value": "60"}, {"key": "read", "value": "1"}],
        ),
        "Worker",
        1,
        without_master("2:2", PET_MAX_RESTARTS="3", PET_STANDALONE="", PET_RDZV_CONF="timeout=60,read=1"),
    ),
    "processes of an elastic policy": (
        elastic(2, nProcPerNode=4),
        "Worker",
        0,
        without_master("2:2", PET_NPROC_PER_NODE="4"),
    ),
    "elastic with a master": (
        elastic(2, master=True, minReplicas=1, maxReplicas=2),
        "Worker",
        1,
        {
            **with_master(3, 2, "1:2", "auto"),
            "PET_RDZV_ENDPOINT": "train-worker-0:23456",
            "PET_RDZV_BACKEND": "c10d",
        },
    ),
}


@pytest.mark.parametrize("case", TORCH)
def test_the_environment_of_a_pytorchjob_replica(case: str) -> None:
    job, role, index, expected = TORCH[case]
    assert env_of(job, role, index) == expected


def test_every_container_of_a_pytorchjob_gets_the_environment() -> None:
    spec = replicas(2)
    spec["template"]["spec"]["containers"].append({"name": "other", "image": "any"})
    job = pytorch.decode(raw({"pytorchReplicaSpecs": {"Master": replicas(1), "Worker": spec}}))
    assert env_of(job, "Worker", 1, 0) == env_of(job, "Worker", 1, 1) == with_master(3, 2, "3", "auto")


def test_the_jobs_variables_override_those_of_the_template() -> None:
    spec = replicas(1)
    given = [{"name": "RANK", "value": "7"}, {"name": "OWN", "value": "kept"}]
    spec["template"]["spec"]["containers"][0]["env"] = given
    job = pytorch.decode(raw({"pytorchReplicaSpecs": {"Master": spec}}))
    assert env_of(job, "Master", 0) == {"OWN": "kept", **with_master(1, 0, "1", "auto")}


def test_a_port_of_the_template_is_used() -> None:
    spec = replicas(1)
    spec["template"]["spec"]["containers"][0]["ports"] = [{"name": "pytorchjob-port", "containerPort": 1234}]
    job = pytorch.decode(raw({"pytorchReplicaSpecs": {"Master": spec, "Worker": replicas(1)}}))
    assert env_of(job, "Worker", 0) == with_master(2, 1, "2", "auto", "1234")
    assert make_pod(job, job.roles[0], 0)["spec"]["containers"][0]["ports"] == [
        {"name": "pytorchjob-port", "containerPort": 1234}
    ]
    assert make_service(job, job.roles[0], 0)["spec"]["ports"] == [{"name": "pytorchjob-port", "port": 1234}]
    assert make_service(job, job.roles[1], 0)["spec"]["ports"] == [{"name": "pytorchjob-port", "port": 23456}]


# -- TFJobs


def tf_job(spec: Json | None = None, **roles: int) -> ManagedJob:
    specs = {name: replicas(number, "tensorflow") for name, number in roles.items()}
    return tensorflow.decode(raw({"tfReplicaSpecs": specs, **(spec or {})}))


def host(role: str, index: int) -> str:
    return f"train-{role}-{index}.team.svc:2222"


FULL = {"Chief": 1, "Worker": 2, "PS": 2, "Evaluator": 1}
CLUSTER = {
    "chief": [host("chief", 0)],
    "worker": [host("worker", 0), host("worker", 1)],
    "ps": [host("ps", 0), host("ps", 1)],
}
DYNAMIC = {"enableDynamicWorker": True}
TF = {
    **{
        f"{role} {index}": (
            tf_job(None, **FULL),
            role,
            index,
            {"cluster": CLUSTER, "task": {"type": role.lower(), "index": index}, "environment": "cloud"},
        )
        for role, index in [("Chief", 0), ("Worker", 0), ("Worker", 1), ("PS", 0), ("PS", 1), ("Evaluator", 0)]
    },
    "a master by its old name": (
        tf_job(Master=1, Worker=1),
        "Master",
        0,
        {
            "cluster": {"master": [host("master", 0)], "worker": [host("worker", 0)]},
            "task": {"type": "master", "index": 0},
            "environment": "cloud",
        },
    ),
    "a worker that may go": (
        tf_job(DYNAMIC, PS=1, Worker=2),
        "Worker",
        1,
        {
            "sparseCluster": {"worker": {"1": host("worker", 1)}, "ps": [host("ps", 0)]},
            "task": {"type": "worker", "index": 1},
        },
    ),
    "a server of workers that may go": (
        tf_job(DYNAMIC, PS=2, Worker=2),
        "PS",
        1,
        {"sparseCluster": {"worker": {}, "ps": [host("ps", 1)]}, "task": {"type": "ps", "index": 1}},
    ),
}


@pytest.mark.parametrize("case", TF)
def test_the_environment_of_a_tfjob_replica(case: str) -> None:
    job, role, index, expected = TF[case]
    env = env_of(job, role, index)
    assert list(env) == ["TF_CONFIG"]
    assert json.loads(env["TF_CONFIG"]) == expected


def test_a_tfjob_of_one_replica_gets_no_environment() -> None:
    assert env_of(tf_job(Worker=1), "Worker", 0) == {}


def test_only_the_main_container_of_a_tfjob_gets_the_environment() -> None:
    spec = replicas(2, "tensorflow")
    spec["template"]["spec"]["containers"].append({"name": "other", "image": "any"})
    job = tensorflow.decode(raw({"tfReplicaSpecs": {"Worker": spec}}))
    assert list(env_of(job, "Worker", 0, 0)) == ["TF_CONFIG"]
    assert env_of(job, "Worker", 0, 1) == {}


def test_the_cluster_domain_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUSTOM_CLUSTER_DOMAIN", "cluster.local")
    config = json.loads(env_of(tf_job(Worker=2), "Worker", 0)["TF_CONFIG"])
    assert config["cluster"]["worker"][1] == "train-worker-1.team.svc.cluster.local:2222"
