"""Volcano's PodGroups."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_scheduler.core.lifecycle import Phase
from gpu_scheduler.core.model import GangKey, Notes, Role, TopologyRule
from gpu_scheduler.core.reasons import Reason, Refusal, Unplaceable
from gpu_scheduler.gangs.contract import GROUP, NOTES
from gpu_scheduler.gangs.dialects import GangContext, Membership, StatusMessage, dialect_of, read_membership
from gpu_scheduler.k8s.objects import Json, OwnerReference, PodObject
from tests.unit.gangs.gang_fixtures import THEN, conditions, context, decode, group, patched, said, status, tell
from tests.unit.gangs.pods import GPU, asking, container, pod

KEY = GangKey("volcano", "x", "train")
MEMBER = {"scheduling.k8s.io/group-name": "train"}
NEEDS: Json = {"minMember": 4, "minResources": {GPU: "8", "cpu": "2", "memory": "4Gi"}}
_OWNER: Json = {"name": "j", "uid": "u", "controller": True}
OWNED: Json = {"ownerReferences": [_OWNER | {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job"}]}
OWNED_BY_PYTORCH: Json = {"ownerReferences": [_OWNER | {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob"}]}


@pytest.mark.parametrize(
    ("annotations", "labels", "role"),
    [
        ({"volcano.sh/task-spec": "ps"}, {}, "ps"),
        ({}, {"volcano.sh/task-spec": "ps"}, "ps"),
        ({}, {"spark-role": "driver"}, "driver"),
        ({}, {}, ""),
    ],
)
def test_a_pod_joins_by_annotation(annotations: Json, labels: Json, role: str) -> None:
    found = pod(annotations=MEMBER | annotations, labels=labels)
    assert read_membership(found) == Membership(KEY, role)


def test_a_podgroup_is_decoded() -> None:
    raw = group(
        minMember=4,
        minTaskMember={"master": 1, "worker": 3},
        queue="blue",
        priorityClassName="high",
        networkTopology={"mode": "soft", "highestTierName": "rack"},
        annotations={f"{GROUP}/timeout-seconds": "30"},
    )
    gang = decode(KEY, raw, around=context(priority_classes={"high": 7}))
    assert (gang.problem, gang.minimum, gang.queue, gang.priority, gang.timeout) == ("", 4, "blue", 7, 30.0)
    assert gang.roles == (Role("master", 1, rank=-1), Role("worker", 3))
    assert gang.topology == (TopologyRule("rack", required=False),)
    assert gang.expected == ()


def test_an_empty_spec_as_spark_writes_it_means_a_minimum_of_one() -> None:
    driver = pod("driver", annotations=MEMBER, labels={"spark-role": "driver"})
    gang = decode(KEY, group(), driver)
    assert (gang.minimum, gang.queue, gang.problem) == (1, "", "")
    assert gang.roles == (Role("driver", rank=-1),)


def test_task_minimums_above_that_of_the_group_do_not_count() -> None:
    assert decode(KEY, group(minMember=2, minTaskMember={"worker": 3})).roles == ()


@pytest.mark.parametrize(
    ("rule", "found"),
    [
        ({"highestTierAllowed": 1}, (TopologyRule("nvlink"),)),
        ({"mode": "hard", "highestTierAllowed": 2}, (TopologyRule("rack"),)),
        ({"highestTierAllowed": 4}, ()),
        ({"highestTierName": "example.com/row"}, (TopologyRule("example.com/row"),)),
        ({}, ()),
    ],
)
def test_network_tiers_count_topology_levels_from_the_tightest(rule: Json, found: tuple[TopologyRule, ...]) -> None:
    assert decode(KEY, group(networkTopology=rule)).topology == found


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        (
            {"minMember": -1},
            "spec.minMember: '-1' is not a valid number; write how many pods must start together, from 1 to 20000",
        ),
        (
            {"minTaskMember": {"ps": "one"}},
            "spec.minTaskMember['ps']: 'one' is not a valid number; write how many pods must start together, "
            "from 1 to 20000",
        ),
        (
            {"minTaskMember": {f"task{i}": 1 for i in range(257)}},
            "spec.minTaskMember: 257 tasks are too many; write at most 256",
        ),
        (
            {"subGroupPolicy": [{"name": "a"}]},
            "spec.subGroupPolicy: nested groups are not supported; use spec.minTaskMember",
        ),
    ],
)
def test_an_invalid_field_becomes_a_problem_of_one_line(spec: Json, problem: str) -> None:
    assert decode(KEY, group(**spec)).problem == problem


def test_a_bad_quantity_names_its_field() -> None:
    assert decode(KEY, group(minMember=4, minResources={GPU: "many"})).problem.startswith(
        f"spec.minResources['{GPU}']: "
    )


# -- expected members


def test_without_templates_each_member_takes_an_equal_part() -> None:
    (expected,) = decode(KEY, group(**NEEDS)).expected
    assert (expected.count, expected.role) == (4, "")
    assert dict(expected.shape.request) == {GPU: 2, "cpu": 500, "memory": 1 << 30}
    assert (expected.shape.gpu_resource, expected.shape.gpus) == (GPU, 2)


def test_no_equal_parts_are_expected_once_the_first_pod_exists() -> None:
    assert decode(KEY, group(**NEEDS), pod(annotations=MEMBER)).expected == ()


def test_quota_fields_in_min_resources_are_ignored() -> None:
    mixed = {"pods": "4", "count/pods": "4", "limits.cpu": "9", f"requests.{GPU}": "4", "cpu": "4", "requests.cpu": "8"}
    (expected,) = decode(KEY, group(minMember=4, minResources=mixed)).expected
    assert dict(expected.shape.request) == {GPU: 1, "cpu": 1000}


def test_a_job_of_too_many_tasks_makes_its_group_invalid() -> None:
    def owner(number: int) -> GangContext:
        return owned_by({"spec": {"tasks": [{"name": f"task{i}", **replica(1, 1)} for i in range(number)]}})

    raw = group(**NEEDS, meta=OWNED)
    assert decode(KEY, raw, around=owner(256)).problem == ""
    line = "spec.minResources: 257 pod templates of the job are too many; write at most 256 in the job"
    assert decode(KEY, raw, around=owner(257)).problem == line


def test_no_members_are_expected_while_the_owner_job_is_fetched() -> None:
    assert decode(KEY, group(**NEEDS, meta=OWNED), around=owned_by({})).expected == ()


def owned_by(job: Json) -> GangContext:
    """A context in which the owner of everything is this job."""

    def owner_of(namespace: str, owner: OwnerReference) -> Json | None:
        return job if (namespace, owner.name) == ("x", "j") else None

    return context(owner_of=owner_of)


def replica(replicas: int | None, gpus: int, **spec: Any) -> Json:
    """A replica spec or task."""
    found: Json = {"template": {"spec": {"containers": [asking(gpus)], **spec}}}
    return found if replicas is None else found | {"replicas": replicas}


PYTORCH: Json = {"spec": {"pytorchReplicaSpecs": {"Worker": replica(3, 2), "Master": replica(None, 1)}}}


def test_expected_members_come_from_the_templates_of_a_kubeflow_job() -> None:
    gang = decode(KEY, group(**NEEDS, meta=OWNED_BY_PYTORCH), around=owned_by(PYTORCH))
    assert [(e.role, e.count, e.shape.gpus) for e in gang.expected] == [("worker", 3, 2), ("master", 1, 1)]
    with_pods = decode(KEY, group(**NEEDS, meta=OWNED_BY_PYTORCH), pod(annotations=MEMBER), around=owned_by(PYTORCH))
    assert with_pods.expected == gang.expected


def test_of_an_elastic_job_the_leaders_and_then_the_first_members_are_expected() -> None:
    gang = decode(KEY, group(**NEEDS | {"minMember": 2}, meta=OWNED_BY_PYTORCH), around=owned_by(PYTORCH))
    assert [(e.role, e.count) for e in gang.expected] == [("worker", 1), ("master", 1)]


def test_expected_members_come_from_the_tasks_of_a_volcano_job() -> None:
    tasks = [{"name": "a", **replica(5, 1)}, {"name": "b", **replica(5, 2)}]
    raw = group(**NEEDS, minTaskMember={"b": 3}, meta=OWNED)
    gang = decode(KEY, raw, around=owned_by({"spec": {"tasks": tasks}}))
    assert [(e.role, e.count, e.shape.gpus) for e in gang.expected] == [("a", 1, 1), ("b", 3, 2)]


@pytest.mark.parametrize(
    "job",
    [
        {"spec": "x"},
        {"spec": {"tasks": "x"}},
        {"spec": {"tasks": ["x"]}},
        {"spec": {"tasks": [{"name": "a", "template": {"spec": {"containers": "x"}}}]}},
        {"spec": {"tfReplicaSpecs": {"PS": None}}},
        {"spec": {"tasks": [{"name": "a", **replica(4, 1)}, {"template": {"spec": {"containers": [7]}}}]}},
    ],
)
def test_invalid_templates_are_not_used(job: Json) -> None:
    for owner in (OWNED, OWNED_BY_PYTORCH):
        (expected,) = decode(KEY, group(**NEEDS, meta=owner), around=owned_by(job)).expected
        assert (expected.count, expected.shape.gpus) == (4, 2)


def test_a_completed_group_expects_no_members() -> None:
    assert decode(KEY, group(**NEEDS, status={"phase": "Completed"})).expected == ()


# -- Spark drivers

CORE: Json = {"cpu": "1", "memory": "1408Mi"}
APPLICATION: Json = {"minMember": 1, "minResources": {"cpu": "3", "memory": "4224Mi"}}
GPU_APPLICATION: Json = {"minMember": 1, "minResources": {"cpu": "9", "memory": "16Gi", GPU: "4"}}


def spark(role: str, *, gpus: int = 0, number: int = 1, **spec: Any) -> PodObject:
    """A pod as Spark makes it."""
    name = "app-6ff0-driver" if role == "driver" else f"app-6ff0-exec-{number}"
    limits = {GPU: str(gpus)} if gpus else {}
    fields: Json = {"containers": [container(requests=spec.pop("requests", CORE), limits=limits)]} | spec
    return pod(name, annotations=MEMBER, labels={"spark-role": role, "spark-app-selector": "spark-6ff0"}, **fields)


def expect(spec: Json, *pods: PodObject, executors: str = "") -> list[tuple[str, int, Json]]:
    """Role, count and request of the expected members."""
    told = {f"{GROUP}/executors": executors} if executors else {}
    gang = decode(KEY, group(**spec, annotations=told), *pods)
    assert not gang.problem
    return [(e.role, e.count, dict(e.shape.request)) for e in gang.expected]


@pytest.mark.parametrize(
    ("spec", "executors", "found"),
    [
        pytest.param(APPLICATION, "", (2, {"cpu": 1000, "memory": 1408 << 20}), id="one for every core"),
        pytest.param(APPLICATION, "1", (1, {"cpu": 2000, "memory": 2816 << 20}), id="as many as it says"),
        pytest.param(
            GPU_APPLICATION, "", (4, {GPU: 1, "cpu": 2000, "memory": ((16 << 30) - (1408 << 20)) // 4}), id="by GPUs"
        ),
        pytest.param({"minMember": 1, "minResources": {"cpu": "1.5"}}, "", (1, {"cpu": 500}), id="part of a core"),
        pytest.param({"minMember": 1, "minResources": {"memory": "2Gi"}}, "", (1, {"memory": 640 << 20}), id="memory"),
    ],
)
def test_what_a_driver_leaves_of_min_resources_is_for_its_executors(spec: Json, executors: str, found: Any) -> None:
    assert expect(spec, spark("driver"), executors=executors) == [("executor", *found)]


def test_other_executors_are_expected_like_the_first() -> None:
    big = spark("executor", gpus=2, requests={"cpu": "4", "memory": "6Gi"})
    assert expect(GPU_APPLICATION, spark("driver"), big) == [
        ("executor", 2, {GPU: 2, "cpu": 4000, "memory": 6 << 30}),
    ]
    assert expect(GPU_APPLICATION, spark("driver"), big, executors="3")[0][1] == 3


@pytest.mark.parametrize(
    ("spec", "pods"),
    [
        pytest.param({"minMember": 1, "minResources": CORE}, [spark("driver")], id="the driver takes it all"),
        pytest.param({"minMember": 1}, [spark("driver")], id="no minResources"),
        pytest.param({**APPLICATION, "minMember": 2}, [spark("driver")], id="a gang of two"),
        pytest.param(APPLICATION, [spark("executor")], id="the driver is over"),
        pytest.param(APPLICATION, [pod(annotations=MEMBER)], id="no driver"),
    ],
)
def test_no_executors_are_expected(spec: Json, pods: list[PodObject]) -> None:
    assert expect(spec, *pods) == []


def test_executors_may_go_where_the_driver_may_unless_only_they_have_gpus() -> None:
    place: Json = {"nodeSelector": {"pool": "blue"}, "tolerations": [{"key": "blue", "operator": "Exists"}]}
    plain = decode(KEY, group(**APPLICATION), spark("driver", **place)).expected[0].shape
    apart = decode(KEY, group(**GPU_APPLICATION), spark("driver", **place)).expected[0].shape
    assert [bool(shape.node_labels) for shape in (plain, apart)] == [True, False]
    assert [bool(shape.tolerations) for shape in (plain, apart)] == [True, True]


def test_a_group_that_names_its_executors_is_divided_among_them_before_there_is_a_driver() -> None:
    assert expect(APPLICATION, executors="2") == [("", 2, {"cpu": 1500, "memory": 2112 << 20})]


def test_an_invalid_number_of_executors_is_a_problem_of_one_line() -> None:
    raw = group(**APPLICATION, annotations={f"{GROUP}/executors": "many"})
    assert decode(KEY, raw).problem == f"{GROUP}/executors: 'many' is not a number of executors from 1 to 1000"


@pytest.mark.parametrize(
    ("job", "scheduler"),
    [
        ({"spec": {"schedulerName": "a"}}, "a"),
        ({"spec": {"pytorchReplicaSpecs": {"Worker": replica(1, 1, schedulerName="b")}}}, "b"),
        ({"spec": {"schedulerName": "a", "pytorchReplicaSpecs": {"Worker": replica(1, 1, schedulerName="b")}}}, "b"),
        (PYTORCH, "volcano"),
        ({}, "volcano"),
    ],
)
def test_the_expected_scheduler_comes_from_the_owner_job(job: Json, scheduler: str) -> None:
    assert dialect_of(KEY).expected_scheduler(group(**NEEDS, meta=OWNED_BY_PYTORCH), owned_by(job)) == scheduler


# -- status

FULL = Unplaceable((Refusal(Reason.RESOURCE, GPU, 2, 2),))
MISSING = Unplaceable((Refusal(Reason.MEMBERS_MISSING, short_by=2),))


@pytest.mark.parametrize(
    ("found", "needs", "phase", "reason"),
    [
        pytest.param(status(Phase.GATHERING, refusal=FULL), NEEDS, "Pending", "NotEnoughResources", id="no room"),
        pytest.param(status(Phase.GATHERING, refusal=MISSING), {}, "Inqueue", "NotEnoughTasks", id="nothing to prove"),
        pytest.param(
            status(Phase.GATHERING, 0, 2, refusal=MISSING), NEEDS, "Inqueue", "NotEnoughTasks", id="rest may come"
        ),
        pytest.param(
            status(Phase.RESERVED, notes=Notes(admitted_at=1.0)), NEEDS, "Inqueue", "NotEnoughTasks", id="room proved"
        ),
        pytest.param(status(Phase.WAITING, 0, 4, refusal=FULL), NEEDS, "Pending", "NotEnoughResources", id="waits"),
        pytest.param(status(Phase.WAITING, 0, 4, refusal=FULL), {}, "Inqueue", "NotEnoughResources", id="waits too"),
        pytest.param(
            status(Phase.WAITING, 0, 4, refusal=FULL, timed_out=True), {}, "Inqueue", "SchedulingTimeout", id="late"
        ),
        pytest.param(
            status(Phase.GATHERING, 0, 4, refusal=MISSING),
            {"minTaskMember": {"ps": 1}},
            "Inqueue",
            "NotEnoughPodsOfTask",
            id="task short",
        ),
        pytest.param(status(Phase.BLOCKED, 0, 4), {}, "Pending", "NotEnoughResources", id="blocked"),
        pytest.param(status(Phase.HOLDING, 3, failed=1), {}, "Unknown", "PodFailed", id="member failed"),
        pytest.param(status(Phase.DEGRADED, 3), {}, "Unknown", "PodDeleted", id="member gone"),
        pytest.param(status(Phase.FAILED, failed=4), {}, "Unknown", "PodFailed", id="failed"),
        pytest.param(status(Phase.RESTARTING, 1), {}, "Unknown", "PodDeleted", id="restarting"),
        pytest.param(status(Phase.RESTARTING), {}, "Pending", "PodDeleted", id="restarted"),
    ],
)
def test_a_gang_that_cannot_run_is_unschedulable_in_the_right_phase(
    found: Any, needs: Json, phase: str, reason: str
) -> None:
    patches = tell(KEY, group(**needs), found)
    assert said(patches)["phase"] == phase
    assert conditions(patches) == {"Unschedulable": ("True", reason, "short of 2 GPUs")}


@pytest.mark.parametrize(
    ("found", "phase"),
    [
        (status(Phase.RUNNING, 4), "Running"),
        (status(Phase.BINDING, 4, 1), "Running"),
        (status(Phase.FINISHED, succeeded=4), "Completed"),
    ],
)
def test_a_running_or_finished_gang_is_scheduled(found: Any, phase: str) -> None:
    patches = tell(KEY, group(), found, told=StatusMessage("Running", "runs"))
    assert said(patches)["phase"] == phase
    assert conditions(patches) == {"Scheduled": ("True", "Scheduled", "runs")}


@pytest.mark.parametrize(("before", "after"), [("", "Inqueue"), ("Inqueue", "Inqueue"), ("Unknown", "Unknown")])
def test_the_conditions_are_kept_while_pods_are_bound(before: str, after: str) -> None:
    raw = group(status={"phase": before, "running": 2})
    assert said(tell(KEY, raw, status(Phase.BINDING, 2))) == ({} if before == after else {"phase": after})


def test_a_transition_gets_a_new_id_and_the_true_condition_is_last() -> None:
    raw = group()
    waits = tell(KEY, raw, status(Phase.WAITING, 0, 4, refusal=FULL))
    (first,) = said(waits)["conditions"]
    assert first["lastTransitionTime"] == THEN
    raw = patched(raw, waits)
    (same,) = said(tell(KEY, raw, status(Phase.WAITING, 0, 4), told=StatusMessage("X", "short of 1")))["conditions"]
    assert same["transitionID"] == first["transitionID"]
    runs = tell(KEY, raw, status(Phase.RUNNING, 4))
    assert [(c["type"], c["status"]) for c in said(runs)["conditions"]] == [
        ("Unschedulable", "False"),
        ("Scheduled", "True"),
    ]
    assert said(runs)["conditions"][0]["transitionID"] != first["transitionID"]
    raw = patched(raw, runs)
    below = tell(KEY, raw, status(Phase.HOLDING, 3))
    assert [(c["type"], c["status"]) for c in said(below)["conditions"]] == [
        ("Scheduled", "False"),
        ("Unschedulable", "True"),
    ]


def test_counters_are_written_and_reset() -> None:
    raw = group()
    runs = tell(KEY, raw, status(Phase.RUNNING, 3, succeeded=1))
    assert (said(runs)["running"], said(runs)["succeeded"], "failed" in said(runs)) == (3, 1, False)
    ends = tell(KEY, patched(raw, runs), status(Phase.FINISHED, succeeded=4))
    assert (said(ends)["running"], said(ends)["succeeded"]) == (0, 4)


def test_a_reservation_that_expires_goes_back_to_pending() -> None:
    raw = group(**NEEDS)
    reserved = tell(KEY, raw, status(Phase.RESERVED, notes=Notes(admitted_at=5.0)))
    assert said(reserved)["phase"] == "Inqueue"
    after = patched(raw, reserved)
    assert decode(KEY, after).notes.admitted_at == 5.0
    expired = tell(KEY, after, status(Phase.GATHERING, refusal=FULL))
    assert said(expired)["phase"] == "Pending"
    assert said(expired, "") == {NOTES: None}


def test_a_completed_group_whose_pods_are_deleted_stays_completed() -> None:
    raw = patched(group(**NEEDS), tell(KEY, group(**NEEDS), status(Phase.FINISHED, succeeded=4)))
    assert said(tell(KEY, raw, status(Phase.GATHERING))) == {"succeeded": 0}


def test_a_minimum_of_billions_is_refused_without_slots() -> None:
    found = decode(KEY, group(minMember=2**31 - 1, minResources={"cpu": "1"}))
    assert "from 1 to 20000" in found.problem
    assert sum(expected.count for expected in found.expected) <= 20_000


def test_a_huge_number_of_executors_is_refused() -> None:
    found = decode(KEY, group(annotations={f"{GROUP}/executors": "9" * 5000}, minMember=1, minResources={"cpu": "1"}))
    assert "is not a number of executors" in found.problem
