"""Decoding of specs: every form of a job, and one line for each invalid spec."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.operator.frameworks import pytorch, tensorflow
from gpu_scheduler.operator.managed_job import BadSpecError, CleanPodPolicy, RestartPolicy, RunPolicy, SchedulingPolicy
from tests.unit.operator.job_fixtures import raw, replicas, template

MASTER = {"Master": replicas(1)}
WORKERS = {"Worker": replicas(2)}
FIELD = "spec.pytorchReplicaSpecs"


def spec(specs: Any = None, **more: Any) -> Json:
    return {"pytorchReplicaSpecs": {**MASTER, **WORKERS} if specs is None else specs, **more}


def worker(**more: Any) -> Json:
    return spec({"Worker": {**replicas(2), **more}})


BAD: dict[str, tuple[Json, str]] = {
    "no replicas": (spec({}), f"{FIELD}: missing or empty; write at least one of Master, Worker"),
    "replicas that are a list": (spec([1]), f"{FIELD}: [1] must be an object"),
    "a role that there is not": (spec({"Boss": {}}), f"{FIELD}: 'Boss' must be one of Master, Worker"),
    "a role twice": (
        spec({"Worker": replicas(1), "worker": replicas(1)}),
        f"{FIELD}: Worker is given twice; write it once",
    ),
    "a replica that is none": (spec({"Worker": 3}), f"{FIELD}.Worker: 3 must be an object"),
    "two masters": (spec({"Master": replicas(2)}), f"{FIELD}.Master.replicas: must be 1: a job has one master"),
    "fewer than none": (worker(replicas=-1), f"{FIELD}.Worker.replicas: -1 must be a whole number, 0 or more"),
    "a number as text": (worker(replicas="2"), f"{FIELD}.Worker.replicas: '2' must be a whole number, 0 or more"),
    "no such policy": (
        worker(restartPolicy="Sometimes"),
        f"{FIELD}.Worker.restartPolicy: 'Sometimes' must be one of Always, OnFailure, Never, ExitCode",
    ),
    "no such policy in the template": (
        worker(template=template(restartPolicy="Sometimes")),
        f"{FIELD}.Worker.template.spec.restartPolicy: 'Sometimes' must be one of Always, OnFailure, Never, ExitCode",
    ),
    "no template": (
        worker(template=None),
        f"{FIELD}.Worker.template.spec.containers: the main container must be named pytorch",
    ),
    "a container of another name": (
        worker(template=template("main")),
        f"{FIELD}.Worker.template.spec.containers: the main container must be named pytorch",
    ),
    "containers that are none": (
        worker(template={"spec": {"containers": "x"}}),
        f"{FIELD}.Worker.template.spec.containers: Expected `array`, got `str`",
    ),
    "an amount that is none": (
        worker(template=template(gpus="many")),  # type: ignore[arg-type]
        f"{FIELD}.Worker.template.spec.containers[0].resources.limits['nvidia.com/gpu']:",
    ),
    "no processes": (
        spec(nprocPerNode="0"),
        "spec.nprocPerNode: '0' must be a whole number, 1 or more, or one of auto, cpu, gpu",
    ),
    "a policy without workers": (
        spec(MASTER, elasticPolicy={}),
        "spec.elasticPolicy: needs workers; add spec.pytorchReplicaSpecs.Worker",
    ),
    "more than the most": (
        spec(elasticPolicy={"minReplicas": 3, "maxReplicas": 2}),
        "spec.elasticPolicy.minReplicas: 3 must be at most maxReplicas, which is 2",
    ),
    "no such backend": (
        spec(elasticPolicy={"rdzvBackend": "smoke"}),
        'spec.elasticPolicy.rdzvBackend: "smoke" must be one of c10d, etcd, etcd-v2',
    ),
    "a conf that is none": (
        spec(elasticPolicy={"rdzvConf": ["x"]}),
        'spec.elasticPolicy.rdzvConf: must be a list such as [{key: timeout, value: "60"}]',
    ),
    "a run policy that is none": (spec(runPolicy=7), "spec.runPolicy: 7 must be an object"),
    "no such clean-up": (
        spec(runPolicy={"cleanPodPolicy": "Some"}),
        "spec.runPolicy.cleanPodPolicy: 'Some' must be one of None, Running, All",
    ),
    "half suspended": (spec(runPolicy={"suspend": "yes"}), "spec.runPolicy.suspend: 'yes' must be true or false"),
    "a deadline in the past": (
        spec(runPolicy={"activeDeadlineSeconds": -5}),
        "spec.runPolicy.activeDeadlineSeconds: -5 must be a whole number, 0 or more",
    ),
    "a gang of more than there are": (
        spec(runPolicy={"schedulingPolicy": {"minAvailable": 4}}),
        "spec.runPolicy.schedulingPolicy.minAvailable: 4 must be at most 3, the number of replicas",
    ),
    "resources that are none": (
        spec(runPolicy={"schedulingPolicy": {"minResources": {"cpu": "much"}}}),
        "spec.runPolicy.schedulingPolicy.minResources['cpu']:",
    ),
    "a scheduler that is none": (spec(schedulerName=3), "spec.schedulerName: 3 must be a string"),
}


@pytest.mark.parametrize("case", BAD)
def test_an_invalid_pytorchjob_is_refused_with_the_field(case: str) -> None:
    found, message = BAD[case]
    with pytest.raises(BadSpecError) as error:
        pytorch.decode(raw(found))
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["1st", "Train", "a" * 55, "a.b", "", "a\0b\n"])
def test_a_name_that_is_invalid_for_services_is_refused(name: str) -> None:
    with pytest.raises(BadSpecError, match=r"^metadata\.name: ") as error:
        pytorch.decode(raw(spec(), name=name))
    assert str(error.value).isprintable()


def test_the_longest_valid_name_is_accepted() -> None:
    assert pytorch.decode(raw(spec(), name="a" * 54)).pod_name(pytorch.decode(raw(spec())).roles[1], 0)


BAD_TF: dict[str, tuple[Json, str]] = {
    "two chiefs": (
        {"tfReplicaSpecs": {"Chief": replicas(1, "tensorflow"), "Master": replicas(1, "tensorflow")}},
        "spec.tfReplicaSpecs: a job has one chief; write either Chief or Master, with one replica",
    ),
    "no such success": (
        {"tfReplicaSpecs": {"Worker": replicas(1, "tensorflow")}, "successPolicy": "Half"},
        'spec.successPolicy: "Half" must be "" or AllWorkers',
    ),
    "PyTorch inside": (
        {"tfReplicaSpecs": {"Worker": replicas(1)}},
        "spec.tfReplicaSpecs.Worker.template.spec.containers: the main container must be named tensorflow",
    ),
}


@pytest.mark.parametrize("case", BAD_TF)
def test_an_invalid_tfjob_is_refused_with_the_field(case: str) -> None:
    found, message = BAD_TF[case]
    with pytest.raises(BadSpecError) as error:
        tensorflow.decode(raw(found))
    assert str(error.value) == message


def test_names_of_replica_types_are_case_insensitive() -> None:
    job = pytorch.decode(raw(spec({"master": replicas(None), "WORKER": replicas(2)})))
    assert [(role.name, role.replicas) for role in job.roles] == [("Master", 1), ("Worker", 2)]


def test_a_run_policy_is_decoded() -> None:
    policy: Json = {
        "cleanPodPolicy": "Running",
        "ttlSecondsAfterFinished": 60,
        "activeDeadlineSeconds": 3600,
        "backoffLimit": 3,
        "suspend": True,
        "managedBy": "x/y",
        "schedulingPolicy": {
            "minAvailable": 2,
            "queue": "q",
            "minResources": {"cpu": 2},
            "priorityClass": "high",
            "scheduleTimeoutSeconds": 30,
        },
    }
    assert pytorch.decode(raw(spec(runPolicy=policy))).policy == RunPolicy(
        CleanPodPolicy.RUNNING, 60, 3600, 3, True, "x/y", SchedulingPolicy(2, "q", "high", {"cpu": "2"}, 30)
    )


def test_a_v1beta1_tfjob_has_its_policy_in_the_spec() -> None:
    old: Json = {
        "tfReplicaSpecs": {"PS": replicas(1, "tensorflow"), "Worker": replicas(2, "tensorflow", restart="OnFailure")},
        "cleanPodPolicy": "All",
        "ttlSecondsAfterFinishing": 10,
        "activeDeadlineSeconds": 20,
        "backoffLimit": 1,
    }
    job = tensorflow.decode(raw(old), tensorflow.RESOURCES[1])
    assert job.policy == RunPolicy(CleanPodPolicy.ALL, 10, 20, 1)
    assert [(role.name, role.restart) for role in job.roles] == [
        ("Worker", RestartPolicy.ON_FAILURE),
        ("PS", RestartPolicy.NEVER),
    ]
    assert job.resource.api_version == "kubeflow.org/v1beta1"
