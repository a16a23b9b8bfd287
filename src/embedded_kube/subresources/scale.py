"""The Scale of an object: how many replicas it wants and has, the same for every kind that can be scaled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from embedded_kube import errors
from embedded_kube.api import Api, Options
from embedded_kube.errors import Cause
from embedded_kube.storage.identity import check_name
from embedded_kube.storage.kinds import Kind
from embedded_kube.storage.store import Json

_PATHS = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
_KEPT = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def read_scale(kind: Kind, found: Json, must_say: bool = False) -> Json:
    """An object's Scale; `must_say`: a custom object that names no number has none."""
    paths = {**_PATHS, **kind.scale}
    if "labelSelectorPath" in paths:
        selector = str(_find(found, paths["labelSelectorPath"]) or "")
    else:
        selector = format_selector(found.get("spec", {}).get("selector") or {})
    wanted = _find(found, paths["specReplicasPath"])
    if must_say and wanted is None and kind.crd_schema is not None:
        why = f'the spec replicas field "{paths["specReplicasPath"]}" does not exist'
        raise errors.internal(why)
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {name: found["metadata"][name] for name in _KEPT if name in found["metadata"]},
        "spec": {"replicas": wanted} if wanted else {},
        "status": {
            "replicas": _find(found, paths["statusReplicasPath"]) or 0,
            **({"selector": selector} if selector else {}),
        },
    }


async def update_scale(
    api: Api, kind: Kind, place: tuple[str, str], edit: Callable[[Json], Json], options: Options
) -> tuple[Json, list[str]]:
    """Changes the Scale of the object at a namespace and name; returns the new one and warnings."""
    namespace, name = place
    options = replace(options, subresource="scale")
    old = read_scale(kind, api.get(kind, namespace, name))
    new = edit(read_scale(kind, api.get(kind, namespace, name)))
    pinned = _check(kind, old, new)
    new, warnings = await api.admit("UPDATE", kind, new, old, options)
    warnings = warnings + await api.check("UPDATE", kind, new, old, options)
    replicas = _replicas(kind, name, new)

    def put(found: Json) -> Json:
        if pinned:
            found["metadata"]["resourceVersion"] = pinned
        else:
            del found["metadata"]["resourceVersion"]
        _put(found, {**_PATHS, **kind.scale}["specReplicasPath"], replicas)
        return found

    found, more = await api.change(kind, namespace, name, put, options)
    return read_scale(kind, found), warnings + more


def _check(kind: Kind, old: Json, new: Json) -> str:
    """Checks what was sent; returns the resourceVersion that it insists on, if any."""
    if new.get("kind", "Scale") != "Scale":
        raise errors.bad_request(f"the object provided is of Kind={new['kind']}, not of autoscaling/v1, Kind=Scale")
    new |= {"kind": "Scale", "apiVersion": "autoscaling/v1"}
    meta, name = new.setdefault("metadata", {}), old["metadata"]["name"]
    check_name(meta, name)
    _replicas(kind, name, new)
    pinned = str(meta.get("resourceVersion") or "")
    if pinned not in ("", old["metadata"]["resourceVersion"]):
        raise errors.conflict(kind.plural, kind.group, name, errors.MODIFIED)
    wanted = meta.get("uid") or old["metadata"]["uid"]
    if wanted != old["metadata"]["uid"]:
        why = f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {old['metadata']['uid']}"
        raise errors.conflict(kind.plural, kind.group, name, why)
    new["metadata"] = dict(old["metadata"])
    return pinned


def _replicas(kind: Kind, name: str, scale: Json) -> int:
    replicas = (scale.get("spec") or {}).get("replicas", 0)
    if isinstance(replicas, str):
        why = 'Scale in version "v1" cannot be handled as a Scale'
        problem = "json: cannot unmarshal string into Go struct field ScaleSpec.spec.replicas of type int32"
        raise errors.UndecodableError(why, problem)
    if not isinstance(replicas, int) or replicas < 0:
        if kind.crd_schema is not None:
            path = {**_PATHS, **kind.scale}["specReplicasPath"]
            cause = Cause(path, f"Invalid value: {replicas}: should be a non-negative integer")
            raise errors.invalid(kind.kind, kind.group, name, [cause])
        message = f"Invalid value: {replicas}: must be greater than or equal to 0"
        raise errors.invalid("Scale", "autoscaling", name, [Cause("spec.replicas", message)])
    return replicas


def format_selector(selector: Json) -> str:
    """A label selector as text, as list requests take it."""
    # Older kinds select by a plain map of labels.
    named = "matchLabels" in selector or "matchExpressions" in selector
    terms = [f"{k}={v}" for k, v in ((selector.get("matchLabels") or {}) if named else selector).items()]
    for term in selector.get("matchExpressions") or () if named else ():
        key, values = term["key"], ",".join(sorted(term.get("values") or ()))
        words = {"In": f"{key} in ({values})", "NotIn": f"{key} notin ({values})", "Exists": key}
        terms.append(words.get(term["operator"], f"!{key}"))
    return ",".join(sorted(terms))


def _find(found: Any, path: str) -> Any:
    for part in path.strip(".").split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _put(found: Json, path: str, value: Any) -> None:
    *parents, last = path.strip(".").split(".")
    for part in parents:
        found = found.setdefault(part, {})
    found[last] = value
