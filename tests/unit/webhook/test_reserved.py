"""Reserved annotations: only the scheduler may set, change or remove them."""

from __future__ import annotations

import pytest

from gpu_scheduler.k8s.objects import Json
from tests.unit.webhook.reviewing import GROUP, SCHEDULER, pod, validate

RESERVED = [
    *(f"{GROUP}/{name}" for name in ("devices", "visible-devices", "attempt", "notes", "status")),
    f"visible-devices.{GROUP}/main",
]
DEVICES = RESERVED[0]
SUBRESOURCES = ["pods", "pods/status", "pods/ephemeralcontainers", "pods/resize"]
SCHEDULERS = ["gpu-scheduler", "default-scheduler"]


def binding(annotations: Json | None) -> Json:
    """A Binding, as schedulers send it."""
    meta = {"name": "w-0", "namespace": "x", **({"annotations": annotations} if annotations is not None else {})}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": meta, "target": {"kind": "Node", "name": "node1"}}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@pytest.mark.parametrize("name", RESERVED)
def test_a_new_pod_may_not_have_a_reserved_annotation(name: str, scheduler: str) -> None:
    body = pod(annotations={name: "0,1"}, schedulerName=scheduler)
    result = validate(body)
    assert (result.allowed, result.code) == (False, 403)
    assert result.message == f"metadata.annotations['{name}']: only the scheduler may write this; leave it out"
    assert validate(body, user=SCHEDULER).allowed


@pytest.mark.parametrize("resource", SUBRESOURCES)
@pytest.mark.parametrize(
    ("old", "new", "right"),
    [
        pytest.param({}, {DEVICES: "0"}, "leave it out", id="set"),
        pytest.param(None, {DEVICES: "0"}, "leave it out", id="first"),
        pytest.param({DEVICES: "0"}, {DEVICES: "1"}, "leave it as it is", id="changed"),
        pytest.param({DEVICES: "0"}, {DEVICES: ""}, "leave it as it is", id="emptied"),
        pytest.param({DEVICES: "0"}, {"other": "x"}, "leave it as it is", id="removed"),
        pytest.param({DEVICES: "0"}, None, "leave it as it is", id="all-removed"),
    ],
)
def test_reserved_annotations_cannot_be_changed_through_any_subresource(
    resource: str, old: Json | None, new: Json | None, right: str
) -> None:
    before, after = pod(annotations=old), pod(annotations=new)
    result = validate(after, resource, operation="UPDATE", old=before)
    assert result.message == f"metadata.annotations['{DEVICES}']: only the scheduler may write this; {right}"
    assert validate(after, resource, operation="UPDATE", old=before, user=SCHEDULER).allowed


@pytest.mark.parametrize("resource", SUBRESOURCES)
@pytest.mark.parametrize("user", ["system:node:node1", "system:serviceaccount:kube-system:job-controller"])
def test_other_changes_of_a_pod_with_reserved_annotations_are_allowed(resource: str, user: str) -> None:
    before = pod(annotations={DEVICES: "0"}, meta={"finalizers": ["x"]})
    after = pod(annotations={DEVICES: "0", "other": "y"})
    assert validate(after, resource, operation="UPDATE", old=before, user=user).allowed


@pytest.mark.parametrize("resource", ["pods/binding", "bindings"])
@pytest.mark.parametrize("annotations", [None, {}, {"other": "x"}], ids=["none", "empty", "others"])
def test_bindings_of_other_schedulers_are_allowed(resource: str, annotations: Json | None) -> None:
    assert validate(binding(annotations), resource).allowed


@pytest.mark.parametrize("resource", ["pods/binding", "bindings"])
@pytest.mark.parametrize("name", RESERVED)
def test_only_the_scheduler_sets_reserved_annotations_with_a_binding(resource: str, name: str) -> None:
    assert not validate(binding({name: "0"}), resource).allowed
    assert validate(binding({name: "0"}), resource, user=SCHEDULER).allowed


INDICES = ["batch.kubernetes.io/job-completion-index", "apps.kubernetes.io/pod-index"]
LATE = "cannot change after the pod is created; leave it out of the Binding"


@pytest.mark.parametrize("resource", ["pods/binding", "bindings"])
@pytest.mark.parametrize("user", ["alice", SCHEDULER])
@pytest.mark.parametrize(
    ("field", "name"),
    [
        ("annotations", "gpu-scheduling-map"),
        ("annotations", f"{GROUP}/gpu-milli"),
        *(("labels", name) for name in (*INDICES, "training.kubeflow.org/replica-index")),
    ],
)
def test_a_binding_cannot_set_immutable_metadata(resource: str, user: str, field: str, name: str) -> None:
    body = binding(None)
    body["metadata"][field] = {name: "0"}
    result = validate(body, resource, user=user)
    assert (result.code, result.message) == (403, f"metadata.{field}['{name}']: {LATE}")


def test_a_binding_may_repeat_the_index_annotation_of_its_pod() -> None:
    assert validate(binding({INDICES[0]: "3", "other": "x"}), "pods/binding").allowed


def test_an_account_of_the_same_name_elsewhere_is_not_the_scheduler() -> None:
    assert not validate(pod(annotations={DEVICES: "0"}), user="system:serviceaccount:x:gpu-scheduler").allowed


def test_reserved_changes_are_reported_first_and_forbidden() -> None:
    result = validate(pod(annotations={DEVICES: "0", "gpu-scheduling-map": "a=b"}))
    assert result.code == 403
    assert result.message.startswith(f"2 problems: (1) metadata.annotations['{DEVICES}']: only the scheduler")


def test_similar_annotation_names_are_not_reserved() -> None:
    names = (f"{GROUP}/devices2", f"{GROUP}/Devices", "devices", f"visible-devices.{GROUP}.example.com/main")
    assert validate(pod(annotations=dict.fromkeys(names, "0"))).allowed
