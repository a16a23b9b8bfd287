"""PodGroups and Workloads with annotations of ours."""

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
KINDS = pytest.mark.parametrize("resource", SPECS)


def gang(resource: str, annotations: Json, **spec: Any) -> Json:
    """A gang object."""
    meta = {"name": "train", "namespace": "x", "annotations": annotations}
    return {"kind": "Group", "metadata": meta, "spec": spec or SPECS[resource]}


@KINDS
def test_good_options_are_let_in(resource: str) -> None:
    said = validate(gang(resource, {PAUSED: "true", f"{GROUP}/queue": "a"}), resource)
    assert (said.allowed, said.warnings) == (True, [])


@KINDS
def test_a_misspelt_annotation_is_a_warning(resource: str) -> None:
    said = validate(gang(resource, {f"{GROUP}/ques": "a"}), resource)
    assert said.allowed
    assert said.warnings == [f"{GROUP}/ques: unknown annotation, which has no effect; did you mean {GROUP}/queue?"]


@KINDS
def test_bad_options_are_all_told(resource: str) -> None:
    said = validate(gang(resource, {PAUSED: "1", f"{GROUP}/timeout-seconds": "x"}), resource)
    assert said.code == 422
    assert said.message.startswith("2 problems: ")
    assert f'{PAUSED}: \'1\' is neither "true" nor "false"' in said.message
    assert f"{GROUP}/timeout-seconds: 'x' is no number of seconds" in said.message


@pytest.mark.parametrize(
    ("resource", "spec", "said"),
    [
        pytest.param(VOLCANO, {"minMember": -1}, "spec.minMember: '-1' is no such number", id="volcano"),
        pytest.param(PLUGINS, {"minMember": -1}, "spec.minMember: '-1' is no such number", id="scheduler-plugins"),
        pytest.param(NATIVE, {"schedulingPolicy": {}}, "spec.schedulingPolicy: missing; write gang", id="native"),
        pytest.param(
            WORKLOAD,
            {"podGroups": [{"name": "w", "policy": {"gang": {"minCount": 0}}}]},
            "spec.podGroups[w].policy.gang.minCount: '0' is no such number",
            id="workload",
        ),
    ],
)
def test_a_wrong_minimum_is_told_in_the_dialects_own_words(resource: str, spec: Json, said: str) -> None:
    assert validate(gang(resource, {PAUSED: "true"}, **spec), resource).message.startswith(said)


@KINDS
def test_a_bad_option_is_told_beside_annotations_of_others(resource: str) -> None:
    assert validate(gang(resource, {"example.com/owner": "me", PAUSED: "1"}), resource).message.startswith(PAUSED)


@KINDS
@pytest.mark.parametrize("annotations", [{}, {"paused": "1"}], ids=["none", "others"])
def test_groups_without_annotations_of_ours_are_nobodys_business(resource: str, annotations: Json) -> None:
    assert validate(gang(resource, annotations, anything="x"), resource).allowed


@KINDS
def test_an_old_mistake_does_not_stand_in_the_way_of_a_change(resource: str) -> None:
    old, new = gang(resource, {PAUSED: "1"}), gang(resource, {PAUSED: "1", f"{GROUP}/queue": "a"})
    assert validate(new, resource, operation="UPDATE", old=old).allowed


@KINDS
@pytest.mark.parametrize("name", ["notes", "status"])
def test_only_the_scheduler_notes_anything_on_a_gang(resource: str, name: str) -> None:
    bare, noted = gang(resource, {PAUSED: "true"}), gang(resource, {f"{GROUP}/{name}": '{"target":["node1"]}'})
    changes: tuple[Json, ...] = ({}, {"operation": "UPDATE", "old": bare})
    for extra in changes:
        said = validate(noted, resource, **extra)
        assert (said.allowed, said.code) == (False, 403)
        assert validate(noted, resource, user=SCHEDULER, **extra).allowed


@KINDS
def test_whoever_replaces_a_group_may_lose_the_notes_and_keep_the_rest(resource: str) -> None:
    bare, noted = gang(resource, {PAUSED: "true"}), gang(resource, {PAUSED: "true", NOTES: "{}"})
    assert validate(bare, resource, operation="UPDATE", old=noted).allowed
    assert validate(noted, resource, operation="UPDATE", old=noted).allowed


def test_versions_that_are_not_known_are_let_through() -> None:
    assert validate(gang(NATIVE, {PAUSED: "1"}), "scheduling.k8s.io/v7/podgroups").allowed


def test_a_workload_with_very_many_groups_is_refused_without_a_look_at_each() -> None:
    groups = [{"name": f"g{i}", "policy": {"gang": {"minCount": 0}}} for i in range(101)]
    said = validate(gang(WORKLOAD, {PAUSED: "true"}, podGroups=groups), WORKLOAD)
    assert said.message == "spec.podGroups: 101 are too many; write at most 100"
    assert validate(gang(WORKLOAD, {PAUSED: "true"}, podGroups=groups[1:]), WORKLOAD).message.startswith("100 problems")
