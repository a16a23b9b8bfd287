"""OpenAPI documents, as kubectl reads them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from embedded_kube.registry.builtin_kinds import VERSIONS, builtin_kinds
from embedded_kube.registry.kinds import KindTable, ServedKind
from embedded_kube.schema.schemas import Schemas

GVK = "x-kubernetes-group-version-kind"
CUSTOM = ServedKind(
    "x.io",
    "v1",
    "Foo",
    "foos",
    crd_schema={"type": "object", "properties": {"spec": {"type": "object", "description": "What."}}},
)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_document_of_the_index_describes_its_kinds_completely(version: str) -> None:
    schemas, kinds = Schemas(version), KindTable((*builtin_kinds(version), CUSTOM))
    index = schemas.openapi_v3_index(kinds)
    assert {"api/v1", "apis/apps/v1", "apis/x.io/v1"} <= set(index["paths"])
    for path, entry in index["paths"].items():
        assert entry["serverRelativeURL"].startswith(f"/openapi/v3/{path}?hash=")
        document = schemas.openapi_v3(path, kinds)
        assert document is not None
        described = document["components"]["schemas"]
        named = {
            about["kind"] for one in described.values() for about in one.get("x-kubernetes-group-version-kind", [])
        }
        served = {kind.kind for kind in kinds if kind.api_version == path.partition("/")[2]}
        assert served <= named
        for reference in _references(document):
            assert reference.removeprefix("#/components/schemas/") in described
        json.dumps(document)


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [found for item in value.values() for found in _references(item)]
    return [found for item in value for found in _references(item)] if isinstance(value, list) else []


def test_a_group_version_that_is_not_served_has_no_document() -> None:
    assert Schemas("1.35").openapi_v3("apis/none/v1", KindTable(builtin_kinds("1.35"))) is None


def test_a_document_has_patch_strategies_and_the_field_validation_parameter() -> None:
    kinds = KindTable(builtin_kinds("1.35"))
    document = Schemas("1.35").openapi_v3("api/v1", kinds)
    assert document is not None
    containers = document["components"]["schemas"]["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"]
    assert containers["x-kubernetes-patch-merge-key"] == "name"
    assert containers["x-kubernetes-patch-strategy"] == "merge"
    assert containers["x-kubernetes-list-map-keys"] == ["name"]
    patch = document["paths"]["/api/v1/namespaces/{namespace}/pods/{name}"]["patch"]
    assert "fieldValidation" in [one["name"] for one in patch["parameters"]]
    assert patch[GVK] == {"group": "", "version": "v1", "kind": "Pod"}


def test_the_hash_of_a_document_changes_with_a_crd() -> None:
    other = ServedKind("x.io", "v1", "Foo", "foos", crd_schema={"type": "object"})
    schemas = Schemas("1.35")
    first, second = (schemas.openapi_v3_index(KindTable((one,)))["paths"]["apis/x.io/v1"] for one in (CUSTOM, other))
    assert first != second
