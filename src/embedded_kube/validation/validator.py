"""Validation of whole objects: the schema and the rule tables compiled into one check per type.

FIELDS (field_rules.py) checks single fields. STRUCTS (pod_rules.py, kind_rules.py, ...) checks fields of a struct that
depend on each other. Required fields come from the schema.
"""

from __future__ import annotations

from typing import Any

from embedded_kube.errors import Cause
from embedded_kube.registry.kinds import ServedKind
from embedded_kube.schema.decoding import FieldPath
from embedded_kube.schema.type_schema import TypeSchema, TypeTable
from embedded_kube.validation import kind_rules, other_kind_rules, pod_part_rules, pod_rules
from embedded_kube.validation.constraints import FieldCheck, add_required, each
from embedded_kube.validation.field_rules import FIELDS
from embedded_kube.validation.metadata_rules import metadata_causes
from embedded_kube.validation.update_rules import UPDATES
from gpu_scheduler.k8s.objects import Json

STRUCTS: dict[str, FieldCheck] = {
    "core.v1.PodSpec": pod_rules.pod_spec,
    "core.v1.Container": pod_rules.container,
    "core.v1.ResourceRequirements": pod_rules.resources,
    "core.v1.Probe": pod_rules.probe,
    "core.v1.Lifecycle": pod_rules.lifecycle,
    "core.v1.EnvVar": pod_rules.env,
    "core.v1.Volume": pod_rules.volume,
    "core.v1.Toleration": pod_rules.toleration,
    **pod_part_rules.STRUCTS,
    **kind_rules.STRUCTS,
    **other_kind_rules.STRUCTS,
}

# Required by the schema, but accepted if missing: Go decodes them as empty, and no validation rejects that.
_MAY_BE_EMPTY = frozenset(
    (
        "core.v1.HTTPHeader.value",
        "core.v1.LocalObjectReference.name",
        "core.v1.Event.metadata",
        "core.v1.Event.involvedObject",
        "discovery.v1.EndpointSlice.endpoints",
        "storage.v1.CSINodeSpec.drivers",
        "authentication.v1.TokenRequestSpec.audiences",
        "rbac.v1.ClusterRole.rules",
        "rbac.v1.Role.rules",
        "scheduling.v1beta1.WorkloadSpec.podGroupTemplates",
        "apiextensions.v1.WebhookConversion.conversionReviewVersions",
    )
)
_NEVER_EMPTY = frozenset(("string", "struct", "list", "map"))
# Types whose required fields other checks report, with other messages.
_REPORTED_ELSEWHERE = frozenset(("meta.v1.OwnerReference", "meta.v1.ManagedFieldsEntry", "core.v1.Taint"))


class ObjectValidator:
    """Validates objects of one Kubernetes version."""

    def __init__(self, types: TypeTable, version: str) -> None:
        self._version = version
        self._types = types
        self._checks: dict[str, FieldCheck | None] = {}
        self._compiling: set[str] = set()

    def metadata_causes(self, kind: ServedKind, obj: Json, old: Json | None) -> list[Cause]:
        """The causes that make an object's metadata invalid."""
        return metadata_causes(kind, obj, old, self._version)

    def causes(self, kind: ServedKind, obj: Json, old: Json | None, schema: TypeSchema) -> list[Cause]:
        """The causes that make an object invalid."""
        causes = metadata_causes(kind, obj, old, self._version)
        if kind.resource == "pods":
            pod_rules.pod_status(obj, old, causes)
        elif kind.group == "apps" and old is not None:
            kind_rules.replica_counts(obj.get("status", {}), causes)
        if old is not None and _content(obj) == _content(old):
            return causes
        check = self._struct(schema) if schema.name else None
        if check is not None:
            check(obj, None, causes)
        if old is None:
            if kind.resource == "jobs.batch":
                kind_rules.generated_selector(obj, causes)
            return causes
        update = UPDATES.get((kind.group, kind.kind))
        if update is not None:
            update(obj, old, causes, self._version)
        return causes

    def _struct(self, schema: TypeSchema) -> FieldCheck | None:
        if schema.name in self._compiling:
            return self._recursive(schema.name)
        if schema.name not in self._checks:
            self._compiling.add(schema.name)
            self._checks[schema.name] = self._compile_struct(schema)
            self._compiling.remove(schema.name)
        return self._checks[schema.name]

    def _recursive(self, name: str) -> FieldCheck:
        """The check of a recursive type, looked up when it is called."""

        def check(value: Any, path: FieldPath, causes: list[Cause]) -> None:
            made = self._checks[name]
            if made is not None:
                made(value, path, causes)

        return check

    def _compile_struct(self, schema: TypeSchema) -> FieldCheck | None:
        rules = FIELDS.get(schema.name, {})
        # The metadata of an object is checked separately, and the status is written by controllers.
        skip = {"metadata", "status"} if "apiVersion" in schema.fields else set()
        table: dict[str, tuple[FieldCheck, ...]] = {}
        for name, part in schema.fields.items():
            checks = tuple(check for check in (rules.get(name), self._part(part)) if check is not None)
            if checks and name not in skip:
                table[name] = checks
        required = [
            name
            for name in sorted(schema.required - skip)
            if schema.fields[name].type in _NEVER_EMPTY and f"{schema.name}.{name}" not in _MAY_BE_EMPTY
        ]
        if schema.name in _REPORTED_ELSEWHERE:
            required = []
        whole = STRUCTS.get(schema.name)
        if not table and not required and whole is None:
            return None
        find = table.get

        def check(value: Any, path: FieldPath, causes: list[Cause]) -> None:
            for name in required:
                if not value.get(name):
                    # An empty struct counts as present; any other empty value as missing.
                    if value.get(name) == {} and schema.fields[name].type != "map":
                        continue
                    add_required(causes, (path, name))
            for name, item in value.items():
                for one in find(name, ()) if item is not None else ():
                    one(item, (path, name), causes)
            if whole is not None:
                whole(value, path, causes)

        return check

    def _part(self, schema: TypeSchema) -> FieldCheck | None:
        if schema.type == "struct":
            return self._struct(schema)
        if schema.item is None:
            return None
        item = self._part(schema.item)
        if item is None:
            return None
        if schema.type == "list":
            return each(item)

        def check_values(value: Any, path: FieldPath, causes: list[Cause]) -> None:
            for name, part in value.items():
                item(part, (path, name), causes)

        return check_values


def _content(obj: Json) -> Json:
    return {name: value for name, value in obj.items() if name not in ("metadata", "status")}
