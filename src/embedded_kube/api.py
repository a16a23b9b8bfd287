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

from embedded_kube import errors
from embedded_kube.errors import warned
from embedded_kube.storage.identity import (
    changed_identity,
    check_deletable,
    check_name,
    check_preconditions,
    content_of,
    fill_metadata,
    has_generation,
    keep_identity,
)
from embedded_kube.storage.kinds import Kind, Kinds
from embedded_kube.storage.name_cooldown import FreedNames
from embedded_kube.storage.store import Entry, Json, Store

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
    propagation: str = ""
    """Background, Foreground or Orphan; "" leaves it at what an earlier delete said."""
    dry_run: bool = False
    told_background: bool = False
    """It was said in the old way: orphanDependents: false."""


class Conversion(Protocol):
    """What schemas.py does for a kind: both return warnings; strict validation raises ApiError."""

    def decode(self, kind: Kind, found: Json, field_validation: str) -> list[str]:
        """Prunes unknown fields, checks types, fills in defaults, in place."""

    def finish(self, kind: Kind, found: Json) -> None:
        """Gives a new object what depends on its name and uid, in place."""

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
        meta = fill_metadata(kind, namespace, found)
        warnings: list[str] = []
        if meta.keys() & _GIVEN:
            # What the server will set itself is read all the same, and refused when it is malformed.
            warnings = self._conversion.decode(kind, found, options.field_validation)
        for unset in (*_GIVEN, "deletionGracePeriodSeconds", "selfLink"):
            meta.pop(unset, None)
        meta["uid"] = str(uuid.uuid4())
        meta["creationTimestamp"] = timestamp()
        if "status" in kind.subresources and kind.resource != "nodes":  # a kubelet brings its node's status along
            found.pop("status", None)
        warnings += self._conversion.decode(kind, found, options.field_validation)
        with warned(warnings):
            made, more = await self._create(kind, namespace, found, options)
        return made, warnings + more

    async def _create(self, kind: Kind, namespace: str, found: Json, options: Options) -> tuple[Json, list[str]]:
        meta = found["metadata"]
        await self.freed.wait_for((kind.resource, meta.get("namespace", ""), meta.get("name", "")))
        self._check_namespace(kind, namespace, meta.get("name") or meta.get("generateName", ""))
        found, more = await self.admit("CREATE", kind, found, None, options)
        meta = found["metadata"]
        if not meta.get("name") and meta.get("generateName"):
            # Only now: mutating webhooks see a generated name as little as those of a real server do.
            meta["name"] = meta["generateName"][:248] + uuid.uuid4().hex[:5]
            meta |= {"labels": dict(meta["labels"])} if meta.get("labels") else {}
            self._conversion.decode(kind, found, "Ignore")
        self._conversion.finish(kind, found)
        self._conversion.validate(kind, found, None)
        name = meta["name"]
        if has_generation(kind):
            meta["generation"] = 1
        more += await self.check("CREATE", kind, found, None, options)
        self._check_namespace(kind, namespace, name)  # again: a slow webhook may have outlived it
        with warned(more):
            self._check_new(kind, meta, options)
        if not options.dry_run:
            found = self.store.write(kind.resource, found).object()
        return found, more

    def _check_new(self, kind: Kind, meta: Json, options: Options) -> None:
        """409 when there is one of that name."""
        if meta.get("resourceVersion", "0") != "0" and not options.dry_run:
            raise errors.unnamed("resourceVersion should not be set on objects to be created")
        other = self.store.get(kind.resource, meta.get("namespace", ""), meta["name"])
        if other is not None:
            deleting = "deletionTimestamp" in other.object()["metadata"]
            raise errors.already_exists(kind.plural, kind.group, meta["name"], deleting)

    async def update(
        self, kind: Kind, namespace: str, name: str, found: Json, options: Options
    ) -> tuple[Json, list[str]]:
        """A new version of an object, or of its status."""
        meta = fill_metadata(kind, namespace, found)
        check_name(meta, name)
        wanted = meta.get("uid") or None
        if self.store.get(kind.resource, namespace if kind.namespaced else "", name) is None:
            if kind.resource in _MADE_BY_UPDATES and not options.subresource:
                check_preconditions(kind.plural, kind.group, {"name": name}, wanted, None)
                version = meta.pop("resourceVersion", None)
                made, warnings = await self.create(kind, namespace, found, options)
                if version and options.dry_run:
                    made["metadata"]["resourceVersion"] = version
                return made, warnings
            with warned(self._conversion.decode(kind, found, options.field_validation)):
                raise errors.not_found(kind.plural, kind.group, name)
        pinned = meta.get("resourceVersion", "0") != "0"

        def replace_it(old: Json) -> Json:
            check_preconditions(kind.plural, kind.group, old["metadata"], wanted, None)
            gang = kind.group == "scheduling.k8s.io" and kind.version == "v1beta1"
            if not pinned and (kind.crd_schema is not None or gang or kind.resource in _NEVER_UNCONDITIONAL):
                cause = errors.Cause("metadata.resourceVersion", "Invalid value: 0: must be specified for an update")
                raise errors.invalid(kind.plural, kind.group, name, [cause])
            return found

        return await self.change(kind, namespace, name, replace_it, options)

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
            meta = fill_metadata(kind, namespace, found)
            check_name(meta, name)
            pinned = "" if meta.get("resourceVersion") == "0" else meta.get("resourceVersion", "")
            for field in (*_GIVEN, "deletionGracePeriodSeconds"):  # what depends on them is filled in as before
                if field in old["metadata"]:
                    meta.setdefault(field, old["metadata"][field])
            warnings = self._conversion.decode(kind, found, options.field_validation)
            with warned(warnings):
                self._check_pinned(kind, pinned, old)
                found, more = await self._check_change(kind, found, old, options)
            latest = self.entry(kind, namespace, name)
            if latest.revision == entry.revision:
                break
            if pinned:
                raise errors.conflict(kind.plural, kind.group, name, errors.MODIFIED)
        return self._finish_change(kind, found, old, options), warnings + more

    async def _check_change(self, kind: Kind, found: Json, old: Json, options: Options) -> tuple[Json, list[str]]:
        """A new version that may be stored, and warnings."""
        causes = changed_identity(found["metadata"], old["metadata"])
        if causes:
            raise errors.invalid(kind.kind, kind.group, old["metadata"]["name"], causes)
        keep_identity(kind, found, old, options.subresource)
        found, warnings = await self.admit("UPDATE", kind, found, old, options)
        self._conversion.validate(kind, found, old)
        return found, warnings + await self.check("UPDATE", kind, found, old, options)

    def _check_pinned(self, kind: Kind, pinned: str, old: Json) -> None:
        """409 when an edit was made for another version."""
        if pinned and pinned != old["metadata"]["resourceVersion"]:
            if not pinned.isdecimal():
                raise errors.unnamed(f'strconv.ParseUint: parsing "{pinned}": invalid syntax')
            raise errors.conflict(kind.plural, kind.group, old["metadata"]["name"], errors.MODIFIED)

    def _finish_change(self, kind: Kind, found: Json, old: Json, options: Options) -> Json:
        meta = found["metadata"]
        fixed = kind.resource == "priorityclasses.scheduling.k8s.io"  # it stays at its first generation
        fixed = fixed or (options.subresource == "status" and kind.crd_schema is None)
        if has_generation(kind) and not fixed and content_of(kind, found) != content_of(kind, old):
            meta["generation"] = old["metadata"].get("generation", 0) + 1
        if found == old or options.dry_run:
            return found
        if meta.get("deletionTimestamp") and not meta.get("finalizers") and not meta.get("deletionGracePeriodSeconds"):
            held = found.get("spec", {}).get("finalizers") if kind.kind == "Namespace" else None
            if not held:
                self._remove(kind, meta)  # what nothing holds any more is not written once more
                return found
        return self.store.write(kind.resource, found).object()

    async def delete(self, kind: Kind, namespace: str, name: str, options: DeleteOptions, who: Options) -> Json:
        """Deletes an object, or marks it when somebody (a finalizer, a kubelet, a controller) must act first.

        Returns the object while it still exists, else a Status that says it is gone, or its last state.
        """
        old = await self._admit_delete(kind, namespace, name, options, who)
        meta = old["metadata"]
        given = meta.get("deletionGracePeriodSeconds")
        if kind.resource == "pods" and given and (options.grace is None or options.grace >= given):
            return old  # a pod that is about to stop only hears of less time
        grace = _grace(kind, old, options.grace)
        propagation = "" if kind.resource == "events" else options.propagation  # nobody depends on an event
        finalizers = _finalizers(meta.get("finalizers", []), propagation)
        already = meta.get("deletionTimestamp")
        if kind.kind == "Namespace" and old.get("spec", {}).get("finalizers"):
            old.setdefault("status", {})["phase"] = "Terminating"
        elif not finalizers and not grace:
            return self._delete_now(kind, old, options.dry_run)
        if already and grace >= (given or 0):
            if finalizers == meta.get("finalizers", []):
                return old
            meta["finalizers"] = finalizers  # somebody changed his mind about what depends on it
            return old if options.dry_run else self.store.write(kind.resource, old).object()
        meta["deletionTimestamp"] = timestamp(grace)
        if kind.kind != "Namespace":
            meta["deletionGracePeriodSeconds"] = grace
        if finalizers:
            meta["finalizers"] = finalizers
        if not already and has_generation(kind):
            meta["generation"] = meta.get("generation", 0) + 1
        return old if options.dry_run else self.store.write(kind.resource, old).object()

    def _delete_now(self, kind: Kind, old: Json, dry_run: bool) -> Json:
        meta = old["metadata"]
        given = meta.get("deletionGracePeriodSeconds")
        if kind.resource == "pods":
            if given is None:
                meta["generation"] = meta.get("generation", 0) + 1
            meta |= {"deletionTimestamp": timestamp(), "deletionGracePeriodSeconds": 0}
            if not dry_run:  # a kubelet that was given time is told that there is none left
                self.store.write(kind.resource, old)
        last = old
        if not dry_run:
            meta["resourceVersion"] = str(self._remove(kind, meta).revision)
        return last if kind.resource in _SHOWN_AFTER_DELETE else _deleted(kind, meta)

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
            check_deletable(kind, old["metadata"], options.uid, options.revision)
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


# A real server answers a delete of these with the object, of all others with a Status.
_SHOWN_AFTER_DELETE = frozenset(
    {"pods", "services", "serviceaccounts", "persistentvolumes", "persistentvolumeclaims", "podtemplates"}
)

_GIVEN = frozenset(("uid", "creationTimestamp", "deletionTimestamp"))
_RBAC = "rbac.authorization.k8s.io"
_MADE_BY_UPDATES = frozenset(
    (
        "events",
        "endpoints",
        "services",
        "leases.coordination.k8s.io",
        *(f"{plural}.{_RBAC}" for plural in ("roles", "rolebindings", "clusterroles", "clusterrolebindings")),
    )
)
"""A PUT of one of these that is not there makes it."""

_NEVER_UNCONDITIONAL = frozenset(("poddisruptionbudgets.policy", "leases.coordination.k8s.io"))
"""A PUT of one of these, or of a custom object, must say which version it replaces."""


def timestamp(later: float = 0.0) -> str:
    """Now, or so many seconds later, as the API writes times."""
    return _write_time(int(time.time() + later))


@lru_cache(maxsize=64)
def _write_time(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


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
    if not propagation:
        return present
    extra = {"Foreground": "foregroundDeletion", "Orphan": "orphan"}.get(propagation)
    kept = [name for name in present if name not in ("foregroundDeletion", "orphan") or name == extra]
    return [*kept, extra] if extra is not None and extra not in kept else kept


def _deleted(kind: Kind, meta: dict[str, Any]) -> Json:
    about = {"name": meta["name"], **({"group": kind.group} if kind.group else {})}
    details = {**about, "kind": kind.plural, "uid": meta["uid"]}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
