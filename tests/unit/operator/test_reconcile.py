"""Reconciliation of PyTorchJobs and TFJobs, for every state of their pods."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_scheduler.k8s.objects import Json, OwnerReference
from gpu_scheduler.k8s.times import format_time
from gpu_scheduler.operator.actions import (
    CreateGroup,
    CreatePod,
    CreateService,
    DeleteGroup,
    DeleteJob,
    DeletePod,
    DeleteService,
    JobPlan,
    PatchGroup,
    RecordEvent,
    RecordRestarts,
    UpdateStatus,
)
from gpu_scheduler.operator.frameworks import pytorch
from gpu_scheduler.operator.managed_job import ManagedJob
from gpu_scheduler.operator.pod_groups import GPU_SCHEDULER
from gpu_scheduler.operator.reconcile import ObservedJob, reconcile, reject
from tests.unit.operator.job_fixtures import (
    NOW,
    conditions,
    group,
    look,
    merge,
    names_of,
    of_kind,
    over_status,
    pod,
    raw,
    replicas,
    running_status,
    seen,
    status_after,
    tf,
    torch,
)

ALL = ["train-master-0", "train-worker-0", "train-worker-1", "train-worker-2"]


def made(plan: JobPlan, kind: type) -> list[str]:
    return [action.body["metadata"]["name"] for action in plan.actions if isinstance(action, kind)]  # type: ignore[union-attr]


def gone(plan: JobPlan, kind: type) -> list[str]:
    return [action.name for action in plan.actions if isinstance(action, kind)]  # type: ignore[union-attr]


def reasons(plan: JobPlan) -> list[str]:
    return [action.reason for action in plan.actions if isinstance(action, RecordEvent)]


# -- start


def test_without_gangs_pods_are_created_at_once() -> None:
    plan = look(torch(3), ObservedJob())
    assert made(plan, CreateService) == made(plan, CreatePod) == ALL
    order = [type(action) for action in plan.actions]
    assert order[-8:] == [CreateService] * 4 + [CreatePod] * 4
    assert order[0] is UpdateStatus, "though pods may be refused, the job says how it is"
    status = status_after(torch(3), plan)
    assert conditions(status) == {"Created": ("True", "PyTorchJobCreated")}
    assert status["startTime"] == format_time(NOW)


def test_the_group_is_created_before_anything_else() -> None:
    job = torch(3)
    plan = look(job, ObservedJob(groups=GPU_SCHEDULER))
    assert made(plan, CreateGroup) == ["train"]
    assert not of_kind(plan, CreatePod, CreateService)
    assert "startTime" not in status_after(job, plan), "waiting for room must not use up a deadline"


@pytest.mark.parametrize(
    ("phase", "opens"),
    [("", False), ("Pending", False), ("Inqueue", True), ("Running", True), ("Unknown", True), ("Scheduling", True)],
)
def test_pods_are_created_when_the_group_is(phase: str, opens: bool) -> None:
    job = torch(3)
    plan = look(job, ObservedJob(groups=GPU_SCHEDULER, group=group(job, phase)))
    assert made(plan, CreatePod) == (ALL if opens else [])


def test_an_event_says_why_the_gang_waits() -> None:
    job = torch(3)
    waits = group(job, "Pending")
    waits.status["conditions"] = [{"type": "Unschedulable", "status": "True", "message": "8 GPUs are short."}]
    assert (
        RecordEvent("Warning", "Unschedulable", "No pods yet: 8 GPUs are short.")
        in look(job, ObservedJob(groups=GPU_SCHEDULER, group=waits)).actions
    )
    waits.status["conditions"][0]["status"] = "False"
    assert not any("No pods" in one.message for one in look(job, ObservedJob(groups=GPU_SCHEDULER, group=waits)).actions
                   if isinstance(one, RecordEvent))  # fmt: skip


def test_missing_pods_are_created_although_the_group_is_pending_again() -> None:
    job = torch(3)
    there = seen(job, {"train-master-0": "Pending"}, groups=GPU_SCHEDULER, group=group(job, "Pending"))
    assert made(look(job, there), CreatePod) == ALL[1:]


def test_no_pods_are_created_while_the_group_is_being_deleted() -> None:
    job = torch(3)
    going = group(job, "Running", deletion_timestamp="2026-01-01T00:00:00Z")
    assert not of_kind(look(job, ObservedJob(groups=GPU_SCHEDULER, group=going)), CreatePod, CreateGroup)


def test_a_group_with_another_owner_blocks_the_job_with_a_warning() -> None:
    job = torch(3)
    plan = look(job, ObservedJob(groups=GPU_SCHEDULER, group=group(job, "Running", uid="other")))
    assert not of_kind(plan, CreatePod, CreateGroup, PatchGroup, DeleteGroup)
    assert "FailedCreatePodGroup" in reasons(plan)


def test_the_group_of_an_earlier_job_with_this_name_delays_the_job() -> None:
    job = torch(3)
    earlier = group(job, "Running")
    earlier.metadata.owner_references = [OwnerReference(kind="PyTorchJob", name="train", uid="earlier")]
    plan = look(job, ObservedJob(groups=GPU_SCHEDULER, group=earlier))
    assert reasons(plan) == ["PyTorchJobCreated"], "nothing has to be deleted"
    assert not of_kind(plan, CreatePod, CreateGroup, PatchGroup, DeleteGroup)


def test_resources_that_a_job_no_longer_requests_are_removed_from_its_group() -> None:
    job = torch(3)
    old = group(job)
    old.spec["minResources"] |= {"memory": "1Gi", "cpu": 2000}
    (patch,) = of_kind(look(job, ObservedJob(groups=GPU_SCHEDULER, group=old)), PatchGroup)
    assert isinstance(patch, PatchGroup)
    assert patch.body["spec"] == {"minResources": {"memory": None, "cpu": "2000m"}}
    merge(old.spec, patch.body["spec"])
    assert not of_kind(look(job, ObservedJob(groups=GPU_SCHEDULER, group=old)), PatchGroup)


def test_a_group_is_updated_with_its_job() -> None:
    old, job = torch(3), torch(5)
    plan = look(job, ObservedJob(groups=GPU_SCHEDULER, group=group(old)))
    (patch,) = of_kind(plan, PatchGroup)
    assert isinstance(patch, PatchGroup)
    assert patch.body == {
        "metadata": {"uid": "group"},
        "spec": {"minMember": 6, "minResources": {"cpu": "3000m", "nvidia.com/gpu": "6"}},
    }


def test_a_scheduler_name_that_our_scheduler_does_not_serve_is_kept_with_a_warning() -> None:
    job = torch(1, schedulerName="other")
    plan = look(job, ObservedJob(groups=GPU_SCHEDULER, served_names=frozenset({"gpu-scheduler", "volcano"})))
    (warning,) = [one for one in plan.actions if isinstance(one, RecordEvent) and one.kind == "Warning"]
    assert warning == RecordEvent(
        "Warning",
        "PodTemplateSchedulerName",
        "schedulerName: the pods name other, which gpu-scheduler is not known to serve; "
        "write gpu-scheduler, leave it out, or run a scheduler for that name",
    )


def test_a_scheduler_name_that_our_scheduler_serves_gives_no_warning() -> None:
    job = torch(1, schedulerName="volcano")
    plan = look(job, ObservedJob(groups=GPU_SCHEDULER, served_names=frozenset({"gpu-scheduler", "volcano"})))
    assert "PodTemplateSchedulerName" not in reasons(plan)
    assert of_kind(plan, CreateGroup)


def test_nothing_is_done_twice() -> None:
    job = torch(3)
    first = seen(job, dict.fromkeys(ALL, "Running"), groups=GPU_SCHEDULER, group=group(job, "Running"))
    status = status_after(job, look(job, first))
    assert look(torch(3, status=status), first, NOW + 60).actions == []


def test_a_terminating_job_is_ignored() -> None:
    job = torch(3, meta={"deletion_timestamp": "2026-01-01T00:00:00Z"})
    assert look(job, ObservedJob(groups=GPU_SCHEDULER)).actions == []


# -- pods, conditions and Events

OK, RUN = "True", {"Created": ("True", "PyTorchJobCreated"), "Running": ("True", "PyTorchJobRunning")}
DONE: dict[str, tuple[str, str]] = {
    "Running": ("False", "PyTorchJobSucceeded"),
    "Succeeded": ("True", "PyTorchJobSucceeded"),
}
LOST: dict[str, tuple[str, str]] = {"Running": ("False", "PyTorchJobFailed"), "Failed": ("True", "PyTorchJobFailed")}
AGAIN: dict[str, tuple[str, str]] = {"Restarting": ("True", "PyTorchJobRestarting")}


def four(*phases: Any) -> dict[str, Any]:
    return dict(zip(ALL, phases, strict=True))


def failed(name: str, code: int | None = 1) -> Any:
    return pod(name, "Failed", code=code)


TRANSITIONS: dict[str, tuple[str, dict[str, Any], dict[str, tuple[str, str]]]] = {
    "all wait": ("", four("Pending", "Pending", "Pending", "Pending"), {}),
    "the master runs": ("", four("Running", "Pending", "Pending", "Pending"), {"Running": RUN["Running"]}),
    "workers run before their master": ("", four("Pending", "Running", "Running", "Running"), {}),
    "all run": ("", four("Running", "Running", "Running", "Running"), {"Running": RUN["Running"]}),
    "a worker is done": ("", four("Running", "Succeeded", "Running", "Running"), {"Running": RUN["Running"]}),
    "the master is done": ("", four("Succeeded", "Running", "Running", "Running"), DONE),
    "all are done": ("", four("Succeeded", "Succeeded", "Succeeded", "Succeeded"), DONE),
    "the master is done and a worker failed": (
        "Never",
        four("Succeeded", failed(ALL[1]), "Running", "Running"),
        DONE,
    ),
    "a worker failed for good": ("Never", four("Running", failed(ALL[1]), "Running", "Running"), LOST),
    "the master failed for good": ("Never", four(failed(ALL[0]), "Running", "Running", "Running"), LOST),
    "a code below 128": ("ExitCode", four("Running", failed(ALL[1], 127), "Running", "Running"), LOST),
    "a code of 128": ("ExitCode", four("Running", failed(ALL[1], 128), "Running", "Running"), AGAIN),
    "a code of a signal": ("ExitCode", four("Running", failed(ALL[1], 137), "Running", "Running"), AGAIN),
    "no code at all": ("ExitCode", four("Running", failed(ALL[1], None), "Running", "Running"), AGAIN),
    "evicted though it would restart": ("OnFailure", four("Running", failed(ALL[1]), "Running", "Running"), AGAIN),
    "evicted though it always restarts": ("Always", four("Running", failed(ALL[1]), "Running", "Running"), AGAIN),
    "one for good and one for now": (
        "ExitCode",
        four("Running", failed(ALL[1], 1), failed(ALL[2], 137), "Running"),
        LOST,
    ),
}


@pytest.mark.parametrize("before", ["new", "running", "restarting"])
@pytest.mark.parametrize("case", TRANSITIONS)
def test_a_pytorchjob_of_which(case: str, before: str) -> None:
    restart, phases, expected = TRANSITIONS[case]
    status: Json = {} if before == "new" else running_status()
    if before == "restarting":
        status["conditions"][1] |= {"type": "Restarting", "reason": "PyTorchJobRestarting"}
    job = torch(3, restart=restart, status=status)
    plan = look(job, seen(job, phases, groups=GPU_SCHEDULER, group=group(job, "Running")))
    told = conditions(status_after(job, plan))
    found = {name: value for name, value in told.items() if name != "Created"}
    if before == "new":
        expected = {name: value for name, value in expected.items() if value[0] == "True"}
    elif not expected:
        expected = {name: value for name, value in conditions(status).items() if name != "Created"}
    elif before == "restarting" and "Running" in expected and expected["Running"][0] == "False":
        expected = {**expected, "Restarting": AGAIN["Restarting"]}
        expected.pop("Running")
    assert found == expected


MESSAGES = {
    "created": (torch(1), {}, "Created", "PyTorchJob train is created."),
    "running": (torch(1), {"train-master-0": "Running"}, "Running", "PyTorchJob train is running."),
    "succeeded": (
        torch(1),
        {"train-master-0": "Succeeded"},
        "Succeeded",
        "PyTorchJob train is successfully completed.",
    ),
    "failed": (
        torch(2, restart="Never"),
        {"train-worker-0": pod("train-worker-0", "Failed"), "train-worker-1": pod("train-worker-1", "Failed")},
        "Failed",
        "PyTorchJob train is failed because 2 Worker replica(s) failed.",
    ),
    "restarting": (
        torch(2),
        {"train-worker-0": pod("train-worker-0", "Failed")},
        "Restarting",
        "PyTorchJob train is restarting because 1 Worker replica(s) failed.",
    ),
    "a TFJob created": (tf(Worker=1), {}, "Created", "TFJob team/train is created."),
    "a TFJob running": (tf(Worker=1), {"train-worker-0": "Running"}, "Running", "TFJob team/train is running."),
    "a TFJob succeeded": (
        tf(Worker=1),
        {"train-worker-0": "Succeeded"},
        "Succeeded",
        "TFJob team/train successfully completed.",
    ),
    "a TFJob failed": (
        tf(PS=1, Worker=1),
        {"train-ps-0": pod("train-ps-0", "Failed")},
        "Failed",
        "TFJob team/train has failed because 1 PS replica(s) failed.",
    ),
}


@pytest.mark.parametrize("case", MESSAGES)
def test_the_condition_and_event_of_a_job(case: str) -> None:
    job, phases, kind, message = MESSAGES[case]
    plan = look(job, seen(job, phases))  # type: ignore[arg-type]
    (found,) = [one for one in status_after(job, plan)["conditions"] if one["type"] == kind]
    assert found["message"] == message
    told = [one for one in of_kind(plan, RecordEvent) if isinstance(one, RecordEvent) and one.message == message]
    assert [one.reason for one in told] == [f"{job.kind}{kind}"]
    assert told[0].kind == ("Warning" if kind in ("Failed", "Restarting") else "Normal")


def test_replicas_are_counted() -> None:
    job = torch(3)
    plan = look(job, seen(job, four("Running", "Succeeded", "Running", "Pending")))
    selector = "training.kubeflow.org/job-name=train,training.kubeflow.org/operator-name=pytorchjob-controller"
    assert status_after(job, plan)["replicaStatuses"] == {
        "Master": {"active": 1, "selector": f"{selector},training.kubeflow.org/replica-type=master"},
        "Worker": {"active": 1, "succeeded": 1, "selector": f"{selector},training.kubeflow.org/replica-type=worker"},
    }


TENSORFLOW: dict[str, tuple[ManagedJob, dict[str, Any], str]] = {
    "the first worker is done": (tf(PS=1, Worker=2), {"train-worker-0": "Succeeded"}, "Succeeded"),
    "the second worker is done": (tf(PS=1, Worker=2), {"train-worker-1": "Succeeded"}, ""),
    "the first worker is not enough": (
        tf(Worker=2, spec={"successPolicy": "AllWorkers"}),
        {"train-worker-0": "Succeeded", "train-worker-1": "Running"},
        "Running",
    ),
    "all workers are done": (
        tf(Worker=2, spec={"successPolicy": "AllWorkers"}),
        {"train-worker-0": "Succeeded", "train-worker-1": "Succeeded"},
        "Succeeded",
    ),
    "the chief is done": (tf(Chief=1, Worker=2), {"train-chief-0": "Succeeded"}, "Succeeded"),
    "the first worker is done, not the chief": (tf(Chief=1, Worker=2), {"train-worker-0": "Succeeded"}, ""),
    "the chief runs": (tf(Chief=1, PS=1), {"train-chief-0": "Running"}, "Running"),
    "only workers run": (tf(Chief=1, Worker=1), {"train-worker-0": "Running"}, ""),
    "the evaluator failed": (
        tf(Chief=1, Evaluator=1),
        {"train-evaluator-0": pod("train-evaluator-0", "Failed", code=1)},
        "Failed",
    ),
    "a worker that may come and go failed": (
        tf(PS=1, Worker=2, spec={"enableDynamicWorker": True}),
        {"train-worker-0": "Running", "train-worker-1": pod("train-worker-1", "Failed", code=1)},
        "Running",
    ),
}


@pytest.mark.parametrize("case", TENSORFLOW)
def test_a_tfjob_of_which(case: str) -> None:
    job, phases, expected = TENSORFLOW[case]
    told = conditions(status_after(job, look(job, seen(job, phases))))
    assert set(told) == {"Created", *([expected] if expected else [])}


def test_of_an_elastic_job_without_a_master_one_worker_is_enough() -> None:
    spec: Json = {"pytorchReplicaSpecs": {"Worker": replicas(3)}}
    for policy, over in (({"minReplicas": 1, "maxReplicas": 3}, True), (None, False)):
        job = pytorch.decode(raw({**spec, "elasticPolicy": policy}))
        phases = {"train-worker-0": "Running", "train-worker-1": "Succeeded", "train-worker-2": "Running"}
        told = conditions(status_after(job, look(job, seen(job, phases))))  # type: ignore[arg-type]
        assert ("Succeeded" in told) is over


# -- restarts


def test_a_restart_is_recorded_before_the_pod_is_deleted() -> None:
    job = torch(3, restart="ExitCode")
    plan = look(job, seen(job, four("Running", failed(ALL[1], 137), "Running", "Running")))
    kinds = [type(action) for action in plan.actions]
    assert kinds.index(RecordRestarts) < kinds.index(DeletePod)
    assert of_kind(plan, RecordRestarts) == [RecordRestarts({"gpu-scheduler.io/restarts": '{"train-worker-0":1}'})]
    assert of_kind(plan, DeletePod) == [DeletePod(ALL[1], f"uid-{ALL[1]}")]
    assert not of_kind(plan, CreatePod)


def test_a_recorded_restart_is_not_counted_again() -> None:
    job = torch(3, restart="ExitCode", meta={"annotations": {"gpu-scheduler.io/restarts": '{"train-worker-0":1}'}})
    plan = look(job, seen(job, four("Running", failed(ALL[1], 137), "Running", "Running")))
    assert not of_kind(plan, RecordRestarts)
    assert gone(plan, DeletePod) == [ALL[1]]


def test_a_recreated_pod_has_its_restart_count() -> None:
    job = torch(3, restart="ExitCode", meta={"annotations": {"gpu-scheduler.io/restarts": '{"train-worker-0":1}'}})
    plan = look(job, seen(job, {name: "Running" for name in ALL if name != ALL[1]}))
    (action,) = of_kind(plan, CreatePod)
    assert isinstance(action, CreatePod)
    assert action.body["metadata"]["annotations"]["gpu-scheduler.io/restarts"] == "1"


def test_failed_replicas_of_two_roles_give_one_condition() -> None:
    phases = four(failed(ALL[0], 137), failed(ALL[1], 137), failed(ALL[2], 137), "Running")
    job = torch(3, restart="ExitCode")
    plan = look(job, seen(job, phases))
    status = status_after(job, plan)
    assert conditions(status)["Restarting"][0] == "True"
    assert reasons(plan).count("PyTorchJobRestarting") == 1
    told = [one["message"] for one in status["conditions"] if one["type"] == "Restarting"]
    assert told == ["PyTorchJob train is restarting because 1 Master and 2 Worker replica(s) failed."]
    again = torch(3, restart="ExitCode", status=status)
    assert not of_kind(look(again, seen(again, phases), NOW + 5), UpdateStatus), "or it would never come to rest"


@pytest.mark.parametrize(("before", "pause"), [(0, 0), (1, 1), (2, 2), (5, 16), (9, 60), (5000, 60)])
def test_restarts_of_a_replica_back_off_exponentially(before: int, pause: int) -> None:
    notes = {"gpu-scheduler.io/restarts": f'{{"{ALL[1]}":{before}}}'} if before else {}
    job = torch(3, restart="ExitCode", meta={"annotations": notes})
    broken = pod(ALL[1], "Failed", code=137, annotations={"gpu-scheduler.io/restarts": str(before)})
    broken.status["containerStatuses"][0]["state"]["terminated"]["finishedAt"] = format_time(NOW)
    there = seen(job, four("Running", broken, "Running", "Running"))
    if pause:
        early = look(job, there, NOW + pause - 0.5)
        assert (gone(early, DeletePod), of_kind(early, RecordRestarts), early.requeue_at) == ([], [], NOW + pause)
    assert gone(look(job, there, NOW + pause), DeletePod) == [ALL[1]]


def test_a_terminating_pod_blocks_its_name() -> None:
    job = torch(3)
    leaving = pod(ALL[1], "Failed", code=137, deletion_timestamp="2026-01-01T00:00:00Z")
    plan = look(job, seen(job, four("Running", leaving, "Running", "Running")))
    assert not of_kind(plan, CreatePod, DeletePod, RecordRestarts)


LIMITS: dict[str, tuple[Json, dict[str, Any], str, float, bool]] = {
    "restarts of a node below the limit": ({"backoffLimit": 3}, {ALL[1]: pod(ALL[1], restarts=2)}, "", 0, False),
    "restarts of a node at the limit": ({"backoffLimit": 3}, {ALL[1]: pod(ALL[1], restarts=3)}, "", 0, True),
    "any restart where none is allowed": ({"backoffLimit": 0}, {ALL[1]: pod(ALL[1], restarts=1)}, "", 0, True),
    "a failure where none is allowed": ({"backoffLimit": 0}, {ALL[1]: failed(ALL[1], 137)}, "", 0, True),
    "no failure": ({"backoffLimit": 0}, {}, "", 0, False),
    "the last restart": ({"backoffLimit": 2}, {ALL[1]: failed(ALL[1], 137)}, '{"train-worker-1":1}', 0, False),
    "one restart too many": ({"backoffLimit": 2}, {ALL[1]: failed(ALL[1], 137)}, '{"train-worker-1":2}', 0, True),
    "no limit": ({}, {ALL[1]: pod(ALL[1], restarts=99)}, "", 0, False),
    "before the deadline": ({"activeDeadlineSeconds": 60}, {}, "", 59, False),
    "at the deadline": ({"activeDeadlineSeconds": 60}, {}, "", 60, True),
}


@pytest.mark.parametrize("case", LIMITS)
def test_a_job_with_limits_and(case: str) -> None:
    run, pods, restarts, later, over = LIMITS[case]
    notes = {"annotations": {"gpu-scheduler.io/restarts": restarts}} if restarts else None
    job = torch(3, restart="ExitCode", run=run, status=running_status(), meta=notes)
    plan = look(job, seen(job, {**dict.fromkeys(ALL, "Running"), **pods}), NOW + later)
    status = status_after(job, plan)
    assert ("Failed" in conditions(status)) is over
    if over:
        assert gone(plan, DeletePod) == gone(plan, DeleteService) == ALL, "whatever the clean-up policy"
        assert isinstance(plan.actions[-1], RecordEvent)
        assert max(i for i, one in enumerate(plan.actions) if isinstance(one, DeletePod)) < next(
            i for i, one in enumerate(plan.actions) if isinstance(one, UpdateStatus)
        ), "a job that is over keeps its pods: they must go before it is called so"


def test_a_job_is_reconciled_again_at_its_deadline() -> None:
    job = torch(3, run={"activeDeadlineSeconds": 60}, status=running_status())
    assert look(job, seen(job, dict.fromkeys(ALL, "Running"))).requeue_at == NOW + 60


# -- elastic


def test_surplus_replicas_are_deleted() -> None:
    job, before = torch(1), torch(3)
    plan = look(job, seen(before, dict.fromkeys(ALL, "Running")))
    assert gone(plan, DeletePod) == gone(plan, DeleteService) == ["train-worker-1", "train-worker-2"]
    assert not of_kind(plan, CreatePod)


# -- suspended jobs


def test_a_suspended_job_loses_its_group_pods_and_services() -> None:
    job = torch(3, run={"suspend": True}, status=running_status(replicaStatuses={"Worker": {"active": 3}}))
    plan = look(job, seen(job, dict.fromkeys(ALL, "Running"), groups=GPU_SCHEDULER, group=group(job, "Running")))
    assert gone(plan, DeletePod) == gone(plan, DeleteService) == ALL
    assert gone(plan, DeleteGroup) == ["train"]
    status = status_after(job, plan)
    assert conditions(status)["Suspended"] == ("True", "PyTorchJobSuspended")
    assert conditions(status)["Running"] == ("False", "PyTorchJobSuspended")
    assert status["replicaStatuses"] == {"Worker": {}}
    assert "startTime" not in status


def test_a_job_that_is_created_suspended_has_no_group() -> None:
    job = torch(3, run={"suspend": True})
    plan = look(job, ObservedJob(groups=GPU_SCHEDULER))
    assert not of_kind(plan, CreateGroup, CreatePod)
    assert set(conditions(status_after(job, plan))) == {"Created", "Suspended"}


def test_a_resumed_job_starts_again() -> None:
    suspended = torch(3, run={"suspend": True}, status=running_status())
    status = status_after(suspended, look(suspended, ObservedJob(groups=GPU_SCHEDULER)))
    job = torch(3, run={"suspend": False}, status=status)
    plan = look(job, ObservedJob(groups=GPU_SCHEDULER), NOW + 100)
    assert made(plan, CreateGroup) == ["train"]
    after = status_after(job, plan)
    assert conditions(after)["Suspended"] == ("False", "PyTorchJobResumed")
    opened = look(torch(3, status=after), ObservedJob(groups=GPU_SCHEDULER, group=group(job)), NOW + 200)
    assert made(opened, CreatePod) == ALL
    assert status_after(job, opened)["startTime"] == format_time(NOW + 200)


def test_terminating_pods_do_not_count_as_admission_of_a_resumed_job() -> None:
    job = torch(3)
    leaving = {name: pod(name, deletion_timestamp="2026-01-01T00:00:00Z") for name in ALL[:2]}
    for waiting in (None, group(job, "Pending")):
        plan = look(job, ObservedJob(list(leaving.values()), groups=GPU_SCHEDULER, group=waiting))
        assert not of_kind(plan, CreatePod), "there need not be room for them any more"


@pytest.mark.parametrize("why", ["suspended", "late", "over"])
def test_a_group_is_deleted_before_its_pods(why: str) -> None:
    run = {"suspend": why == "suspended", "activeDeadlineSeconds": 5, "cleanPodPolicy": "All"}
    job = torch(3, run=run, status=over_status("Succeeded") if why == "over" else running_status())
    plan = look(
        job, seen(job, dict.fromkeys(ALL, "Running"), groups=GPU_SCHEDULER, group=group(job, "Running")), NOW + 10
    )
    order = [type(action) for action in plan.actions]
    assert order.index(DeleteGroup) < order.index(DeletePod)


# -- ended jobs

CLEANING = {
    ("None", "Succeeded"): [],
    ("Running", "Succeeded"): ["train-worker-1", "train-worker-2"],
    ("All", "Succeeded"): ALL,
    ("None", "Failed"): [],
    ("Running", "Failed"): ["train-worker-1", "train-worker-2"],
    ("All", "Failed"): ALL,
}


@pytest.mark.parametrize(("clean", "end"), CLEANING)
def test_an_ended_job_is_cleaned_up_by_its_policy(clean: str, end: str) -> None:
    job = torch(3, run={"cleanPodPolicy": clean}, status=over_status(end))
    phases = four("Succeeded", "Failed", "Running", "Pending")
    plan = look(job, seen(job, phases, groups=GPU_SCHEDULER, group=group(job, "Running")))
    assert gone(plan, DeletePod) == gone(plan, DeleteService) == CLEANING[clean, end]
    assert gone(plan, DeleteGroup) == ["train"]
    assert not of_kind(plan, CreatePod, CreateService, CreateGroup)


def test_replicas_that_were_active_when_the_job_succeeded_count_as_succeeded() -> None:
    status = over_status("Succeeded", replicaStatuses={"Worker": {"active": 2, "succeeded": 1}})
    job = torch(3, status=status)
    assert status_after(job, look(job, ObservedJob()))["replicaStatuses"] == {"Worker": {"succeeded": 3}}


@pytest.mark.parametrize(("later", "deleted"), [(59, False), (60, True)])
def test_a_job_is_deleted_after_its_time_to_live(later: int, deleted: bool) -> None:
    job = torch(3, run={"ttlSecondsAfterFinished": 60}, status=over_status("Failed"))
    plan = look(job, ObservedJob(), NOW + later)
    assert bool(of_kind(plan, DeleteJob)) is deleted
    assert plan.requeue_at == (None if deleted else NOW + 60)


# -- invalid jobs


def test_an_invalid_job_fails_and_continues_once_it_is_corrected() -> None:
    plan = reject("PyTorchJob", raw({}), "spec.x: is wrong", NOW)
    broken = torch(1)
    status = status_after(broken, plan)
    assert conditions(status) == {"Failed": ("True", "InvalidSpec")}
    job = torch(1, status=status)
    after = look(job, ObservedJob())
    assert made(after, CreatePod) == names_of(job)
    assert set(conditions(status_after(job, after))) == {"Created"}


def test_an_ended_job_stays_ended_if_its_spec_becomes_invalid() -> None:
    assert reject("PyTorchJob", raw({}, status=over_status("Succeeded")), "spec.x: is wrong", NOW).actions == []


def test_reconcile_does_not_change_its_arguments() -> None:
    job = torch(3, status=running_status())
    before = repr(job)
    reconcile(job, seen(job, dict.fromkeys(ALL, "Succeeded")), NOW)
    assert repr(job) == before
