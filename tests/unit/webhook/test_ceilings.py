"""Ceilings of the administrator in reviews: grace periods and priority classes of pods, templates, jobs and groups."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_scheduler.gangs.ceilings import Ceilings
from gpu_scheduler.k8s.objects import Json
from tests.unit.webhook.reviewing import GROUP, POLICY, container, pod, validate

RULES = replace(POLICY, ceilings=Ceilings(600.0, {"x": frozenset({"low", "normal"})}))
LONG = "spec.terminationGracePeriodSeconds: '1000000000' is longer than pods may take to end here; write at most {:g}"
HIGH = "{}: 'high' may not be used in this namespace; write low, normal, or leave it out"
TEMPLATE: Json = {"spec": {"schedulerName": "gpu-scheduler", "containers": [container()]}}


def with_template(**spec: object) -> Json:
    """A template with more fields."""
    return {"spec": {**TEMPLATE["spec"], **spec}}


def test_a_pod_with_a_grace_period_above_the_ceiling_is_refused() -> None:
    body = pod(terminationGracePeriodSeconds=1_000_000_000)
    assert validate(body).message == LONG.format(3600)
    assert validate(body, policy=RULES).message == LONG.format(600)
    assert validate(pod(terminationGracePeriodSeconds=600), policy=RULES).allowed
    other = pod(terminationGracePeriodSeconds=1_000_000_000, schedulerName="default-scheduler")
    assert validate(other).allowed


def test_a_pod_of_a_class_that_its_namespace_may_not_use_is_refused() -> None:
    refused = validate(pod(priorityClassName="high", priority=1000), policy=RULES)
    assert (refused.code, refused.message) == (422, HIGH.format("spec.priorityClassName"))
    assert validate(pod(priorityClassName="low", priority=1), policy=RULES).allowed
    assert validate(pod(), policy=RULES).allowed
    assert validate(pod(priorityClassName="high", priority=1000)).allowed


def test_an_existing_pod_can_still_be_changed() -> None:
    old = pod(priorityClassName="high", terminationGracePeriodSeconds=1_000_000_000)
    new = pod(priorityClassName="high", terminationGracePeriodSeconds=1_000_000_000, meta={"labels": {"a": "b"}})
    assert validate(new, policy=RULES, operation="UPDATE", old=old).allowed


def test_templates_are_refused_before_they_create_pods() -> None:
    template = with_template(terminationGracePeriodSeconds=1_000_000_000, priorityClassName="high")
    body = {"kind": "Deployment", "metadata": {"name": "d", "namespace": "x"}, "spec": {"template": template}}
    refused = validate(body, "apps/v1/deployments", policy=RULES)
    assert f"spec.template: {LONG.format(600)}" in refused.message
    assert f"spec.template: {HIGH.format('spec.priorityClassName')}" in refused.message


@pytest.mark.parametrize(
    ("resource", "field", "spec"),
    [
        (
            "batch.volcano.sh/v1alpha1/jobs",
            "spec.priorityClassName",
            {"priorityClassName": "high", "tasks": [{"name": "w", "replicas": 1, "template": TEMPLATE}]},
        ),
        (
            "kubeflow.org/v1/pytorchjobs",
            "spec.runPolicy.schedulingPolicy.priorityClass",
            {
                "runPolicy": {"schedulingPolicy": {"priorityClass": "high"}},
                "pytorchReplicaSpecs": {"Worker": {"replicas": 1, "template": TEMPLATE}},
            },
        ),
    ],
)
def test_the_class_of_a_jobs_group_is_refused_with_the_job(resource: str, field: str, spec: Json) -> None:
    body = {"kind": "Job", "metadata": {"name": "j", "namespace": "x"}, "spec": spec}
    assert validate(body, resource, policy=RULES).message == HIGH.format(field)
    assert validate(body, resource).allowed
    elsewhere = {**body, "metadata": {"name": "j", "namespace": "y"}}
    assert validate(elsewhere, resource, policy=RULES).allowed


@pytest.mark.parametrize(
    ("resource", "spec"),
    [
        ("scheduling.volcano.sh/v1beta1/podgroups", {"minMember": 1}),
        ("scheduling.k8s.io/v1beta1/podgroups", {"schedulingPolicy": {"gang": {"minCount": 1}}}),
    ],
)
def test_a_group_of_a_class_that_its_namespace_may_not_use_is_refused(resource: str, spec: Json) -> None:
    meta = {"name": "g", "namespace": "x", "annotations": {f"{GROUP}/queue": "q"}}
    body = {"kind": "PodGroup", "metadata": meta, "spec": {**spec, "priorityClassName": "high"}}
    assert validate(body, resource, policy=RULES).message == HIGH.format("spec.priorityClassName")
    assert validate(body, resource).allowed


def test_a_pod_or_template_with_too_many_terms_is_refused() -> None:
    constraints = [{"topologyKey": f"zone{i}"} for i in range(65)]
    line = (
        "spec.topologySpreadConstraints: 65 terms and constraints about other pods are too many; "
        "write at most 64 in a pod"
    )
    assert validate(pod(topologySpreadConstraints=constraints)).message == line
    assert validate(pod(topologySpreadConstraints=constraints[:64])).allowed
    template = with_template(topologySpreadConstraints=constraints)
    body = {"kind": "Deployment", "metadata": {"name": "d", "namespace": "x"}, "spec": {"template": template}}
    assert validate(body, "apps/v1/deployments").message == f"spec.template: {line}"


# -- durations and numbers of gangs

FEW = replace(POLICY, ceilings=Ceilings(max_hold=60.0, max_members=10))
LONG_HOLD = f"{GROUP}/hold-seconds: '61' is longer than slots are held here; write at most 60"


def test_a_hold_above_the_ceiling_is_refused_on_pods_templates_and_groups() -> None:
    annotations = {f"{GROUP}/hold-seconds": "61", f"{GROUP}/gang": "g", f"{GROUP}/gang-min": "2"}
    assert validate(pod(meta={"annotations": annotations}), policy=FEW).message == LONG_HOLD
    assert validate(pod(meta={"annotations": annotations})).allowed
    template = {**TEMPLATE, "metadata": {"annotations": annotations}}
    body = {"metadata": {"name": "d", "namespace": "x"}, "spec": {"replicas": 2, "template": template}}
    assert validate(body, "apps/v1/deployments", policy=FEW).message == f"spec.template: {LONG_HOLD}"
    meta = {"name": "g", "namespace": "x", "annotations": {f"{GROUP}/hold-seconds": "61"}}
    group = {"kind": "PodGroup", "metadata": meta, "spec": {"minMember": 2}}
    assert validate(group, "scheduling.volcano.sh/v1beta1/podgroups", policy=FEW).message == LONG_HOLD


def test_a_group_that_has_a_long_hold_already_can_still_be_changed() -> None:
    meta = {"name": "g", "namespace": "x", "annotations": {f"{GROUP}/hold-seconds": "61"}}
    old = {"kind": "PodGroup", "metadata": meta, "spec": {"minMember": 2}}
    new = {**old, "spec": {"minMember": 3}}
    resource = "scheduling.volcano.sh/v1beta1/podgroups"
    assert validate(new, resource, policy=FEW, operation="UPDATE", old=old).allowed


def test_a_minimum_above_the_ceiling_is_refused_on_pods_and_groups() -> None:
    right = "write how many pods must start together, from 1 to 10"
    member = pod(meta={"annotations": {f"{GROUP}/gang": "g", f"{GROUP}/gang-min": "11"}})
    assert validate(member, policy=FEW).message == f"{GROUP}/gang-min: '11' is not a valid number; {right}"
    meta = {"name": "g", "namespace": "x", "annotations": {f"{GROUP}/queue": "q"}}
    body = {"kind": "PodGroup", "metadata": meta, "spec": {"minMember": 11}}
    refused = validate(body, "scheduling.volcano.sh/v1beta1/podgroups", policy=FEW)
    assert refused.message == f"spec.minMember: '11' is not a valid number; {right}"


def test_a_group_of_too_many_roles_is_refused() -> None:
    meta = {"name": "g", "namespace": "x", "annotations": {f"{GROUP}/queue": "q"}}
    tasks = {f"task{i}": 1 for i in range(257)}
    body = {"kind": "PodGroup", "metadata": meta, "spec": {"minMember": 257, "minTaskMember": tasks}}
    refused = validate(body, "scheduling.volcano.sh/v1beta1/podgroups")
    assert refused.message == "spec.minTaskMember: 257 tasks are too many; write at most 256"


@pytest.mark.parametrize(
    ("resource", "field", "spec"),
    [
        (
            "batch.volcano.sh/v1alpha1/jobs",
            "spec.minAvailable",
            {"minAvailable": 11, "tasks": [{"name": "w", "replicas": 20, "template": TEMPLATE}]},
        ),
        (
            "kubeflow.org/v1/pytorchjobs",
            "spec.runPolicy.schedulingPolicy.minAvailable",
            {
                "runPolicy": {"schedulingPolicy": {"minAvailable": 11}},
                "pytorchReplicaSpecs": {"Worker": {"replicas": 20, "template": TEMPLATE}},
            },
        ),
    ],
)
def test_a_minimum_of_a_job_above_the_ceiling_is_refused_with_the_job(resource: str, field: str, spec: Json) -> None:
    body = {"kind": "Job", "metadata": {"name": "j", "namespace": "x"}, "spec": spec}
    assert validate(body, resource, policy=FEW).message == (
        f"{field}: 11 pods are more than a gang may have; write at most 10"
    )
    assert validate(body, resource).allowed
