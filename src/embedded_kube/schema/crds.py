"""CustomResourceDefinitions: the kinds that they define, their validation, and their status."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from embedded_kube.errors import Cause
from embedded_kube.registry.kinds import KindTable, PrinterColumn, ServedKind
from embedded_kube.schema.decoding import FieldPath, format_path
from embedded_kube.schema.structural import StructuralSchema
from gpu_scheduler.k8s.objects import Json

_AGE = PrinterColumn("Age", ".metadata.creationTimestamp", "date")
_NAME = PrinterColumn("Name", ".metadata.name", "name")


def kinds_of(crd: Json) -> list[ServedKind]:
    """A kind for every served version, the preferred version first."""
    spec = crd["spec"]
    names = spec["names"]
    served = [version for version in spec["versions"] if version.get("served")]
    served.sort(key=lambda version: version_rank(version["name"]), reverse=True)
    return [
        ServedKind(
            group=spec["group"],
            version=version["name"],
            kind=names["kind"],
            plural=names["plural"],
            namespaced=spec["scope"] == "Namespaced",
            short_names=tuple(names.get("shortNames", ())),
            categories=tuple(names.get("categories", ())),
            subresources=tuple(name for name in ("status", "scale") if name in version.get("subresources", {})),
            columns=(_NAME, *_columns(version)),
            singular=names.get("singular") or names["kind"].lower(),
            scale=dict(version.get("subresources", {}).get("scale", {})),
            crd_schema=version["schema"]["openAPIV3Schema"],
            selectable=tuple(field["jsonPath"] for field in version.get("selectableFields", ())),
        )
        for version in served
    ]


def version_rank(name: str) -> tuple[int, int, int]:
    """The priority of a version name: v2 over v1 over v1beta2 over v1alpha1 over any other name."""
    digits = "".join(letter if letter.isdigit() else " " for letter in name).split()
    stage = 3 if name[1:].isdigit() else 2 if "beta" in name else 1 if "alpha" in name else 0
    if not name.startswith("v") or not digits:
        return (0, 0, 0)
    return (stage, int(digits[0]), int(digits[1]) if len(digits) > 1 else 0)


def _columns(version: Json) -> Iterator[PrinterColumn]:
    written = version.get("additionalPrinterColumns")
    if not written:
        yield _AGE
        return
    for column in written:
        wide = column.get("priority", 0) > 0
        yield PrinterColumn(column["name"], column["jsonPath"], column["type"], wide, column.get("description", ""))


def accept(crd: Json, kinds: KindTable, now: str) -> Json:
    """The status of a CRD: its names are accepted unless another kind of the group uses them."""
    spec = crd["spec"]
    conflicts = list(_conflicts(spec, kinds))
    status: Json = dict(crd.get("status", {}))
    stored = [name for name in status.get("storedVersions", []) if name in {v["name"] for v in spec["versions"]}]
    storage = next(version["name"] for version in spec["versions"] if version.get("storage"))
    status["storedVersions"] = stored if storage in stored else [*stored, storage]
    if not conflicts:
        status["acceptedNames"] = spec["names"]
    status.setdefault("acceptedNames", {"plural": "", "kind": ""})
    results = [
        ("NamesAccepted", not conflicts, "NoConflicts", "no conflicts found"),
        ("Established", not conflicts, "InitialNamesAccepted", "the initial names have been accepted"),
    ]
    if conflicts:
        results = [
            ("NamesAccepted", False, "NameConflict", "; ".join(conflicts)),
            ("Established", False, "NotAccepted", "not all names are accepted"),
        ]
    before = {condition["type"]: condition for condition in status.get("conditions", [])}
    conditions = []
    for kind, holds, reason, message in results:
        condition = {"type": kind, "status": str(holds), "reason": reason, "message": message}
        same = before.get(kind, {}).get("status") == str(holds)
        conditions.append({**condition, "lastTransitionTime": before[kind]["lastTransitionTime"] if same else now})
    set_here = {"NamesAccepted", "Established"}
    status["conditions"] = [*conditions, *(c for name, c in before.items() if name not in set_here)]
    return status


def _conflicts(spec: Json, kinds: KindTable) -> Iterator[str]:
    names = spec["names"]
    others = [kind for kind in kinds if kind.group == spec["group"] and kind.plural != names["plural"]]
    taken = {name for kind in others for name in (kind.plural, kind.singular, *kind.short_names) if name}
    for name in (names["plural"], names.get("singular", ""), *names.get("shortNames", ())):
        if name in taken:
            yield f'"{name}" is already in use'
    if names["kind"] in {kind.kind for kind in others}:
        yield f'"{names["kind"]}" is already in use'


# -- validation of CRDs


def crd_causes(obj: Json, old: Json | None) -> list[Cause]:
    """The causes that make a CRD invalid. Only rules that matter for its objects are checked."""
    spec = obj.get("spec", {})
    names, group = spec.get("names", {}), spec.get("group", "")
    causes = []
    name = obj.get("metadata", {}).get("name", "")
    if name != f"{names.get('plural', '')}.{group}":
        text = f'Invalid value: "{name}": must be spec.names.plural+"."+spec.group'
        causes.append(Cause("metadata.name", text))
    versions = spec.get("versions", [])
    if sum(1 for version in versions if version.get("storage")) != 1:
        text = "Invalid value: must have exactly one version marked as storage version"
        causes.append(Cause("spec.versions", text))
    seen: set[str] = set()
    for index, version in enumerate(versions):
        path: FieldPath = (((None, "spec"), "versions"), index)
        if version.get("name") in seen:
            text = f'Duplicate value: "{version["name"]}"'
            causes.append(Cause(format_path((path, "name")), text, "FieldValueDuplicate"))
        seen.add(version.get("name", ""))
        causes += _version_causes(version, path)
    for name, was in _changed_immutable(spec, old):
        causes.append(Cause(name, f'Invalid value: "{was}": field is immutable'))
    return causes


def _changed_immutable(spec: Json, old: Json | None) -> Iterator[tuple[str, Any]]:
    if old is None:
        return
    for name in ("group", "scope"):
        if spec.get(name) != old["spec"].get(name):
            yield f"spec.{name}", spec.get(name)
    for name in ("plural", "kind"):
        if spec.get("names", {}).get(name) != old["spec"]["names"].get(name):
            yield f"spec.names.{name}", spec.get("names", {}).get(name)


def _version_causes(version: Json, path: FieldPath) -> list[Cause]:
    schema = version.get("schema", {}).get("openAPIV3Schema")
    where: FieldPath = ((path, "schema"), "openAPIV3Schema")
    if not schema:
        return [Cause(format_path(where), "Required value: schemas are required", "FieldValueRequired")]
    causes = []
    if schema.get("type") != "object":
        text = f'Invalid value: "{schema.get("type", "")}": must be object at the root'
        causes.append(Cause(format_path((where, "type")), text))
    causes += _structural_causes(schema, where, "")
    causes += _path_causes(version, path)
    if schema.get("properties", {}).get("metadata", {}).get("properties", {}).keys() - {"name", "generateName"}:
        text = "Forbidden: must not specify anything other than name and generateName, but metadata is implicitly"
        place = format_path((where, "properties[metadata]"))
        causes.append(Cause(place, f"{text} specified", "FieldValueForbidden"))
    if not causes:
        try:
            StructuralSchema(schema)
        except ValueError as error:
            line = str(error).splitlines()[0]
            causes.append(Cause(format_path(where), f"Invalid value: the schema cannot be used: {line}"))
    return causes


def _path_causes(version: Json, path: FieldPath) -> Iterator[Cause]:
    """Checks the JSON paths of printer columns and of the scale subresource."""
    paths: list[tuple[FieldPath, str, str]] = [
        (((path, "additionalPrinterColumns"), index), "jsonPath", column.get("jsonPath", ""))
        for index, column in enumerate(version.get("additionalPrinterColumns", ()))
    ]
    scale = version.get("subresources", {}).get("scale", {})
    paths += [(((path, "subresources"), "scale"), name, text) for name, text in scale.items()]
    for where, name, text in paths:
        if text and not text.startswith("."):
            why = f'Invalid value: "{text}": must be a simple json path starting with .'
            yield Cause(format_path((where, name)), why)


def _structural_causes(schema: Json, path: FieldPath, place: str) -> Iterator[Cause]:
    """The rules of structural schemas: every field has a type, and some keywords are forbidden."""
    untyped = schema.get("x-kubernetes-int-or-string") or schema.get("x-kubernetes-preserve-unknown-fields")
    if place and not schema.get("type") and not untyped:
        text = f"Required value: must not be empty for specified {place}"
        yield Cause(format_path((path, "type")), text, "FieldValueRequired")
    if schema.get("properties") and schema.get("additionalProperties"):
        text = "Forbidden: additionalProperties and properties are mutual exclusive"
        yield Cause(format_path((path, "additionalProperties")), text, "FieldValueForbidden")
    for keyword, why in _FORBIDDEN.items():
        if schema.get(keyword):
            yield Cause(format_path((path, keyword)), f"Forbidden: {why}", "FieldValueForbidden")
    if schema.get("type") == "array" and not isinstance(schema.get("items"), dict):
        yield Cause(format_path((path, "items")), "Required value: must be specified", "FieldValueRequired")
    if schema.get("x-kubernetes-list-type") == "map" and not schema.get("x-kubernetes-list-map-keys"):
        text = "Required value: must not be empty if x-kubernetes-list-type is map"
        yield Cause(format_path((path, "x-kubernetes-list-map-keys")), text, "FieldValueRequired")
    items = schema.get("items") or {}
    of_objects = items.get("type") == "object"
    if schema.get("x-kubernetes-list-type") == "set" and of_objects and "x-kubernetes-map-type" not in items:
        text = "Invalid value: null: must be atomic as item of a list with x-kubernetes-list-type=set"
        yield Cause(format_path(((path, "items"), "x-kubernetes-map-type")), text)
    if "default" in schema and not untyped:
        yield from _default_causes(schema, path)
    for name, part in schema.get("properties", {}).items():
        yield from _structural_causes(part, (path, f"properties[{name}]"), "object fields")
    for keyword, where in (("items", "array items"), ("additionalProperties", "object fields")):
        if isinstance(schema.get(keyword), dict):
            yield from _structural_causes(schema[keyword], (path, keyword), where)


def _default_causes(schema: Json, path: FieldPath) -> Iterator[Cause]:
    for cause in StructuralSchema({**schema, "default": None, "nullable": schema.get("nullable", False)}).validate(
        schema["default"]
    ):
        below = f".{cause.field}" if cause.field else ""
        yield Cause(format_path((path, "default")) + below, cause.message, cause.reason)


_FORBIDDEN = {
    "$ref": "$ref is not supported",
    "definitions": "definitions is not supported",
    "dependencies": "dependencies is not supported",
    "patternProperties": "patternProperties is not supported",
    "uniqueItems": "uniqueItems cannot be set to true since the runtime complexity becomes quadratic",
}
