"""Validation of object metadata."""

from __future__ import annotations

from embedded_kube.errors import Cause
from embedded_kube.registry.kinds import ServedKind
from embedded_kube.registry.metadata import has_generation
from embedded_kube.schema.decoding import FieldPath
from embedded_kube.validation.constraints import (
    FieldCheck,
    add_forbidden,
    add_invalid,
    add_required,
    annotation_map,
    dns1035_label,
    dns_label,
    dns_subdomain,
    key_problems,
    label_map,
    path_segment,
    show,
)
from gpu_scheduler.k8s.objects import Json

_RBAC = "rbac.authorization.k8s.io"
_NAMES: dict[tuple[str, str], FieldCheck] = {
    ("", "Namespace"): dns_label,
    ("", "Event"): path_segment,
    ("apps", "StatefulSet"): dns_label,
    ("policy", "PodDisruptionBudget"): path_segment,
    ("", "Service"): dns1035_label,
    **{(_RBAC, name): path_segment for name in ("Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding")},
}
_PATH: FieldPath = (None, "metadata")
_OWNERS = {"apiVersion": "version ", "kind": "", "name": "", "uid": ""}


def metadata_causes(kind: ServedKind, obj: Json, old: Json | None, version: str) -> list[Cause]:
    """The causes that make an object's metadata invalid."""
    meta = obj.get("metadata", {})
    causes: list[Cause] = []
    before = old["metadata"] if old is not None else {}
    if meta == before:
        return causes
    if old is None:
        _name(kind, meta, causes, version)
    for name, check in (("labels", label_map), ("annotations", annotation_map)):
        if meta.get(name) and meta[name] != before.get(name):
            check(meta[name], (_PATH, name), causes)
    if meta.get("finalizers"):
        _finalizers(kind, meta, before, causes)
    if meta.get("generation", 0) < 0 and not has_generation(kind):  # otherwise the registry sets it
        add_invalid(causes, (_PATH, "generation"), meta["generation"], "must be greater than or equal to 0")
    if meta.get("ownerReferences"):
        _owners(meta["ownerReferences"], causes)
    return causes


def _name(kind: ServedKind, meta: Json, causes: list[Cause], version: str) -> None:
    if not meta.get("name"):
        add_required(causes, (_PATH, "name"), "name or generateName is required")
        return
    check = _NAMES.get((kind.group, kind.kind), dns_subdomain)
    if check is dns1035_label and version != "1.35":
        check = dns_label  # since 1.36 the name of a Service may begin with a digit
    check(meta["name"], (_PATH, "name"), causes)
    if kind.namespaced and meta.get("namespace"):
        dns_label(meta["namespace"], (_PATH, "namespace"), causes)


_KNOWN_FINALIZERS = ("kubernetes", "orphan", "foregroundDeletion")


def _finalizers(kind: ServedKind, meta: Json, before: Json, causes: list[Cause]) -> None:
    path: FieldPath = (_PATH, "finalizers")
    for index, name in enumerate(meta["finalizers"]):
        for problem in key_problems(name):
            add_invalid(causes, path, name, problem)
        # Custom kinds get a warning only.
        own = kind.crd_schema is not None or kind.group == "apiextensions.k8s.io"
        if not own and "/" not in name and name not in _KNOWN_FINALIZERS:
            why = "name is neither a standard finalizer name nor is it fully qualified"
            add_invalid(causes, (path, index), name, why)
    added = [name for name in meta["finalizers"] if name not in before.get("finalizers", ())]
    if before.get("deletionTimestamp") and added:
        listed = ", ".join(show(name) for name in added)
        why = (
            f"no new finalizers can be added if the object is being deleted, found new finalizers []string{{{listed}}}"
        )
        add_forbidden(causes, path, why)


def _owners(owners: list[Json], causes: list[Cause]) -> None:
    path: FieldPath = (_PATH, "ownerReferences")
    controllers = []
    for owner in owners:
        for name, word in _OWNERS.items():
            if not owner.get(name):
                add_invalid(causes, (path, name), "", f"{word}must not be empty")
        if owner.get("apiVersion", "").count("/") > 1:
            add_invalid(causes, (path, "apiVersion"), owner["apiVersion"], "version must not be empty")
        if owner.get("kind") == "Event" and owner.get("apiVersion") in ("v1", "events.k8s.io/v1"):
            about = "/v1" if owner["apiVersion"] == "v1" else owner["apiVersion"]
            add_invalid(causes, path, owner, f"{about}, Kind=Event is disallowed from being an owner")
        if owner.get("controller"):
            controllers.append(f"{owner.get('kind', '')}/{owner.get('name', '')}")
    if len(controllers) > 1:
        why = f'Only one reference can have Controller set to true. Found "true" in references for {controllers[0]}'
        add_invalid(causes, path, owners, f"{why} and {controllers[1]}")
