"""Checks of PodGroups and Workloads with our annotations."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_scheduler.k8s.objects import Json
from tests.unit.webhook.reviewing import GROUP, SCHEDULER, validate

VOLCANO = "scheduling.volcano.sh/v1beta1/podgroups"
PLUGINS = "scheduling.x-k8s.io/v1alpha1/podgroups"
NATIVE = "scheduling.k8s.io/v1beta1/podgroups"
WORKLOAD = "scheduling.k8s.io/v1alpha1/workloads"
SPECS: dict[str, Json] = {
    VOLCANO: {"minMember": 2},
    PLUGINS: {"minMember": 2},
    NATIVE: {"schedulingPolicy": {"gang": {"minCount": 2}}},
    WORKLOAD: {
        "podGroups": [{"name": "w", "policy": {"gang": {"minCount": 2}}}, {"name": "b", "policy": {"basic": {}}}]
    },
}
PAUSED, NOTES = f"{GROUP}/paused", f"{GROUP}/notes"
CHECKPOINTED, THEN = f"{GROUP}/checkpointed-at", "2025-06-15T15:06:40Z"
KINDS = pytest.mark.parametrize("resource", SPECS)


def gang(resource: str, annotations: Json, **spec: Any) -> Json:
    """A gang object."""
    meta = {"name": "train", "namespace": "x", "annotations": annotations}
    return {"kind": "Group", "metadata": meta, "spec": spec or SPECS[resource]}


@KINDS
def test_valid_options_are_allowed(resource: str) -> None:
    options = {PAUSED: "true", f"{GROUP}/queue": "a", f"{GROUP}/preemptible": "false", CHECKPOINTED: THEN}
    result = validate(gang(resource, options), resource)
    assert (result.allowed, result.warnings) == (True, [])


@KINDS
def test_a_misspelt_annotation_is_a_warning(resource: str) -> None:
    result = validate(gang(resource, {f"{GROUP}/ques": "a"}), resource)
    assert result.allowed
    assert result.warnings == [f"{GROUP}/ques: unknown annotation, which has no effect; did you mean {GROUP}/queue?"]


@KINDS
def test_all_invalid_options_are_reported(resource: str) -> None:
    result = validate(gang(resource, {PAUSED: "1", f"{GROUP}/timeout-seconds": "x", CHECKPOINTED: "now"}), resource)
    assert result.code == 422
    assert result.message.startswith("3 problems: ")
    assert f"{CHECKPOINTED}: 'now' is not a time; write date, time and zone by RFC 3339" in result.message
    assert f'{PAUSED}: \'1\' is neither "true" nor "false"' in result.message
    assert f"{GROUP}/timeout-seconds: 'x' is not a number of seconds" in result.message


@pytest.mark.parametrize(
    ("resource", "spec", "result"),
    [
        pytest.param(VOLCANO, {"minMember": -1}, "spec.minMember: '-1' is not a valid number", id="volcano"),
        pytest.param(PLUGINS, {"minMember": -1}, "spec.minMember: '-1' is not a valid number", id="scheduler-plugins"),
        pytest.param(NATIVE, {"schedulingPolicy": {}}, "spec.schedulingPolicy: missing; write gang", id="native"),
        pytest.param(
            WORKLOAD,
            {"podGroups": [{"name": "w", "policy": {"gang": {"minCount": 0}}}]},
            "spec.podGroups[w].policy.gang.minCount: '0' is not a valid number",
            id="workload",
        ),
    ],
)
def test_a_wrong_minimum_is_reported_with_the_field_of_the_dialect(resource: str, spec: Json, result: str) -> None:
    assert validate(gang(resource, {PAUSED: "true"}, **spec), resource).message.startswith(result)


@KINDS
def test_an_invalid_option_beside_other_annotations_is_reported(resource: str) -> None:
    assert validate(gang(resource, {"example.com/owner": "me", PAUSED: "1"}), resource).message.startswith(PAUSED)


@KINDS
@pytest.mark.parametrize("annotations", [{}, {"paused": "1"}], ids=["none", "others"])
def test_groups_without_our_annotations_are_not_checked(resource: str, annotations: Json) -> None:
    assert validate(gang(resource, annotations, anything="x"), resource).allowed


@KINDS
def test_an_old_mistake_does_not_block_other_changes(resource: str) -> None:
    old, new = gang(resource, {PAUSED: "1"}), gang(resource, {PAUSED: "1", f"{GROUP}/queue": "a"})
    assert validate(new, resource, operation="UPDATE", old=old).allowed


@KINDS
@pytest.mark.parametrize("name", ["notes", "status"])
def test_only_the_scheduler_writes_notes_on_a_gang(resource: str, name: str) -> None:
    bare, noted = gang(resource, {PAUSED: "true"}), gang(resource, {f"{GROUP}/{name}": '{"target":["node1"]}'})
    changes: tuple[Json, ...] = ({}, {"operation": "UPDATE", "old": bare})
    for extra in changes:
        result = validate(noted, resource, **extra)
        assert (result.allowed, result.code) == (False, 403)
        assert validate(noted, resource, user=SCHEDULER, **extra).allowed


@KINDS
def test_a_replaced_group_may_lose_its_notes(resource: str) -> None:
    bare, noted = gang(resource, {PAUSED: "true"}), gang(resource, {PAUSED: "true", NOTES: "{}"})
    assert validate(bare, resource, operation="UPDATE", old=noted).allowed
    assert validate(noted, resource, operation="UPDATE", old=noted).allowed


def test_unknown_versions_are_allowed() -> None:
    assert validate(gang(NATIVE, {PAUSED: "1"}), "scheduling.k8s.io/v7/podgroups").allowed


def test_a_workload_with_too_many_groups_is_refused_quickly() -> None:
    groups = [{"name": f"g{i}", "policy": {"gang": {"minCount": 0}}} for i in range(101)]
    result = validate(gang(WORKLOAD, {PAUSED: "true"}, podGroups=groups), WORKLOAD)
    assert result.message == "spec.podGroups: 101 are too many; write at most 100"
    assert validate(gang(WORKLOAD, {PAUSED: "true"}, podGroups=groups[1:]), WORKLOAD).message.startswith("100 problems")
