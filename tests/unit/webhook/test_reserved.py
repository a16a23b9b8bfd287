"""Annotations that only the scheduler writes: whoever else sets, changes or removes one is refused."""

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
def test_a_new_pod_must_not_bring_one(name: str, scheduler: str) -> None:
    body = pod(annotations={name: "0,1"}, schedulerName=scheduler)
    said = validate(body)
    assert (said.allowed, said.code) == (False, 403)
    assert said.message == f"metadata.annotations['{name}']: only the scheduler may write this; leave it out"
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
def test_nor_may_one_be_changed_through_any_door(resource: str, old: Json | None, new: Json | None, right: str) -> None:
    before, after = pod(annotations=old), pod(annotations=new)
    said = validate(after, resource, operation="UPDATE", old=before)
    assert said.message == f"metadata.annotations['{DEVICES}']: only the scheduler may write this; {right}"
    assert validate(after, resource, operation="UPDATE", old=before, user=SCHEDULER).allowed


@pytest.mark.parametrize("resource", SUBRESOURCES)
@pytest.mark.parametrize("user", ["system:node:node1", "system:serviceaccount:kube-system:job-controller"])
def test_other_changes_of_a_pod_that_has_one_are_let_through(resource: str, user: str) -> None:
    before = pod(annotations={DEVICES: "0"}, meta={"finalizers": ["x"]})
    after = pod(annotations={DEVICES: "0", "other": "y"})
    assert validate(after, resource, operation="UPDATE", old=before, user=user).allowed


@pytest.mark.parametrize("resource", ["pods/binding", "bindings"])
@pytest.mark.parametrize("annotations", [None, {}, {"other": "x"}], ids=["none", "empty", "others"])
def test_other_schedulers_bind_as_they_like(resource: str, annotations: Json | None) -> None:
    assert validate(binding(annotations), resource).allowed


@pytest.mark.parametrize("resource", ["pods/binding", "bindings"])
@pytest.mark.parametrize("name", RESERVED)
def test_only_the_scheduler_writes_one_with_a_bind(resource: str, name: str) -> None:
    assert not validate(binding({name: "0"}), resource).allowed
    assert validate(binding({name: "0"}), resource, user=SCHEDULER).allowed


INDICES = ["batch.kubernetes.io/job-completion-index", "apps.kubernetes.io/pod-index"]
LATE = "this is settled when the pod is made, not when it is bound; leave it out"


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
def test_nobody_changes_with_a_bind_what_the_pod_was_made_with(resource: str, user: str, field: str, name: str) -> None:
    body = binding(None)
    body["metadata"][field] = {name: "0"}
    said = validate(body, resource, user=user)
    assert (said.code, said.message) == (403, f"metadata.{field}['{name}']: {LATE}")


def test_a_scheduler_that_sends_a_pods_own_annotations_along_may_bind_pods_of_indexed_jobs() -> None:
    assert validate(binding({INDICES[0]: "3", "other": "x"}), "pods/binding").allowed


def test_an_account_of_the_same_name_elsewhere_is_not_the_scheduler() -> None:
    assert not validate(pod(annotations={DEVICES: "0"}), user="system:serviceaccount:x:gpu-scheduler").allowed


def test_forgeries_come_before_mistakes_and_forbid() -> None:
    said = validate(pod(annotations={DEVICES: "0", "gpu-scheduling-map": "a=b"}))
    assert said.code == 403
    assert said.message.startswith(f"2 problems: (1) metadata.annotations['{DEVICES}']: only the scheduler")


def test_names_that_only_look_alike_are_nobodys_business() -> None:
    names = (f"{GROUP}/devices2", f"{GROUP}/Devices", "devices", f"visible-devices.{GROUP}.example.com/main")
    assert validate(pod(annotations=dict.fromkeys(names, "0"))).allowed
