"""The four patch types, as clients send them."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedded_kube.errors import StatusError
from embedded_kube.patching.patch import (
    APPLY_PATCH,
    JSON_PATCH,
    MERGE_PATCH,
    STRATEGIC_PATCH,
    PatchRequest,
    apply_patch,
    check_content_type,
    merge,
)
from embedded_kube.registry.builtin_kinds import builtin_kinds
from embedded_kube.registry.kinds import KindTable, ServedKind
from embedded_kube.schema import jsontext
from embedded_kube.schema.schemas import Schemas
from gpu_scheduler.k8s.objects import Json
from tests.embedded_kube.api_harness import find_kind

SCHEMAS = Schemas("1.35")
KINDS = KindTable(builtin_kinds("1.35"))


def kind_of(name: str) -> ServedKind:
    api_version, _, kind = name.rpartition("/")
    return find_kind(KINDS, api_version, kind)


POD = kind_of("v1/Pod")
DEPLOYMENT = kind_of("apps/v1/Deployment")


def patched(content_type: str, old: Json | None, body: Any, kind: ServedKind = POD, **more: Any) -> Json:
    patch = PatchRequest(content_type, json.dumps(body).encode(), **more)
    return apply_patch(patch, copy.deepcopy(old), kind, SCHEMAS)


def strategic(old: Json, body: Json, kind: ServedKind = POD) -> Json:
    return patched(STRATEGIC_PATCH, old, body, kind)


# -- merge patch and JSON patch


@pytest.mark.parametrize(
    ("old", "patch", "expected"),
    [
        ({"a": 1}, {"a": 2}, {"a": 2}),
        ({"a": 1}, {"b": 2}, {"a": 1, "b": 2}),
        ({"a": 1}, {"a": None}, {}),
        ({"a": 1, "b": 2}, {"a": None}, {"b": 2}),
        ({"a": [1]}, {"a": "x"}, {"a": "x"}),
        ({"a": "x"}, {"a": [1]}, {"a": [1]}),
        ({"a": {"b": 1}}, {"a": {"b": 2, "c": None}}, {"a": {"b": 2}}),
        ({"a": [{"b": 1}]}, {"a": [1]}, {"a": [1]}),
        ([1, 2], [3], [3]),
        ({"a": 1}, [1], [1]),
        ({"a": 1}, None, None),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"b": {"c": None}}}, {"a": {"b": {}}}),
    ],
)
def test_merge_patches_merge_objects_and_replace_other_values(old: Any, patch: Any, expected: Any) -> None:
    assert merge(old, patch) == expected


values = st.recursive(
    st.booleans() | st.integers(0, 3) | st.sampled_from("xy"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
documents = st.dictionaries(st.sampled_from("abc"), values, max_size=3)


@given(old=documents, new=documents)
def test_a_merge_patch_is_idempotent(old: Json, new: Json) -> None:
    once = merge(old, new)
    assert merge(once, new) == once


def test_a_json_patch_is_applied_in_order() -> None:
    old = {"metadata": {"name": "a", "labels": {"x": "1"}}}
    steps = [
        {"op": "test", "path": "/metadata/labels/x", "value": "1"},
        {"op": "add", "path": "/metadata/labels/a~1b", "value": "2"},
        {"op": "remove", "path": "/metadata/labels/x"},
    ]
    assert patched(JSON_PATCH, old, steps)["metadata"]["labels"] == {"a/b": "2"}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ([{"op": "test", "path": "/metadata/name", "value": "b"}], 422),
        ([{"op": "remove", "path": "/spec/none"}], 422),
        ([{"op": "replace", "path": "/metadata/labels/none/deep", "value": "1"}], 422),
        ([{"op": "jump", "path": "/a"}], 422),
        ([{"op": {}, "path": "/a"}], 422),
        ([{"path": "/a"}], 422),
        ([{"op": "move", "from": "/none", "path": "/a"}], 422),
        ([{"op": "copy", "path": "/a"}], 422),
        ([{"op": "add", "path": "/metadata/finalizers/5", "value": "f"}], 422),
        ({"a": 1}, 400),
        ([{"op": "replace", "path": "", "value": 3}], 400),
        ([{"op": "add", "path": "/metadata", "value": []}], 400),
        ([{"op": "add", "path": "/a", "value": 1}] * 10_001, 413),
    ],
)
def test_a_json_patch_that_does_not_fit_is_refused(body: Any, code: int) -> None:
    with pytest.raises(StatusError) as refused:
        patched(JSON_PATCH, {"metadata": {"name": "a"}}, body)
    assert refused.value.code == code


def test_the_target_of_a_json_patch_replace_need_not_exist() -> None:
    old = {"metadata": {"name": "a", "finalizers": ["f"]}}
    steps = [
        {"op": "replace", "path": "/metadata/labels", "value": {}},
        {"op": "replace", "path": "/metadata/labels/new", "value": "1"},
        {"op": "add", "path": "/metadata/finalizers/-", "value": "g"},
        {"op": "copy", "from": "/metadata/finalizers/1", "path": "/metadata/finalizers/0"},
        {"op": "test", "path": "/data", "value": None},
    ]
    made = patched(JSON_PATCH, old, steps)["metadata"]
    assert (made["labels"], made["finalizers"]) == ({"new": "1"}, ["g", "f", "g"])


def test_a_patch_of_an_unknown_type_is_refused() -> None:
    with pytest.raises(StatusError) as refused:
        check_content_type(ServedKind("", "v1", "Pod", "pods"), "application/json")
    assert refused.value.code == 415


def test_custom_resources_do_not_support_strategic_patches() -> None:
    custom = ServedKind("x.io", "v1", "Foo", "foos", crd_schema={"type": "object"})
    with pytest.raises(StatusError) as refused:
        check_content_type(custom, STRATEGIC_PATCH)
    assert refused.value.code == 415
    assert STRATEGIC_PATCH not in refused.value.message
    assert MERGE_PATCH in refused.value.message


# -- strategic merge patch


def pod(*containers: Json, **spec: Any) -> Json:
    return {"metadata": {"name": "a"}, "spec": {"containers": list(containers), **spec}}


TWO = pod({"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}]}, {"name": "b", "image": "2"})
A, B = TWO["spec"]["containers"]


@pytest.mark.parametrize(
    ("patch", "expected"),
    [
        ([{"name": "a", "image": "9"}], [{**A, "image": "9"}, B]),
        ([{"name": "c", "image": "3"}], [{"name": "c", "image": "3"}, A, B]),
        ([{"name": "a", "$patch": "delete"}], [B]),
        ([{"$patch": "replace"}, {"name": "z"}], [{"name": "z"}]),
        ([{"name": "a", "$patch": "replace", "image": "0"}], []),
        ([{"name": "a", "image": None}], [{"name": "a", "env": A["env"]}, B]),
        (
            [{"name": "a", "env": [{"name": "Y", "value": "2"}, {"name": "X", "$patch": "delete"}]}],
            [{**A, "env": [{"name": "Y", "value": "2"}]}, B],
        ),
    ],
)
def test_lists_are_merged_by_the_key_of_their_items(patch: list[Json], expected: list[Json]) -> None:
    assert strategic(TWO, {"spec": {"containers": patch}})["spec"]["containers"] == expected


def test_set_element_order_sorts_the_items() -> None:
    body = {"$setElementOrder/containers": [{"name": "b"}, {"name": "c"}], "containers": [{"name": "c"}]}
    names = [one["name"] for one in strategic(TWO, {"spec": body})["spec"]["containers"]]
    assert names == ["a", "b", "c"]
    body = {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}
    names = [one["name"] for one in strategic(TWO, {"spec": body})["spec"]["containers"]]
    assert names == ["b", "a"]


def test_lists_of_scalars_are_merged_or_replaced_by_their_patch_strategy() -> None:
    old = {"metadata": {"name": "a", "finalizers": ["x", "y"]}, "spec": {"tolerations": [{"key": "a"}]}}
    assert strategic(old, {"metadata": {"finalizers": ["y", "z"]}})["metadata"]["finalizers"] == ["x", "y", "z"]
    removed = strategic(old, {"metadata": {"$deleteFromPrimitiveList/finalizers": ["x"]}})
    assert removed["metadata"]["finalizers"] == ["y"]
    replaced = strategic(old, {"spec": {"tolerations": [{"key": "b"}]}})
    assert replaced["spec"]["tolerations"] == [{"key": "b"}]


def test_maps_can_be_replaced_and_cleared() -> None:
    old = {"metadata": {"name": "a", "labels": {"x": "1"}}}
    assert strategic(old, {"metadata": {"labels": {"$patch": "replace", "y": "2"}}})["metadata"]["labels"] == {"y": "2"}
    assert strategic(old, {"metadata": {"labels": {"$patch": "delete"}}})["metadata"]["labels"] == {}


def test_retain_keys_removes_the_other_members_of_a_union() -> None:
    old = {"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}}
    body = {"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}
    assert strategic(old, body, DEPLOYMENT)["spec"]["strategy"] == {"type": "Recreate"}


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"$patch": "explode"}, 500),
        ({"spec": {"containers": [{"image": "x"}]}}, 500),
        ({"spec": {"containers": ["x"]}}, 500),
        ({"spec": {"$retainKeys": "type"}}, 400),
        ({"spec": {"$retainKeys": ["a"], "b": 1}}, 400),
        ({"spec": {"$setElementOrder/containers": 1}}, 400),
        ({"metadata": {"$deleteFromPrimitiveList/finalizers": 1}}, 400),
    ],
)
def test_a_malformed_strategic_patch_is_refused(body: Json, code: int) -> None:
    with pytest.raises(StatusError) as refused:
        strategic(TWO, body)
    assert refused.value.code == code


names = st.sampled_from("abc")
container_lists = st.lists(
    st.fixed_dictionaries(
        {"name": names},
        optional={
            "image": st.sampled_from("xy"),
            "args": st.lists(st.sampled_from("xy"), max_size=2),
            "ports": st.lists(st.fixed_dictionaries({"containerPort": st.integers(1, 3)}), max_size=2, unique_by=str),
        },
    ),
    max_size=3,
    unique_by=lambda one: str(one["name"]),
)


@settings(max_examples=200, deadline=None)
@given(old=container_lists, new=container_lists, labels=st.dictionaries(names, st.none() | st.sampled_from("xy")))
def test_a_strategic_patch_is_idempotent(old: list[Json], new: list[Json], labels: Json) -> None:
    body = {"metadata": {"labels": labels}, "spec": {"containers": new}}
    once = strategic(pod(*old), body)
    assert strategic(once, body) == once
    assert {one["name"] for one in once["spec"]["containers"]} == {one["name"] for one in (*old, *new)}


# -- server-side apply


def deployment(**spec: Any) -> Json:
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec}


def applied(old: Json | None, body: Json, manager: str = "me", **more: Any) -> Json:
    return patched(APPLY_PATCH, old, body, DEPLOYMENT, field_manager=manager, **more)


def template(*containers: Json) -> Json:
    return {"spec": {"containers": list(containers)}}


def test_apply_creates_an_object_and_records_field_ownership() -> None:
    made = applied(None, deployment(replicas=2, template=template({"name": "a", "image": "1"})))
    [record] = made["metadata"]["managedFields"]
    assert (record["manager"], record["operation"], record["apiVersion"]) == ("me", "Apply", "apps/v1")
    containers: Json = {'k:{"name":"a"}': {".": {}, "f:image": {}, "f:name": {}}}
    template_fields = {"f:spec": {"f:containers": containers}}
    assert record["fieldsV1"] == {"f:spec": {"f:replicas": {}, "f:template": template_fields}}


def test_apply_keeps_fields_of_others_and_removes_fields_that_its_manager_dropped() -> None:
    first = applied(None, deployment(replicas=2, paused=True, template=template({"name": "a"}, {"name": "b"})))
    first["spec"]["minReadySeconds"] = 5
    first["spec"]["template"]["spec"]["containers"][1]["image"] = "defaulted"
    first["metadata"]["labels"] = {"theirs": "1"}
    second = applied(first, deployment(replicas=3, template=template({"name": "a", "image": "1"})))
    assert second["spec"]["replicas"] == 3
    assert "paused" not in second["spec"]
    assert second["spec"]["minReadySeconds"] == 5
    assert second["spec"]["template"]["spec"]["containers"] == [{"name": "a", "image": "1"}]
    assert second["metadata"]["labels"] == {"theirs": "1"}


def test_applying_the_same_configuration_again_changes_nothing() -> None:
    body = deployment(replicas=2, template=template({"name": "a"}))
    once = applied(None, body)
    assert applied(once, body) == once


def test_two_managers_conflict_only_over_different_values() -> None:
    first = applied(None, deployment(replicas=2))
    shared = applied(first, deployment(replicas=2, paused=True), "other")
    assert shared["spec"] == {"replicas": 2, "paused": True}
    with pytest.raises(StatusError) as refused:
        applied(first, deployment(replicas=3), "other")
    assert (refused.value.code, refused.value.reason) == (409, "Conflict")
    assert refused.value.message == 'Apply failed with 1 conflict: conflict with "me": .spec.replicas'
    assert refused.value.details["causes"][0]["reason"] == "FieldManagerConflict"
    forced = applied(first, deployment(replicas=3), "other", force=True)
    assert forced["spec"]["replicas"] == 3
    assert [one["manager"] for one in forced["metadata"]["managedFields"]] == ["other"]
    # A field that another manager still applies stays when one manager drops it.
    assert applied(shared, deployment(paused=False), "me", force=True)["spec"] == {"replicas": 2, "paused": False}


def test_an_equal_quantity_in_another_format_is_no_conflict() -> None:
    one = {"name": "a", "resources": {"limits": {"cpu": "1", "memory": "1536Mi"}}}
    first = applied(None, deployment(template=template(one)))
    other = {"name": "a", "resources": {"limits": {"cpu": 1, "memory": "1.5Gi"}}}
    assert applied(first, deployment(template=template(other)), "other")


def test_items_with_defaulted_keys_are_the_same_item() -> None:
    stored = {"name": "a", "ports": [{"containerPort": 80, "protocol": "TCP", "name": "x"}]}
    old = deployment(template=template(stored))
    made = applied(old, deployment(template=template({"name": "a", "ports": [{"containerPort": 80, "name": "y"}]})))
    ports = made["spec"]["template"]["spec"]["containers"][0]["ports"]
    assert ports == [{"containerPort": 80, "protocol": "TCP", "name": "y"}]


def test_atomic_lists_are_replaced() -> None:
    old = deployment(template=template({"name": "a", "args": ["x"]}))
    made = applied(old, deployment(template=template({"name": "a", "args": ["y"]})))
    assert made["spec"]["template"]["spec"]["containers"] == [{"name": "a", "args": ["y"]}]


def test_status_and_spec_of_a_manager_are_recorded_separately() -> None:
    first = applied(None, deployment(replicas=2))
    status = {**deployment(), "status": {"observedGeneration": 1}}
    second = applied(first, status, subresource="status")
    assert second["spec"] == {"replicas": 2}
    assert len(second["metadata"]["managedFields"]) == 2


@pytest.mark.parametrize(
    ("body", "manager"),
    [
        (deployment(), ""),
        ({"metadata": {"name": "d"}}, "me"),
        ({**deployment(), "kind": "Pod"}, "me"),
        ([], "me"),
        ({**deployment(), "metadata": {"managedFields": [{}]}}, "me"),
    ],
)
def test_an_incomplete_apply_is_refused(body: Any, manager: str) -> None:
    with pytest.raises(StatusError) as refused:
        patched(APPLY_PATCH, None, body, DEPLOYMENT, field_manager=manager)
    assert refused.value.code in (400, 422)


def test_an_apply_body_may_be_yaml() -> None:
    meta = b"metadata: {name: d, annotations: {at: 2025-01-01}}\n"
    body = b"apiVersion: apps/v1\nkind: Deployment\n" + meta + b"spec: {replicas: 2}\n"
    made = apply_patch(PatchRequest(APPLY_PATCH, body, "me"), None, DEPLOYMENT, SCHEMAS)
    assert made["spec"]["replicas"] == 2
    assert made["metadata"]["annotations"] == {"at": "2025-01-01"}


configurations = st.fixed_dictionaries(
    {}, optional={"replicas": st.integers(0, 2), "paused": st.booleans(), "template": container_lists.map(
        lambda containers: template(*containers))}
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(first=configurations, second=configurations)
def test_the_only_manager_of_an_object_determines_its_fields(first: Json, second: Json) -> None:
    made = applied(applied(None, deployment(**first)), deployment(**second))
    assert _plain(made.get("spec", {})) == _plain(second)


def _plain(value: Any) -> Any:
    """Without empty values, and with list items keyed by name."""
    if isinstance(value, dict):
        return {k: p for k, v in value.items() if (p := _plain(v)) not in ({}, [], None)}
    if isinstance(value, list):
        return sorted((_plain(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))
    return value


def test_half_a_surrogate_pair_becomes_the_replacement_character() -> None:
    assert jsontext.load(b'{"a\\ud800":["\\ud83d\\ude80","x\\udfff"]}') == {"a\ufffd": ["\U0001f680", "x\ufffd"]}
