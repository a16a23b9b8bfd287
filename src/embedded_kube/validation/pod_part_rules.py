"""What the smaller parts of a pod may say: volumes, variables, selectors, spread."""

from __future__ import annotations

import re
from typing import Any

from embedded_kube.errors import Cause
from embedded_kube.schema.decoding import Path
from embedded_kube.validation.constraints import (
    Check,
    add_forbidden,
    add_invalid,
    add_required,
    add_unsupported,
    label_value,
)

Json = dict[str, Any]

_FIELDS = re.compile(
    r"metadata\.(name|namespace|uid|labels(\['.*'\])?|annotations(\['.*'\])?)|spec\.(nodeName|serviceAccountName|host"
    r"name|restartPolicy)|status\.(hostIPs?|podIPs?|phase)"
)
_RESOURCES = [f"{part}.{name}" for part in ("limits", "requests") for name in ("cpu", "ephemeral-storage", "memory")]


def needs(*names: str) -> Check:
    """These fields must be there."""

    def check(value: Any, path: Path, causes: list[Cause]) -> None:
        for name in names:
            if not value.get(name):
                add_required(causes, (path, name))

    return check


def empty_dir(value: Json, path: Path, causes: list[Cause]) -> None:
    """A folder of its own."""
    if str(value.get("sizeLimit", "")).startswith("-"):
        add_forbidden(causes, (path, "sizeLimit"), "SizeLimit field must be a valid resource quantity")


def field_reference(value: Json, path: Path, causes: list[Cause]) -> None:
    """A field of the pod, for a variable or a file."""
    name = value.get("fieldPath", "")
    if name and not _FIELDS.fullmatch(name):
        why = f"error converting fieldPath: field label not supported: {name}"
        add_invalid(causes, (path, "fieldPath"), name, why)


def resource_reference(value: Json, path: Path, causes: list[Cause]) -> None:
    """A resource of a container, for a variable or a file."""
    name = value.get("resource", "")
    if name not in _RESOURCES and "hugepages-" not in name:
        add_unsupported(causes, (path, "resource"), name, _RESOURCES)


def variables_from(value: Json, path: Path, causes: list[Cause]) -> None:
    """Variables from a map."""
    if "configMapRef" not in value and "secretRef" not in value:
        parent = path[0] if path is not None else None
        add_invalid(causes, parent, "", "must specify one of: `configMapRef` or `secretRef`")


def node_requirement(value: Json, path: Path, causes: list[Cause]) -> None:
    """What a node's label must be."""
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


def spread(value: Json, path: Path, causes: list[Cause]) -> None:
    """How pods are spread."""
    when = value.get("whenUnsatisfiable")
    if value.get("minDomains", 0) > 0 and when != "DoNotSchedule":
        why = f"can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {when}"
        add_invalid(causes, (path, "minDomains"), value["minDomains"], why)
    if value.get("matchLabelKeys") and "labelSelector" not in value:
        add_forbidden(causes, (path, "matchLabelKeys"), "must not be specified when labelSelector is not set")


def whole_pod(value: Json, path: Path, causes: list[Cause]) -> None:
    """What the parts of a pod's spec forbid each other."""
    if value.get("dnsPolicy") == "None" and not value.get("dnsConfig"):
        add_required(causes, (path, "dnsConfig"), "must provide `dnsConfig` when `dnsPolicy` is None")
    if value.get("shareProcessNamespace") and value.get("hostPID"):
        where: Path = ((path, "securityContext"), "shareProcessNamespace")
        add_invalid(causes, where, True, "ShareProcessNamespace and HostPID cannot both be enabled")
    system = value.get("os", {}).get("name", "linux")
    if system not in ("linux", "windows"):
        add_unsupported(causes, (path, "os"), system, ("linux", "windows"))


def container_parts(value: Json, path: Path, causes: list[Cause]) -> None:
    """What a container's resources and rights mean together."""
    resources = value.get("resources", {})
    named = {*resources.get("limits", {}), *resources.get("requests", {})}
    if any(name.startswith("hugepages-") for name in named) and not named & {"cpu", "memory"}:
        add_forbidden(causes, (path, "resources"), "HugePages require cpu or memory")


STRUCTS: dict[str, Check] = {
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
