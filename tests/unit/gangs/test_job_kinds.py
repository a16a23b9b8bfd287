"""The table of job kinds: templates, minimums and the fields that the other packages read from it."""

from __future__ import annotations

import pytest

from gpu_scheduler.gangs.jobs import JOB_KINDS, VOLCANO_JOBS, JobKind, find_job_kind, find_owner_kind
from gpu_scheduler.gangs.jobs.job_kind import SingleTemplateKind
from gpu_scheduler.k8s.objects import Json, OwnerReference

TEMPLATE: Json = {"spec": {"schedulerName": "a"}}
BODIES: dict[str, Json] = {
    "spec.template": {"spec": {"template": TEMPLATE}},
    "spec.tasks[].template": {"spec": {"tasks": [{"name": "w", "template": TEMPLATE}]}},
    "spec.*ReplicaSpecs{}.template": {"spec": {"pytorchReplicaSpecs": {"W": {"template": TEMPLATE}}}},
}

every_kind = pytest.mark.parametrize("kind", JOB_KINDS, ids=lambda kind: f"{kind.plural}.{kind.group}")


@every_kind
def test_the_templates_are_found_at_the_declared_path(kind: JobKind) -> None:
    (template,) = kind.templates(BODIES[kind.templates_at])
    assert (template.replicas, template.body) == (1, TEMPLATE)
    assert template.field.startswith(kind.templates_at.partition("[")[0].partition("*")[0])


@every_kind
@pytest.mark.parametrize("spec", [None, "x", [], {}, {"tasks": "x"}, {"aReplicaSpecs": {"W": 7}}, {"template": 7}])
def test_wrong_types_do_not_raise(kind: JobKind, spec: object) -> None:
    assert all(template.body == {} for template in kind.templates({"spec": spec}))
    assert all(minimum.value is None for minimum in kind.minimums({"spec": spec}))
    assert kind.scheduler_name({"spec": spec}) == ""


@every_kind
def test_every_kind_is_found_by_its_resource_and_as_owner_where_it_creates_pod_groups(kind: JobKind) -> None:
    assert find_job_kind(kind.group, kind.plural) is kind
    owner = OwnerReference(f"{kind.group}/v1", kind.kind, "train", "u")
    assert find_owner_kind(owner) is (kind if kind.owns_pod_groups else None)


def test_a_task_is_named_in_the_field_of_its_template() -> None:
    job = {"spec": {"tasks": [{"name": "worker", "replicas": 3}, "x", {"replicas": True}]}}
    assert [(found.field, found.role, found.replicas) for found in VOLCANO_JOBS.templates(job)] == [
        ("spec.tasks['worker'].template", "worker", 3),
        ("spec.tasks[2].template", "", 1),
    ]


@pytest.mark.parametrize(
    ("spec", "pods"),
    [({}, 1), ({"parallelism": 4}, 4), ({"parallelism": 4, "completions": 2}, 2), ({"completions": 9}, 1)],
)
def test_a_job_has_as_many_pods_at_a_time_as_its_parallelism_allows(spec: Json, pods: int) -> None:
    kind = find_job_kind("batch", "jobs")
    assert isinstance(kind, SingleTemplateKind)
    assert kind.count_pods(spec) == pods
