"""What an update may not change, by kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from embedded_kube.errors import Cause
from embedded_kube.schema.crds import crd_causes
from embedded_kube.schema.decoding import Path
from embedded_kube.validation.constraints import add_forbidden, add_invalid
from embedded_kube.validation.pod_rules import pod_update

Json = dict[str, Any]
Update = Callable[[Json, Json, list[Cause], str], None]
"""(object, what it was, causes found so far, Kubernetes version): adds what must not have changed."""

_IMMUTABLE = "field is immutable"


def _look(found: Json, path: str) -> Any:
    value: Any = found
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _path(text: str) -> Path:
    path: Path = None
    for name in text.split("."):
        path = (path, name)
    return path


def _keep(*paths: str, why: str = _IMMUTABLE) -> Update:
    """These fields stay as they were made."""

    def update(found: Json, old: Json, causes: list[Cause], _version: str) -> None:
        for path in paths:
            if _look(found, path) != _look(old, path):
                add_invalid(causes, _path(path), _look(found, path), why)

    return update


def _forbid(why: str, *paths: str) -> Update:
    """These fields stay as they were made; `why` may name the field as {}."""

    def update(found: Json, old: Json, causes: list[Cause], _version: str) -> None:
        for path in paths:
            if _look(found, path) != _look(old, path):
                add_forbidden(causes, _path(path), why.format(path))

    return update


def _pod(found: Json, old: Json, causes: list[Cause], _version: str) -> None:
    pod_update(found, old, causes)


_STATEFUL_SET = (
    "replicas",
    "ordinals",
    "template",
    "updateStrategy",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
    "minReadySeconds",
)


def _stateful_set(found: Json, old: Json, causes: list[Cause], version: str) -> None:
    rest, was = ({k: v for k, v in one["spec"].items() if k not in _STATEFUL_SET} for one in (found, old))
    if version not in ("1.35", "1.36"):
        for name in sorted({*rest, *was}):
            if rest.get(name) != was.get(name):
                add_invalid(causes, ((None, "spec"), name), rest.get(name), _IMMUTABLE)
    elif rest != was:
        names = ", ".join(f"'{name}'" for name in _STATEFUL_SET[:-1])
        why = f"updates to statefulset spec for fields other than {names} and '{_STATEFUL_SET[-1]}' are forbidden"
        add_forbidden(causes, (None, "spec"), why)


_JOB = _keep(
    "spec.selector", "spec.completionMode", "spec.podFailurePolicy", "spec.successPolicy", "spec.backoffLimitPerIndex"
)


def _job(found: Json, old: Json, causes: list[Cause], version: str) -> None:
    _JOB(found, old, causes, version)
    spec, was = found["spec"], old["spec"]
    elastic = spec.get("completionMode") == "Indexed" and spec.get("completions") == spec.get("parallelism")
    if spec.get("completions") != was.get("completions") and not elastic:
        indexed = spec.get("completionMode") == "Indexed"
        why = "can only be modified in tandem with spec.parallelism" if indexed else _IMMUTABLE
        add_invalid(causes, _path("spec.completions"), spec.get("completions"), why)
    _job_template(found, old, causes, version)


def _job_template(found: Json, old: Json, causes: list[Cause], version: str) -> None:
    """A job that waits may be told where to run; from 1.36 on also how much its containers need."""
    was, status = old["spec"], old.get("status", {})
    asleep = any(one.get("type") == "Suspended" and one.get("status") == "True" for one in status.get("conditions", ()))
    after, before, where = found["spec"]["template"], was["template"], "spec.template"
    if version == "1.35":
        waits = was.get("suspend") and "startTime" not in status
    else:
        waits = was.get("suspend") and ("startTime" not in status or asleep) and not status.get("active")
    if waits:
        after, before = _unplaced(after), _unplaced(before)
        if version != "1.35":
            after, before, where = after["spec"], _resized(before["spec"], after["spec"]), "spec.template.spec"
    if after != before:
        add_invalid(causes, _path(where), _look(found, where), _IMMUTABLE)


def _unplaced(template: Json) -> Json:
    free = ("nodeSelector", "affinity", "tolerations", "schedulingGates")
    spec = {name: value for name, value in template["spec"].items() if name not in free}
    near = {k: v for k, v in template["spec"].get("affinity", {}).items() if k != "nodeAffinity"}
    meta = {k: v for k, v in template.get("metadata", {}).items() if k not in ("labels", "annotations")}
    return {**template, "spec": {**spec, "affinity": near}, "metadata": meta}


def _resized(spec: Json, like: Json) -> Json:
    """A pod whose containers need what those of another one do, as far as they are the same ones."""
    found = dict(spec)
    for kind in ("containers", "initContainers"):
        ours, others = spec.get(kind, []), like.get(kind, [])
        if len(ours) == len(others) and kind in spec:
            found[kind] = [
                {**one, "resources": other["resources"]} if one["name"] == other["name"] else one
                for one, other in zip(ours, others, strict=True)
            ]
    return found


def _service(found: Json, old: Json, causes: list[Cause], _version: str) -> None:
    spec, was = found["spec"], old["spec"]
    if "ExternalName" in (spec.get("type"), was.get("type")):
        return
    before = was.get("clusterIP")
    if before and spec.get("clusterIP") != before:
        path: Path = _path("spec.clusterIPs[0]")
        add_invalid(causes, path, [spec.get("clusterIP")], "may not change once set")


def _node(found: Json, old: Json, causes: list[Cause], _version: str) -> None:
    before = old["spec"].get("podCIDRs")
    if before and found["spec"].get("podCIDRs") != before:
        why = 'node updates may not change podCIDR except from "" to valid'
        add_forbidden(causes, _path("spec.podCIDRs"), why)


_CLAIM = "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"


def _claim(found: Json, old: Json, causes: list[Cause], _version: str) -> None:
    spec, was = dict(found["spec"]), dict(old["spec"])
    free = ["volumeAttributesClassName"] + [name for name in ("volumeName", "storageClassName") if not was.get(name)]
    for one in (spec, was):
        for name in free:
            one.pop(name, None)
        if old.get("status", {}).get("phase") == "Bound":
            one["resources"] = {k: v for k, v in one.get("resources", {}).items() if k != "requests"}
    if spec != was:
        add_forbidden(causes, (None, "spec"), _CLAIM)


def _sealed(*parts: str) -> Update:
    """Contents of an object that was declared immutable."""

    def update(found: Json, old: Json, causes: list[Cause], _version: str) -> None:
        if not old.get("immutable"):
            return
        for name in (*parts, "immutable"):
            if found.get(name) != old.get(name):
                add_forbidden(causes, (None, name), f"{_IMMUTABLE} when `immutable` is set")

    return update


def _secret(found: Json, old: Json, causes: list[Cause], version: str) -> None:
    _keep("type")(found, old, causes, version)
    _sealed("data")(found, old, causes, version)


def _priority_class(found: Json, old: Json, causes: list[Cause], version: str) -> None:
    _forbid("may not be changed in an update.", "value")(found, old, causes, version)
    _keep("preemptionPolicy")(found, old, causes, version)


def _gang(found: Json, old: Json, causes: list[Cause], version: str) -> None:
    """Gangs stay as they were made; from 1.37 on their minimum may change."""
    spec, was = found.get("spec", {}), old.get("spec", {})
    for name in sorted({*spec, *was}):
        before, after = was.get(name), spec.get(name)
        if name == "controllerRef" and before is None:
            continue
        if version not in ("1.35", "1.36"):
            before, after = _without_minimum(before), _without_minimum(after)
        if before != after:
            # The first version names the list of groups without saying where it is.
            path: Path = (None, name) if name == "podGroups" else ((None, "spec"), name)
            add_invalid(causes, path, spec.get(name), _IMMUTABLE)


def _without_minimum(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_minimum(v) for k, v in value.items() if k not in ("minCount", "minGroupCount")}
    return [_without_minimum(item) for item in value] if isinstance(value, list) else value


def _definition(found: Json, old: Json, causes: list[Cause], _version: str) -> None:
    known = {cause.field for cause in crd_causes(found, None)}
    causes += [cause for cause in crd_causes(found, old) if cause.field not in known]


_SCHEDULING = "scheduling.k8s.io"
_RBAC = "rbac.authorization.k8s.io"
_SELECTOR = _keep("spec.selector")
UPDATES: dict[tuple[str, str], Update] = {
    ("", "Pod"): _pod,
    ("", "Service"): _service,
    ("", "Node"): _node,
    ("", "PersistentVolumeClaim"): _claim,
    ("", "ConfigMap"): _sealed("data", "binaryData"),
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
    (_RBAC, "RoleBinding"): _keep("roleRef", why="cannot change roleRef"),
    (_RBAC, "ClusterRoleBinding"): _keep("roleRef", why="cannot change roleRef"),
    ("storage.k8s.io", "StorageClass"): _forbid(
        "updates to {} are forbidden.", "provisioner", "parameters", "reclaimPolicy", "volumeBindingMode"
    ),
    ("apiextensions.k8s.io", "CustomResourceDefinition"): _definition,
}
