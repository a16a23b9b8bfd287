"""Volume constraints: which nodes a pod's PersistentVolumeClaims allow, and which of them it must wait for.

Not covered, because the kubelet or the attach controller refuses them later: limits on attached volumes, and
ReadWriteOncePod claims.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec
import structlog

from gpu_scheduler.core.model import Gate, GateKind
from gpu_scheduler.core.selectors import NodeTerm, NodeTerms, Requirement, SelectorOperator
from gpu_scheduler.gangs.pods.terms import NodeSelector, TopologyTerm, node_terms, topology_terms
from gpu_scheduler.k8s.objects import ClaimObject, Meta, PodObject, StorageClassObject, Volume, VolumeObject

SELECTED_NODE: Final = "volume.kubernetes.io/selected-node"
BIND_COMPLETED: Final = "pv.kubernetes.io/bind-completed"
_OLD_CLASS: Final = "volume.beta.kubernetes.io/storage-class"
_NO_PROVISIONER: Final = "kubernetes.io/no-provisioner"
_ZONE_LABELS: Final = tuple(
    (f"failure-domain.beta.kubernetes.io/{level}", f"topology.kubernetes.io/{level}") for level in ("zone", "region")
)
"""The old and the new label of zones and of regions."""

_log = structlog.get_logger(__name__)


class _VolumeAffinity(msgspec.Struct):
    required: NodeSelector | None = None


class _StorageClass(NamedTuple):
    """A storage class: whether it waits for the first consumer, its allowed topologies, and whether it provisions."""

    waits: bool
    terms: NodeTerms
    provisions: bool


class VolumeConstraints(NamedTuple):
    """The constraints of a pod's claims: node terms of its volumes, and gates of claims it must wait for."""

    terms: tuple[NodeTerms, ...] = ()
    gates: tuple[Gate, ...] = ()


_UNCONSTRAINED = VolumeConstraints()


def claims_of(pod: PodObject) -> tuple[str, ...]:
    """The names of the claims that a pod uses, in its own namespace."""
    return tuple(_claim_name(pod, volume) for volume in pod.spec.volumes or () if _is_claim(volume))


class VolumeClaims:
    """Cache of PersistentVolumeClaims, PersistentVolumes and StorageClasses."""

    def __init__(self) -> None:
        self._claims: dict[tuple[str, str], ClaimObject] = {}
        self._volumes: dict[str, tuple[NodeTerms, ...]] = {}
        self._classes: dict[str, _StorageClass] = {}

    def put(self, seen: ClaimObject | VolumeObject | StorageClassObject) -> None:
        """Adds or updates an object. An invalid one is removed: pods that need it wait."""
        meta = seen.metadata
        try:
            if isinstance(seen, ClaimObject):
                self._claims[meta.namespace, meta.name] = seen
            elif isinstance(seen, VolumeObject):
                self._volumes[meta.name] = (*_read_affinity(seen), *_read_zones(meta.labels or {}))
            else:
                self._classes[meta.name] = _read_class(seen)
        except msgspec.ValidationError as error:
            self.remove(seen)
            _log.warning("object skipped: it does not match its kind", name=meta.name, error=str(error))

    def remove(self, gone: ClaimObject | VolumeObject | StorageClassObject) -> None:
        """Removes a deleted object."""
        meta = gone.metadata
        if isinstance(gone, ClaimObject):
            self._claims.pop((meta.namespace, meta.name), None)
        elif isinstance(gone, VolumeObject):
            self._volumes.pop(meta.name, None)
        else:
            self._classes.pop(meta.name, None)

    def constraints(self, pod: PodObject) -> VolumeConstraints:
        """The constraints of a waiting pod's claims."""
        terms: list[NodeTerms] = []
        gates: list[Gate] = []
        for volume in pod.spec.volumes or ():
            if _is_claim(volume):
                found = self._constraints_of(pod, volume)
                if isinstance(found, Gate):
                    gates.append(found)
                else:
                    terms += found
        return VolumeConstraints(tuple(dict.fromkeys(terms)), tuple(gates)) if terms or gates else _UNCONSTRAINED

    def unbound(self, pod: PodObject) -> dict[str, str]:
        """The claims that must become Bound before the pod is bound, with the node selected for each, if any."""
        waiting = (claim.metadata for claim in self._waiting(pod))
        return {meta.name: (meta.annotations or {}).get(SELECTED_NODE, "") for meta in waiting}

    def _waiting(self, pod: PodObject) -> Iterator[ClaimObject]:
        for name in claims_of(pod):
            claim = self._claims.get((pod.metadata.namespace, name))
            if claim is not None and not _is_bound(claim):
                yield claim

    def _constraints_of(self, pod: PodObject, volume: Volume) -> tuple[NodeTerms, ...] | Gate:
        """The node terms of one claim, all of which must match, or the gate that keeps the pod waiting."""
        name = _claim_name(pod, volume)
        claim = self._claims.get((pod.metadata.namespace, name))
        if claim is None:
            what = "is not made yet" if volume.ephemeral is not None else "does not exist; create it"
            return Gate(GateKind.MISSING_CLAIM, f"persistentvolumeclaim {name} {what}")
        if volume.ephemeral is not None and not _is_owned(claim.metadata, pod.metadata.uid):
            return Gate(GateKind.MISSING_CLAIM, f"persistentvolumeclaim {name} was not made for this pod; delete it")
        if claim.metadata.deletion_timestamp is not None:
            return Gate(GateKind.MISSING_CLAIM, f"persistentvolumeclaim {name} is being deleted")
        if claim.status.phase == "Lost":
            return Gate(GateKind.MISSING_CLAIM, f"persistentvolumeclaim {name} has lost its volume")
        if not _is_bound(claim):
            return self._constraints_of_unbound(claim)
        if claim.spec.volume_name not in self._volumes:
            why = f"persistentvolume {claim.spec.volume_name} of claim {name} does not exist"
            return Gate(GateKind.MISSING_CLAIM, why)
        return self._volumes[claim.spec.volume_name]

    def _constraints_of_unbound(self, claim: ClaimObject) -> tuple[NodeTerms, ...] | Gate:
        meta = claim.metadata
        annotations = meta.annotations or {}
        name = annotations.get(_OLD_CLASS) or claim.spec.storage_class_name or ""
        found = self._classes.get(name)
        if name and found is None:
            why = f"persistentvolumeclaim {meta.name}: there is no storageclass {name}"
            return Gate(GateKind.UNBOUND_CLAIM, why)
        if found is None or not found.waits or claim.spec.volume_name:
            return Gate(GateKind.UNBOUND_CLAIM, f"persistentvolumeclaim {meta.name} is not bound to a volume yet")
        if not found.provisions:
            # Its volumes are created by hand: the claim must name its volume before a node can be chosen.
            why = f"persistentvolumeclaim {meta.name}: storageclass {name} makes no volumes; set spec.volumeName"
            return Gate(GateKind.UNBOUND_CLAIM, why)
        node = annotations.get(SELECTED_NODE)
        selected = NodeTerm(fields=(Requirement("metadata.name", SelectorOperator.IN, (node,)),)) if node else None
        return (*([(selected,)] if selected else []), *([found.terms] if found.terms else []))


def _is_claim(volume: Volume) -> bool:
    return volume.persistent_volume_claim is not None or volume.ephemeral is not None


def _claim_name(pod: PodObject, volume: Volume) -> str:
    if volume.persistent_volume_claim is not None:
        return str(volume.persistent_volume_claim.get("claimName", ""))
    return f"{pod.metadata.name}-{volume.name}"


def _is_owned(meta: Meta, uid: str) -> bool:
    return any(owner.controller and owner.uid == uid for owner in meta.owner_references or ())


def _is_bound(claim: ClaimObject) -> bool:
    """Whether the binding of claim and volume is complete; before that it may still change."""
    return bool(claim.spec.volume_name) and BIND_COMPLETED in (claim.metadata.annotations or {})


def _read_affinity(volume: VolumeObject) -> tuple[NodeTerms, ...]:
    written = volume.spec.node_affinity
    terms = node_terms(msgspec.convert(written, _VolumeAffinity).required) if written else None
    return (terms,) if terms is not None else ()


def _read_zones(labels: Mapping[str, str]) -> Iterator[NodeTerms]:
    """Node terms from the zone labels of a volume (kube-scheduler's VolumeZone); a node without zones matches any."""
    nowhere = NodeTerm(
        tuple(Requirement(key, SelectorOperator.DOES_NOT_EXIST) for keys in _ZONE_LABELS for key in keys)
    )
    for old, new in _ZONE_LABELS:
        for key in (old, new):
            zones = tuple(zone.strip() for zone in labels[key].split("__")) if key in labels else ()
            if zones and all(zones):
                absent = Requirement(old, SelectorOperator.DOES_NOT_EXIST)
                instead = (absent, Requirement(new, SelectorOperator.IN, zones))
                yield (
                    nowhere,
                    NodeTerm((Requirement(key, SelectorOperator.IN, zones),)),
                    *([NodeTerm(instead)] if key == old else []),
                )


def _read_class(written: StorageClassObject) -> _StorageClass:
    allowed = msgspec.convert(written.allowed_topologies or [], list[TopologyTerm])
    waits = written.volume_binding_mode == "WaitForFirstConsumer"
    return _StorageClass(waits, topology_terms(allowed), written.provisioner != _NO_PROVISIONER)
