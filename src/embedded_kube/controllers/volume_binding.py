"""Chooses volumes for claims: which ones match, which is best, and what a provisioned one looks like."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from embedded_kube.controllers.machinery.objects import FullObject
from embedded_kube.controllers.workloads.controller_ref import owner_reference
from embedded_kube.registry.label_selectors import matches
from gpu_scheduler.k8s.objects import Json
from gpu_scheduler.k8s.quantity import parse_value

DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"


def class_of(claim: FullObject, classes: Iterable[FullObject]) -> str:
    """Returns the name of a claim's storage class: the default one if the claim names none."""
    named = claim.spec.get("storageClassName")
    if named is not None:
        return str(named)
    defaults = [one for one in classes if one.annotations.get(DEFAULT_CLASS) == "true"]
    newest = max(defaults, key=lambda one: (one.meta.created, one.meta.name), default=None)
    return newest.meta.name if newest is not None else ""


def is_claimed_by(volume: FullObject, claim: FullObject) -> bool:
    """Whether a volume's claimRef is this claim, and not an earlier one of its name."""
    reference = volume.spec.get("claimRef") or {}
    same = (reference.get("namespace"), reference.get("name")) == claim.meta.key
    return same and reference.get("uid") in (None, "", claim.meta.uid)


def fits(volume: FullObject, claim: FullObject, class_name: str) -> bool:
    """Whether a volume is free and matches a claim."""
    if volume.meta.deleting or volume.status.get("phase") in ("Released", "Failed"):
        return False
    if volume.spec.get("claimRef") and not is_claimed_by(volume, claim):
        return False
    if (volume.spec.get("storageClassName") or "") != class_name:
        return False
    if volume.spec.get("volumeMode", "Filesystem") != claim.spec.get("volumeMode", "Filesystem"):
        return False
    if not set(claim.spec.get("accessModes") or ()) <= set(volume.spec.get("accessModes") or ()):
        return False
    selector = claim.spec.get("selector")
    if selector and not matches(selector, volume.meta.labels):
        return False
    return capacity(volume) >= requested(claim)


def capacity(volume: FullObject) -> int:
    """Returns the capacity of a volume in bytes."""
    return _bytes((volume.spec.get("capacity") or {}).get("storage"))


def requested(claim: FullObject) -> int:
    """Returns the bytes that a claim requests."""
    return _bytes(((claim.spec.get("resources") or {}).get("requests") or {}).get("storage"))


def pick_volume(claim: FullObject, volumes: Iterable[FullObject], class_name: str) -> FullObject | None:
    """Returns the volume for a claim: one reserved for it, else the smallest that matches."""
    fitting = [volume for volume in volumes if fits(volume, claim, class_name)]
    return min(fitting, key=lambda one: (not one.spec.get("claimRef"), capacity(one), one.meta.key), default=None)


def is_reachable_from(volume: FullObject, labels: Mapping[str, str]) -> bool:
    """Whether the volume's node affinity allows a node with these labels."""
    required = (volume.spec.get("nodeAffinity") or {}).get("required") or {}
    terms = required.get("nodeSelectorTerms")
    return not terms or any(matches({"matchExpressions": term.get("matchExpressions")}, labels) for term in terms)


def claim_reference(claim: FullObject) -> Json:
    """Returns the claimRef of a volume."""
    reference = owner_reference("v1", "PersistentVolumeClaim", claim)
    return {
        **{name: reference[name] for name in ("apiVersion", "kind", "name", "uid")},
        "namespace": claim.meta.namespace,
        "resourceVersion": str(claim.meta.revision),
    }


def new_volume(claim: FullObject, storage_class: FullObject, folder: Path, host: str) -> Json:
    """Returns a provisioned volume for a claim; `host` is the hostname label of its node, if known."""
    name = f"pvc-{claim.meta.uid}"
    spec: Json = {
        "capacity": {"storage": claim.spec["resources"]["requests"]["storage"]},
        "accessModes": list(claim.spec.get("accessModes") or ["ReadWriteOnce"]),
        "volumeMode": claim.spec.get("volumeMode", "Filesystem"),
        "persistentVolumeReclaimPolicy": storage_class.body.get("reclaimPolicy") or "Delete",
        "storageClassName": storage_class.meta.name,
        "claimRef": claim_reference(claim),
        "hostPath": {"path": str(folder / name), "type": "DirectoryOrCreate"},
    }
    if host:
        term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [host]}]}
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": [term]}}
    annotations = {PROVISIONED_BY: str(storage_class.body["provisioner"])}
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "annotations": annotations},
        "spec": spec,
    }


def _bytes(text: str | int | None) -> int:
    return parse_value(str(text)) if text is not None else 0
