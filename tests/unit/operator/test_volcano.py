"""Reconciliation of Volcano Jobs, for every state of their pods."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_scheduler.k8s.objects import Json, RawObject
from gpu_scheduler.k8s.times import format_time
from gpu_scheduler.operator.actions import (
    CreateConfigMap,
    CreateGroup,
    CreatePod,
    CreateService,
    DeleteGroup,
    DeleteJob,
    DeletePod,
    JobPlan,
)
from gpu_scheduler.operator.frameworks.volcano import VolcanoJob, decode
from gpu_scheduler.operator.frameworks.volcano_reconcile import reconcile, reject
from gpu_scheduler.operator.managed_job import BadSpecError
from gpu_scheduler.operator.pod_groups import GPU_SCHEDULER
from gpu_scheduler.operator.reconcile import ObservedJob
from tests.unit.operator.job_fixtures import NOW, group, of_kind, pod, raw, service, status_after, template

ALL = ["train-ps-0", "train-worker-0", "train-worker-1"]


def task(name: str, replicas: int, **more: Any) -> Json:
    return {"name": name, "replicas": replicas, "template": template("main"), **more}


def spec(*tasks: Json, **more: Any) -> Json:
    return {"tasks": list(tasks or (task("ps", 1), task("worker", 2))), **more}


def job(*tasks: Json, phase: str = "", status: Json | None = None, **more: Any) -> VolcanoJob:
    state: Json = {"state": {"phase": phase, "lastTransitionTime": format_time(NOW)}} if phase else {}
    return decode(raw(spec(*tasks, **more), status={**state, **(status or {})}))


def member(name: str, phase: str, version: int = 0, **more: Any) -> RawObject:
    return pod(name, phase, annotations={"volcano.sh/job-version": str(version)}, **more)


def seen(*phases: str, version: int = 0, **more: Any) -> ObservedJob:
    pods = [member(name, phase, version) for name, phase in zip(ALL, phases, strict=False) if phase]
    return ObservedJob(pods=pods, **more)


def look(found: VolcanoJob, observed: ObservedJob, now: float = NOW) -> JobPlan:
    return reconcile(found, observed, now)


def phase_after(found: VolcanoJob, plan: JobPlan) -> str:
    return str(status_after(found, plan)["state"]["phase"])


def made(plan: JobPlan, kind: type) -> list[str]:
    return [action.body["metadata"]["name"] for action in plan.actions if isinstance(action, kind)]  # type: ignore[union-attr]


def gone(plan: JobPlan) -> list[str]:
    return [action.name for action in plan.actions if isinstance(action, DeletePod)]


def test_the_group_is_created_first_and_pods_once_it_is_admitted() -> None:
    found = job(task("ps", 1), task("worker", 2, minAvailable=1), minAvailable=2, queue="research")
    plan = look(found, ObservedJob(groups=GPU_SCHEDULER))
    (action,) = of_kind(plan, CreateGroup)
    assert isinstance(action, CreateGroup)
    assert action.body["spec"] == {
        "minMember": 2,
        "minTaskMember": {"worker": 1},
        "minResources": {"cpu": "1000m", "nvidia.com/gpu": "2"},
        "queue": "research",
    }
    assert not of_kind(plan, CreatePod)
    assert phase_after(found, plan) == "Pending"
    assert not of_kind(look(found, ObservedJob(groups=GPU_SCHEDULER, group=group(found, "Pending"))), CreatePod)
    assert made(look(found, ObservedJob(groups=GPU_SCHEDULER, group=group(found))), CreatePod) == ALL


def test_a_pod_has_the_labels_of_volcano() -> None:
    plan = look(job(), ObservedJob(groups=GPU_SCHEDULER, group=group(job())))
    body = next(one.body for one in plan.actions if isinstance(one, CreatePod))
    assert body["metadata"]["labels"] == {
        "volcano.sh/job-name": "train",
        "volcano.sh/job-namespace": "team",
        "volcano.sh/task-spec": "ps",
        "volcano.sh/task-index": "0",
    }
    notes = body["metadata"]["annotations"]
    assert (notes["volcano.sh/job-version"], notes["scheduling.k8s.io/group-name"]) == ("0", "train")
    assert body["spec"]["schedulerName"] == "gpu-scheduler"
    assert body["spec"]["restartPolicy"] == "OnFailure"


def test_the_plugins_add_the_index_and_the_hosts() -> None:
    found = job(plugins={"env": [], "svc": []})
    plan = look(found, ObservedJob())
    assert made(plan, CreateConfigMap) == ["train-svc"]
    assert made(plan, CreateService) == ["train"]
    kinds = [type(action) for action in plan.actions]
    assert kinds.index(CreateConfigMap) < kinds.index(CreateService) < kinds.index(CreatePod)
    hosts = next(one.body["data"] for one in plan.actions if isinstance(one, CreateConfigMap))
    assert hosts == {"ps.host": "train-ps-0.train", "worker.host": "train-worker-0.train\ntrain-worker-1.train"}
    body = [one.body for one in plan.actions if isinstance(one, CreatePod)][2]
    env = {one["name"]: one["value"] for one in body["spec"]["containers"][0]["env"]}
    assert env == {
        "VK_TASK_INDEX": "1",
        "VC_TASK_INDEX": "1",
        "VC_PS_HOSTS": "train-ps-0.train",
        "VC_PS_NUM": "1",
        "VC_WORKER_HOSTS": "train-worker-0.train,train-worker-1.train",
        "VC_WORKER_NUM": "2",
    }
    assert (body["spec"]["hostname"], body["spec"]["subdomain"]) == ("train-worker-1", "train")
    assert body["spec"]["containers"][0]["volumeMounts"] == [{"name": "train-svc", "mountPath": "/etc/volcano"}]
    again = look(found, ObservedJob(services=[service("train")]))
    assert not of_kind(again, CreateConfigMap, CreateService)


def on(event: str, action: str, **more: Any) -> Json:
    return {"policies": [{"event": event, "action": action, **more}]}


def by_code(code: int, action: str) -> Json:
    return {"policies": [{"exitCode": code, "action": action}]}


F, R, S, P = "Failed", "Running", "Succeeded", "Pending"
PHASES: dict[str, tuple[VolcanoJob, tuple[str, ...], str]] = {
    "some run": (job(), (R, R, P), "Pending"),
    "all run": (job(), (R, R, R), "Running"),
    "enough run": (job(minAvailable=2), (R, R, P), "Running"),
    "all succeeded": (job(phase="Running"), (S, S, S), "Completed"),
    "one failed, and others run": (job(phase="Running"), (F, R, R), "Running"),
    "one failed at the end": (job(phase="Running"), (F, S, S), "Failed"),
    "one failed, and the others are enough": (job(phase="Running", minAvailable=2), (F, S, S), "Completed"),
    "a task has too few": (
        job(task("ps", 1, minAvailable=1), task("worker", 2), phase="Running", minAvailable=2),
        (F, S, S),
        "Failed",
    ),
    "as many succeeded as had to": (job(phase="Running", minSuccess=1), (R, S, R), "Completing"),
    "a failure restarts": (job(phase="Running", **on("PodFailed", "RestartJob")), (R, F, R), "Restarting"),
    "a failure aborts": (job(phase="Running", **on("PodFailed", "AbortJob")), (R, F, R), "Aborting"),
    "a failure terminates": (job(phase="Running", **on("PodFailed", "TerminateJob")), (R, F, R), "Terminating"),
    "a failure completes": (job(phase="Running", **on("PodFailed", "CompleteJob")), (R, F, R), "Completing"),
    "anything restarts": (job(phase="Running", **on("*", "RestartJob")), (R, F, R), "Restarting"),
    "an eviction is no failure": (job(phase="Running", **on("PodEvicted", "RestartJob")), (R, F, R), "Running"),
    "a task that is done completes": (
        job(task("ps", 1), task("worker", 2, **on("TaskCompleted", "CompleteJob")), phase="Running"),
        (R, S, S),
        "Completing",
    ),
    "a task that is half done": (
        job(task("ps", 1), task("worker", 2, **on("TaskCompleted", "CompleteJob")), phase="Running"),
        (R, S, R),
        "Running",
    ),
    "the task's policy goes first": (
        job(
            task("ps", 1),
            task("worker", 2, **on("PodFailed", "AbortJob")),
            phase="Running",
            **on("PodFailed", "RestartJob"),
        ),
        (R, F, R),
        "Aborting",
    ),
    "another exit code": (job(phase="Running", **by_code(3, "RestartJob")), (R, F, R), "Running"),
    "aborting goes on": (job(phase="Aborting"), (R, S, F), "Aborting"),
    "aborting ends": (job(phase="Aborting"), ("", S, F), "Aborted"),
    "completing ends": (job(phase="Completing"), (S, S, ""), "Completed"),
    "terminating ends": (job(phase="Terminating"), ("", "", ""), "Terminated"),
}


@pytest.mark.parametrize("case", PHASES)
def test_a_job_of_which(case: str) -> None:
    found, phases, expected = PHASES[case]
    assert phase_after(found, look(found, seen(*phases))) == expected


def test_an_exit_code_decides() -> None:
    found = job(phase="Running", **by_code(3, "RestartJob"))
    ended = [member(ALL[0], "Failed", code=3), member(ALL[1], "Running"), member(ALL[2], "Running")]
    assert phase_after(found, look(found, ObservedJob(pods=ended))) == "Restarting"


def test_a_restart_increments_the_version_before_pods_are_deleted() -> None:
    found = job(phase="Running", **on("PodFailed", "RestartJob"))
    plan = look(found, seen(R, F, R))
    assert gone(plan) == []
    status = status_after(found, plan)
    assert (status["version"], status["retryCount"]) == (1, 1)
    second = job(status=status, **on("PodFailed", "RestartJob"))
    assert gone(look(second, seen(R, F, R))) == ALL
    third = look(second, ObservedJob())
    assert phase_after(second, third) == "Pending"
    fresh = job(status=status_after(second, third), **on("PodFailed", "RestartJob"))
    bodies = [one.body for one in look(fresh, ObservedJob()).actions if isinstance(one, CreatePod)]
    assert {body["metadata"]["annotations"]["volcano.sh/job-version"] for body in bodies} == {"1"}


@pytest.mark.parametrize(("retries", "expected"), [(2, "Pending"), (3, "Failed")])
def test_a_job_fails_after_its_maximum_of_restarts(retries: int, expected: str) -> None:
    found = job(phase="Restarting", status={"retryCount": retries, "version": retries})
    assert phase_after(found, look(found, ObservedJob())) == expected


def test_a_pod_or_its_task_can_be_restarted_alone() -> None:
    alone = job(phase="Running", **on("PodFailed", "RestartPod"))
    assert gone(look(alone, seen(R, F, R))) == ["train-worker-0"]
    together = job(phase="Running", **on("PodFailed", "RestartTask"))
    assert gone(look(together, seen(R, F, R))) == ["train-worker-1", "train-worker-0"], "the one that failed goes last"


def test_a_task_waits_for_its_dependencies() -> None:
    found = job(task("ps", 1), task("worker", 2, dependsOn={"name": ["ps"]}))
    assert made(look(found, ObservedJob()), CreatePod) == ["train-ps-0"]
    assert made(look(found, seen(P)), CreatePod) == []
    assert made(look(found, seen(R)), CreatePod) == ALL[1:]


def test_the_gang_does_not_count_tasks_with_dependencies() -> None:
    found = decode(raw(spec(task("ps", 1), task("worker", 2, minAvailable=1, dependsOn={"name": ["ps"]}))))
    assert (found.gang_minimum, found.minimum_by_role) == (1, {})


def test_an_ended_job_loses_its_group_and_is_deleted_after_its_time_to_live() -> None:
    found = job(phase="Completed", ttlSecondsAfterFinished=60)
    plan = look(found, seen(S, S, S, groups=GPU_SCHEDULER, group=group(found, "Running")))
    assert of_kind(plan, DeleteGroup)
    assert (gone(plan), plan.requeue_at) == ([], NOW + 60)
    assert of_kind(look(found, ObservedJob(), NOW + 60), DeleteJob)


def test_nothing_is_done_twice() -> None:
    found = job()
    status = status_after(found, look(found, seen(R, R, R)))
    assert look(job(status=status), seen(R, R, R), NOW + 60).actions == []


BAD: dict[str, tuple[Json, str]] = {
    "no tasks": ({}, "spec.tasks: missing or empty; write a list with at least one task"),
    "a task twice": (
        spec(task("a", 1), task("a", 1)),
        'spec.tasks[1].name: "a" is given twice; task names must differ',
    ),
    "no containers": (
        spec({"name": "a", "template": {"spec": {}}}),
        "spec.tasks[0].template.spec.containers: missing or empty; write at least one",
    ),
    "more than there are": (spec(minAvailable=4), "spec.minAvailable: 4 must be at most 3, the number of replicas"),
    "more than a task has": (
        spec(task("a", 1, minAvailable=2)),
        "spec.tasks[0].minAvailable: 2 must be at most 1, the number of replicas",
    ),
    "a minimum that waits for itself": (
        spec(task("ps", 1), task("worker", 2, dependsOn={"name": ["ps"]}), minAvailable=3),
        "spec.minAvailable: 3 must be at most 1, the number of pods in tasks without dependsOn: the others",
    ),
    "a task that depends on none": (
        spec(task("ps", 1), task("worker", 2, dependsOn={"name": ["sp"]})),
        'spec.tasks[1].dependsOn.name: "sp" must be the name of another task',
    ),
    "a plugin that there is not": (
        spec(plugins={"ssh": []}),
        'spec.plugins: "ssh" is not supported; use only env, svc',
    ),
    "a policy without an event": (
        spec(policies=[{"action": "RestartJob"}]),
        "spec.policies[0]: names no event; write event, events or exitCode",
    ),
    "a policy without an action": (
        spec(policies=[{"event": "PodFailed"}]),
        "spec.policies[0].action: must be one of AbortJob, RestartJob",
    ),
    "an action that there is not": (
        spec(policies=[{"event": "PodFailed", "action": "Dance"}]),
        "spec.policies[0].action: 'Dance' must be one of AbortJob, RestartJob",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_an_invalid_job_is_refused_with_the_field(case: str) -> None:
    found, message = BAD[case]
    with pytest.raises(BadSpecError) as error:
        decode(raw(found))
    assert str(error.value).startswith(message)
    plan = reject("Job", raw(found), str(error.value), NOW)
    status = status_after(job(), plan)
    assert (status["state"]["phase"], status["state"]["reason"]) == ("Failed", "InvalidSpec")
    corrected = decode(raw(spec(), status=status))
    assert phase_after(corrected, look(corrected, ObservedJob())) == "Pending"
