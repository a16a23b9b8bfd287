"""Validation of parts of a pod: volume sources, environment sources, node selectors, topology spread."""

from __future__ import annotations

import re
from typing import Any

from embedded_kube.errors import Cause
from embedded_kube.schema.decoding import FieldPath
from embedded_kube.validation.constraints import (
    FieldCheck,
    add_forbidden,
    add_invalid,
    add_required,
    add_unsupported,
    label_value,
)
from gpu_scheduler.k8s.objects import Json

_FIELDS = re.compile(
    r"metadata\.(name|namespace|uid|labels(\['.*'\])?|annotations(\['.*'\])?)|spec\.(nodeName|serviceAccountName|host"
    r"name|restartPolicy)|status\.(hostIPs?|podIPs?|phase)"
)
_RESOURCES = [f"{part}.{name}" for part in ("limits", "requests") for name in ("cpu", "ephemeral-storage", "memory")]


def needs(*names: str) -> FieldCheck:
    """Requires these fields."""

    def check(value: Any, path: FieldPath, causes: list[Cause]) -> None:
        for name in names:
            if not value.get(name):
                add_required(causes, (path, name))

    return check


def empty_dir(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    """An emptyDir volume."""
    if str(value.get("sizeLimit", "")).startswith("-"):
        add_forbidden(causes, (path, "sizeLimit"), "SizeLimit field must be a valid resource quantity")


def field_reference(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    """A fieldRef of the downward API."""
    name = value.get("fieldPath", "")
    if name and not _FIELDS.fullmatch(name):
        why = f"error converting fieldPath: field label not supported: {name}"
        add_invalid(causes, (path, "fieldPath"), name, why)


def resource_reference(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    """A resourceFieldRef of the downward API."""
    name = value.get("resource", "")
    if name not in _RESOURCES and "hugepages-" not in name:
        add_unsupported(causes, (path, "resource"), name, _RESOURCES)


def variables_from(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    """An envFrom source."""
    if "configMapRef" not in value and "secretRef" not in value:
        parent = path[0] if path is not None else None
        add_invalid(causes, parent, "", "must specify one of: `configMapRef` or `secretRef`")


def node_requirement(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    """A requirement of a node selector."""
    operator, values, where = value.get("operator"), value.get("values", ()), (path, "values")
    if operator in ("In", "NotIn"):
        if not values:
            add_required(causes, where, "must be specified when `operator` is 'In' or 'NotIn'")
        for index, one in enumerate(values):
            label_value(one, (where, index), causes)
    elif operator in ("Exists", "DoesNotExist") and values:
        add_forbidden(causes, where, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'")
    elif operator in ("Gt", "Lt") and len(values) != 1:
        add_required(causes, where, "must be specified single value when `operator` is 'Lt' or 'Gt'")


def spread(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    """A topology spread constraint."""
    when = value.get("whenUnsatisfiable")
    if value.get("minDomains", 0) > 0 and when != "DoNotSchedule":
        why = f"can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {when}"
        add_invalid(causes, (path, "minDomains"), value["minDomains"], why)
    if value.get("matchLabelKeys") and "labelSelector" not in value:
        add_forbidden(causes, (path, "matchLabelKeys"), "must not be specified when labelSelector is not set")


def whole_pod(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    """Fields of a pod spec that depend on each other."""
    if value.get("dnsPolicy") == "None" and not value.get("dnsConfig"):
        add_required(causes, (path, "dnsConfig"), "must provide `dnsConfig` when `dnsPolicy` is None")
    if value.get("shareProcessNamespace") and value.get("hostPID"):
        where: FieldPath = ((path, "securityContext"), "shareProcessNamespace")
        add_invalid(causes, where, True, "ShareProcessNamespace and HostPID cannot both be enabled")
    system = value.get("os", {}).get("name", "linux")
    if system not in ("linux", "windows"):
        add_unsupported(causes, (path, "os"), system, ("linux", "windows"))


def container_parts(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    """Resources of a container that depend on each other."""
    resources = value.get("resources", {})
    named = {*resources.get("limits", {}), *resources.get("requests", {})}
    if any(name.startswith("hugepages-") for name in named) and not named & {"cpu", "memory"}:
        add_forbidden(causes, (path, "resources"), "HugePages require cpu or memory")


STRUCTS: dict[str, FieldCheck] = {
    "core.v1.SecretVolumeSource": needs("secretName"),
    "core.v1.ConfigMapVolumeSource": needs("name"),
    "core.v1.EmptyDirVolumeSource": empty_dir,
    "core.v1.ExecAction": needs("command"),
    "core.v1.ObjectFieldSelector": field_reference,
    "core.v1.ResourceFieldSelector": resource_reference,
    "core.v1.EnvFromSource": variables_from,
    "core.v1.NodeSelectorRequirement": node_requirement,
    "core.v1.TopologySpreadConstraint": spread,
}
