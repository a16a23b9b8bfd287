"""A wrong value anywhere in a job is accepted or refused in one line; reconciliation never raises."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest

from gpu_scheduler.k8s.objects import Json, Meta, RawObject
from gpu_scheduler.operator.frameworks import FRAMEWORKS, JobFramework
from gpu_scheduler.operator.managed_job import BadSpecError
from gpu_scheduler.operator.pod_groups import GPU_SCHEDULER
from gpu_scheduler.operator.pods import make_pod
from gpu_scheduler.operator.reconcile import ObservedJob
from tests.unit.operator.job_fixtures import NOW, group, raw

PYTORCH, TENSORFLOW, VOLCANO = FRAMEWORKS
WRONG: tuple[Any, ...] = (None, True, -1, 1.5, "x", [1], [None], [{}], {}, {"name": 1})


def pod(name: str) -> Json:
    box = {
        "name": name,
        "image": "any",
        "env": [{"name": "RANK", "value": "x"}],
        "ports": [{"name": "pytorchjob-port", "containerPort": 1}, {"name": "tfjob-port", "containerPort": 2}],
        "volumeMounts": [{"name": "data", "mountPath": "/data"}],
        "resources": {"limits": {"nvidia.com/gpu": 1}, "requests": {"cpu": "1"}},
    }
    spec = {
        "containers": [box],
        "initContainers": [{"name": "first", "env": [{"name": "A", "value": "b"}]}],
        "volumes": [{"name": "data", "emptyDir": {}}],
        "schedulerName": "gpu-scheduler",
        "priorityClassName": "high",
        "restartPolicy": "Never",
        "hostname": "host",
        "subdomain": "sub",
        "nodeSelector": {"a": "b"},
    }
    return {"metadata": {"labels": {"a": "b"}, "annotations": {"a": "b"}}, "spec": spec}


def role(name: str, replicas: int = 1) -> Json:
    return {"replicas": replicas, "restartPolicy": "ExitCode", "template": pod(name)}


POLICY: Json = {
    "cleanPodPolicy": "All",
    "ttlSecondsAfterFinished": 1,
    "activeDeadlineSeconds": 1,
    "backoffLimit": 1,
    "suspend": False,
    "managedBy": "gpu-scheduler.io/operator",
    "schedulingPolicy": {
        "minAvailable": 1,
        "queue": "q",
        "priorityClass": "p",
        "minResources": {"cpu": "1"},
        "scheduleTimeoutSeconds": 1,
    },
}
ELASTIC = {
    "minReplicas": 1,
    "maxReplicas": 2,
    "rdzvBackend": "c10d",
    "rdzvHost": "h",
    "rdzvPort": 1,
    "rdzvId": "i",
    "rdzvConf": [{"key": "a", "value": "b"}],
    "standalone": True,
    "nProcPerNode": 1,
    "maxRestarts": 1,
}
TASK = {
    **role("main", 2),
    "name": "worker",
    "minAvailable": 1,
    "policies": [{"event": "PodFailed", "action": "RestartPod"}, {"exitCode": 3, "action": "AbortJob"}],
    "dependsOn": {"name": ["ps"]},
}
SPECS: dict[str, tuple[JobFramework, Json]] = {
    "PyTorchJob": (
        PYTORCH,
        {
            "pytorchReplicaSpecs": {"Master": role("pytorch"), "Worker": role("pytorch", 2)},
            "nprocPerNode": "2",
            "schedulerName": "s",
            "runPolicy": POLICY,
            "elasticPolicy": ELASTIC,
        },
    ),
    "TFJob": (
        TENSORFLOW,
        {
            "tfReplicaSpecs": {"PS": role("tensorflow"), "Worker": role("tensorflow", 2)},
            "successPolicy": "AllWorkers",
            "enableDynamicWorker": True,
            "schedulerName": "s",
            **POLICY,
        },
    ),
    "Job": (
        VOLCANO,
        {
            "minAvailable": 1,
            "tasks": [{**role("main"), "name": "ps"}, TASK],
            "policies": [{"events": ["PodEvicted"], "action": "RestartJob"}],
            "plugins": {"env": [], "svc": []},
            "queue": "q",
            "maxRetry": 1,
            "minSuccess": 1,
            "ttlSecondsAfterFinished": 1,
            "priorityClassName": "p",
            "schedulerName": "s",
        },
    ),
}


def paths(found: Any, *path: Any) -> Iterator[tuple[Any, ...]]:
    """Every path in an object."""
    if path:
        yield path
    items = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
    for name, value in items:
        yield from paths(value, *path, name)


def put(spec: Json, path: tuple[Any, ...], value: Any) -> Json:
    """The spec with another value at a path."""
    made: Any = deepcopy(spec)
    inner = made
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = deepcopy(value)
    return dict(made)


def look(kind: JobFramework, spec: Json) -> str:
    """Reconciles a job until its pods would be created; returns why it is refused, if it is."""
    found = raw(spec)
    try:
        job = kind.decode(found, kind.resources[0])
        kind.plan(job, ObservedJob(groups=GPU_SCHEDULER), NOW)
        kind.plan(job, ObservedJob(groups=GPU_SCHEDULER, group=group(job)), NOW)
    except BadSpecError as error:
        kind.reject(kind.resources[0].kind, found, str(error), NOW)
        return str(error)
    return ""


@pytest.mark.parametrize("name", SPECS)
def test_a_wrong_value_anywhere_is_accepted_or_refused_in_one_line(name: str) -> None:
    kind, spec = SPECS[name]
    assert look(kind, spec) == ""
    broken = []
    for path in paths(spec):
        for value in WRONG:
            try:
                said = look(kind, put(spec, path, value))
            except Exception as error:
                broken.append((path, value, repr(error)))
            else:
                assert "\n" not in said
                assert not said or said.startswith(("spec.", "metadata.")), said
    assert broken == []


def test_a_null_or_empty_field_of_a_template_means_missing() -> None:
    kind, spec = SPECS["PyTorchJob"]
    worker = ("pytorchReplicaSpecs", "Worker", "template")
    for name in ("schedulerName", "priorityClassName", "hostNetwork", "initContainers"):
        assert look(kind, put(spec, (*worker, "spec", name), None)) == ""
    assert look(kind, put(spec, (*worker, "metadata"), None)) == ""
    job = kind.decode(raw(put(spec, (*worker, "spec", "schedulerName"), "")), kind.resources[0])
    assert make_pod(job, job.roles[1], 0)["spec"]["schedulerName"] == "s"


STATUS: Json = {
    "conditions": [{"type": "Running", "status": "True", "lastTransitionTime": "2025-01-02T03:04:05Z"}],
    "replicaStatuses": {"Worker": {"active": 1, "failed": 1, "selector": "a=b"}},
    "startTime": "2025-01-02T03:04:05Z",
    "completionTime": "2025-01-02T03:04:05Z",
    "state": {"phase": "Running", "reason": "a", "lastTransitionTime": "2025-01-02T03:04:05Z"},
    "retryCount": 1,
    "version": 1,
}
ENDED: Json = {
    "phase": "Failed",
    "containerStatuses": [
        {
            "name": "pytorch",
            "restartCount": 1,
            "state": {"terminated": {"exitCode": 3, "finishedAt": "2025-01-02T03:04:05Z"}},
        }
    ],
}


@pytest.mark.parametrize("name", SPECS)
def test_a_wrong_value_anywhere_in_a_status_means_missing(name: str) -> None:
    kind, spec = SPECS[name]
    for path in paths(STATUS):
        for value in WRONG:
            found = raw(spec, status=put(STATUS, path, value))
            kind.plan(kind.decode(found, kind.resources[0]), ObservedJob(groups=GPU_SCHEDULER), NOW)
            kind.reject(kind.resources[0].kind, found, "no", NOW)


@pytest.mark.parametrize("name", SPECS)
def test_a_wrong_value_anywhere_in_a_pods_status_means_missing(name: str) -> None:
    kind, spec = SPECS[name]
    job = kind.decode(raw(spec), kind.resources[0])
    pods = ("train-worker-0", "train-ps-0", "train-master-0")
    for path in paths(ENDED):
        for value in WRONG:
            there = [RawObject(Meta(name=pod, uid=pod), {}, put(ENDED, path, value)) for pod in pods]
            kind.plan(job, ObservedJob(there, groups=GPU_SCHEDULER, group=group(job)), NOW)


@pytest.mark.parametrize("name", SPECS)
def test_more_replicas_than_a_gang_may_have_are_refused(name: str) -> None:
    kind, spec = SPECS[name]
    many = next(path for path in paths(spec) if path[-1] == "replicas")
    assert "replicas are too many; write at most 20000 in all" in look(kind, put(spec, many, 2**31 - 1))


def test_a_huge_number_of_processes_is_refused_in_one_line() -> None:
    kind, spec = SPECS["PyTorchJob"]
    assert look(kind, {**spec, "nprocPerNode": "9" * 5000}).startswith("spec.nprocPerNode: '999")
