"""The translator: events of each change, also for pods that did not change themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import pytest

from gpu_scheduler.core.events import (
    Event,
    GangGone,
    GangSeen,
    NodeGone,
    NodeSeen,
    PodGone,
    PodSeen,
    QueueGone,
    QueueSeen,
)
from gpu_scheduler.core.model import GangKey, GateKind, Pod, Queue
from gpu_scheduler.core.selectors import NodeTerm, Requirement, SelectorOperator
from gpu_scheduler.gangs.contract import QUEUE, QUEUES, VOLCANO_QUEUES
from gpu_scheduler.gangs.options import VOLCANO_QUEUE
from gpu_scheduler.gangs.queues import QueueRegistry
from gpu_scheduler.gangs.registry import GangRegistry
from gpu_scheduler.k8s.informer import ChangeKind, HasMetadata, ObjectChange
from gpu_scheduler.k8s.objects import (
    ClaimObject,
    Object,
    PodObject,
    PriorityClassObject,
    RawObject,
    StorageClassObject,
    VolumeObject,
)
from gpu_scheduler.scheduler.translate import Translator
from tests.unit.gangs.gang_fixtures import context, group
from tests.unit.gangs.pods import GPU, READING, as_sent, node, pod

T = TypeVar("T", bound=HasMetadata)
NATIVE = GangKey("podgroup", "x", "train")
DONE = {"pv.kubernetes.io/bind-completed": "yes"}


def translator() -> Translator:
    return Translator(READING, GangRegistry(context()), QueueRegistry())


def added(*found: T) -> list[ObjectChange[T]]:
    return [ObjectChange(ChangeKind.ADDED, each, None) for each in found]


def changed(old: T, new: T) -> list[ObjectChange[T]]:
    return [ObjectChange(ChangeKind.MODIFIED, new, old)]


def deleted(*found: T) -> list[ObjectChange[T]]:
    return [ObjectChange(ChangeKind.DELETED, each, each) for each in found]


def pods_in(events: Sequence[Event]) -> dict[str, Pod]:
    return {event.pod.name: event.pod for event in events if isinstance(event, PodSeen)}


def kinds(events: Sequence[Event]) -> list[str]:
    return [type(event).__name__ for event in events]


def namespace(name: str = "x", **labels: str) -> Object:
    return as_sent(Object, {"metadata": {"name": name, "labels": labels}})


def native(name: str, **more: Any) -> PodObject:
    return pod(name, schedulingGroup={"podGroupName": "train"}, **more)


def podgroup(policy: str = "gang", **spec: Any) -> RawObject:
    what: dict[str, Any] = {"gang": {"minCount": 2}} if policy == "gang" else {"basic": {}}
    return group(schedulingPolicy=what, **spec)


def user(name: str, claim: str, **more: Any) -> PodObject:
    return pod(name, volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": claim}}], **more)


def claim(name: str = "data", volume: str = "", annotations: dict[str, str] | None = None) -> ClaimObject:
    meta = {"name": name, "namespace": "x", "annotations": annotations or {}}
    return as_sent(ClaimObject, {"metadata": meta, "spec": {"volumeName": volume, "storageClassName": "fast"}})


def volume(zone: str) -> VolumeObject:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}]
    spec = {"nodeAffinity": {"required": {"nodeSelectorTerms": terms}}}
    return as_sent(VolumeObject, {"metadata": {"name": "pv"}, "spec": spec})


# -- pods


def test_pods_are_added_changed_and_deleted_and_events_are_taken_once() -> None:
    see = translator()
    first = pod("a")
    see.on_pods_changed(added(first, pod("b")))
    assert list(pods_in(see.take_events())) == ["a", "b"]
    assert see.take_events() == []
    assert see.pods[first.metadata.uid] is first
    see.on_pods_changed(deleted(first))
    assert [event.uid for event in see.take_events() if isinstance(event, PodGone)] == ["uid-a"]
    assert list(see.pods) == ["uid-b"]


@pytest.mark.parametrize(
    ("last", "maybe"),
    [(pod("a"), False), (pod("a", nodeName="n0"), True), (None, True)],
    ids=["last state without node", "last state with node", "last state unknown"],
)
def test_a_deleted_pod_may_have_been_bound_unless_its_last_state_is_known(last: PodObject | None, maybe: bool) -> None:
    see = translator()
    first = pod("a")
    see.on_pods_changed(added(first))
    see.take_events()
    see.on_pods_changed([ObjectChange(ChangeKind.DELETED, last or first, first)])
    assert see.take_events() == [PodGone("uid-a", maybe_bound=maybe)]


def test_a_replaced_pod_is_deleted_before_its_successor_is_added() -> None:
    see = translator()
    old, new = pod("a"), pod("a", meta={"uid": "uid-a2"})
    see.on_pods_changed(added(old))
    see.take_events()
    see.on_pods_changed([*deleted(old), *added(new)])
    assert [getattr(event, "uid", "") or event.pod.uid for event in see.take_events()] == ["uid-a", "uid-a2"]  # type: ignore[union-attr]
    assert list(see.pods) == ["uid-a2"]


@pytest.mark.parametrize(
    ("before", "after", "noted"),
    [
        ({}, {"nodeName": "n0"}, True),
        ({}, {}, False),
        ({"nodeName": "n0"}, {"nodeName": "n0"}, False),
        ({"schedulerName": "other"}, {"nodeName": "n0", "schedulerName": "other"}, False),
        (None, {"nodeName": "n0"}, False),
    ],
    ids=["bound", "still waiting", "bound before", "of another scheduler", "bound when first seen"],
)
def test_pods_of_ours_are_recorded_when_they_are_bound(
    before: dict[str, Any] | None, after: dict[str, Any], noted: bool
) -> None:
    see = translator()
    bound = pod("a", **after)
    if before is None:
        see.on_pods_changed(added(bound))
    else:
        old = pod("a", **before)
        see.on_pods_changed(added(old))
        see.on_pods_changed(changed(old, bound))
    assert see.take_bound_pods() == ([bound] if noted else [])
    assert see.take_bound_pods() == []


def test_a_gang_is_reported_before_the_pod_that_completes_it() -> None:
    see = translator()
    see.on_groups_changed("podgroup", added(podgroup()))
    assert see.take_events() == []
    see.on_pods_changed(added(native("a")))
    events = see.take_events()
    assert kinds(events) == ["GangSeen", "PodSeen"]
    assert pods_in(events)["a"].gang == NATIVE
    see.on_pods_changed(added(native("b")))
    assert kinds(see.take_events()) == ["PodSeen"]


# -- namespaces


def test_changed_namespace_labels_affect_all_pods_of_the_namespace() -> None:
    see = translator()
    see.on_namespaces_changed(added(namespace(team="blue"), namespace("y", team="red")))
    assert see.take_events() == []
    elsewhere = pod("c", meta={"namespace": "y", "uid": "uid-c"})
    see.on_pods_changed(added(pod("a"), pod("b"), elsewhere))
    assert {found.namespace_labels["team"] for found in pods_in(see.take_events()).values()} == {"blue", "red"}
    see.on_namespaces_changed(changed(namespace(team="blue"), namespace(team="green")))
    told = pods_in(see.take_events())
    assert {name: found.namespace_labels for name, found in told.items()} == {
        "a": {"team": "green"},
        "b": {"team": "green"},
    }


def test_unchanged_namespace_labels_affect_no_pod() -> None:
    see = translator()
    see.on_namespaces_changed(added(namespace(team="blue")))
    see.on_pods_changed(added(pod("a")))
    see.take_events()
    see.on_namespaces_changed(changed(namespace(team="blue"), namespace(team="blue")))
    assert see.take_events() == []
    see.on_namespaces_changed(deleted(namespace(team="blue")))
    assert pods_in(see.take_events())["a"].namespace_labels == {}
    see.on_namespaces_changed(added(namespace(team="blue")))
    assert pods_in(see.take_events())["a"].namespace_labels == {"team": "blue"}


@pytest.mark.parametrize(
    ("meta", "queue"),
    [
        ({"annotations": {QUEUE: "blue"}}, "blue"),
        ({"labels": {QUEUE: "blue"}}, "blue"),
        ({"annotations": {VOLCANO_QUEUE: "blue"}}, "blue"),
        ({"annotations": {QUEUE: "blue", VOLCANO_QUEUE: "green"}, "labels": {QUEUE: "red"}}, "blue"),
        ({"annotations": {QUEUE: "default"}}, ""),
        ({}, ""),
    ],
)
def test_a_namespace_names_the_queue_of_pods_that_name_none(meta: dict[str, Any], queue: str) -> None:
    see = translator()
    see.on_namespaces_changed(added(as_sent(Object, {"metadata": {"name": "x", **meta}})))
    see.on_pods_changed(added(pod("a"), pod("b", annotations={QUEUE: "own"})))
    assert {name: found.queue for name, found in pods_in(see.take_events()).items()} == {"a": queue, "b": "own"}


def test_gangs_and_pods_follow_the_default_queue_of_their_namespace() -> None:
    see = translator()
    see.on_groups_changed("podgroup", added(podgroup()))
    see.on_pods_changed(added(native("a"), pod("b"), pod("c", meta={"namespace": "y", "uid": "uid-c"})))
    see.take_events()

    def queues(events: Sequence[Event]) -> dict[str, str]:
        gangs = {event.gang.key.name: event.gang.queue for event in events if isinstance(event, GangSeen)}
        return gangs | {name: found.queue for name, found in pods_in(events).items()}

    named = as_sent(Object, {"metadata": {"name": "x", "annotations": {QUEUE: "blue"}}})
    see.on_namespaces_changed(added(named, namespace("y")))
    events = see.take_events()
    assert queues(events) == {"train": "blue", "uid-b": "blue", "a": "blue", "b": "blue"}
    assert kinds(events) == ["GangSeen", "GangSeen", "PodSeen", "PodSeen"]
    see.on_namespaces_changed(changed(named, named))
    assert see.take_events() == []
    see.on_namespaces_changed(deleted(named))
    assert queues(see.take_events()) == {"train": "", "uid-b": "", "a": "", "b": ""}


# -- claims and volumes


def test_a_claim_affects_the_pods_that_use_it() -> None:
    see = translator()
    first, other = user("a", "data"), user("b", "logs")
    see.on_pods_changed(added(first, other))
    assert pods_in(see.take_events())["a"].gates[0].kind is GateKind.MISSING_CLAIM
    see.on_claims_changed(added(claim()))
    told = pods_in(see.take_events())
    assert list(told) == ["a"]
    assert told["a"].gates[0].kind is GateKind.UNBOUND_CLAIM
    see.on_claims_changed(deleted(claim()))
    assert pods_in(see.take_events())["a"].gates[0].kind is GateKind.MISSING_CLAIM
    see.on_pods_changed(deleted(first))
    see.take_events()
    see.on_claims_changed(added(claim()))
    assert see.take_events() == []


def test_claims_of_deleted_pods_are_forgotten() -> None:
    see = translator()
    for number in range(100):
        one = user(f"p{number}", f"data-{number}")
        see.on_pods_changed(added(one))
        see.on_pods_changed(deleted(one))
    assert not see._users


def test_volumes_and_classes_affect_waiting_pods_with_claims() -> None:
    see = translator()
    see.on_claims_changed(added(claim(volume="pv", annotations=DONE)))
    see.on_pods_changed(added(user("waits", "data"), user("runs", "data", nodeName="n0"), pod("plain")))
    assert pods_in(see.take_events())["waits"].gates
    see.on_volumes_changed(added(volume("b")))
    told = pods_in(see.take_events())
    assert list(told) == ["waits"]
    zone = Requirement("zone", SelectorOperator.IN, ("b",))
    assert (told["waits"].gates, told["waits"].shape.volume_terms) == ((), ((NodeTerm((zone,)),),))
    see.on_volumes_changed(deleted(volume("b")))
    assert pods_in(see.take_events())["waits"].gates


def test_a_class_that_waits_for_its_first_consumer_does_not_gate_the_pod() -> None:
    see = translator()
    see.on_claims_changed(added(claim()))
    waiting = user("a", "data")
    see.on_pods_changed(added(waiting))
    assert pods_in(see.take_events())["a"].gates
    body = {"metadata": {"name": "fast"}, "provisioner": "x", "volumeBindingMode": "WaitForFirstConsumer"}
    see.on_volumes_changed(added(as_sent(StorageClassObject, body)))
    assert pods_in(see.take_events())["a"].gates == ()
    assert see.claims.unbound(waiting) == {"data": ""}


# -- groups, classes, queues, nodes


def test_a_group_that_becomes_basic_releases_its_pods_and_can_take_them_back() -> None:
    see = translator()
    see.on_groups_changed("podgroup", added(podgroup()))
    see.on_pods_changed(added(native("a"), native("b"), pod("other")))
    assert pods_in(see.take_events())["b"].gang == NATIVE
    see.on_groups_changed("podgroup", changed(podgroup(), podgroup("basic")))
    events = see.take_events()
    assert events[0] == GangGone(NATIVE)
    assert {name: found.gang for name, found in pods_in(events).items()} == {"a": None, "b": None}
    see.on_groups_changed("podgroup", changed(podgroup("basic"), podgroup()))
    events = see.take_events()
    assert isinstance(events[0], GangSeen)
    assert {name: found.gang for name, found in pods_in(events).items()} == {"a": NATIVE, "b": NATIVE}


def test_a_deleted_group_keeps_its_pods() -> None:
    see = translator()
    see.on_groups_changed("podgroup", added(podgroup()))
    see.on_pods_changed(added(native("a")))
    see.take_events()
    see.on_groups_changed("podgroup", deleted(podgroup()))
    assert see.take_events() == [GangGone(NATIVE)]


def test_priority_classes_set_the_priority_of_gangs() -> None:
    see = translator()
    see.on_groups_changed("podgroup", added(podgroup(priorityClassName="high")))
    see.on_pods_changed(added(native("a")))
    priorities = [event.gang.priority for event in see.take_events() if isinstance(event, GangSeen)]
    high = as_sent(PriorityClassObject, {"metadata": {"name": "high"}, "value": 1000})
    raised = as_sent(PriorityClassObject, {"metadata": {"name": "high"}, "value": 2000})
    for changes in (added(high), changed(high, raised), changed(raised, raised), deleted(raised)):
        see.on_priority_classes_changed(changes)
        priorities += [event.gang.priority for event in see.take_events() if isinstance(event, GangSeen)]
    assert priorities == [None, 1000, 2000, None]


def test_queues_of_both_kinds_are_added_and_deleted() -> None:
    see = translator()
    see.on_queues_changed(VOLCANO_QUEUES, added(group("blue", weight=2)))
    see.on_queues_changed(QUEUES, added(group("blue", quota={GPU: "4"})))
    see.on_queues_changed(QUEUES, deleted(group("blue")))
    see.on_queues_changed(VOLCANO_QUEUES, deleted(group("blue")))
    assert see.take_events() == [
        QueueSeen(Queue("blue", 2)),
        QueueSeen(Queue("blue", quota={GPU: 4})),
        QueueSeen(Queue("blue", 2)),
        QueueGone("blue"),
    ]


def test_nodes_are_added_and_deleted() -> None:
    see = translator()
    seen = node("n0", capacity={GPU: "8"}, allocatable={GPU: "8"})
    see.on_nodes_changed(added(seen))
    see.on_nodes_changed(deleted(seen))
    came, went = see.take_events()
    assert isinstance(came, NodeSeen)
    assert (came.node.name, came.node.gpus, went) == ("n0", 8, NodeGone("n0"))
