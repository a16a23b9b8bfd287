"""Object metadata: preconditions, fields that requests may omit, and fields that updates cannot change."""

from __future__ import annotations

from typing import Any

from embedded_kube import errors
from embedded_kube.registry.kinds import ServedKind
from gpu_scheduler.k8s.objects import Json


def check_preconditions(plural: str, group: str, meta: dict[str, Any], uid: str | None, revision: str | None) -> None:
    """Raises a conflict unless an object has the uid and resourceVersion that a request names."""
    for wanted, field, title in ((uid, "uid", "UID"), (revision, "resourceVersion", "ResourceVersion")):
        if wanted is not None and wanted != meta.get(field):
            have = meta.get(field, "")
            why = f"Precondition failed: {title} in precondition: {wanted}, {title} in object meta: {have}"
            raise errors.conflict(plural, group, meta["name"], why)


def check_delete_preconditions(kind: ServedKind, meta: dict[str, Any], uid: str | None, revision: str | None) -> None:
    """The same for a delete, whose messages differ."""
    if uid is not None and uid != meta["uid"]:
        why = f"the UID in the precondition ({uid}) does not match the UID in record ({meta['uid']}). "
        raise errors.conflict(
            kind.kind, kind.group, meta["name"], why + "The object might have been deleted and then recreated"
        )
    if revision is not None and revision != meta["resourceVersion"]:
        why = f"the ResourceVersion in the precondition ({revision}) does not match the ResourceVersion in record "
        why += f"({meta['resourceVersion']}). The object might have been modified"
        raise errors.conflict(kind.kind, kind.group, meta["name"], why)


def check_name(meta: Json, name: str) -> None:
    """Raises BadRequest unless an object has the name in the path."""
    if not meta.get("name"):
        why = f"the name of the object ({name} based on URL) was undeterminable: name must be provided"
        raise errors.bad_request(why)
    if meta["name"] != name:
        raise errors.bad_request(f"the name of the object ({meta['name']}) does not match the name on the URL ({name})")


def immutable_metadata_causes(meta: Json, was: Json) -> list[errors.Cause]:
    """Causes for the immutable metadata that an update changes."""
    return [
        errors.Cause(f"metadata.{name}", f'Invalid value: "{meta[name]}": field is immutable')
        for name in ("uid", "deletionTimestamp")
        if meta.get(name) and meta[name] != was.get(name)
    ]


def fill_metadata(kind: ServedKind, namespace: str, obj: Json) -> dict[str, Any]:
    """Sets apiVersion, kind and namespace if missing; BadRequest if they differ from the request. Returns metadata."""
    type_meta = obj.setdefault("apiVersion", kind.api_version), obj.setdefault("kind", kind.kind)
    if type_meta != (kind.api_version, kind.kind):
        raise _wrong_kind(kind, *type_meta, (obj.get("metadata") or {}).get("name", ""))
    meta: dict[str, Any] = obj.setdefault("metadata", {})
    if kind.namespaced:
        if meta.setdefault("namespace", namespace) != namespace:
            why = "the namespace of the provided object does not match the namespace sent on the request"
            raise errors.bad_request(why)
    else:
        meta.pop("namespace", None)
    return meta


def _wrong_kind(kind: ServedKind, version: Any, name: Any, object_name: str) -> errors.StatusError:
    """The error for an object of another kind than the path."""
    if kind.crd_schema is not None:
        if version != kind.api_version:
            why = f"the API version in the data ({version}) does not match the expected API version"
            return errors.bad_request(f"{why} ({kind.api_version})")
        cause = errors.Cause("kind", f'Invalid value: "{name}": must be {kind.kind}')
        return errors.invalid(str(name), kind.group, object_name, [cause])
    why = f'no kind "{name}" is registered for version "{version}" in scheme "pkg/runtime/scheme.go:111"'
    subject = f'{name} in version "{str(version).rpartition("/")[2]}" cannot be handled as a {kind.kind}'
    return errors.DecodingError(subject, why)


def restore_immutable(kind: ServedKind, obj: Json, old: Json, subresource: str) -> None:
    """Restores what an update cannot change: system metadata, and either the status or everything but the status."""
    meta, was = obj["metadata"], old["metadata"]
    for name in ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"):
        meta.pop(name, None)
        if name in was:
            meta[name] = was[name]
    meta["resourceVersion"] = was["resourceVersion"]
    # An update that omits managedFields keeps them; patch.py changes them.
    if "managedFields" in was:
        meta.setdefault("managedFields", was["managedFields"])
    if meta.get("managedFields") == []:
        del meta["managedFields"]
    if kind.resource == "namespaces" and subresource != "finalize" and "spec" in old:
        obj["spec"] = old["spec"]  # the spec holds finalizers only
    if "status" not in kind.subresources:
        return
    if subresource == "status":
        status = obj.get("status")
        free = _metadata_of_status_write(kind)
        kept = {name: value for name, value in was.items() if name not in free}
        obj.clear()
        obj.update({**old, "metadata": {**kept, **{name: meta[name] for name in free if name in meta}}})
        if status is not None:
            obj["status"] = status
            if kind.resource == "pods" and "qosClass" in old.get("status", {}):
                status["qosClass"] = old["status"]["qosClass"]  # it is derived from the spec
        elif kind.crd_schema is not None:
            obj.pop("status", None)
    elif "status" in old:
        obj["status"] = old["status"]
    else:
        obj.pop("status", None)


def _metadata_of_status_write(kind: ServedKind) -> tuple[str, ...]:
    """The metadata that a write to the status subresource may change; it differs by kind."""
    if kind.crd_schema is not None:
        return ("managedFields",)
    own = {"deployments.apps": "ownerReferences", "pods": "labels"}.get(kind.resource)
    free = ("annotations", "finalizers", "managedFields")
    return (*free, own) if own else (*free, "labels", "ownerReferences")


def generation_content(kind: ServedKind, obj: Json) -> Json:
    """The part of an object whose change increases metadata.generation."""
    apart = ("metadata", "status") if "status" in kind.subresources or kind.crd_schema is None else ("metadata",)
    content = {name: value for name, value in obj.items() if name not in apart}
    # A Deployment copies its annotations to its ReplicaSets.
    return {**content, "": obj["metadata"].get("annotations")} if kind.resource == "deployments.apps" else content


_WITHOUT_GENERATION = frozenset(
    ("", "events.k8s.io", "rbac.authorization.k8s.io", "coordination.k8s.io", "storage.k8s.io")
)


def has_generation(kind: ServedKind) -> bool:
    """Whether objects of a kind have metadata.generation."""
    if kind.group in _WITHOUT_GENERATION:
        return kind.resource == "pods"
    gangs = ("workloads.scheduling.k8s.io", "podgroups.scheduling.k8s.io")
    return kind.resource not in ("controllerrevisions.apps", *gangs)
