"""Checks of pod templates: StatefulSets of gangs, template mistakes, and unreachable minimums."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_scheduler.k8s.objects import Json
from tests.unit.webhook.reviewing import GROUP, MAP, STRICT, THREE, apply, container, mutate, validate

GANG, GANG_MIN = f"{GROUP}/gang", f"{GROUP}/gang-min"
KINDS = {
    "StatefulSet": "apps/v1/statefulsets",
    "Deployment": "apps/v1/deployments",
    "ReplicaSet": "apps/v1/replicasets",
    "Job": "batch/v1/jobs",
}
VOLCANO = "batch.volcano.sh/v1alpha1/jobs"
PYTORCH = "kubeflow.org/v1/pytorchjobs"
PARALLEL_WARNING = {"op": "add", "path": "/spec/podManagementPolicy", "value": "Parallel"}


def template(annotations: Json | None = None, labels: Json | None = None, **spec: Any) -> Json:
    """A template that names this scheduler."""
    body = {"schedulerName": "gpu-scheduler", "containers": [container()], **spec}
    return {"metadata": {"annotations": annotations or {}, "labels": labels or {}}, "spec": body}


def maker(kind: str = "StatefulSet", of: Json | None = None, meta: Json | None = None, **spec: Any) -> Json:
    """An object with a pod template."""
    group, version, _ = KINDS[kind].split("/")
    metadata = {"name": "train", "namespace": "x", **(meta or {})}
    body = {"template": of if of is not None else template(), **spec}
    return {"apiVersion": f"{group}/{version}", "kind": kind, "metadata": metadata, "spec": body}


def check(body: Json, **extra: Any) -> Any:
    """The response of /validate to an object of a plain kind."""
    return validate(body, KINDS[body["kind"]], **extra)


# -- StatefulSets


JOINS = {
    "gang": template({GANG: "train", GANG_MIN: "2"}),
    "gang-named-only": template({GANG: "train"}),
    "controller": template({GANG_MIN: "2"}),
    "volcano": template({"scheduling.k8s.io/group-name": "train"}),
    "scheduler-plugins": template(labels={"scheduling.x-k8s.io/pod-group": "train"}),
    "workload": template(workloadRef={"name": "train", "podGroup": "workers"}),
    "podgroup": template(schedulingGroup={"podGroupName": "train"}),
}


@pytest.mark.parametrize("joins", JOINS)
def test_a_stateful_set_whose_pods_are_a_gang_is_made_parallel(joins: str) -> None:
    body = maker(of=JOINS[joins], replicas=2)
    result = mutate(body, KINDS["StatefulSet"])
    assert result.patch == [PARALLEL_WARNING]
    assert result.warnings == [
        "spec.podManagementPolicy: set to Parallel, because the pods are a gang and start together; "
        "with OrderedReady the first pod would wait for the others without end"
    ]
    again = mutate(apply(body, result.patch), KINDS["StatefulSet"])
    assert (again.patch, again.warnings) == ([], [])


def test_the_defaulted_policy_is_replaced() -> None:
    body = maker(of=JOINS["gang"], podManagementPolicy="OrderedReady")
    assert mutate(body, KINDS["StatefulSet"]).patch == [{**PARALLEL_WARNING, "op": "replace"}]


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(maker(), id="no-gang"),
        pytest.param(maker(of=JOINS["gang"], podManagementPolicy="Parallel"), id="parallel-already"),
        pytest.param(maker(of=template({GANG: "train", GANG_MIN: "2"}, schedulerName="other")), id="another-scheduler"),
        pytest.param(maker(of=template({GANG_MIN: "1"})), id="no-pod-waits-for-others"),
        pytest.param(maker(of=template({GANG_MIN: "many"})), id="wrong-anyway"),
        pytest.param(maker(of=template({MAP: THREE})), id="map-alone-is-no-gang"),
        pytest.param(maker(of={}), id="no-template"),
        pytest.param(maker(of={"spec": "x"}), id="nonsense"),
    ],
)
def test_other_stateful_sets_are_not_changed(body: Json) -> None:
    result = mutate(body, KINDS["StatefulSet"])
    assert (result.allowed, result.patch, result.warnings) == (True, [], [])


@pytest.mark.parametrize(("written", "operation"), [({}, "add"), ({"podManagementPolicy": "OrderedReady"}, "replace")])
def test_a_parallel_stateful_set_stays_parallel_when_its_manifest_is_applied_again(
    written: Json, operation: str
) -> None:
    old = maker(of=JOINS["gang"], podManagementPolicy="Parallel")
    result = mutate(maker(of=JOINS["gang"], **written), KINDS["StatefulSet"], operation="UPDATE", old=old)
    assert result.patch == [{**PARALLEL_WARNING, "op": operation}]
    assert len(result.warnings) == 1


@pytest.mark.parametrize(
    ("body", "old"),
    [
        pytest.param(maker(of=JOINS["gang"]), maker(of=JOINS["gang"]), id="was-not-parallel"),
        pytest.param(maker(), maker(podManagementPolicy="Parallel"), id="no-gang"),
        pytest.param(
            maker(of=template({GANG_MIN: "2"}, schedulerName="other")),
            maker(podManagementPolicy="Parallel"),
            id="another-scheduler",
        ),
    ],
)
def test_the_policy_of_an_existing_ordered_stateful_set_is_not_changed(body: Json, old: Json) -> None:
    assert mutate(body, KINDS["StatefulSet"], operation="UPDATE", old=old).patch == []


# -- minimums


@pytest.mark.parametrize(
    ("body", "there"),
    [
        pytest.param(maker(of=JOINS["controller"]), 1, id="statefulset-default"),
        pytest.param(maker(of=template({GANG_MIN: "4"}), replicas=3), 3, id="statefulset"),
        pytest.param(maker("Deployment", template({GANG_MIN: "4"}), replicas=3), 3, id="deployment"),
        pytest.param(maker("ReplicaSet", template({GANG_MIN: "4"}), replicas=3), 3, id="replicaset"),
        pytest.param(maker("Job", template({GANG_MIN: "4"}), parallelism=3), 3, id="job-parallelism"),
        pytest.param(maker("Job", template({GANG_MIN: "4"}), parallelism=8, completions=2), 2, id="job-completions"),
        pytest.param(maker("Job", template({GANG_MIN: "4"}), completions=8), 1, id="job-one-at-a-time"),
    ],
)
def test_a_minimum_above_the_number_of_pods_is_refused(body: Json, there: int) -> None:
    minimum = body["spec"]["template"]["metadata"]["annotations"][GANG_MIN]
    result = check(body)
    assert (result.allowed, result.code) == (False, 422)
    assert result.message == (
        f"spec.template: {GANG_MIN}: {minimum} pods must start together, but there are {there}; write at most {there}"
    )


OWNED = {"ownerReferences": [{"kind": "Deployment", "name": "train", "uid": "u", "controller": True}]}


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(maker(of=template({GANG_MIN: "4"}), replicas=4), id="enough"),
        pytest.param(maker("Job", template({GANG_MIN: "4"}), parallelism=4, completions=4), id="job"),
        pytest.param(maker("Job", template({GANG_MIN: "4"}), parallelism=4), id="job-without-completions"),
        pytest.param(maker(of=template({GANG_MIN: "4"}), replicas=0), id="scaled-to-nothing"),
        pytest.param(maker("ReplicaSet", template({GANG_MIN: "4"}), OWNED, replicas=1), id="part-of-a-rollout"),
        pytest.param(maker(of=template({GANG_MIN: "4"}, schedulerName="other")), id="another-scheduler"),
        pytest.param(maker(of={"spec": {"schedulerName": 7}}), id="nonsense"),
        pytest.param(maker(of=template(), replicas="many"), id="nonsense-replicas"),
        pytest.param(
            maker(of=template({GANG_MIN: "4"}), replicas=10**30, ordinals={"start": -7}), id="absurd-replicas"
        ),
    ],
)
def test_objects_that_can_start_are_allowed(body: Json) -> None:
    result = check(body)
    assert (result.allowed, result.warnings) == (True, [])


def test_a_named_gang_may_get_its_pods_from_several_objects() -> None:
    result = check(maker(of=template({GANG: "train", GANG_MIN: "4"}), replicas=3))
    assert result.allowed
    assert result.warnings == [
        f"spec.template: {GANG_MIN}: 4 pods must start together, but this object creates 3; others must join the gang"
    ]


def volcano(minimum: int, *replicas: int, of: Json | None = None, **spec: Any) -> Json:
    """A Job of Volcano."""
    tasks = [{"name": f"t{i}", "replicas": n, "template": of or template()} for i, n in enumerate(replicas)]
    body = {"minAvailable": minimum, "tasks": tasks, **spec}
    return {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "train"}, "spec": body}


def pytorch(minimum: int | None, master: int, workers: int, of: Json | None = None) -> Json:
    """A PyTorchJob."""
    replicas = {
        "Master": {"replicas": master, "template": of or template()},
        "Worker": {"replicas": workers, "template": of or template()},
    }
    policy = {"schedulingPolicy": {"minAvailable": minimum}} if minimum is not None else {}
    body = {"runPolicy": policy, "pytorchReplicaSpecs": replicas}
    return {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "train"}, "spec": body}


UNNAMED: Json = {"spec": {"containers": [container()]}}


@pytest.mark.parametrize(
    ("body", "resource", "result"),
    [
        pytest.param(
            volcano(5, 1, 3),
            VOLCANO,
            "spec.minAvailable: 5 pods must start together, but there are 4; write at most 4",
            id="volcano",
        ),
        pytest.param(
            volcano(5, 4, of=UNNAMED, schedulerName="gpu-scheduler"),
            VOLCANO,
            "spec.minAvailable: 5 pods must start together, but there are 4; write at most 4",
            id="volcano-named-by-the-job",
        ),
        pytest.param(
            volcano(1, tasks=[{"name": "a", "replicas": 2, "minAvailable": 3, "template": template()}]),
            VOLCANO,
            "spec.tasks[0].minAvailable: 3 pods must start together, but there are 2; write at most 2",
            id="volcano-task",
        ),
        pytest.param(
            pytorch(5, 1, 3),
            PYTORCH,
            "spec.runPolicy.schedulingPolicy.minAvailable: 5 pods must start together, but there are 4; write at most",
            id="kubeflow",
        ),
        pytest.param(
            pytorch(None, 1, 3, template({GANG_MIN: "5"})),
            PYTORCH,
            f"2 problems: (1) spec.pytorchReplicaSpecs.Master.template: {GANG_MIN}: 5 pods must start together, but",
            id="kubeflow-annotation",
        ),
    ],
)
def test_a_minimum_above_the_replicas_of_a_job_is_refused(body: Json, resource: str, result: str) -> None:
    found = validate(body, resource)
    assert not found.allowed
    assert found.message.startswith(result)


@pytest.mark.parametrize(
    ("body", "resource"),
    [
        pytest.param(volcano(4, 1, 3), VOLCANO, id="volcano"),
        pytest.param(volcano(2, 2, 0), VOLCANO, id="volcano-task-scaled-to-nothing"),
        pytest.param(volcano(5, 1, 3, of=UNNAMED), VOLCANO, id="volcano-of-another-scheduler"),
        pytest.param(volcano(0, of=UNNAMED), VOLCANO, id="volcano-without-tasks"),
        pytest.param(pytorch(4, 1, 3), PYTORCH, id="kubeflow"),
        pytest.param(pytorch(None, 1, 3), PYTORCH, id="kubeflow-without-minimum"),
        pytest.param(pytorch(5, 1, 3, of=UNNAMED), PYTORCH, id="kubeflow-of-another-scheduler"),
    ],
)
def test_jobs_that_can_start_and_jobs_of_other_schedulers_are_allowed(body: Json, resource: str) -> None:
    result = validate(body, resource, STRICT)
    assert (result.allowed, result.warnings) == (True, [])


# -- templates


@pytest.mark.parametrize(
    ("of", "result"),
    [
        pytest.param(template({MAP: "a=b"}), f"spec.template: {MAP}: line 1: 'a=b' is not an entry", id="map"),
        pytest.param(template({GANG_MIN: "0"}), f"spec.template: {GANG_MIN}: '0' is not a valid number", id="gang-min"),
        pytest.param(template({f"{GROUP}/paused": "1"}), f"spec.template: {GROUP}/paused: '1' is neither", id="option"),
        pytest.param(
            template({f"{GROUP}/gpu-milli": "2k"}), f"spec.template: {GROUP}/gpu-milli: '2k' is no", id="share"
        ),
        pytest.param(
            template(containers=[container(gpus="many")]), "spec.template: spec.containers[0].resources.req", id="gpus"
        ),
        pytest.param(template(nodeName="node1"), "spec.template: spec.nodeName: bypasses", id="node-name"),
    ],
)
def test_a_wrong_template_is_refused(of: Json, result: str) -> None:
    assert check(maker(of=of), policy=STRICT).message.startswith(result)


@pytest.mark.parametrize(
    ("body", "lacking"),
    [
        pytest.param(maker(of=template({MAP: THREE}), replicas=3), "", id="all-there"),
        pytest.param(maker(of=template({MAP: THREE}), replicas=4), "3", id="one-more"),
        pytest.param(maker(of=template({MAP: THREE}), replicas=10_000), "3, 4, 5 and 9994 more", id="ten-thousand"),
        pytest.param(maker(of=template({MAP: THREE}), replicas=10**30), "3, 4, 5 and 2147483641 more", id="absurd"),
        pytest.param(maker(of=template({MAP: THREE}), replicas=2, ordinals={"start": 2}), "3", id="ordinals"),
        pytest.param(
            maker("Job", template({MAP: THREE}), completions=4, completionMode="Indexed"), "3", id="indexed-job"
        ),
    ],
)
def test_missing_lines_of_a_map_are_warned_of(body: Json, lacking: str) -> None:
    result = check(body)
    assert result.allowed
    right = "add one for each, or these pods are refused"
    assert result.warnings == (
        [f"spec.template: {MAP}: there is no line for pod index {lacking}; {right}"] if lacking else []
    )


@pytest.mark.parametrize("kind", ["Deployment", "ReplicaSet", "Job"])
def test_a_map_needs_pods_with_an_index(kind: str) -> None:
    result = check(maker(kind, template({MAP: THREE})))
    right = "use a StatefulSet, or a Job with completionMode: Indexed"
    assert result.message == f"spec.template: {MAP}: these pods have no index; {right}"
    named = template({MAP: THREE})
    named["metadata"]["name"] = "worker-0"
    assert not check(maker(kind, named)).allowed
    labels = {"apps.kubernetes.io/pod-index": "0"}
    assert check(maker(kind, template({MAP: THREE}, labels))).allowed


def test_unknown_nodes_of_a_templates_map_are_warned_of_together() -> None:
    result = check(maker(of=template({MAP: "0=node8:0\n1=node9:0"})))
    assert result.allowed
    assert result.warnings[0].startswith(f"spec.template: {MAP}: there is no node node8, node9; the pod waits")


# -- later changes


def test_only_new_problems_of_an_update_are_refused() -> None:
    old = maker(of=template({GANG_MIN: "4", f"{GROUP}/paused": "1"}), replicas=3)
    same = maker(of=template({GANG_MIN: "4", f"{GROUP}/paused": "1"}), meta={"labels": {"a": "b"}}, replicas=3)
    assert check(same, operation="UPDATE", old=old).allowed
    worse = maker(of=template({GANG_MIN: "4", f"{GROUP}/paused": "1"}), replicas=2)
    result = check(worse, operation="UPDATE", old=old)
    assert result.message == (
        f"spec.template: {GANG_MIN}: 4 pods must start together, but there are 2; write at most 2"
    )


@pytest.mark.parametrize(
    "request_",
    [
        {"operation": "DELETE"},
        {"operation": "UPDATE", "subResource": "status"},
        {"operation": "UPDATE", "subResource": "scale"},
    ],
    ids=["delete", "status", "scale"],
)
def test_other_operations_on_the_object_are_allowed(request_: Json) -> None:
    wrong = maker(of=template({GANG_MIN: "4"}))
    assert check(wrong, old=maker(), **request_).allowed


def test_an_object_that_is_being_deleted_is_not_checked() -> None:
    gone = maker(of=template({GANG_MIN: "4"}), meta={"deletionTimestamp": "2025-01-01T00:00:00Z"})
    assert check(gone, operation="UPDATE", old=maker()).allowed


# -- too much


def many_tasks(number: int, of: Json) -> Json:
    """A Volcano Job with a number of identical tasks."""
    tasks = [{"name": f"task{i}", "replicas": 1, "template": of} for i in range(number)]
    return {"kind": "Job", "metadata": {"name": "train", "namespace": "x"}, "spec": {"tasks": tasks}}


@pytest.mark.parametrize(
    ("body", "result"),
    [
        (
            many_tasks(257, template()),
            "spec.tasks['task256'].template: more than 256 pod templates are too many; write at most 256",
        ),
        (
            many_tasks(101, template(containers=[{}] * 100)),
            "spec: 10100 containers in pod templates are too many; write at most 10000",
        ),
        (
            many_tasks(2, template({MAP: "0=node1:0" + " " * 200_000})),
            f"spec: {MAP}: 400018 characters in pod templates are too many; write at most 262144",
        ),
        (
            many_tasks(101, template(resources={"requests": {f"example.com/r{i}": "1" for i in range(100)}})),
            "spec.containers: 10100 requests and limits are too many; write at most 10000",
        ),
    ],
    ids=["templates", "containers", "maps", "amounts"],
)
def test_objects_that_are_too_large_are_refused_quickly(body: Json, result: str) -> None:
    assert validate(body, VOLCANO).message == result


def test_as_many_tasks_as_allowed_are_all_checked() -> None:
    assert validate(many_tasks(256, template()), VOLCANO).allowed
    assert validate(many_tasks(256, template({MAP: "bad"})), VOLCANO).message.startswith("256 problems: ")


def test_any_number_of_tasks_of_other_schedulers_is_allowed() -> None:
    assert validate(many_tasks(1001, {"spec": {"containers": [{}]}}), VOLCANO).allowed


@pytest.mark.parametrize("replicas", [2, 3])
def test_a_gang_with_all_pods_from_one_object_is_no_warning(replicas: int) -> None:
    result = check(maker("Deployment", template({GANG: "train", GANG_MIN: "2"}), replicas=replicas))
    assert result.allowed
    assert not result.warnings
