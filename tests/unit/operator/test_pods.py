"""Pods and Services: names, labels, restart policies, schedulers."""

from __future__ import annotations

import pytest

from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.operator.frameworks import pytorch, tensorflow
from gpu_scheduler.operator.managed_job import ManagedJob
from gpu_scheduler.operator.pod_groups import GPU_SCHEDULER, SCHEDULER_PLUGINS, VOLCANO, PodGroupApi
from gpu_scheduler.operator.pods import make_pod, make_service
from tests.unit.operator.job_fixtures import UID, raw, replicas, tf, torch

OWNER = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "PyTorchJob",
    "name": "train",
    "uid": UID,
    "controller": True,
    "blockOwnerDeletion": True,
}


def test_a_pod_has_the_name_and_labels_of_the_training_operator() -> None:
    job = torch(2)
    made = make_pod(job, job.roles[1], 1)
    assert made["metadata"] == {
        "name": "train-worker-1",
        "namespace": "team",
        "labels": {
            "training.kubeflow.org/job-name": "train",
            "training.kubeflow.org/operator-name": "pytorchjob-controller",
            "training.kubeflow.org/replica-type": "worker",
            "training.kubeflow.org/replica-index": "1",
        },
        "ownerReferences": [OWNER],
    }
    assert made["spec"]["containers"][0]["ports"] == [{"name": "pytorchjob-port", "containerPort": 23456}]


def test_a_headless_service_has_the_name_of_its_pod() -> None:
    job = torch(2)
    made, pod = make_service(job, job.roles[1], 1), make_pod(job, job.roles[1], 1)
    assert made["metadata"]["name"] == pod["metadata"]["name"]
    assert made["spec"]["clusterIP"] == "None"
    assert made["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert made["metadata"]["ownerReferences"] == [OWNER]


def leaders(job: ManagedJob) -> list[str]:
    made = [make_pod(job, role, index) for role in job.roles for index in range(role.replicas)]
    mark = "training.kubeflow.org/job-role"
    return [pod["metadata"]["name"] for pod in made if pod["metadata"]["labels"].get(mark) == "master"]


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        pytest.param(torch(2), ["train-master-0"], id="a PyTorchJob"),
        pytest.param(tf(Chief=1, Worker=2), ["train-chief-0"], id="a chief"),
        pytest.param(tf(Master=1, Worker=2, PS=1), ["train-master-0"], id="a master"),
        pytest.param(tf(PS=1, Worker=2), ["train-worker-0"], id="neither"),
    ],
)
def test_one_replica_has_the_role_master(job: ManagedJob, expected: list[str]) -> None:
    assert leaders(job) == expected


POLICIES = {
    "the default of PyTorch": ("pytorch", "", "", "OnFailure"),
    "the default of TensorFlow": ("tensorflow", "", "", "Never"),
    "the replica's": ("pytorch", "Never", "", "Never"),
    "the template's where the replica has none": ("pytorch", "", "Never", "Never"),
    "the template's, of a TFJob": ("tensorflow", "", "OnFailure", "OnFailure"),
    "the replica's before the template's": ("pytorch", "Always", "Never", "Always"),
    "exit codes are the operator's": ("pytorch", "ExitCode", "", "Never"),
}


@pytest.mark.parametrize("case", POLICIES)
def test_the_restart_policy_of_a_pod_is(case: str) -> None:
    kind, replica, inside, expected = POLICIES[case]
    more = {"restartPolicy": inside} if inside else {}
    spec = replicas(1, kind, restart=replica, **more)
    job: ManagedJob
    if kind == "pytorch":
        job = pytorch.decode(raw({"pytorchReplicaSpecs": {"Worker": spec}}))
    else:
        job = tensorflow.decode(raw({"tfReplicaSpecs": {"Worker": spec}}))
    assert make_pod(job, job.roles[0], 0)["spec"]["restartPolicy"] == expected


SCHEDULERS: dict[str, tuple[PodGroupApi | None, str, str, str | None]] = {
    "the gang's": (GPU_SCHEDULER, "", "", "gpu-scheduler"),
    "Volcano": (VOLCANO, "", "", "volcano"),
    "that of scheduler-plugins": (SCHEDULER_PLUGINS, "", "", "scheduler-plugins-scheduler"),
    "none without gangs": (None, "", "", None),
    "the job's": (GPU_SCHEDULER, "volcano", "", "volcano"),
    "the job's without gangs": (None, "volcano", "", "volcano"),
    "the template's before all": (GPU_SCHEDULER, "volcano", "mine", "mine"),
}


@pytest.mark.parametrize("case", SCHEDULERS)
@pytest.mark.parametrize("kind", ["pytorch", "tensorflow"])
def test_the_scheduler_of_a_pod_is(kind: str, case: str) -> None:
    api, level, inside, expected = SCHEDULERS[case]
    more = {"schedulerName": inside} if inside else {}
    spec: Json = {"schedulerName": level} if level else {}
    job: ManagedJob
    if kind == "pytorch":
        job = pytorch.decode(raw({"pytorchReplicaSpecs": {"Worker": replicas(1, kind, **more)}, **spec}))
    else:
        job = tensorflow.decode(raw({"tfReplicaSpecs": {"Worker": replicas(1, kind, **more)}, **spec}))
    made = make_pod(job, job.roles[0], 0)
    if api is not None:
        made = api.join(made, job, job.roles[0].label)
    assert made["spec"].get("schedulerName") == expected


def test_a_pod_joins_a_group_of_volcano() -> None:
    job = torch(1)
    made = GPU_SCHEDULER.join(make_pod(job, job.roles[1], 0), job, job.roles[1].label)
    assert made["metadata"]["annotations"] == {
        "scheduling.k8s.io/group-name": "train",
        "volcano.sh/task-spec": "worker",
    }


def test_a_pod_joins_a_group_of_scheduler_plugins() -> None:
    job = torch(1)
    made = SCHEDULER_PLUGINS.join(make_pod(job, job.roles[1], 0), job, job.roles[1].label)
    assert made["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == "train"
    assert "annotations" not in made["metadata"]


def test_a_template_keeps_its_own_labels_and_annotations() -> None:
    spec = replicas(1)
    spec["template"]["metadata"] = {"labels": {"app": "x"}, "annotations": {"gpu-scheduler.io/gpu-milli": "300"}}
    job = pytorch.decode(raw({"pytorchReplicaSpecs": {"Master": spec}}))
    made = GPU_SCHEDULER.join(make_pod(job, job.roles[0], 0), job, job.roles[0].label)
    assert made["metadata"]["labels"]["app"] == "x"
    assert made["metadata"]["annotations"]["gpu-scheduler.io/gpu-milli"] == "300"
