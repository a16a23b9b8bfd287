"""From changes of API objects to the engine's events. Nothing is decided and nothing is sent here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from gpu_scheduler.core.events import Event, NodeGone, NodeSeen, PodGone, PodSeen
from gpu_scheduler.gangs.queues import QueueBook
from gpu_scheduler.gangs.registry import GangRegistry
from gpu_scheduler.k8s.informer import ChangeKind, ObjectChange
from gpu_scheduler.k8s.objects import (
    ClaimObject,
    NodeObject,
    Object,
    PodObject,
    PriorityClassObject,
    RawObject,
    StorageClassObject,
    VolumeObject,
)
from gpu_scheduler.k8s.resources import Resource
from gpu_scheduler.scheduler.decoding.decode import DecodeOptions, decode_node, decode_pod
from gpu_scheduler.scheduler.decoding.volumes import VolumeClaims, claims_of


class Translator:
    """Knows what belongs together: which pods a claim, a namespace or a group concerns. `events` is what came of it,
    `bound` are pods of ours that got their node meanwhile."""

    def __init__(self, reading: DecodeOptions, book: GangRegistry, queues: QueueBook) -> None:
        self.pods: dict[str, PodObject] = {}
        self.claims = VolumeClaims()
        self.events: list[Event] = []
        self.bound: list[PodObject] = []
        self.book = book
        self.queues = queues
        self._reading = reading
        self._labels: dict[str, Mapping[str, str]] = {}
        self._users: dict[tuple[str, str], dict[str, None]] = {}

    def take(self) -> list[Event]:
        """The events since the last call."""
        events, self.events = self.events, []
        return events

    def take_bound(self) -> list[PodObject]:
        """The pods of ours that got their node since the last call."""
        bound, self.bound = self.bound, []
        return bound

    # -- what pods are made of

    def see_pods(self, changes: Sequence[ObjectChange[PodObject]]) -> None:
        """Pods came, changed or went."""
        for kind, pod, old in changes:
            uid = pod.metadata.uid
            if kind is ChangeKind.DELETED:
                self.pods.pop(uid, None)
                self._forget_claims(pod)
                self.events += self.book.lose_pod(pod)
                self.events.append(PodGone(uid, maybe_bound=pod is old or bool(pod.spec.node_name)))
                continue
            self.pods[uid] = pod
            for name in claims_of(pod):
                self._users.setdefault((pod.metadata.namespace, name), {})[uid] = None
            if old is not None and pod.spec.node_name and not old.spec.node_name and self._is_ours(pod):
                self.bound.append(pod)
            self.events += self.book.see_pod(pod)
            self._tell_pod(pod)

    def _forget_claims(self, pod: PodObject) -> None:
        for name in claims_of(pod):
            users = self._users.get((pod.metadata.namespace, name), {})
            users.pop(pod.metadata.uid, None)
            if not users:
                self._users.pop((pod.metadata.namespace, name), None)

    def see_namespaces(self, changes: Sequence[ObjectChange[Object]]) -> None:
        """The labels of a namespace count for every pod in it."""
        moved = set()
        for kind, namespace, _ in changes:
            labels = namespace.metadata.labels or {} if kind is not ChangeKind.DELETED else {}
            if labels != self._labels.get(namespace.metadata.name, {}):
                moved.add(namespace.metadata.name)
            self._labels[namespace.metadata.name] = labels
            if kind is ChangeKind.DELETED:
                del self._labels[namespace.metadata.name]
        if moved:
            self._tell_pods(pod for pod in self.pods.values() if pod.metadata.namespace in moved)

    def see_claims(self, changes: Sequence[ObjectChange[ClaimObject]]) -> None:
        """VolumeClaims concern the pods that use them."""
        for kind, claim, _ in changes:
            (self.claims.remove if kind is ChangeKind.DELETED else self.claims.put)(claim)
            users = self._users.get((claim.metadata.namespace, claim.metadata.name), {})
            self._tell_pods(self.pods[uid] for uid in users if uid in self.pods)

    def see_volumes(self, changes: Sequence[ObjectChange[VolumeObject] | ObjectChange[StorageClassObject]]) -> None:
        """Volumes and their classes concern every waiting pod with a claim."""
        for kind, found, _ in changes:
            (self.claims.remove if kind is ChangeKind.DELETED else self.claims.put)(found)
        concerned = {uid: None for users in self._users.values() for uid in users}
        self._tell_pods(self.pods[uid] for uid in concerned if uid in self.pods and not self.pods[uid].spec.node_name)

    def _is_ours(self, pod: PodObject) -> bool:
        return pod.spec.scheduler_name in self._reading.scheduler_names

    def _tell_pods(self, pods: Iterable[PodObject]) -> None:
        for pod in pods:
            self._tell_pod(pod)

    def _tell_pod(self, pod: PodObject) -> None:
        labels = self._labels.get(pod.metadata.namespace, {})
        member = self.book.membership(pod)
        self.events.append(PodSeen(decode_pod(pod, member, self.claims, labels, self._reading)))

    # -- the rest

    def see_nodes(self, changes: Sequence[ObjectChange[NodeObject]]) -> None:
        """Nodes came, changed or went."""
        for kind, node, _ in changes:
            if kind is ChangeKind.DELETED:
                self.events.append(NodeGone(node.metadata.name))
            else:
                self.events.append(NodeSeen(decode_node(node, self._reading)))

    def see_groups(self, dialect: str, changes: Sequence[ObjectChange[RawObject]]) -> None:
        """Gang objects came, changed or went; pods may have to be told again."""
        for kind, raw, _ in changes:
            see = self.book.lose_object if kind is ChangeKind.DELETED else self.book.see_object
            self.events += see(dialect, raw)
        self._tell_pods(self.book.take_affected())

    def see_priority_classes(self, changes: Sequence[ObjectChange[PriorityClassObject]]) -> None:
        """Gangs may name a class for their priority."""
        classes = dict(self.book.context.priority_classes)
        for kind, found, _ in changes:
            if kind is ChangeKind.DELETED:
                classes.pop(found.metadata.name, None)
            else:
                classes[found.metadata.name] = found.value
        self.book.context.priority_classes = classes
        self.read_groups_again()

    def read_groups_again(self) -> None:
        """Something that gangs are read by has changed."""
        self.events += self.book.read_again()
        self._tell_pods(self.book.take_affected())

    def see_queues(self, resource: Resource, changes: Sequence[ObjectChange[RawObject]]) -> None:
        """Queues came, changed or went, ours or Volcano's."""
        for kind, raw, _ in changes:
            see = self.queues.lose if kind is ChangeKind.DELETED else self.queues.see
            self.events += see(resource, raw)
