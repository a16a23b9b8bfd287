"""Validation of pods: resources, volumes, ports, probes, and what an update may change."""

from __future__ import annotations

from typing import Any

from embedded_kube.errors import Cause
from embedded_kube.schema.decoding import FieldPath, format_path
from embedded_kube.validation.constraints import (
    add_duplicate,
    add_forbidden,
    add_invalid,
    add_required,
    add_unsupported,
    ip_address,
    label_key,
    label_value,
)
from embedded_kube.validation.other_kind_rules import claims_of_containers
from embedded_kube.validation.pod_part_rules import container_parts, whole_pod
from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.k8s.quantity import parse_nano

_UNIT = 10**9
_OTHER_RESOURCES = ("storage", "pods", "services")
_STANDARD = frozenset(("cpu", "memory", "ephemeral-storage"))


def is_overcommittable(name: str) -> bool:
    """Whether limits of a resource may exceed its requests: not for extended resources and huge pages."""
    return name in _STANDARD or "kubernetes.io/" in name


def resources(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    """Requests and limits of a container."""
    limits, requests = value.get("limits", {}), value.get("requests", {})
    for part, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            if name in _STANDARD and amount[0] != "-":
                continue
            _resource(name, amount, (path, f"{part}[{name}]"), causes)
    for name, amount in requests.items():
        limit = limits.get(name)
        if limit is None:
            if not is_overcommittable(name):
                add_required(causes, (path, "limits"), "Limit must be set for non overcommitable resources")
        elif limit == amount:
            continue
        elif not is_overcommittable(name):
            add_invalid(causes, (path, "requests"), amount, f"must be equal to {name} limit of {limit}")
        elif parse_nano(amount) > parse_nano(limit):
            add_invalid(causes, (path, "requests"), amount, f"must be less than or equal to {name} limit of {limit}")
    if isinstance(value.get("claims"), list):
        for index, claim in enumerate(value["claims"]):
            if not claim.get("name"):
                add_required(causes, (((path, "claims"), index), "name"))


def _resource(name: str, amount: str, path: FieldPath, causes: list[Cause]) -> None:
    if amount[0] == "-":
        add_invalid(causes, path, amount, "must be greater than or equal to 0")
    if name in _STANDARD:
        return
    if "/" not in name and not name.startswith("hugepages-"):
        if name not in _OTHER_RESOURCES:
            add_invalid(causes, path, name, "must be a standard resource type or fully qualified")
        add_invalid(causes, path, name, "must be a standard resource for containers")
        return
    label_key(name, path, causes)
    if parse_nano(amount) % _UNIT:
        add_invalid(causes, path, amount, "must be an integer")


def container(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    """One container, without regard to the others."""
    image = value.get("image", "")
    if not image:
        add_required(causes, (path, "image"))
    elif image != image.strip():
        add_invalid(causes, (path, "image"), image, "must not have leading or trailing whitespace")
    _ports(value.get("ports", ()), (path, "ports"), causes)
    container_parts(value, path, causes)
    mounted: set[str] = set()
    for index, mount in enumerate(value.get("volumeMounts", ())):
        where = mount.get("mountPath")
        if where in mounted:
            add_invalid(causes, (((path, "volumeMounts"), index), "mountPath"), where, "must be unique")
        mounted.add(where)
    for probe in ("livenessProbe", "startupProbe"):
        if value.get(probe, {}).get("successThreshold", 1) != 1:
            add_invalid(causes, ((path, probe), "successThreshold"), value[probe]["successThreshold"], "must be 1")


def _ports(ports: Any, path: FieldPath, causes: list[Cause]) -> None:
    names: set[str] = set()
    for index, port in enumerate(ports):
        name = port.get("name")
        if name and name in names:
            add_duplicate(causes, ((path, index), "name"), name)
        names.add(name)


_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc")


def probe(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    """A probe has exactly one handler."""
    _handler(value, path, causes, _HANDLERS)


def lifecycle(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    """A lifecycle hook has exactly one handler."""
    for name in ("postStart", "preStop"):
        if name in value:
            _handler(value[name], (path, name), causes, (*_HANDLERS[:3], "sleep"))


def _handler(value: Json, path: FieldPath, causes: list[Cause], known: tuple[str, ...]) -> None:
    found = [name for name in known if name in value]
    if not found:
        add_required(causes, path, "must specify a handler type")
    for name in found[1:]:
        add_forbidden(causes, (path, name), "may not specify more than 1 handler type")


_ENV_SOURCES = ("fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef")


def env(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    """An environment variable has a value or one source."""
    source = value.get("valueFrom")
    if source is None:
        return
    where: FieldPath = (path, "valueFrom")
    found = [name for name in _ENV_SOURCES if name in source]
    if not found:
        names = ", ".join(f"`{name}`" for name in _ENV_SOURCES[:-1])
        add_invalid(causes, where, "", f"must specify one of: {names} or `{_ENV_SOURCES[-1]}`")
    if value.get("value"):
        add_invalid(causes, where, "", "may not be specified when `value` is not empty")
    if len(found) > 1:
        add_invalid(causes, where, "", "may not have more than one field specified at a time")


def volume(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    """A volume has at most one source."""
    found = [name for name in value if name != "name"]
    for name in found[1:]:
        add_forbidden(causes, (path, name), "may not specify more than 1 volume type")


def toleration(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    """Fields of a toleration that depend on each other."""
    operator = value.get("operator", "")
    if operator not in ("", "Exists", "Equal", "Lt", "Gt"):
        add_unsupported(causes, (path, "operator"), operator, ("Equal", "Exists"))
    if not value.get("key") and operator != "Exists":
        why = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        add_invalid(causes, (path, "operator"), operator, why)
    if operator == "Exists" and value.get("value"):
        why = "value must be empty when `operator` is 'Exists'"
        add_invalid(causes, (path, "operator"), value["value"], why)
    elif value.get("value"):
        label_value(value["value"], (path, "operator"), causes)
    if "tolerationSeconds" in value and value.get("effect") != "NoExecute":
        why = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        add_invalid(causes, (path, "effect"), value.get("effect", ""), why)


def pod_spec(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    """References inside a pod spec: names, mounts, ports, claims, init containers."""
    _names(value, path, causes)
    volumes = {volume.get("name") for volume in value.get("volumes", ())}
    for part in ("initContainers", "containers"):
        for index, one in enumerate(value.get(part, ())):
            where: FieldPath = ((path, part), index)
            for mount_index, mount in enumerate(one.get("volumeMounts", ())):
                if mount.get("name", "") not in volumes:
                    _not_found(mount.get("name", ""), (((where, "volumeMounts"), mount_index), "name"), causes)
            for device_index, device in enumerate(one.get("volumeDevices", ())):
                if device.get("name", "") not in volumes:
                    _not_found(device.get("name", ""), (((where, "volumeDevices"), device_index), "name"), causes)
    _host_ports(value, path, causes)
    whole_pod(value, path, causes)
    claims_of_containers(value, path, causes)
    for index, one in enumerate(value.get("initContainers", ())):
        if one.get("restartPolicy") != "Always":
            for name in _NOT_IN_INIT_CONTAINERS:
                if name in one:
                    why = "may not be set for init containers without restartPolicy=Always"
                    add_forbidden(causes, (((path, "initContainers"), index), name), why)
    group = value.get("schedulingGroup")
    if group is not None and not group.get("podGroupName"):
        add_invalid(causes, ((path, "schedulingGroup"), "podGroupName"), None, "must specify one of: `podGroupName`")


def _not_found(name: str, path: FieldPath, causes: list[Cause]) -> None:
    causes.append(Cause(format_path(path), f'Not found: "{name}"', "FieldValueNotFound"))


_NOT_IN_INIT_CONTAINERS = ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle")


def _names(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    seen: set[str] = set()
    for part in ("containers", "initContainers"):
        for index, one in enumerate(value.get(part, ())):
            name = one.get("name", "")
            if name and name in seen:
                add_duplicate(causes, (((path, part), index), "name"), name)
            seen.add(name)


def _host_ports(value: Json, path: FieldPath, causes: list[Cause]) -> None:
    taken: set[tuple[Any, ...]] = set()
    for index, one in enumerate(value.get("containers", ())):
        for port_index, port in enumerate(one.get("ports", ())):
            host = port.get("hostPort")
            if not host:
                continue
            where: FieldPath = (((((path, "containers"), index), "ports"), port_index), "hostPort")
            mark = (port.get("protocol"), port.get("hostIP", ""), host)
            if mark in taken:
                add_duplicate(causes, where, f"{mark[0]}/{mark[1]}/{host}")
            taken.add(mark)
            if value.get("hostNetwork") and host != port.get("containerPort"):
                add_invalid(causes, where, host, "must match `containerPort` when `hostNetwork` is true")


# -- updates


def pod_status(obj: Json, old: Json | None, causes: list[Cause]) -> None:
    """The status of a pod, and fields that a new pod must not have."""
    if old is None:
        if obj["spec"].get("ephemeralContainers"):
            add_forbidden(causes, ((None, "spec"), "ephemeralContainers"), "cannot be set on create")
        if obj["spec"].get("schedulingGates") and obj["spec"].get("nodeName"):
            why = "cannot be set until all schedulingGates have been cleared"
            add_forbidden(causes, ((None, "spec"), "nodeName"), why)
        return
    status, was = obj.get("status", {}), old.get("status", {})
    for index, one in enumerate(status.get("podIPs", ())):
        ip_address(one.get("ip", ""), (((None, "status"), "podIPs"), index), causes)
    nominated = status.get("nominatedNodeName")
    if nominated and nominated != was.get("nominatedNodeName") and obj["spec"].get("nodeName"):
        why = "may not be set on pods that are already bound to a node"
        add_forbidden(causes, ((None, "status"), "nominatedNodeName"), why)


_MAY_CHANGE = (
    "pod updates may not change fields other than `spec.containers[*].image`,`spec.initContainers[*].image`,"
    "`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing tolerations),"
    "`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)


def pod_update(obj: Json, old: Json, causes: list[Cause]) -> None:
    """The few fields of a pod that an update may change."""
    spec, was = dict(obj["spec"]), dict(old["spec"])
    path: FieldPath = (None, "spec")
    for part in ("containers", "initContainers"):
        if len(spec.get(part, ())) != len(was.get(part, ())):
            add_forbidden(causes, (path, part), "pod updates may not add or remove containers")
            return
    before, after = was.pop("activeDeadlineSeconds", None), spec.pop("activeDeadlineSeconds", None)
    if before is not None and after is None:
        why = "must not update from a positive integer to nil value"
        add_invalid(causes, (path, "activeDeadlineSeconds"), None, why)
    elif before is not None and after > before:
        add_invalid(causes, (path, "activeDeadlineSeconds"), after, "must be less than or equal to previous value")
    kept, now = was.pop("tolerations", []), spec.pop("tolerations", [])
    present = [{**one, "tolerationSeconds": None} for one in now]
    if any({**one, "tolerationSeconds": None} not in present for one in kept):
        add_forbidden(
            causes, (path, "tolerations"), "existing toleration can not be modified except its tolerationSeconds"
        )
    # Added through the subresource ephemeralcontainers, and immutable then.
    added, present_now = was.pop("ephemeralContainers", []), spec.pop("ephemeralContainers", [])
    if any(one not in present_now for one in added):
        add_forbidden(causes, (path, "ephemeralContainers"), "existing ephemeral containers may not be changed")
    gates, left = was.pop("schedulingGates", []), spec.pop("schedulingGates", [])
    for index, gate in enumerate(left):
        if gate not in gates:
            why = f"only deletion is allowed, but found new scheduling gate '{gate['name']}'"
            add_forbidden(causes, (((path, "schedulingGates"), index), "name"), why)
    if gates:
        # While a pod is gated, its scheduling constraints may be narrowed.
        selector_before, selector = was.pop("nodeSelector", {}), spec.pop("nodeSelector", None)
        if any((selector or {}).get(key) != value for key, value in selector_before.items()):
            why = "only additions to spec.nodeSelector are allowed (no mutations or deletions)"
            add_invalid(causes, (path, "nodeSelector"), selector, why)
        was.pop("affinity", None)
        spec.pop("affinity", None)
    if spec.get("terminationGracePeriodSeconds") == 1 and was.get("terminationGracePeriodSeconds", 0) < 0:
        was["terminationGracePeriodSeconds"] = 1
    for part in ("containers", "initContainers"):
        spec[part] = [{**one, "image": ""} for one in spec.get(part, ())]
        was[part] = [{**one, "image": ""} for one in was.get(part, ())]
    if spec != was:
        names = sorted(name for name in {*spec, *was} if spec.get(name) != was.get(name))
        add_forbidden(causes, path, f"{_MAY_CHANGE}\n  changed: {', '.join('spec.' + name for name in names)}")
