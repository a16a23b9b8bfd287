"""The scale subresource: reads and updates the replicas of any scalable kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from embedded_kube import errors
from embedded_kube.errors import Cause
from embedded_kube.registry.kinds import ServedKind
from embedded_kube.registry.metadata import check_name
from embedded_kube.registry.options import RequestOptions
from embedded_kube.registry.registry import ObjectRegistry
from gpu_scheduler.k8s.objects import Json

_PATHS = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
_SCALE_METADATA = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def read_scale(kind: ServedKind, obj: Json, require_replicas: bool = False) -> Json:
    """The Scale of an object. `require_replicas`: an error for a custom object without spec replicas."""
    paths = {**_PATHS, **kind.scale}
    if "labelSelectorPath" in paths:
        selector = str(_find(obj, paths["labelSelectorPath"]) or "")
    else:
        selector = format_selector(obj.get("spec", {}).get("selector") or {})
    wanted = _find(obj, paths["specReplicasPath"])
    if require_replicas and wanted is None and kind.crd_schema is not None:
        why = f'the spec replicas field "{paths["specReplicasPath"]}" does not exist'
        raise errors.internal_error(why)
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {name: obj["metadata"][name] for name in _SCALE_METADATA if name in obj["metadata"]},
        "spec": {"replicas": wanted} if wanted else {},
        "status": {
            "replicas": _find(obj, paths["statusReplicasPath"]) or 0,
            **({"selector": selector} if selector else {}),
        },
    }


async def update_scale(
    registry: ObjectRegistry,
    kind: ServedKind,
    key: tuple[str, str],
    edit: Callable[[Json], Json],
    options: RequestOptions,
) -> tuple[Json, list[str]]:
    """Applies `edit` to the Scale of an object; returns the new Scale and warnings."""
    namespace, name = key
    options = replace(options, subresource="scale")
    old = read_scale(kind, registry.get(kind, namespace, name))
    new = edit(read_scale(kind, registry.get(kind, namespace, name)))
    resource_version = _check(kind, old, new)
    new, warnings = await registry.admit("UPDATE", kind, new, old, options)
    warnings = warnings + await registry.validate_admission("UPDATE", kind, new, old, options)
    replicas = _replicas(kind, name, new)

    def put(obj: Json) -> Json:
        if resource_version:
            obj["metadata"]["resourceVersion"] = resource_version
        else:
            del obj["metadata"]["resourceVersion"]
        _put(obj, {**_PATHS, **kind.scale}["specReplicasPath"], replicas)
        return obj

    found, more = await registry.change(kind, namespace, name, put, options)
    return read_scale(kind, found), warnings + more


def _check(kind: ServedKind, old: Json, new: Json) -> str:
    """Validates a new Scale; returns its resourceVersion precondition, or ""."""
    if new.get("kind", "Scale") != "Scale":
        raise errors.bad_request(f"the object provided is of Kind={new['kind']}, not of autoscaling/v1, Kind=Scale")
    new |= {"kind": "Scale", "apiVersion": "autoscaling/v1"}
    meta, name = new.setdefault("metadata", {}), old["metadata"]["name"]
    check_name(meta, name)
    _replicas(kind, name, new)
    resource_version = str(meta.get("resourceVersion") or "")
    if resource_version not in ("", old["metadata"]["resourceVersion"]):
        raise errors.conflict(kind.plural, kind.group, name, errors.MODIFIED)
    wanted = meta.get("uid") or old["metadata"]["uid"]
    if wanted != old["metadata"]["uid"]:
        why = f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {old['metadata']['uid']}"
        raise errors.conflict(kind.plural, kind.group, name, why)
    new["metadata"] = dict(old["metadata"])
    return resource_version


def _replicas(kind: ServedKind, name: str, scale: Json) -> int:
    replicas = (scale.get("spec") or {}).get("replicas", 0)
    if isinstance(replicas, str):
        why = 'Scale in version "v1" cannot be handled as a Scale'
        problem = "json: cannot unmarshal string into Go struct field ScaleSpec.spec.replicas of type int32"
        raise errors.DecodingError(why, problem)
    if not isinstance(replicas, int) or replicas < 0:
        if kind.crd_schema is not None:
            path = {**_PATHS, **kind.scale}["specReplicasPath"]
            cause = Cause(path, f"Invalid value: {replicas}: should be a non-negative integer")
            raise errors.invalid(kind.kind, kind.group, name, [cause])
        message = f"Invalid value: {replicas}: must be greater than or equal to 0"
        raise errors.invalid("Scale", "autoscaling", name, [Cause("spec.replicas", message)])
    return replicas


def format_selector(selector: Json) -> str:
    """Formats a label selector for the query of a list."""
    # The selector of a ReplicationController is a plain map of labels.
    named = "matchLabels" in selector or "matchExpressions" in selector
    terms = [f"{k}={v}" for k, v in ((selector.get("matchLabels") or {}) if named else selector).items()]
    for term in selector.get("matchExpressions") or () if named else ():
        key, values = term["key"], ",".join(sorted(term.get("values") or ()))
        texts = {"In": f"{key} in ({values})", "NotIn": f"{key} notin ({values})", "Exists": key}
        terms.append(texts.get(term["operator"], f"!{key}"))
    return ",".join(sorted(terms))


def _find(obj: Any, path: str) -> Any:
    for part in path.strip(".").split("."):
        obj = obj.get(part) if isinstance(obj, dict) else None
    return obj


def _put(obj: Json, path: str, value: Any) -> None:
    *parents, last = path.strip(".").split(".")
    for part in parents:
        obj = obj.setdefault(part, {})
    obj[last] = value
