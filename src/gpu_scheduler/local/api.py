"""What every verb does to an object, whoever asks: the HTTP server, a controller or a node.

The order is that of a real API server: find the kind, read the old object, decode and default the new one, mutate
(admission), validate, check preconditions, write, answer.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Protocol

from gpu_scheduler.local import errors
from gpu_scheduler.local.freed import FreedNames
from gpu_scheduler.local.kinds import Kind, Kinds
from gpu_scheduler.local.store import Entry, Json, Store

SYSTEM = "system:local-cluster"
"""The user that the cluster's own parts are."""


@dataclass(frozen=True, slots=True)
class Options:
    """What comes with a request beside its body."""

    user: str = SYSTEM
    groups: tuple[str, ...] = ("system:masters",)
    dry_run: bool = False
    field_validation: str = "Warn"
    field_manager: str = ""
    subresource: str = ""


@dataclass(slots=True)
class DeleteOptions:
    """What comes with a delete."""

    grace: int | None = None
    uid: str | None = None
    revision: str | None = None
    propagation: str = "Background"
    dry_run: bool = False


class Conversion(Protocol):
    """What schemas.py does for a kind: both return warnings; strict validation raises ApiError."""

    def decode(self, kind: Kind, found: Json, field_validation: str) -> list[str]:
        """Prunes unknown fields, checks types, fills in defaults, in place."""

    def validate(self, kind: Kind, found: Json, old: Json | None) -> None:
        """Raises ApiError (422) naming every field that breaks a rule of the kind."""


Admit = Callable[[str, Kind, Json, Json | None, Options], Awaitable[tuple[Json, list[str]]]]
"""Admission: (CREATE | UPDATE | DELETE | CONNECT, kind, object, old object, options) -> object, warnings."""

Check = Callable[[str, Kind, Json, Json | None, Options], Awaitable[list[str]]]
"""The second half of admission, after the object is known to be valid: may refuse, may not change; -> warnings."""


async def _check_nothing(_operation: str, _kind: Kind, _found: Json, _old: Json | None, _options: Options) -> list[str]:
    return []


class Api:
    """The verbs. Every method raises ApiError; objects that come back are copies to keep."""

    def __init__(
        self, store: Store, kinds: Kinds, conversion: Conversion, admit: Admit, check: Check = _check_nothing
    ) -> None:
        self.store = store
        self.kinds = kinds
        self._conversion = conversion
        self.admit = admit
        self.check = check
        self.freed = FreedNames()

    # -- reading

    def get(self, kind: Kind, namespace: str, name: str) -> Json:
        """One object."""
        return self.entry(kind, namespace, name).object()

    def entry(self, kind: Kind, namespace: str, name: str) -> Entry:
        """One object as it is stored."""
        found = self.store.get(kind.resource, namespace if kind.namespaced else "", name)
        if found is None:
            raise errors.not_found(kind.plural, kind.group, name)
        return found

    def find(self, plural: str, group: str = "") -> Kind:
        """A kind by the name of its resource; for the cluster's own parts, which know that it exists."""
        found = self.kinds.of_resource(f"{plural}.{group}" if group else plural)
        if found is None:
            raise errors.not_found(plural, group, "")
        return found

    # -- writing

    async def create(self, kind: Kind, namespace: str, found: Json, options: Options) -> tuple[Json, list[str]]:
        """A new object."""
        meta = _metadata(kind, namespace, found)
        if meta.get("resourceVersion"):
            raise errors.bad_request("resourceVersion should not be set on objects to be created")
        if not meta.get("name") and not meta.get("generateName"):
            cause = errors.Cause("metadata.name", _NO_NAME, "FieldValueRequired")
            raise errors.invalid(kind.kind, kind.group, "", [cause])
        await self.freed.wait_for((kind.resource, meta.get("namespace", ""), meta.get("name", "")))
        self._check_namespace(kind, namespace, meta.get("name") or meta["generateName"])
        for unset in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink"):
            meta.pop(unset, None)
        meta["uid"] = str(uuid.uuid4())
        meta["creationTimestamp"] = timestamp()
        if "status" in kind.subresources and kind.resource != "nodes":  # a kubelet brings its node's status along
            found.pop("status", None)
        warnings = self._conversion.decode(kind, found, options.field_validation)
        found, more = await self.admit("CREATE", kind, found, None, options)
        meta = found["metadata"]
        if not meta.get("name"):
            # Only now: mutating webhooks see a generated name as little as those of a real server do.
            meta["name"] = meta["generateName"][:248] + uuid.uuid4().hex[:5]
            self._conversion.decode(kind, found, "Ignore")
        name = meta["name"]
        self._conversion.validate(kind, found, None)
        if _has_generation(kind):
            meta["generation"] = 1
        more += await self.check("CREATE", kind, found, None, options)
        self._check_namespace(kind, namespace, name)  # again: a slow webhook may have outlived it
        if self.store.get(kind.resource, namespace if kind.namespaced else "", name) is not None:
            raise errors.already_exists(kind.plural, kind.group, name)
        if not options.dry_run:
            found = self.store.write(kind.resource, found).object()
        return found, warnings + more

    async def update(
        self, kind: Kind, namespace: str, name: str, found: Json, options: Options
    ) -> tuple[Json, list[str]]:
        """A new version of an object, or of its status."""
        meta = _metadata(kind, namespace, found)
        if meta.setdefault("name", name) != name:
            raise errors.bad_request(
                f"the name of the object ({meta['name']}) does not match the name on the URL ({name})"
            )
        return await self.change(kind, namespace, name, lambda _: found, options)

    async def change(
        self, kind: Kind, namespace: str, name: str, edit: Callable[[Json], Json], options: Options
    ) -> tuple[Json, list[str]]:
        """What `edit` makes of the object; the way of every update and patch.

        An edit that names the resourceVersion it was made for fails when that is no longer the latest; one that does
        not is made again when somebody else was faster.
        """
        while True:
            entry = self.entry(kind, namespace, name)
            old = entry.object()
            found = edit(entry.object())
            meta = _metadata(kind, namespace, found)
            pinned = meta.get("resourceVersion", "")
            if pinned and pinned != old["metadata"]["resourceVersion"]:
                raise errors.conflict(kind.plural, kind.group, name, errors.MODIFIED)
            check_preconditions(kind.plural, kind.group, old["metadata"], meta.get("uid") or None, None)
            _keep_identity(kind, found, old, options.subresource)
            warnings = self._conversion.decode(kind, found, options.field_validation)
            found, more = await self.admit("UPDATE", kind, found, old, options)
            self._conversion.validate(kind, found, old)
            more += await self.check("UPDATE", kind, found, old, options)
            latest = self.entry(kind, namespace, name)
            if latest.revision == entry.revision:
                break
            if pinned:
                raise errors.conflict(kind.plural, kind.group, name, errors.MODIFIED)
        return self._finish_change(kind, found, old, options), warnings + more

    def _finish_change(self, kind: Kind, found: Json, old: Json, options: Options) -> Json:
        meta = found["metadata"]
        if _has_generation(kind) and _content(found) != _content(old):
            meta["generation"] = old["metadata"].get("generation", 0) + 1
        if found == old or options.dry_run:
            return found
        if meta.get("deletionTimestamp") and not meta.get("finalizers") and not meta.get("deletionGracePeriodSeconds"):
            held = found.get("spec", {}).get("finalizers") if kind.kind == "Namespace" else None
            if not held:
                self.store.write(kind.resource, found)
                return self._remove(kind, meta).object()
        return self.store.write(kind.resource, found).object()

    async def delete(self, kind: Kind, namespace: str, name: str, options: DeleteOptions, who: Options) -> Json:
        """Deletes an object, or marks it when somebody (a finalizer, a kubelet, a controller) must act first.

        Returns the object while it still exists, else a Status that says it is gone.
        """
        old = await self._admit_delete(kind, namespace, name, options, who)
        meta = old["metadata"]
        grace = _grace(kind, old, options.grace)
        finalizers = _finalizers(meta.get("finalizers", []), options.propagation)
        already = meta.get("deletionTimestamp")
        if kind.kind == "Namespace" and old.get("spec", {}).get("finalizers"):
            old.setdefault("status", {})["phase"] = "Terminating"
        elif not finalizers and not grace:
            if not options.dry_run:
                self._remove(kind, meta)
            return _deleted(kind, meta)
        if already and grace >= meta.get("deletionGracePeriodSeconds", 0):
            return old
        meta["deletionTimestamp"] = timestamp(grace)
        meta["deletionGracePeriodSeconds"] = grace
        if finalizers:
            meta["finalizers"] = finalizers
        if not already and _has_generation(kind):
            meta["generation"] = meta.get("generation", 0) + 1
        return old if options.dry_run else self.store.write(kind.resource, old).object()

    def _remove(self, kind: Kind, meta: dict[str, Any]) -> Entry:
        place = (kind.resource, meta.get("namespace", ""), meta["name"])
        last = self.store.remove(*place)
        self.freed.note(place)
        return last

    async def _admit_delete(self, kind: Kind, namespace: str, name: str, options: DeleteOptions, who: Options) -> Json:
        """The latest version of an object that may be deleted; webhooks take time in which it can change."""
        who = replace(who, dry_run=True) if options.dry_run else who
        while True:
            entry = self.entry(kind, namespace, name)
            old = entry.object()
            check_preconditions(kind.plural, kind.group, old["metadata"], options.uid, options.revision)
            await self.admit("DELETE", kind, old, old, who)
            await self.check("DELETE", kind, old, old, who)
            if self.entry(kind, namespace, name).revision == entry.revision:
                return old

    def _check_namespace(self, kind: Kind, namespace: str, name: str) -> None:
        if not kind.namespaced or kind.kind == "Namespace":
            return
        home = self.store.get("namespaces", "", namespace)
        if home is None:
            raise errors.not_found("namespaces", "", namespace)
        if home.object()["metadata"].get("deletionTimestamp"):
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise errors.forbidden(kind.plural, kind.group, name, why)


def check_preconditions(plural: str, group: str, meta: dict[str, Any], uid: str | None, revision: str | None) -> None:
    """409 unless an object is the one, and the version of it, that a request supposes."""
    for wanted, field, title in ((uid, "uid", "UID"), (revision, "resourceVersion", "ResourceVersion")):
        if wanted is not None and wanted != meta[field]:
            why = f"Precondition failed: {title} in precondition: {wanted}, {title} in object meta: {meta[field]}"
            raise errors.conflict(plural, group, meta["name"], why)


_NO_NAME = "Required value: name or generateName is required"


def timestamp(later: float = 0.0) -> str:
    """Now, or so many seconds later, as the API writes times."""
    return _write_time(int(time.time() + later))


@lru_cache(maxsize=64)
def _write_time(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _metadata(kind: Kind, namespace: str, found: Json) -> dict[str, Any]:
    """The object's metadata, with the kind and namespace of the request filled in."""
    if (
        found.setdefault("apiVersion", kind.api_version) != kind.api_version
        or found.setdefault("kind", kind.kind) != kind.kind
    ):
        said = f"{found['apiVersion']}, Kind={found.get('kind')}"
        raise errors.bad_request(f"the object provided is of {said}, not of {kind.api_version}, Kind={kind.kind}")
    meta: dict[str, Any] = found.setdefault("metadata", {})
    if kind.namespaced:
        if meta.setdefault("namespace", namespace) != namespace:
            why = "the namespace of the provided object does not match the namespace sent on the request"
            raise errors.bad_request(why)
    else:
        meta.pop("namespace", None)
    return meta


def _keep_identity(kind: Kind, found: Json, old: Json, subresource: str) -> None:
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
    if "status" not in kind.subresources:
        return
    if subresource == "status":
        status = found.get("status")
        labels = {name: meta[name] for name in _STATUS_METADATA if name in meta}
        found.clear()
        found.update({**old, "metadata": {**was, **labels}})
        if status is not None:
            found["status"] = status
    elif "status" in old:
        found["status"] = old["status"]
    else:
        found.pop("status", None)


_STATUS_METADATA = ("labels", "annotations", "finalizers", "ownerReferences", "managedFields")
"""What of its metadata a write to an object's status may change."""


def _content(found: Json) -> Json:
    return {name: value for name, value in found.items() if name not in ("metadata", "status")}


def _has_generation(kind: Kind) -> bool:
    return kind.group not in ("", "events.k8s.io") or kind.kind == "Pod"


def _grace(kind: Kind, found: Json, asked: int | None) -> int:
    """How long a pod may take to stop: nothing if it never started or has ended; other objects need no time."""
    if kind.resource != "pods":
        return 0
    spec = found.get("spec", {})
    ended = found.get("status", {}).get("phase") in ("Succeeded", "Failed")
    if not spec.get("nodeName") or ended:
        return 0
    return max(0, asked if asked is not None else spec.get("terminationGracePeriodSeconds", 30))


def _finalizers(present: list[str], propagation: str) -> list[str]:
    extra = {"Foreground": "foregroundDeletion", "Orphan": "orphan"}.get(propagation)
    return [*present, extra] if extra is not None and extra not in present else present


def _deleted(kind: Kind, meta: dict[str, Any]) -> Json:
    about = {"name": meta["name"], **({"group": kind.group} if kind.group else {})}
    details = {**about, "kind": kind.plural, "uid": meta["uid"]}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
