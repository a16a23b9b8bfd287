"""Validation: rules by type, so a pod template obeys what a pod obeys, and rules of whole kinds.

FIELDS (field_rules.py) says what single fields may hold, STRUCTS what the fields of a struct mean together
(pod_rules.py, kind_rules.py). That a required field is missing follows from the schema.
"""

from __future__ import annotations

from typing import Any

from embedded_kube.errors import Cause
from embedded_kube.schema.decoding import Path
from embedded_kube.schema.shapes import Shape, Types
from embedded_kube.storage.kinds import Kind
from embedded_kube.validation import kind_rules, pod_part_rules, pod_rules, small_rules
from embedded_kube.validation.constraints import Check, add_required, each
from embedded_kube.validation.field_rules import FIELDS
from embedded_kube.validation.metadata_rules import metadata_causes
from embedded_kube.validation.updates import UPDATES

Json = dict[str, Any]

STRUCTS: dict[str, Check] = {
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
    **small_rules.STRUCTS,
}

# Missing is fine here: Go reads it as empty, and nobody minds.
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
# Their parts are checked in other words.
_OWN_WORDS = frozenset(("meta.v1.OwnerReference", "meta.v1.ManagedFieldsEntry", "core.v1.Taint"))


class Rules:
    """The rules of one Kubernetes version."""

    def __init__(self, types: Types, version: str) -> None:
        self._version = version
        self._types = types
        self._checks: dict[str, Check | None] = {}
        self._making: set[str] = set()

    def metadata_causes(self, kind: Kind, found: Json, old: Json | None) -> list[Cause]:
        """What is wrong with an object's metadata."""
        return metadata_causes(kind, found, old, self._version)

    def causes(self, kind: Kind, found: Json, old: Json | None, shape: Shape) -> list[Cause]:
        """Everything that is wrong with an object."""
        causes = metadata_causes(kind, found, old, self._version)
        if kind.resource == "pods":
            pod_rules.pod_status(found, old, causes)
        elif kind.group == "apps" and old is not None:
            kind_rules.counts(found.get("status", {}), causes)
        if old is not None and _content(found) == _content(old):
            return causes
        check = self._struct(shape) if shape.name else None
        if check is not None:
            check(found, None, causes)
        if old is None:
            if kind.resource == "jobs.batch":
                kind_rules.generated_selector(found, causes)
            return causes
        update = UPDATES.get((kind.group, kind.kind))
        if update is not None:
            update(found, old, causes, self._version)
        return causes

    def _struct(self, shape: Shape) -> Check | None:
        if shape.name in self._making:
            return self._later(shape.name)
        if shape.name not in self._checks:
            self._making.add(shape.name)
            self._checks[shape.name] = self._make_struct(shape)
            self._making.remove(shape.name)
        return self._checks[shape.name]

    def _later(self, name: str) -> Check:
        """The check of a type that contains itself."""

        def check(value: Any, path: Path, causes: list[Cause]) -> None:
            made = self._checks[name]
            if made is not None:
                made(value, path, causes)

        return check

    def _make_struct(self, shape: Shape) -> Check | None:
        rules = FIELDS.get(shape.name, {})
        # An object's own metadata has rules of its own, its status is the cluster's.
        skip = {"metadata", "status"} if "apiVersion" in shape.fields else set()
        table: dict[str, tuple[Check, ...]] = {}
        for name, part in shape.fields.items():
            checks = tuple(check for check in (rules.get(name), self._part(part)) if check is not None)
            if checks and name not in skip:
                table[name] = checks
        required = [
            name
            for name in sorted(shape.required - skip)
            if shape.fields[name].type in _NEVER_EMPTY and f"{shape.name}.{name}" not in _MAY_BE_EMPTY
        ]
        if shape.name in _OWN_WORDS:
            required = []
        whole = STRUCTS.get(shape.name)
        if not table and not required and whole is None:
            return None
        find = table.get

        def check(value: Any, path: Path, causes: list[Cause]) -> None:
            for name in required:
                if not value.get(name):
                    # An empty struct is still there; everything else that is empty is missing.
                    if value.get(name) == {} and shape.fields[name].type != "map":
                        continue
                    add_required(causes, (path, name))
            for name, item in value.items():
                for one in find(name, ()) if item is not None else ():
                    one(item, (path, name), causes)
            if whole is not None:
                whole(value, path, causes)

        return check

    def _part(self, shape: Shape) -> Check | None:
        if shape.type == "struct":
            return self._struct(shape)
        if shape.item is None:
            return None
        item = self._part(shape.item)
        if item is None:
            return None
        if shape.type == "list":
            return each(item)

        def check_values(value: Any, path: Path, causes: list[Cause]) -> None:
            for name, part in value.items():
                item(part, (path, name), causes)

        return check_values


def _content(found: Json) -> Json:
    return {name: value for name, value in found.items() if name not in ("metadata", "status")}
