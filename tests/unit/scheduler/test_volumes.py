"""Volume constraints: node terms and gates of a pod's claims."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_scheduler.core.cluster.node_table import NodeTable
from gpu_scheduler.core.model import GateKind, Node
from gpu_scheduler.core.selectors import NodeTerm, Requirement, SelectorOperator
from gpu_scheduler.k8s.objects import ClaimObject, Json, PodObject, StorageClassObject, VolumeObject
from gpu_scheduler.scheduler.decoding.volumes import VolumeClaims, VolumeConstraints, claims_of
from tests.unit.gangs.pods import as_sent, pod

ZONE, REGION = "topology.kubernetes.io/zone", "topology.kubernetes.io/region"
OLD_ZONE = "failure-domain.beta.kubernetes.io/zone"
DONE = {"pv.kubernetes.io/bind-completed": "yes"}
IN_A = NodeTerm((Requirement(ZONE, SelectorOperator.IN, ("a",)),))


def claim(name: str = "data", annotations: Json | None = None, **fields: Any) -> ClaimObject:
    meta = {"name": name, "namespace": "x", "annotations": annotations or {}} | fields.pop("meta", {})
    return as_sent(ClaimObject, {"metadata": meta, "status": fields.pop("status", {}), "spec": fields})


def volume(name: str = "pv1", zone: str | None = "a", labels: Json | None = None) -> VolumeObject:
    terms = [{"matchExpressions": [{"key": ZONE, "operator": "In", "values": [zone]}]}]
    spec = {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}} if zone else {"capacity": {"storage": "1Gi"}}
    return as_sent(VolumeObject, {"metadata": {"name": name, "labels": labels or {}}, "spec": spec})


def storage_class(name: str = "fast", waits: bool = True, **fields: Any) -> StorageClassObject:
    mode = "WaitForFirstConsumer" if waits else "Immediate"
    return as_sent(
        StorageClassObject,
        {"metadata": {"name": name}, "provisioner": "example.com/disk", "volumeBindingMode": mode} | fields,
    )


def user(*claims: str, **fields: Any) -> PodObject:
    """A pod that uses claims beside the usual volumes."""
    token = {"name": "token", "projected": {"sources": []}}
    mounted = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in claims]
    return pod(volumes=[token, *mounted, *fields.pop("volumes", [])], **fields)


def known(*objects: ClaimObject | VolumeObject | StorageClassObject) -> VolumeClaims:
    found = VolumeClaims()
    for one in objects:
        found.put(one)
    return found


def test_a_pod_without_claims_has_no_constraints() -> None:
    assert known().constraints(user()) == VolumeConstraints()
    assert claims_of(user()) == ()
    assert known().unbound(pod()) == {}


def test_a_bound_claim_restricts_the_pod_to_the_nodes_of_its_volume() -> None:
    claims = known(claim(annotations=DONE, volumeName="pv1"), volume())
    assert claims.constraints(user("data")) == VolumeConstraints(((IN_A,),))
    assert claims.unbound(user("data")) == {}


def test_a_volume_without_affinity_has_no_constraints() -> None:
    claims = known(claim(annotations=DONE, volumeName="pv1"), volume(zone=None))
    assert claims.constraints(user("data")) == VolumeConstraints()


def test_constraints_of_all_claims_apply_without_duplicates() -> None:
    bound = [claim(name, DONE, volumeName=f"pv-{name}") for name in "abc"]
    claims = known(*bound, volume("pv-a"), volume("pv-b"), volume("pv-c", "b"))
    assert len(claims.constraints(user("a", "b", "c")).terms) == 2


def test_a_claim_that_waits_for_its_first_consumer_is_unbound() -> None:
    claims = known(claim(storageClassName="fast"), storage_class())
    assert claims.constraints(user("data")) == VolumeConstraints()
    assert claims.unbound(user("data")) == {"data": ""}


def test_allowed_topologies_of_a_storage_class_apply() -> None:
    allowed = [{"matchLabelExpressions": [{"key": ZONE, "values": ["a"]}]}]
    claims = known(claim(storageClassName="fast"), storage_class(allowedTopologies=allowed))
    assert claims.constraints(user("data")) == VolumeConstraints(((IN_A,),))


def test_a_claim_with_a_selected_node_restricts_the_pod_to_it() -> None:
    chosen = {"volume.kubernetes.io/selected-node": "node3"}
    claims = known(claim(annotations=chosen, storageClassName="fast"), storage_class())
    named = NodeTerm(fields=(Requirement("metadata.name", SelectorOperator.IN, ("node3",)),))
    assert claims.constraints(user("data")) == VolumeConstraints(((named,),))
    assert claims.unbound(user("data")) == {"data": "node3"}


def test_selected_node_and_allowed_topologies_both_apply() -> None:
    chosen = {"volume.kubernetes.io/selected-node": "node3"}
    allowed = [{"matchLabelExpressions": [{"key": ZONE, "values": ["a"]}]}]
    claims = known(claim(annotations=chosen, storageClassName="fast"), storage_class(allowedTopologies=allowed))
    named = NodeTerm(fields=(Requirement("metadata.name", SelectorOperator.IN, ("node3",)),))
    assert claims.constraints(user("data")) == VolumeConstraints(((named,), (IN_A,)))


@pytest.mark.parametrize(
    ("labels", "accepted"),
    [
        pytest.param({ZONE: "a"}, "zone-a unzoned", id="one zone"),
        pytest.param({ZONE: "a__b"}, "zone-a zone-b unzoned", id="two zones"),
        pytest.param({OLD_ZONE: "b"}, "zone-b old-b unzoned", id="the old label, also on nodes with the new one"),
        pytest.param({ZONE: "b"}, "zone-b unzoned", id="the new label, not on nodes with the old one"),
        pytest.param({ZONE: "a", REGION: "west"}, "unzoned", id="zone and region together"),
        pytest.param({ZONE: "a__"}, "zone-a zone-b old-b unzoned", id="invalid list of zones"),
    ],
)
def test_zone_labels_of_a_volume_apply(labels: Json, accepted: str) -> None:
    claims = known(claim(annotations=DONE, volumeName="pv1"), volume(zone=None, labels=labels))
    nodes = {"zone-a": {ZONE: "a"}, "zone-b": {ZONE: "b"}, "old-b": {OLD_ZONE: "b"}, "unzoned": {"disk": "ssd"}}
    table = NodeTable()
    for name, node_labels in nodes.items():
        table.put(Node(name, {}, node_labels))
    terms = claims.constraints(user("data")).terms
    found = [name for name in nodes if all(table.match_any(t, table.everywhere)[table.slots[name]] for t in terms)]
    assert found == accepted.split()


@pytest.mark.parametrize(
    ("objects", "kind", "said"),
    [
        pytest.param([], GateKind.MISSING_CLAIM, "does not exist; create it", id="missing"),
        pytest.param(
            [claim(meta={"deletionTimestamp": "2025-01-01T00:00:00Z"})],
            GateKind.MISSING_CLAIM,
            "is being deleted",
            id="deleting",
        ),
        pytest.param([claim(status={"phase": "Lost"})], GateKind.MISSING_CLAIM, "has lost its volume", id="lost"),
        pytest.param(
            [claim(annotations=DONE, volumeName="pv1")],
            GateKind.MISSING_CLAIM,
            "persistentvolume pv1 of claim data does not exist",
            id="no-volume",
        ),
        pytest.param(
            [claim(storageClassName="slow"), storage_class("slow", waits=False)],
            GateKind.UNBOUND_CLAIM,
            "is not bound to a volume yet",
            id="immediate",
        ),
        pytest.param([claim()], GateKind.UNBOUND_CLAIM, "is not bound to a volume yet", id="no-class"),
        pytest.param(
            [claim(volumeName="pv1", storageClassName="fast"), storage_class(), volume()],
            GateKind.UNBOUND_CLAIM,
            "is not bound to a volume yet",
            id="half-bound",
        ),
        pytest.param(
            [claim(storageClassName="fast")],
            GateKind.UNBOUND_CLAIM,
            "there is no storageclass fast",
            id="no-such-class",
        ),
        pytest.param(
            [claim(storageClassName="fast"), storage_class(provisioner="kubernetes.io/no-provisioner")],
            GateKind.UNBOUND_CLAIM,
            "storageclass fast makes no volumes; set spec.volumeName",
            id="by-hand",
        ),
    ],
)
def test_a_gate_names_the_claim_that_the_pod_waits_for(
    objects: list[ClaimObject | VolumeObject | StorageClassObject], kind: GateKind, said: str
) -> None:
    (gate,) = known(*objects).constraints(user("data")).gates
    assert gate.kind is kind
    assert said in gate.subject
    assert "data" in gate.subject


def test_removed_objects_are_forgotten() -> None:
    objects = (claim(annotations=DONE, volumeName="pv1"), volume(), storage_class())
    claims = known(*objects)
    for one in objects:
        claims.remove(one)
        claims.remove(one)
    assert claims.constraints(user("data")).gates[0].kind is GateKind.MISSING_CLAIM


def test_an_ephemeral_volume_needs_a_claim_owned_by_the_pod() -> None:
    raw = user(volumes=[{"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {}}}}])
    assert claims_of(raw) == ("worker-0-scratch",)
    assert "is not made yet" in known().constraints(raw).gates[0].subject
    owner = {"kind": "Pod", "name": "worker-0", "uid": raw.metadata.uid, "controller": True}
    made = claim("worker-0-scratch", meta={"ownerReferences": [owner]}, storageClassName="fast")
    assert known(made, storage_class()).constraints(raw) == VolumeConstraints()
    stray = claim("worker-0-scratch", storageClassName="fast")
    assert "was not made for this pod" in known(stray, storage_class()).constraints(raw).gates[0].subject


def test_the_beta_annotation_names_the_storage_class() -> None:
    old = claim(annotations={"volume.beta.kubernetes.io/storage-class": "fast"})
    assert known(old, storage_class()).constraints(user("data")) == VolumeConstraints()
