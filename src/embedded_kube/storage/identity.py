"""Who an object is: what of it a request must get right, may leave out, and cannot change."""

from __future__ import annotations

from typing import Any

from embedded_kube import errors
from embedded_kube.storage.kinds import Kind
from embedded_kube.storage.store import Json


def check_preconditions(plural: str, group: str, meta: dict[str, Any], uid: str | None, revision: str | None) -> None:
    """409 unless an object is the one, and the version of it, that a request supposes."""
    for wanted, field, title in ((uid, "uid", "UID"), (revision, "resourceVersion", "ResourceVersion")):
        if wanted is not None and wanted != meta.get(field):
            have = meta.get(field, "")
            why = f"Precondition failed: {title} in precondition: {wanted}, {title} in object meta: {have}"
            raise errors.conflict(plural, group, meta["name"], why)


def check_deletable(kind: Kind, meta: dict[str, Any], uid: str | None, revision: str | None) -> None:
    """The same for a delete, which has words of its own for it."""
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
    """400 unless an object has the name that the path has."""
    if not meta.get("name"):
        why = f"the name of the object ({name} based on URL) was undeterminable: name must be provided"
        raise errors.bad_request(why)
    if meta["name"] != name:
        raise errors.bad_request(f"the name of the object ({meta['name']}) does not match the name on the URL ({name})")


def changed_identity(meta: Json, was: Json) -> list[errors.Cause]:
    """What an update says about who the object is, and is not so."""
    return [
        errors.Cause(f"metadata.{name}", f'Invalid value: "{meta[name]}": field is immutable')
        for name in ("uid", "deletionTimestamp")
        if meta.get(name) and meta[name] != was.get(name)
    ]


def fill_metadata(kind: Kind, namespace: str, found: Json) -> dict[str, Any]:
    """The object's metadata, with the kind and namespace of the request filled in."""
    said = found.setdefault("apiVersion", kind.api_version), found.setdefault("kind", kind.kind)
    if said != (kind.api_version, kind.kind):
        raise _wrong_kind(kind, *said, (found.get("metadata") or {}).get("name", ""))
    meta: dict[str, Any] = found.setdefault("metadata", {})
    if kind.namespaced:
        if meta.setdefault("namespace", namespace) != namespace:
            why = "the namespace of the provided object does not match the namespace sent on the request"
            raise errors.bad_request(why)
    else:
        meta.pop("namespace", None)
    return meta


def _wrong_kind(kind: Kind, version: Any, name: Any, object_name: str) -> errors.ApiError:
    """What is said of an object that is of another kind than its path."""
    if kind.crd_schema is not None:
        if version != kind.api_version:
            why = f"the API version in the data ({version}) does not match the expected API version"
            return errors.bad_request(f"{why} ({kind.api_version})")
        cause = errors.Cause("kind", f'Invalid value: "{name}": must be {kind.kind}')
        return errors.invalid(str(name), kind.group, object_name, [cause])
    why = f'no kind "{name}" is registered for version "{version}" in scheme "pkg/runtime/scheme.go:111"'
    subject = f'{name} in version "{str(version).rpartition("/")[2]}" cannot be handled as a {kind.kind}'
    return errors.UndecodableError(subject, why)


def keep_identity(kind: Kind, found: Json, old: Json, subresource: str) -> None:
    """Restores what an update cannot change: who the object is, and the half that this request is not about."""
    meta, was = found["metadata"], old["metadata"]
    for name in ("uid", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"):
        meta.pop(name, None)
        if name in was:
            meta[name] = was[name]
    meta["resourceVersion"] = was["resourceVersion"]
    # What managers applied is theirs to change (patch.py); who leaves it out does not mean to.
    if "managedFields" in was:
        meta.setdefault("managedFields", was["managedFields"])
    if meta.get("managedFields") == []:
        del meta["managedFields"]
    if kind.resource == "namespaces" and subresource != "finalize" and "spec" in old:
        found["spec"] = old["spec"]  # all that it has are finalizers
    if "status" not in kind.subresources:
        return
    if subresource == "status":
        status = found.get("status")
        free = _free_with_status(kind)
        kept = {name: value for name, value in was.items() if name not in free}
        found.clear()
        found.update({**old, "metadata": {**kept, **{name: meta[name] for name in free if name in meta}}})
        if status is not None:
            found["status"] = status
            if kind.resource == "pods" and "qosClass" in old.get("status", {}):
                status["qosClass"] = old["status"]["qosClass"]  # it follows from the spec
        elif kind.crd_schema is not None:
            found.pop("status", None)
    elif "status" in old:
        found["status"] = old["status"]
    else:
        found.pop("status", None)


def _free_with_status(kind: Kind) -> tuple[str, ...]:
    """What of its metadata a write to an object's status may change; every kind has its own idea."""
    if kind.crd_schema is not None:
        return ("managedFields",)
    own = {"deployments.apps": "ownerReferences", "pods": "labels"}.get(kind.resource)
    free = ("annotations", "finalizers", "managedFields")
    return (*free, own) if own else (*free, "labels", "ownerReferences")


def content_of(kind: Kind, found: Json) -> Json:
    """What counts as a new generation when it changes."""
    apart = ("metadata", "status") if "status" in kind.subresources or kind.crd_schema is None else ("metadata",)
    content = {name: value for name, value in found.items() if name not in apart}
    # Annotations of a deployment are handed on to what it makes.
    return {**content, "": found["metadata"].get("annotations")} if kind.resource == "deployments.apps" else content


_WITHOUT_GENERATION = frozenset(
    ("", "events.k8s.io", "rbac.authorization.k8s.io", "coordination.k8s.io", "storage.k8s.io")
)


def has_generation(kind: Kind) -> bool:
    if kind.group in _WITHOUT_GENERATION:
        return kind.resource == "pods"
    gangs = ("workloads.scheduling.k8s.io", "podgroups.scheduling.k8s.io")
    return kind.resource not in ("controllerrevisions.apps", *gangs)
