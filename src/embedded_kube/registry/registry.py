"""The verbs on stored objects, for the HTTP server and for in-process clients (compare genericregistry.Store).

The order is that of a real API server: read the old object, decode and default the new one, mutating admission,
validation, validating admission, preconditions, write.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Protocol

from embedded_kube import errors
from embedded_kube.errors import add_warnings
from embedded_kube.registry.kinds import KindTable, ServedKind
from embedded_kube.registry.metadata import (
    check_delete_preconditions,
    check_name,
    check_preconditions,
    fill_metadata,
    generation_content,
    has_generation,
    immutable_metadata_causes,
    restore_immutable,
)
from embedded_kube.registry.name_cooldown import NameCooldown
from embedded_kube.registry.options import DeleteOptions, RequestOptions
from embedded_kube.registry.timestamps import deletion_time, shorten_deletion, timestamp
from embedded_kube.storage.store import Store, StoreEntry
from gpu_scheduler.k8s.objects import Json


class Strategy(Protocol):
    """Decoding and validation of objects, by kind (compare rest.RESTCreateStrategy). `Schemas` implements it."""

    def decode(self, kind: ServedKind, obj: Json, field_validation: str) -> list[str]:
        """Prunes unknown fields, checks types and sets defaults, in key; returns warnings."""

    def prepare_for_create(self, kind: ServedKind, obj: Json) -> None:
        """Sets fields of a new object that depend on its name and uid, in key."""

    def validate(self, kind: ServedKind, obj: Json, old: Json | None) -> None:
        """Raises StatusError (422) that names every invalid field."""


AdmitFunction = Callable[[str, ServedKind, Json, Json | None, RequestOptions], Awaitable[tuple[Json, list[str]]]]
"""Mutating admission: (CREATE | UPDATE | DELETE | CONNECT, kind, object, old object, options) -> object, warnings."""

ValidateFunction = Callable[[str, ServedKind, Json, Json | None, RequestOptions], Awaitable[list[str]]]
"""Validating admission, after validation: the same parameters -> warnings."""


async def _validate_nothing(
    _operation: str, _kind: ServedKind, _obj: Json, _old: Json | None, _options: RequestOptions
) -> list[str]:
    return []


class ObjectRegistry:
    """The verbs. Methods raise StatusError; returned objects are copies that the caller may change."""

    def __init__(
        self,
        store: Store,
        kinds: KindTable,
        strategy: Strategy,
        admit: AdmitFunction,
        validate: ValidateFunction = _validate_nothing,
    ) -> None:
        self.store = store
        self.kinds = kinds
        self._strategy = strategy
        self.admit = admit
        self.validate_admission = validate
        self.name_cooldown = NameCooldown()

    # -- reading

    def get(self, kind: ServedKind, namespace: str, name: str) -> Json:
        """One object."""
        return self.entry(kind, namespace, name).object()

    def entry(self, kind: ServedKind, namespace: str, name: str) -> StoreEntry:
        """The stored entry of one object."""
        found = self.store.get(kind.resource, namespace if kind.namespaced else "", name)
        if found is None:
            raise errors.not_found(kind.plural, kind.group, name)
        return found

    def find(self, plural: str, group: str = "") -> ServedKind:
        """A kind by the plural and group of its resource; NotFound if it is not served."""
        found = self.kinds.of_resource(f"{plural}.{group}" if group else plural)
        if found is None:
            raise errors.not_found(plural, group, "")
        return found

    # -- writing

    async def create(
        self, kind: ServedKind, namespace: str, obj: Json, options: RequestOptions
    ) -> tuple[Json, list[str]]:
        """Creates an object; returns it and warnings."""
        meta = fill_metadata(kind, namespace, obj)
        warnings: list[str] = []
        if meta.keys() & _SET_BY_SERVER:
            # Fields that the server sets itself are still decoded, so that malformed values are refused.
            warnings = self._strategy.decode(kind, obj, options.field_validation)
        for unset in (*_SET_BY_SERVER, "deletionGracePeriodSeconds", "selfLink"):
            meta.pop(unset, None)
        meta["uid"] = str(uuid.uuid4())
        meta["creationTimestamp"] = timestamp()
        if "status" in kind.subresources and kind.resource != "nodes":  # a kubelet creates its node with a status
            obj.pop("status", None)
        warnings += self._strategy.decode(kind, obj, options.field_validation)
        with add_warnings(warnings):
            made, more = await self._create(kind, namespace, obj, options)
        return made, warnings + more

    async def _create(
        self, kind: ServedKind, namespace: str, obj: Json, options: RequestOptions
    ) -> tuple[Json, list[str]]:
        meta = obj["metadata"]
        await self.name_cooldown.wait((kind.resource, meta.get("namespace", ""), meta.get("name", "")))
        self._check_namespace(kind, namespace, meta.get("name") or meta.get("generateName", ""))
        obj, more = await self.admit("CREATE", kind, obj, None, options)
        meta = obj["metadata"]
        if not meta.get("name") and meta.get("generateName"):
            # After admission: mutating webhooks do not see the generated name, as on a real server.
            meta["name"] = meta["generateName"][:248] + uuid.uuid4().hex[:5]
            meta |= {"labels": dict(meta["labels"])} if meta.get("labels") else {}
            self._strategy.decode(kind, obj, "Ignore")
        self._strategy.prepare_for_create(kind, obj)
        self._strategy.validate(kind, obj, None)
        name = meta["name"]
        if has_generation(kind):
            meta["generation"] = 1
        more += await self.validate_admission("CREATE", kind, obj, None, options)
        self._check_namespace(kind, namespace, name)  # again: it may have been deleted during a webhook call
        with add_warnings(more):
            self._check_new(kind, meta, options)
        if not options.dry_run:
            obj = self.store.write(kind.resource, obj).object()
        return obj, more

    def _check_new(self, kind: ServedKind, meta: Json, options: RequestOptions) -> None:
        """Raises AlreadyExists if an object of that name exists."""
        if meta.get("resourceVersion", "0") != "0" and not options.dry_run:
            raise errors.untyped("resourceVersion should not be set on objects to be created")
        other = self.store.get(kind.resource, meta.get("namespace", ""), meta["name"])
        if other is not None:
            deleting = "deletionTimestamp" in other.object()["metadata"]
            raise errors.already_exists(kind.plural, kind.group, meta["name"], deleting)

    async def update(
        self, kind: ServedKind, namespace: str, name: str, obj: Json, options: RequestOptions
    ) -> tuple[Json, list[str]]:
        """Replaces an object or its status; returns it and warnings."""
        meta = fill_metadata(kind, namespace, obj)
        check_name(meta, name)
        wanted = meta.get("uid") or None
        if self.store.get(kind.resource, namespace if kind.namespaced else "", name) is None:
            if kind.resource in _CREATED_ON_UPDATE and not options.subresource:
                check_preconditions(kind.plural, kind.group, {"name": name}, wanted, None)
                version = meta.pop("resourceVersion", None)
                made, warnings = await self.create(kind, namespace, obj, options)
                if version and options.dry_run:
                    made["metadata"]["resourceVersion"] = version
                return made, warnings
            with add_warnings(self._strategy.decode(kind, obj, options.field_validation)):
                raise errors.not_found(kind.plural, kind.group, name)
        has_version = meta.get("resourceVersion", "0") != "0"

        def replace_object(old: Json) -> Json:
            check_preconditions(kind.plural, kind.group, old["metadata"], wanted, None)
            if not has_version and _needs_resource_version(kind):
                cause = errors.Cause("metadata.resourceVersion", "Invalid value: 0: must be specified for an update")
                raise errors.invalid(kind.plural, kind.group, name, [cause])
            return obj

        return await self.change(kind, namespace, name, replace_object, options)

    async def change(
        self, kind: ServedKind, namespace: str, name: str, edit: Callable[[Json], Json], options: RequestOptions
    ) -> tuple[Json, list[str]]:
        """Applies `edit` to the latest version of an object; every update and patch goes through here.

        If the edited object has a resourceVersion that is not the latest, the result is a conflict. Without one, `edit`
        is called again after a concurrent write.
        """
        while True:
            entry = self.entry(kind, namespace, name)
            old = entry.object()
            obj = edit(entry.object())
            meta = fill_metadata(kind, namespace, obj)
            check_name(meta, name)
            resource_version = "" if meta.get("resourceVersion") == "0" else meta.get("resourceVersion", "")
            for field in (*_SET_BY_SERVER, "deletionGracePeriodSeconds"):  # defaulting may depend on them
                if field in old["metadata"]:
                    meta.setdefault(field, old["metadata"][field])
            warnings = self._strategy.decode(kind, obj, options.field_validation)
            with add_warnings(warnings):
                self._check_resource_version(kind, resource_version, old)
                obj, more = await self._admit_change(kind, obj, old, options)
            latest = self.entry(kind, namespace, name)
            if latest.revision == entry.revision:
                break
            if resource_version:
                raise errors.conflict(kind.plural, kind.group, name, errors.MODIFIED)
        return self._finish_change(kind, obj, old, options), warnings + more

    async def _admit_change(
        self, kind: ServedKind, obj: Json, old: Json, options: RequestOptions
    ) -> tuple[Json, list[str]]:
        """Admits and validates a new version; returns it and warnings."""
        causes = immutable_metadata_causes(obj["metadata"], old["metadata"])
        if causes:
            raise errors.invalid(kind.kind, kind.group, old["metadata"]["name"], causes)
        restore_immutable(kind, obj, old, options.subresource)
        obj, warnings = await self.admit("UPDATE", kind, obj, old, options)
        self._strategy.validate(kind, obj, old)
        return obj, warnings + await self.validate_admission("UPDATE", kind, obj, old, options)

    def _check_resource_version(self, kind: ServedKind, resource_version: str, old: Json) -> None:
        """Raises a conflict if an edit names another version than the latest."""
        if resource_version and resource_version != old["metadata"]["resourceVersion"]:
            if not resource_version.isdecimal():
                raise errors.untyped(f'strconv.ParseUint: parsing "{resource_version}": invalid syntax')
            raise errors.conflict(kind.plural, kind.group, old["metadata"]["name"], errors.MODIFIED)

    def _finish_change(self, kind: ServedKind, obj: Json, old: Json, options: RequestOptions) -> Json:
        meta = obj["metadata"]
        fixed = kind.resource == "priorityclasses.scheduling.k8s.io"  # its generation stays 1
        fixed = fixed or (options.subresource == "status" and kind.crd_schema is None)
        if has_generation(kind) and not fixed and generation_content(kind, obj) != generation_content(kind, old):
            meta["generation"] = old["metadata"].get("generation", 0) + 1
        if obj == old or options.dry_run:
            return obj
        if meta.get("deletionTimestamp") and not meta.get("finalizers") and not meta.get("deletionGracePeriodSeconds"):
            held = obj.get("spec", {}).get("finalizers") if kind.kind == "Namespace" else None
            if not held:
                self._remove(kind, meta)  # nothing holds the object any more: remove it without another write
                return obj
        return self.store.write(kind.resource, obj).object()

    async def delete(
        self, kind: ServedKind, namespace: str, name: str, options: DeleteOptions, request: RequestOptions
    ) -> Json:
        """Deletes an object, or marks it for deletion if a finalizer or a grace period holds it.

        Returns the object if it still exists, otherwise a Status or, for some kinds, its last state.
        """
        old = await self._admit_delete(kind, namespace, name, options, request)
        meta = old["metadata"]
        current_grace = meta.get("deletionGracePeriodSeconds")
        if kind.resource == "pods" and current_grace and (options.grace is None or options.grace >= current_grace):
            return old  # the grace period of a terminating pod can only be shortened
        grace = _grace(kind, old, options.grace)
        propagation = "" if kind.resource == "events" else options.propagation  # events have no dependents
        finalizers = _finalizers(meta.get("finalizers", []), propagation)
        already = meta.get("deletionTimestamp")
        if kind.kind == "Namespace" and old.get("spec", {}).get("finalizers"):
            old.setdefault("status", {})["phase"] = "Terminating"
        elif not finalizers and not grace:
            return self._remove_now(kind, old, options.dry_run)
        if already and grace >= (current_grace or 0):
            if finalizers == meta.get("finalizers", []):
                return old
            meta["finalizers"] = finalizers  # a second delete with another propagation policy
            return old if options.dry_run else self.store.write(kind.resource, old).object()
        meta["deletionTimestamp"] = (
            shorten_deletion(already, current_grace - grace) if already else deletion_time(grace)
        )
        if kind.kind != "Namespace":
            meta["deletionGracePeriodSeconds"] = grace
        if finalizers:
            meta["finalizers"] = finalizers
        if not already and has_generation(kind):
            meta["generation"] = meta.get("generation", 0) + 1
        return old if options.dry_run else self.store.write(kind.resource, old).object()

    def _remove_now(self, kind: ServedKind, old: Json, dry_run: bool) -> Json:
        meta = old["metadata"]
        current_grace = meta.get("deletionGracePeriodSeconds")
        if kind.resource == "pods":
            if current_grace is None:
                meta["generation"] = meta.get("generation", 0) + 1
            meta |= {"deletionTimestamp": timestamp(), "deletionGracePeriodSeconds": 0}
            if not dry_run:  # the kubelet sees that the grace period has become 0
                self.store.write(kind.resource, old)
        if not dry_run:
            meta["resourceVersion"] = str(self._remove(kind, meta).revision)
        return old if kind.resource in _RETURNED_BY_DELETE else _deleted_status(kind, meta)

    def _remove(self, kind: ServedKind, meta: dict[str, Any]) -> StoreEntry:
        key = (kind.resource, meta.get("namespace", ""), meta["name"])
        last = self.store.remove(*key)
        self.name_cooldown.start(key)
        return last

    async def _admit_delete(
        self, kind: ServedKind, namespace: str, name: str, options: DeleteOptions, request: RequestOptions
    ) -> Json:
        """The latest version of an object that may be deleted; retries if it changed during a webhook call."""
        request = replace(request, dry_run=True) if options.dry_run else request
        while True:
            entry = self.entry(kind, namespace, name)
            old = entry.object()
            check_delete_preconditions(kind, old["metadata"], options.uid, options.revision)
            await self.admit("DELETE", kind, old, old, request)
            await self.validate_admission("DELETE", kind, old, old, request)
            if self.entry(kind, namespace, name).revision == entry.revision:
                return old

    def _check_namespace(self, kind: ServedKind, namespace: str, name: str) -> None:
        if not kind.namespaced or kind.kind == "Namespace":
            return
        namespace_entry = self.store.get("namespaces", "", namespace)
        if namespace_entry is None:
            raise errors.not_found("namespaces", "", namespace)
        if namespace_entry.object()["metadata"].get("deletionTimestamp"):
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise errors.forbidden(kind.plural, kind.group, name, why)


# A real server answers a delete of these kinds with the object, and of all others with a Status.
_RETURNED_BY_DELETE = frozenset(
    {"pods", "services", "serviceaccounts", "persistentvolumes", "persistentvolumeclaims", "podtemplates"}
)

_SET_BY_SERVER = frozenset(("uid", "creationTimestamp", "deletionTimestamp"))
_RBAC = "rbac.authorization.k8s.io"
_CREATED_ON_UPDATE = frozenset(
    (
        "events",
        "endpoints",
        "services",
        "leases.coordination.k8s.io",
        *(f"{plural}.{_RBAC}" for plural in ("roles", "rolebindings", "clusterroles", "clusterrolebindings")),
    )
)
"""A PUT creates an object of these resources if it does not exist (AllowCreateOnUpdate)."""

_CONDITIONAL_UPDATE_ONLY = frozenset(("poddisruptionbudgets.policy", "leases.coordination.k8s.io"))
"""A PUT to these resources, or to a custom resource, needs a resourceVersion (no AllowUnconditionalUpdate)."""


def _needs_resource_version(kind: ServedKind) -> bool:
    gang = kind.group == "scheduling.k8s.io" and kind.version == "v1beta1"
    return gang or kind.crd_schema is not None or kind.resource in _CONDITIONAL_UPDATE_ONLY


def _grace(kind: ServedKind, obj: Json, asked: int | None) -> int:
    """The grace period of a delete: 0 for a pod that is not bound or has ended, and for all other kinds."""
    if kind.resource != "pods":
        return 0
    spec = obj.get("spec", {})
    ended = obj.get("status", {}).get("phase") in ("Succeeded", "Failed")
    if not spec.get("nodeName") or ended:
        return 0
    return max(0, asked if asked is not None else spec.get("terminationGracePeriodSeconds", 30))


def _finalizers(present: list[str], propagation: str) -> list[str]:
    if not propagation:
        return present
    extra = {"Foreground": "foregroundDeletion", "Orphan": "orphan"}.get(propagation)
    kept = [name for name in present if name not in ("foregroundDeletion", "orphan") or name == extra]
    return [*kept, extra] if extra is not None and extra not in kept else kept


def _deleted_status(kind: ServedKind, meta: dict[str, Any]) -> Json:
    about = {"name": meta["name"], **({"group": kind.group} if kind.group else {})}
    details = {**about, "kind": kind.plural, "uid": meta["uid"]}
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
