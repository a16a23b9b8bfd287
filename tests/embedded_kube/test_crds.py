"""CustomResourceDefinitions: the kinds that they define, and objects of these kinds."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embedded_kube.errors import StatusError
from embedded_kube.registry.builtin_kinds import builtin_kinds
from embedded_kube.registry.kinds import KindTable, ServedKind
from embedded_kube.schema.crds import accept, kinds_of, version_rank
from embedded_kube.schema.schemas import Schemas
from gpu_scheduler.gangs.definitions import load_definitions, load_gang_definitions
from gpu_scheduler.k8s.objects import Json
from tests.embedded_kube.api_harness import find_kind

SCHEMAS = Schemas("1.35")
NOW = "2025-01-01T00:00:00Z"
SPEC: Json = {
    "type": "object",
    "required": ["size"],
    "properties": {
        "size": {"type": "integer", "minimum": 1, "maximum": 8},
        "mode": {"type": "string", "enum": ["hard", "soft"], "default": "hard"},
        "name": {"type": "string", "pattern": "^[a-z]+$", "minLength": 2, "maxLength": 5},
        "amount": {"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}]},
        "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
        "map": {"type": "object", "additionalProperties": {"type": "integer"}},
        "maybe": {"type": "string", "nullable": True},
        "deep": {"type": "object", "default": {}, "properties": {"x": {"type": "integer", "default": 7}}},
        "items": {
            "type": "array",
            "maxItems": 3,
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["name"],
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {"name": {"type": "string"}, "value": {"type": "integer", "default": 0}},
            },
        },
        "template": {
            "type": "object",
            "x-kubernetes-embedded-resource": True,
            "properties": {"spec": {"type": "object"}},
        },
    },
}


def crd(**spec: Any) -> Json:
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": SPEC, "status": {"type": "object"}}}},
        "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.n"}},
        "additionalPrinterColumns": [
            {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
            {"name": "Since", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
            {"name": "Mode", "type": "string", "jsonPath": ".spec.mode", "priority": 1, "description": "How."},
        ],
    }
    names = {"kind": "Foo", "plural": "foos", "shortNames": ["fo"], "categories": ["all"]}
    base = {"group": "x.io", "scope": "Namespaced", "names": names, "versions": [version]}
    return {"metadata": {"name": "foos.x.io"}, "spec": {**copy.deepcopy(base), **spec}}


def definition(found: Json, old: Json | None = None) -> list[str]:
    """The causes that make a CRD invalid, as lines."""
    kind = find_kind(KindTable(builtin_kinds("1.35")), "apiextensions.k8s.io/v1", "CustomResourceDefinition")
    try:
        SCHEMAS.decode(kind, found, "Strict")
        SCHEMAS.validate(kind, found, old)
    except StatusError as error:
        return [f"{one['field']}: {one['message']}" for one in error.details.get("causes", [])] or [error.message]
    return []


FOO = kinds_of(crd())[0]


def foo(**spec: Any) -> Json:
    return {"apiVersion": "x.io/v1", "kind": "Foo", "metadata": {"name": "a"}, "spec": {"size": 1, **spec}}


def causes(found: Json, kind: ServedKind = FOO) -> list[str]:
    SCHEMAS.decode(kind, found, "Ignore")
    try:
        SCHEMAS.validate(kind, found, None)
    except StatusError as error:
        return [f"{one['field']}: {one['message']}" for one in error.details["causes"]]
    return []


def test_a_crd_defines_a_kind_for_every_served_version() -> None:
    more = crd()
    for name, served in (("v1alpha1", True), ("v2", False), ("v1beta1", True)):
        version = {**copy.deepcopy(more["spec"]["versions"][0]), "name": name, "served": served, "storage": False}
        del version["additionalPrinterColumns"]
        more["spec"]["versions"].append(version)
    assert definition(more) == []
    kinds = kinds_of(more)
    assert [kind.version for kind in kinds] == ["v1", "v1beta1", "v1alpha1"]
    kind = kinds[0]
    assert (kind.kind, kind.plural, kind.singular, kind.namespaced) == ("Foo", "foos", "foo", True)
    assert (kind.short_names, kind.categories, kind.subresources) == (("fo",), ("all",), ("status", "scale"))
    assert kind.scale == {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.n"}
    assert [(one.name, one.type, one.wide) for one in kind.columns] == [
        ("Name", "name", False),
        ("Size", "integer", False),
        ("Since", "date", False),
        ("Mode", "string", True),
    ]
    assert [one.name for one in kinds[1].columns] == ["Name", "Age"]


def test_versions_are_sorted_by_kubernetes_version_priority() -> None:
    names = ["foo1", "v1alpha1", "v10", "v2beta1", "v2", "v1beta2", "v11alpha2", "v1"]
    expected = ["v10", "v2", "v1", "v2beta1", "v1beta2", "v11alpha2", "v1alpha1", "foo1"]
    assert sorted(names, key=version_rank, reverse=True) == expected


def test_the_crds_of_a_new_cluster_are_valid() -> None:
    for found in (*load_definitions(), *load_gang_definitions()):
        assert definition(found) == []
        assert kinds_of(found)


def test_a_crd_is_established_unless_its_names_conflict() -> None:
    kinds = KindTable(builtin_kinds("1.35"))
    status = accept(crd(), kinds, NOW)
    conditions = {one["type"]: one["status"] for one in status["conditions"]}
    assert conditions == {"NamesAccepted": "True", "Established": "True"}
    assert status["storedVersions"] == ["v1"]
    assert status["acceptedNames"]["plural"] == "foos"
    again = accept({**crd(), "status": status}, kinds, "2026-01-01T00:00:00Z")
    assert again == status
    kinds.put(ServedKind("x.io", "v1", "Bar", "bars", short_names=("fo",)))
    status = accept(crd(), kinds, NOW)
    assert {one["type"]: one["status"] for one in status["conditions"]}["Established"] == "False"
    assert '"fo" is already in use' in status["conditions"][0]["message"]


def with_schema(schema: Json) -> Json:
    made = crd()
    made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"] = schema
    return made


def without(found: Json, *path: Any) -> Json:
    part = found
    for step in path[:-1]:
        part = part[step]
    del part[path[-1]]
    return found


TEXT = {"type": "string"}
PLACE = "spec.versions[0].schema.openAPIV3Schema.properties[spec]"
REFUSED: list[tuple[Json, str]] = [
    ({**crd(), "metadata": {"name": "bars.x.io"}}, "metadata.name: Invalid value: \"bars.x.io\": must be spec.names."),
    (crd(scope="World"), 'spec.scope: Unsupported value: "World": supported values: "Cluster", "Namespaced"'),
    (crd(versions=[]), "spec.versions: Required value"),
    (without(crd(), "spec", "versions", 0, "schema"), "spec.versions[0].schema.openAPIV3Schema: Required value"),
    (with_schema({"properties": {}}), f"{PLACE}.type: Required value: must not be empty for specified object fields"),
    (with_schema({"type": "array"}), f"{PLACE}.items: Required value"),
    (with_schema({"type": "array", "items": {}}), f"{PLACE}.items.type: Required value: must not be empty for"),
    (with_schema({"type": "string", "$ref": "#/x"}), f"{PLACE}.$ref: Forbidden: $ref is not supported"),
    (
        with_schema({"type": "object", "properties": {"a": TEXT}, "additionalProperties": TEXT}),
        f"{PLACE}.additionalProperties: Forbidden: additionalProperties and properties are mutual exclusive",
    ),
    (with_schema({"type": "integer", "default": "x"}), f"{PLACE}.default: Invalid value: \"string\""),
    (
        with_schema({"type": "array", "items": {"type": "object"}, "x-kubernetes-list-type": "map"}),
        f"{PLACE}.x-kubernetes-list-map-keys: Required value",
    ),
    (with_schema({**TEXT, "pattern": "("}), "spec.versions[0].schema.openAPIV3Schema: Invalid value: the sch"),
]  # fmt: skip


@pytest.mark.parametrize(("found", "expected"), REFUSED)
def test_an_invalid_crd_is_refused(found: Json, expected: str) -> None:
    lines = definition(copy.deepcopy(found))
    assert any(line.startswith(expected) for line in lines), lines


def test_a_crd_with_two_storage_versions_is_refused() -> None:
    found = crd()
    found["spec"]["versions"].append({**copy.deepcopy(found["spec"]["versions"][0]), "name": "v2"})
    assert "must have exactly one version marked as storage version" in definition(found)[0]


def test_the_names_of_a_crd_are_immutable() -> None:
    old = crd()
    assert definition(old) == []
    assert definition(crd(scope="Cluster"), old) == ['spec.scope: Invalid value: "Cluster": field is immutable']


def test_unknown_fields_are_pruned_and_defaults_set() -> None:
    found = foo(
        junk=1,
        free={"any": [1]},
        map={"a": 1},
        maybe=None,
        mode=None,
        items=[{"name": "a", "more": 1}],
        template={"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "junk": 1},
    )
    found["extra"] = 1
    warnings = SCHEMAS.decode(FOO, found, "Warn")
    assert sorted(warnings) == [
        'unknown field "extra"',
        'unknown field "spec.items[0].more"',
        'unknown field "spec.junk"',
        'unknown field "spec.template.junk"',
    ]
    assert found["spec"] == {
        "size": 1,
        "mode": "hard",
        "free": {"any": [1]},
        "map": {"a": 1},
        "maybe": None,
        "deep": {"x": 7},
        "items": [{"name": "a", "value": 0}],
        "template": {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}},
    }
    with pytest.raises(StatusError, match=r'Foo in version "v1" cannot be handled as a Foo: strict decoding error'):
        SCHEMAS.decode(FOO, foo(junk=1), "Strict")


def test_objects_do_not_share_default_values() -> None:
    first, second = foo(), foo()
    SCHEMAS.decode(FOO, first, "Strict")
    first["spec"]["deep"]["x"] = 1
    SCHEMAS.decode(FOO, second, "Strict")
    assert second["spec"]["deep"] == {"x": 7}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (foo(), []),
        (foo(amount=3), []),
        (foo(amount="3"), []),
        ({"metadata": {"name": "a"}, "spec": {}}, ["spec.size: Required value"]),
        (foo(size=0), ["spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1"]),
        (foo(size=9), ["spec.size: Invalid value: 9: spec.size in body should be less than or equal to 8"]),
        (foo(size="1"), ['spec.size: Invalid value: "string": spec.size in body must be of type integer: "string"']),
        (foo(mode="x"), ['spec.mode: Unsupported value: "x": supported values: "hard", "soft"']),
        (foo(name="A1"), ["spec.name: Invalid value: \"A1\": spec.name in body should match '^[a-z]+$'"]),
        (foo(name="a"), ['spec.name: Invalid value: "a": spec.name in body should be at least 2 chars long']),
        (foo(name="abcdef"), ["spec.name: Too long: may not be more than 5 bytes"]),
        (foo(items=[{"name": "a"}, {"name": "a"}]), ['spec.items[1]: Duplicate value: {"name":"a"}']),
        (foo(items=[{"name": str(i)} for i in range(4)]), ["spec.items: Too many: 4: must have at most 3 items"]),
        (foo(items=[{}]), ["spec.items[0].name: Required value"]),
        (foo(map={"a": "b"}), ['spec.map.a: Invalid value: "string": spec.map.a in body must be of type integer']),
        ({**foo(), "metadata": {"name": "A"}}, ['metadata.name: Invalid value: "A": a lowercase RFC 1123 subdomain']),
    ],
)
def test_objects_are_validated_against_their_schema(found: Json, expected: list[str]) -> None:
    lines = causes(found)
    assert len(lines) == len(expected), lines
    for line, start in zip(lines, expected, strict=True):
        assert line.startswith(start)


def test_a_changed_schema_applies_at_once() -> None:
    assert causes(foo(size=9))
    wider = crd()
    wider["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["size"] = {
        "type": "integer"
    }
    assert causes(foo(size=9), kinds_of(wider)[0]) == []
    assert causes(foo(size=9))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*SPEC["properties"], "x"]), inner),
    max_leaves=15,
)


@settings(max_examples=150, deadline=None)
@given(spec=json_values)
def test_pruning_and_defaulting_is_idempotent(spec: Any) -> None:
    found = {"metadata": {"name": "a"}, "spec": spec}
    SCHEMAS.decode(FOO, found, "Ignore")
    once = copy.deepcopy(found)
    assert SCHEMAS.decode(FOO, found, "Strict") == []
    assert found == once
    causes(found)
