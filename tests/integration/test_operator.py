"""PyTorchJobs, TFJobs and Volcano's Jobs from kubectl apply to their end, as real processes."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.k8s.objects import Json
from tests.integration import running
from tests.integration.jobs import SLEEP, replicas, tf_job, torch_job
from tests.integration.live import SYSTEM, Operator, Scheduler, processes_of
from tests.integration.running import Cluster, Kube, container, eventually, opened, pod

reads_logs = pytest.mark.local("logs and exec need a kubelet")

OPERATOR = "deploy/gpu-scheduler-operator"
GROUPS = "podgroups.scheduling.volcano.sh"
WORKERS = ["train-worker-0", "train-worker-1", "train-worker-2"]
ALL = ["train-master-0", *WORKERS]
MEET = f"""{sys.executable} -c '
import os, socket, time
rank, world, port = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
print(f"rank={{rank}} of {{world}} sees", os.environ.get("CUDA_VISIBLE_DEVICES"), flush=True)
if rank == 0:
    server = socket.create_server(("", port))
    met = sorted(int(server.accept()[0].makefile().readline()) for _ in range(world - 1))
    print("met", met)
while rank:
    try:
        with socket.create_connection((os.environ["MASTER_ADDR"], port), timeout=5) as master:
            master.sendall(f"{{rank}}\\n".encode())
        break
    except OSError:
        time.sleep(0.1)
'"""
"""The master waits until every worker has connected to it by name."""


@contextmanager
def operated(cluster: Cluster) -> Iterator[Cluster]:
    """Starts a cluster with a scheduler and an operator: inside a local one, otherwise beside it under their
    accounts."""
    with ExitStack() as stack:
        cluster.scheduled = not running.kubernetes
        cluster.start()
        stack.callback(cluster.stop)
        if running.kubernetes:
            for program in (
                Scheduler(cluster.scheduler_kubeconfig, cluster.folder.parent),
                Operator(cluster.operator_kubeconfig, cluster.folder.parent),
            ):
                stack.callback(program.end_allowed)
                program.run()
        yield cluster


@pytest.fixture(scope="module")
def complete(folder: Path) -> Iterator[Cluster]:
    """A cluster of 4 nodes with 8 GPUs each, with scheduler and operator; a local one with the webhook too."""
    with operated(Cluster(folder / "operated")) as cluster:
        yield cluster


@pytest.fixture
def kube(complete: Cluster, namespace: str) -> Iterator[Kube]:
    with opened(complete, namespace) as kube:
        yield kube


def conditions(kube: Kube, what: str) -> dict[str, str]:
    found = kube.get(*what.split("/"))
    return {one["type"]: one["status"] for one in found.get("status", {}).get("conditions", [])}


def reasons(kube: Kube, name: str) -> set[str]:
    events = kube.get("events", f"--field-selector=involvedObject.name={name}")["items"]
    return {event["reason"] for event in events}


def messages(kube: Kube, name: str) -> set[str]:
    events = kube.get("events", f"--field-selector=involvedObject.name={name}")["items"]
    return {event["message"] for event in events}


def phase_of_group(kube: Kube, name: str) -> str:
    found = kube.run("get", GROUPS, name, "-o", "json")
    return str(json.loads(found.stdout).get("status", {}).get("phase", "")) if found.returncode == 0 else ""


def suspend(kube: Kube, on: bool) -> None:
    kube("patch", "pytorchjob", "train", "--type=merge", "-p", json.dumps({"spec": {"runPolicy": {"suspend": on}}}))


def uids(kube: Kube) -> dict[str, str]:
    return {item["metadata"]["name"]: item["metadata"]["uid"] for item in kube.get("pods")["items"]}


@reads_logs
def test_a_pytorchjob_runs_and_succeeds(kube: Kube) -> None:
    kube.apply(torch_job(MEET, gpus=2))
    kube.wait("pytorchjob/train", "condition=Succeeded")
    assert kube.names("pods") == kube.names("services") == ALL
    assert "met [1, 2, 3]" in kube("logs", "train-master-0")
    seen = []
    for rank, name in enumerate(ALL):
        said, _, gpus = kube("logs", name).splitlines()[0].rpartition(" ")
        assert said == f"rank={rank} of 4 sees"
        seen += [(kube.get("pod", name)["spec"]["nodeName"], gpu) for gpu in gpus.split(",")]
    assert len(set(seen)) == 8, "every replica has two GPUs of its own"

    def succeeded() -> dict[str, int]:
        roles = kube.get("pytorchjob", "train")["status"]["replicaStatuses"]
        return {role: found.get("succeeded", 0) for role, found in roles.items()}

    eventually(lambda: succeeded() == {"Master": 1, "Worker": 3}, "all to be counted")
    expected = {"PyTorchJobCreated", "SuccessfulCreatePod", "SuccessfulCreatePodGroup", "PyTorchJobSucceeded"}
    eventually(lambda: expected <= reasons(kube, "train"), f"Events of {expected}")
    eventually(lambda: kube.names(GROUPS) == [], "the group to go with the job's end")
    assert "Succeeded" in kube("get", "pytorchjob", "train")
    eventually(lambda: {f"Created pod: {name}" for name in ALL} <= messages(kube, "train"), "a word about every pod")


def test_a_gang_that_does_not_fit_has_no_pods_until_it_does(kube: Kube) -> None:
    full = container(SLEEP, resources={"limits": {"nvidia.com/gpu": 8}})
    kube.apply(pod("filler", containers=[full]))
    kube.wait_ready("filler")
    kube.apply(torch_job("true", gpus=8))
    eventually(lambda: phase_of_group(kube, "train") == "Pending", "the group to wait")
    message = eventually(
        lambda: [one["message"] for one in kube.get(GROUPS, "train")["status"].get("conditions", [])], "a reason"
    )
    assert message
    eventually(lambda: "Unschedulable" in reasons(kube, "train"), "the job to say what it waits for")
    assert kube.names("pods") == ["filler"]
    assert kube.names("services") == []
    kube("delete", "pod", "filler")
    kube.wait("pytorchjob/train", "condition=Succeeded")
    assert kube.names("pods") == ALL


def test_suspend_releases_everything_and_resume_starts_over(kube: Kube) -> None:
    kube.apply(torch_job(SLEEP, gpus=8))
    kube.wait("pytorchjob/train", "condition=Running")
    before = uids(kube)
    suspend(kube, True)
    kube.wait("pytorchjob/train", "condition=Suspended")
    eventually(lambda: kube.names("pods") == kube.names("services") == kube.names(GROUPS) == [], "nothing to be left")
    assert conditions(kube, "pytorchjob/train")["Running"] == "False"
    suspend(kube, False)
    kube.wait("pytorchjob/train", "condition=Running")
    assert conditions(kube, "pytorchjob/train")["Suspended"] == "False"
    eventually(lambda: kube.names("pods") == ALL, "all pods to be there again")
    assert not set(uids(kube).values()) & set(before.values())


@reads_logs
@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_a_tfjob_runs_and_is_cleaned_up(kube: Kube, version: str) -> None:
    policy: Json = {"cleanPodPolicy": "Running"}
    policy = {"runPolicy": policy} if version == "v1" else policy
    workers = replicas("echo $TF_CONFIG", 2, "tensorflow")
    kube.apply(tf_job(version, replicas(SLEEP, 1, "tensorflow"), workers, **policy))
    kube.wait("tfjob/train", "condition=Succeeded")
    eventually(lambda: "train-ps-0" not in kube.names("pods"), "the server to be cleaned up")
    config = json.loads(kube("logs", "train-worker-0"))
    host = f"{{}}.{kube.namespace}.svc:2222"
    assert config["cluster"] == {
        "ps": [host.format("train-ps-0")],
        "worker": [host.format("train-worker-0"), host.format("train-worker-1")],
    }
    assert config["task"] == {"type": "worker", "index": 0}


def volcano_job(*tasks: Json, **spec: Any) -> Json:
    full = {"tasks": list(tasks), **spec}
    return {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "train"}, "spec": full}


def phase_of_volcano(kube: Kube) -> str:
    state = kube.get("jobs.batch.volcano.sh", "train").get("status", {}).get("state", {})
    return str(state.get("phase", ""))


@reads_logs
def test_a_job_of_volcano_runs_and_its_pods_know_each_other(kube: Kube) -> None:
    say = 'echo "$VC_TASK_INDEX $VC_WORKER_HOSTS $VC_PS_NUM $(cat /etc/volcano/ps.host)"'
    done = {"policies": [{"event": "TaskCompleted", "action": "CompleteJob"}]}
    tasks = {"name": "ps", **replicas(SLEEP, 1, "main", gpus=8)}, {"name": "worker", **replicas(say, 2, "main"), **done}
    for task in tasks:
        task["template"]["spec"]["restartPolicy"] = "Never"
    kube.apply(volcano_job(*tasks, minAvailable=3, schedulerName="volcano", plugins={"env": [], "svc": []}))
    eventually(lambda: phase_of_volcano(kube) == "Completed", "the job to be completed")
    hosts = "train-worker-0.train,train-worker-1.train"
    assert kube("logs", "train-worker-1").split() == ["1", hosts, "1", "train-ps-0.train"]
    eventually(lambda: kube.names("pods") == WORKERS[:2], "the server to be gone, since it had not ended")
    eventually(lambda: kube.names(GROUPS) == [], "the group to go with the job's end")


def test_a_job_of_volcano_is_restarted_up_to_its_limit(kube: Kube) -> None:
    task = {"name": "worker", **replicas("exit 3", 2, "main")}
    task["template"]["spec"]["restartPolicy"] = "Never"
    kube.apply(volcano_job(task, maxRetry=2, policies=[{"exitCode": 3, "action": "RestartJob"}]))
    eventually(lambda: phase_of_volcano(kube) == "Failed", "the job to have failed")
    found = kube.get("jobs.batch.volcano.sh", "train")["status"]
    assert (found["retryCount"], found["state"]["reason"]) == (2, "MaxRetryReached")


@reads_logs
def test_a_worker_that_was_killed_is_recreated(kube: Kube) -> None:
    job = torch_job(SLEEP, workers=1)
    job["spec"]["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] = "ExitCode"
    kube.apply(job)
    kube.wait("pytorchjob/train", "condition=Running")
    before = uids(kube)
    kube.wait_ready("train-worker-0")
    kube.run("exec", "train-worker-0", "--", "sh", "-c", "kill -9 -1")
    eventually(lambda: uids(kube).get("train-worker-0") not in (None, before["train-worker-0"]), "another pod")
    kube.wait_ready("train-worker-0")
    assert uids(kube)["train-master-0"] == before["train-master-0"]
    eventually(lambda: "PyTorchJobRestarting" in reasons(kube, "train"), "an Event about it")


def test_replicas_can_be_scaled(kube: Kube) -> None:
    elastic = {"minReplicas": 1, "maxReplicas": 4}
    specs = {"Worker": replicas(SLEEP, 2, "pytorch", gpus=1)}
    kube.apply(
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": {"name": "train"},
            "spec": {"pytorchReplicaSpecs": specs, "elasticPolicy": elastic},
        }
    )
    eventually(lambda: kube.names("pods") == WORKERS[:2], "two workers")
    kube("scale", "pytorchjob/train", "--replicas=3")
    eventually(lambda: kube.names("pods") == WORKERS, "three workers")
    kube("scale", "pytorchjob/train", "--replicas=1")
    eventually(lambda: kube.names("pods") == WORKERS[:1], "one worker")


def test_an_invalid_job_reports_why(kube: Kube) -> None:
    job = torch_job("true")
    job["spec"]["pytorchReplicaSpecs"]["Boss"] = {}
    kube.apply(job)
    kube.wait("pytorchjob/train", "condition=Failed")
    (found,) = kube.get("pytorchjob", "train")["status"]["conditions"]
    assert (found["reason"], kube.names("pods")) == ("InvalidSpec", [])
    assert found["message"] == "spec.pytorchReplicaSpecs: 'Boss' must be one of Master, Worker"


def test_a_group_of_another_owner_blocks_a_job_until_it_is_deleted(kube: Kube) -> None:
    spec = {"minMember": 1}
    meta = {"name": "train"}
    kube.apply({"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": meta, "spec": spec})
    kube.apply(torch_job("true"))
    eventually(lambda: "FailedCreatePodGroup" in reasons(kube, "train"), "a word about it")
    kube("delete", GROUPS, "train")
    kube.wait("pytorchjob/train", "condition=Succeeded")


def test_a_job_of_another_manager_is_left_alone(kube: Kube) -> None:
    kube.apply(torch_job("true", runPolicy={"managedBy": "kubeflow.org/training-operator"}))
    eventually(lambda: "ManagedElsewhere" in reasons(kube, "train"), "a word about it")
    kube.apply(torch_job("true", name="ours"))
    kube.wait("pytorchjob/ours", "condition=Succeeded")
    assert kube.get("pytorchjob", "train").get("status") is None
    assert [name for name in kube.names("pods") if not name.startswith("ours-")] == []


def test_all_jobs_are_left_to_an_installed_training_operator(own: Callable[..., Cluster]) -> None:
    with operated(own("--runtime", "simulated", "--nodes", "1")) as cluster, opened(cluster, "kubeflow") as kube:
        kube("create", "deployment", "training-operator", "--image=any")
        kube.apply(torch_job("true"))
        eventually(lambda: "ManagedElsewhere" in reasons(kube, "train"), "a word about it")
        assert kube.names(GROUPS) == []
        kube("scale", "deployment", "training-operator", "--replicas=0")
        kube.wait("pytorchjob/train", "condition=Running")


@pytest.mark.local("the operator inside of the local cluster")
def test_an_operator_that_is_killed_while_creating_pods_creates_each_once(own: Callable[..., Cluster]) -> None:
    bare = own("--runtime", "simulated", "--nodes", "2", "--cpu", "64")
    number = 40
    wanted = sorted(["train-master-0", *(f"train-worker-{index}" for index in range(number))])
    with operated(bare) as cluster, opened(cluster, "team") as kube:
        eventually(
            lambda: "leader lease acquired" in cluster.run("-n", SYSTEM, "logs", OPERATOR).stdout, "the operator"
        )
        kube.apply(torch_job(SLEEP, workers=number))
        seen: dict[str, str] = {}
        for enough in (1, 10, 25):
            eventually(lambda enough=enough: len(uids(kube)) >= enough, f"{enough} pods")  # type: ignore[misc]
            seen |= uids(kube)
            kill_operator(cluster)
        eventually(lambda: kube.names("pods") == kube.names("services") == wanted, "all of it")
        assert kube.names(GROUPS) == ["train"]
        now = uids(kube)
        assert {name: now[name] for name in seen} == seen, "a pod was made twice"
        kube.wait("pytorchjob/train", "condition=Running")


def kill_operator(cluster: Cluster) -> None:
    """Kills the operator's process, which is restarted."""
    for process in eventually(lambda: processes_of(cluster, "operator"), "the operator's process"):
        os.kill(process, signal.SIGKILL)
