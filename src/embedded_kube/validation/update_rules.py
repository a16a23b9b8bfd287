"""Validation of updates: fields that must not change, by kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from embedded_kube.errors import Cause
from embedded_kube.schema.crds import crd_causes
from embedded_kube.schema.decoding import FieldPath
from embedded_kube.validation.constraints import add_forbidden, add_invalid
from embedded_kube.validation.pod_rules import pod_update
from gpu_scheduler.k8s.objects import Json

Update = Callable[[Json, Json, list[Cause], str], None]
"""(object, old object, causes, Kubernetes version): appends a cause for each forbidden change."""

_IMMUTABLE = "field is immutable"


def _value_at(obj: Json, path: str) -> Any:
    value: Any = obj
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _parse_path(text: str) -> FieldPath:
    path: FieldPath = None
    for name in text.split("."):
        path = (path, name)
    return path


def _immutable(*paths: str, why: str = _IMMUTABLE) -> Update:
    """These fields are immutable ("Invalid value")."""

    def update(obj: Json, old: Json, causes: list[Cause], _version: str) -> None:
        for path in paths:
            if _value_at(obj, path) != _value_at(old, path):
                add_invalid(causes, _parse_path(path), _value_at(obj, path), why)

    return update


def _forbidden(why: str, *paths: str) -> Update:
    """These fields are immutable ("Forbidden"); `why` may name the field as {}."""

    def update(obj: Json, old: Json, causes: list[Cause], _version: str) -> None:
        for path in paths:
            if _value_at(obj, path) != _value_at(old, path):
                add_forbidden(causes, _parse_path(path), why.format(path))

    return update


def _pod(obj: Json, old: Json, causes: list[Cause], _version: str) -> None:
    pod_update(obj, old, causes)


_STATEFUL_SET = (
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
)


def _stateful_set(obj: Json, old: Json, causes: list[Cause], version: str) -> None:
    rest, was = ({k: v for k, v in one["spec"].items() if k not in _STATEFUL_SET} for one in (obj, old))
    if version not in ("1.35", "1.36"):
        for name in sorted({*rest, *was}):
            if rest.get(name) != was.get(name):
                add_invalid(causes, ((None, "spec"), name), rest.get(name), _IMMUTABLE)
    elif rest != was:
        names = ", ".join(f"'{name}'" for name in _STATEFUL_SET[:-1])
        why = f"updates to statefulset spec for fields other than {names} and '{_STATEFUL_SET[-1]}' are forbidden"
        add_forbidden(causes, (None, "spec"), why)


_JOB = _immutable(
    "spec.selector", "spec.completionMode", "spec.podFailurePolicy", "spec.successPolicy", "spec.backoffLimitPerIndex"
)


def _job(obj: Json, old: Json, causes: list[Cause], version: str) -> None:
    _JOB(obj, old, causes, version)
    spec, was = obj["spec"], old["spec"]
    elastic = spec.get("completionMode") == "Indexed" and spec.get("completions") == spec.get("parallelism")
    if spec.get("completions") != was.get("completions") and not elastic:
        indexed = spec.get("completionMode") == "Indexed"
        why = "can only be modified in tandem with spec.parallelism" if indexed else _IMMUTABLE
        add_invalid(causes, _parse_path("spec.completions"), spec.get("completions"), why)
    _job_template(obj, old, causes, version)


def _job_template(obj: Json, old: Json, causes: list[Cause], version: str) -> None:
    """A suspended Job may change scheduling directives; since 1.36 also the resources of its containers."""
    was, status = old["spec"], old.get("status", {})
    conditions = status.get("conditions", ())
    suspended = any(one.get("type") == "Suspended" and one.get("status") == "True" for one in conditions)
    after, before, where = obj["spec"]["template"], was["template"], "spec.template"
    if version == "1.35":
        may_change = was.get("suspend") and "startTime" not in status
    else:
        may_change = was.get("suspend") and ("startTime" not in status or suspended) and not status.get("active")
    if may_change:
        after, before = _without_scheduling(after), _without_scheduling(before)
        if version != "1.35":
            where = "spec.template.spec"
            after, before = after["spec"], _with_resources_of(before["spec"], after["spec"])
    if after != before:
        add_invalid(causes, _parse_path(where), _value_at(obj, where), _IMMUTABLE)


def _without_scheduling(template: Json) -> Json:
    free = ("nodeSelector", "affinity", "tolerations", "schedulingGates")
    spec = {name: value for name, value in template["spec"].items() if name not in free}
    near = {k: v for k, v in template["spec"].get("affinity", {}).items() if k != "nodeAffinity"}
    meta = {k: v for k, v in template.get("metadata", {}).items() if k not in ("labels", "annotations")}
    return {**template, "spec": {**spec, "affinity": near}, "metadata": meta}


def _with_resources_of(spec: Json, like: Json) -> Json:
    """A pod spec with the container resources of another spec, where the containers have the same names."""
    found = dict(spec)
    for kind in ("containers", "initContainers"):
        ours, others = spec.get(kind, []), like.get(kind, [])
        if len(ours) == len(others) and kind in spec:
            found[kind] = [
                {**one, "resources": other["resources"]} if one["name"] == other["name"] else one
                for one, other in zip(ours, others, strict=True)
            ]
    return found


def _service(obj: Json, old: Json, causes: list[Cause], _version: str) -> None:
    spec, was = obj["spec"], old["spec"]
    if "ExternalName" in (spec.get("type"), was.get("type")):
        return
    before = was.get("clusterIP")
    if before and spec.get("clusterIP") != before:
        path: FieldPath = _parse_path("spec.clusterIPs[0]")
        add_invalid(causes, path, [spec.get("clusterIP")], "may not change once set")


def _node(obj: Json, old: Json, causes: list[Cause], _version: str) -> None:
    before = old["spec"].get("podCIDRs")
    if before and obj["spec"].get("podCIDRs") != before:
        why = 'node updates may not change podCIDR except from "" to valid'
        add_forbidden(causes, _parse_path("spec.podCIDRs"), why)


_CLAIM = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"


def _claim(obj: Json, old: Json, causes: list[Cause], _version: str) -> None:
    spec, was = dict(obj["spec"]), dict(old["spec"])
    free = ["volumeAttributesClassName"] + [name for name in ("volumeName", "storageClassName") if not was.get(name)]
    for one in (spec, was):
        for name in free:
            one.pop(name, None)
        if old.get("status", {}).get("phase") == "Bound":
            one["resources"] = {k: v for k, v in one.get("resources", {}).items() if k != "requests"}
    if spec != was:
        add_forbidden(causes, (None, "spec"), _CLAIM)


def _frozen_if_immutable(*parts: str) -> Update:
    """These fields do not change if `immutable` is set."""

    def update(obj: Json, old: Json, causes: list[Cause], _version: str) -> None:
        if not old.get("immutable"):
            return
        for name in (*parts, "immutable"):
            if obj.get(name) != old.get(name):
                add_forbidden(causes, (None, name), f"{_IMMUTABLE} when `immutable` is set")

    return update


def _secret(obj: Json, old: Json, causes: list[Cause], version: str) -> None:
    _immutable("type")(obj, old, causes, version)
    _frozen_if_immutable("data")(obj, old, causes, version)


def _priority_class(obj: Json, old: Json, causes: list[Cause], version: str) -> None:
    _forbidden("may not be changed in an update.", "value")(obj, old, causes, version)
    _immutable("preemptionPolicy")(obj, old, causes, version)


def _gang(obj: Json, old: Json, causes: list[Cause], version: str) -> None:
    """The spec of a Workload or PodGroup is immutable; since 1.37 its minimum may change."""
    spec, was = obj.get("spec", {}), old.get("spec", {})
    for name in sorted({*spec, *was}):
        before, after = was.get(name), spec.get(name)
        if name == "controllerRef" and before is None:
            continue
        if version not in ("1.35", "1.36"):
            before, after = _without_minimum(before), _without_minimum(after)
        if before != after:
            # The first version of the API reports podGroups without its parent.
            path: FieldPath = (None, name) if name == "podGroups" else ((None, "spec"), name)
            add_invalid(causes, path, spec.get(name), _IMMUTABLE)


def _without_minimum(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_minimum(v) for k, v in value.items() if k not in ("minCount", "minGroupCount")}
    return [_without_minimum(item) for item in value] if isinstance(value, list) else value


def _definition(obj: Json, old: Json, causes: list[Cause], _version: str) -> None:
    known = {cause.field for cause in crd_causes(obj, None)}
    causes += [cause for cause in crd_causes(obj, old) if cause.field not in known]


_SCHEDULING = "scheduling.k8s.io"
_RBAC = "rbac.authorization.k8s.io"
_SELECTOR = _immutable("spec.selector")
UPDATES: dict[tuple[str, str], Update] = {
    ("", "Pod"): _pod,
    ("", "Service"): _service,
    ("", "Node"): _node,
    ("", "PersistentVolumeClaim"): _claim,
    ("", "ConfigMap"): _frozen_if_immutable("data", "binaryData"),
    ("", "Secret"): _secret,
    ("apps", "Deployment"): _SELECTOR,
    ("apps", "ReplicaSet"): _SELECTOR,
    ("apps", "DaemonSet"): _SELECTOR,
    ("apps", "StatefulSet"): _stateful_set,
    ("batch", "Job"): _job,
    (_SCHEDULING, "PriorityClass"): _priority_class,
    (_SCHEDULING, "Workload"): _gang,
    (_SCHEDULING, "PodGroup"): _gang,
    (_SCHEDULING, "CompositePodGroup"): _gang,
    (_RBAC, "RoleBinding"): _immutable("roleRef", why="cannot change roleRef"),
    (_RBAC, "ClusterRoleBinding"): _immutable("roleRef", why="cannot change roleRef"),
    ("storage.k8s.io", "StorageClass"): _forbidden(
        "updates to {} are forbidden.", "provisioner", "parameters", "reclaimPolicy", "volumeBindingMode"
    ),
    ("apiextensions.k8s.io", "CustomResourceDefinition"): _definition,
}
